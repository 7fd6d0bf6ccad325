//! `cargo xtask test`: the tests on the simulated runtime, with a summary.

use crate::{
    programs,
    shell::{BACKEND, Result, announce, cargo, root, say},
    toolchain,
};
use std::{fs, process::Command, thread, time::Instant};

/// Run all tests on the simulated CUDA runtime; needs no GPU
///
/// Unit tests, integration tests and the examples in the documentation, of every crate. Ends with a summary.
#[derive(clap::Args)]
pub struct Arguments {
    /// Also the slow tests, which are marked `ignored`, and ten minutes of random programs (MEMMGR_PROGRAM_SECONDS, if that
    /// is set)
    #[arg(long)]
    full: bool,
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// The tests of the program run it on the simulated runtime, for which it has a feature of its own.
pub const SIMULATED_PROGRAM: &str = "--features=memmgr-cli/sim";

/// For how long `tests/tests/random` goes on.
const PROGRAM_SECONDS: &str = "MEMMGR_PROGRAM_SECONDS";

/// How many test programs run at once at most, each with as many threads as there are cores: some of them measure time.
const AT_ONCE: usize = 4;

/// What test programs reported.
#[derive(Default)]
struct Counts {
    programs: usize,
    passed: usize,
    failed: usize,
    ignored: usize,
    /// The reports of tests that failed, by name.
    failures: Vec<String>,
    /// What tests said that found that they cannot run here: name and reason. They count as passed.
    skipped: Vec<String>,
    /// Inside what tests that passed had printed.
    quiet: bool,
}

impl Counts {
    /// Reads one line of a test program's output; whether the user should see it.
    ///
    /// The programs run with `--show-output`, without which nobody would hear of a test that skips itself. All else
    /// that tests which passed have printed is left out again.
    fn read(&mut self, line: &str) -> bool {
        if let Some(skipped) = line.strip_prefix("SKIPPED ") {
            self.skipped.push(skipped.to_string());
            return true;
        }
        if line == "successes:" {
            self.quiet = true;
        } else if ["failures:", "test result: ", "running "]
            .iter()
            .any(|start| line.starts_with(start))
        {
            self.quiet = false;
        }
        if !self.quiet {
            self.count(line);
        }
        !self.quiet
    }

    fn count(&mut self, line: &str) {
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
    announce("test", &found);
    let start = Instant::now();
    let mut counts = Counts::default();
    let filter = arguments.filter.as_deref();
    // Built apart, so that a build that fails does not look like tests that fail.
    let selection = if arguments.full { &SLOW[..] } else { &[] };
    let built = programs::built(command(selection, filter).arg("--no-run"))
        .map_err(|e| format!("the build failed, so no test ran: {e}"))?;
    if built.is_empty() {
        return Err("cargo built no test program".to_string());
    }
    let mut words: Vec<String> = filter.iter().map(ToString::to_string).collect();
    words.push("--show-output".to_string());
    // Examples in the documentation that are marked `ignore` do not compile: they are not asked for.
    let mut examples = command(&["--doc"], filter);
    examples.args(["--", "--show-output"]);
    if arguments.full {
        words.push("--include-ignored".to_string());
    }
    let mut commands = vec![("examples in the documentation".to_string(), examples)];
    commands.extend(built.iter().map(|program| {
        let mut command = program.command(&words);
        if arguments.full && std::env::var_os(PROGRAM_SECONDS).is_none() {
            command.env(PROGRAM_SECONDS, "600");
        }
        (program.name().to_string(), command)
    }));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut silent = Vec::new();
    // With a filter most programs have nothing to run: they are not named.
    let named = filter.is_none();
    let mut failed = programs::run(commands, cores.min(AT_ONCE), named, |name, lines| {
        if !has_reported(lines) {
            silent.push(format!("{name}, which reported nothing"));
        }
        for line in with_tests(lines) {
            if counts.read(line) {
                println!("{line}");
            }
        }
    });
    failed.extend(silent);
    let result = match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("tests failed in {}", failed.join(", "))),
    };
    say("");
    for name in &counts.failures {
        say(format!("failed: {name}"));
    }
    for skipped in &counts.skipped {
        say(format!("skipped: {skipped}"));
    }
    say(format!(
        "backend: {BACKEND}: {} passed ({} skipped), {} failed, {} ignored in {} programs, {:.0} s",
        counts.passed,
        counts.skipped.len(),
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

/// What programs printed that had a test to run: reports of none are left out, and with them the name of the program, if it
/// has no other.
fn with_tests(lines: &[String]) -> Vec<&str> {
    let mut kept: Vec<&str> = Vec::new();
    let (mut empty, mut reports) = (false, 0);
    for line in lines {
        empty |= line == "running 0 tests";
        if !empty {
            kept.push(line);
        }
        if line.starts_with("test result: ") {
            reports += usize::from(!empty);
            empty = false;
        }
    }
    let has_words = kept.iter().skip(2).any(|line| !line.is_empty());
    if reports == 0 && !has_words && has_reported(lines) {
        return Vec::new();
    }
    kept
}

/// Whether a test program has said what came of its tests: one that ends early, and well, has not.
fn has_reported(lines: &[String]) -> bool {
    lines.iter().any(|line| line.starts_with("test result: "))
}

/// With the slow tests: all but the examples in the documentation.
const SLOW: [&str; 3] = ["--lib", "--bins", "--tests"];

/// The names of the test programs in a package's folder `tests`, for cargo.
pub fn programs_of(package: &str) -> Result<Vec<String>> {
    let folder = root().join(package).join("tests");
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".rs")?.to_string()))
        .collect();
    names.sort();
    Ok(names)
}

