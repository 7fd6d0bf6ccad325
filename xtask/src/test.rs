//! `cargo xtask test`: the tests on the simulated runtime, with a summary.

use crate::{
    shell::{Result, cargo, run_lines, say},
    toolchain,
};
use std::{process::Command, time::Instant};

/// Run all tests on the simulated CUDA runtime; needs no GPU
///
/// Unit tests, integration tests and the examples in the documentation, of every crate. Ends with a summary.
#[derive(clap::Args)]
pub struct Arguments {
    /// Also the slow tests, which are marked `ignored`
    #[arg(long)]
    full: bool,
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// The tests of the program run it on the simulated runtime, for which it has a feature of its own.
const SIMULATED_PROGRAM: &str = "--features=memmgr-cli/sim";

/// What test programs reported.
#[derive(Default)]
struct Counts {
    programs: usize,
    passed: usize,
    failed: usize,
    ignored: usize,
    /// The reports of tests that failed, by name.
    failures: Vec<String>,
}

impl Counts {
    /// Reads one line of a test program's output.
    fn read(&mut self, line: &str) {
        if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_string());
        }
        let Some(rest) = line.strip_prefix("test result: ") else {
            return;
        };
        self.programs += 1;
        for part in rest.split([';', '.']) {
            let mut words = part.split_whitespace();
            if let (Some(number), Some(kind)) = (
                words.next().and_then(|n| n.parse::<usize>().ok()),
                words.next(),
            ) {
                match kind {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    _ => {}
                }
            }
        }
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    let found = toolchain::check_compilers()?;
    say(format!(
        "test: {found}; simulated CUDA runtime, no GPU needed"
    ));
    let start = Instant::now();
    let mut counts = Counts::default();
    let filter = arguments.filter.as_deref();
    let mut commands: Vec<Command> = Vec::new();
    if arguments.full {
        // Examples in the documentation that are marked `ignore` do not compile, so they are asked for apart.
        let mut slow = cargo([
            "test",
            "--workspace",
            SIMULATED_PROGRAM,
            "--no-fail-fast",
            "--lib",
            "--bins",
            "--tests",
        ]);
        slow.args(filter).args(["--", "--include-ignored"]);
        let mut doc = cargo([
            "test",
            "--workspace",
            SIMULATED_PROGRAM,
            "--no-fail-fast",
            "--doc",
        ]);
        doc.args(filter);
        commands.extend([slow, doc]);
    } else {
        let mut all = cargo(["test", "--workspace", SIMULATED_PROGRAM, "--no-fail-fast"]);
        all.args(filter);
        commands.push(all);
    }
    let mut result = Ok(());
    for command in &mut commands {
        let ran = run_lines(command, |line| {
            counts.read(line);
            println!("{line}");
        });
        result = result.and(ran);
    }
    say("");
    for name in &counts.failures {
        say(format!("failed: {name}"));
    }
    say(format!(
        "{}: {} passed, {} failed, {} ignored in {} programs, {:.0} s",
        "backend: simulated CUDA runtime",
        counts.passed,
        counts.failed,
        counts.ignored,
        counts.programs,
        start.elapsed().as_secs_f64()
    ));
    if result.is_ok() && counts.passed == 0 && filter.is_some() {
        return Err(format!(
            "no test has `{}` in its name",
            filter.unwrap_or_default()
        ));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn results_of_several_programs_are_added() {
        let mut counts = Counts::default();
        counts.read("test a::b ... FAILED");
        counts.read("test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s");
        counts.read("test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s");
        assert_eq!(
            (
                counts.programs,
                counts.passed,
                counts.failed,
                counts.ignored
            ),
            (2, 7, 1, 2)
        );
        assert_eq!(counts.failures, ["a::b"]);
    }
}
