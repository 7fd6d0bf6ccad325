//! `cargo xtask demo`: the demonstration on the simulated runtime.

use crate::{
    shell::{self, Result, announce, cargo},
    toolchain,
};
use std::process::Command;

/// Run the demonstration on the simulated CUDA runtime; needs no GPU
///
/// Everything after `demo` goes to the program: `cargo xtask demo --help` shows this text, `cargo xtask demo -- --help` the
/// options of the demonstration itself.
#[derive(clap::Args)]
pub struct Arguments {
    /// Arguments for `memmgr demo`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    let found = toolchain::check_compilers()?;
    announce("demo", &found);
    // Built apart, by a cargo that says what it compiles: it takes minutes, in which nothing else is said.
    shell::run(&mut on_program(&["build"]))?;
    let mut run = on_program(&["run", "--quiet"]);
    shell::run(run.args(["--", "demo"]).args(&arguments.arguments))
}

/// What cargo is to do with the program.
fn on_program(verb: &[&str]) -> Command {
    let mut command = cargo(verb.iter().copied());
    command.args(["--release", "-p", "memmgr-cli", "--features", "sim"]);
    command
}

#[cfg(test)]
mod tests {
    use super::on_program;
    use crate::shell::typed;

    #[test]
    fn the_build_says_what_it_compiles_and_builds_what_is_run() {
        let typed = |verb: &[&str]| typed(&on_program(verb));
        assert!(!typed(&["build"]).contains("--quiet"));
        let ran = typed(&["run", "--quiet"]);
        assert_eq!(
            ran.replace("run --quiet", "build"),
            typed(&["build"]),
            "the same features, so that nothing is built twice"
        );
    }
}