/// `cargo test` of one program of the suite, as it is built for [`run`]: chosen by package, it would be built anew, and with it
/// the crates that it needs, since their features would be others.
pub fn of_one(program: &str) -> Command {
    command(&["--test", program], None)
}

/// `cargo test` of the workspace, of these targets, and of tests whose name contains the filter.
fn command(selection: &[&str], filter: Option<&str>) -> Command {
    let mut command = cargo(["test", "--workspace", SIMULATED_PROGRAM, "--no-fail-fast"]);
    command.args(selection).args(filter);
    command
}

#[cfg(test)]
mod tests {
    use super::{Counts, has_reported, with_tests};

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

    #[test]
    fn programs_without_a_test_are_not_shown() {
        let shown = |text: &str| {
            let lines: Vec<String> = text.lines().map(str::to_string).collect();
            with_tests(&lines).join("\n")
        };
        let none = "\nsuite:\n\nrunning 0 tests\n\nsuccesses:\n\nsuccesses:\n\n\
                    test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\n";
        let one = "\nsuite:\n\nrunning 1 test\ntest a ... ok\n\n\
                   test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out";
        assert_eq!(shown(none), "");
        assert_eq!(shown(one), one);
        // Several reports, as of the examples of several crates.
        let both = shown(&format!("{none}{}", one.trim_start_matches("\nsuite:\n")));
        assert!(both.starts_with("\nsuite:\n") && both.contains("test a ... ok"));
        assert!(!both.contains("running 0"), "{both}");
        // One that ends early is shown.
        let early = "\nsuite:\nSegmentation fault";
        assert_eq!(shown(early), early);
        assert_eq!(shown("\nsuite:"), "\nsuite:");
    }

    #[test]
    fn a_program_that_ends_before_its_report_has_not_reported() {
        let lines = |text: &str| text.lines().map(str::to_string).collect::<Vec<_>>();
        assert!(has_reported(&lines(
            "running 0 tests\ntest result: ok. 0 passed"
        )));
        assert!(!has_reported(&lines("running 2 tests\ntest a ... ok")));
    }

    #[test]
    fn a_test_that_skips_itself_is_heard_of_and_other_output_of_passed_tests_is_not() {
        let mut counts = Counts::default();
        let output = "\
running 2 tests
test a ... ok
test b ... FAILED

successes:

---- a stdout ----
SKIPPED two_devices: there is one device
test c ... FAILED
something else

successes:
    a

failures:

---- b stdout ----
why

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        let shown: Vec<_> = output.lines().filter(|line| counts.read(line)).collect();
        assert_eq!(counts.skipped, ["two_devices: there is one device"]);
        assert_eq!(counts.failures, ["b"]);
        assert_eq!((counts.passed, counts.failed), (1, 1));
        assert!(shown.contains(&"SKIPPED two_devices: there is one device"));
        assert!(shown.contains(&"why") && !shown.contains(&"something else"));
    }
}
