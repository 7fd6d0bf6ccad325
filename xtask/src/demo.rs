//! `cargo xtask demo`: the demonstration on the simulated runtime.

use crate::{
    shell::{self, Result, announce, cargo},
    toolchain,
};

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
    let words = [
        "run",
        "--quiet",
        "--release",
        "-p",
        "memmgr-cli",
        "--features",
        "sim",
        "--",
        "demo",
    ];
    shell::run(cargo(words).args(&arguments.arguments))
}
