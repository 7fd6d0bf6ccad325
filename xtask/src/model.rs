//! `cargo xtask model`: what threads share, in the simulator and in the manager, under a model checker.

use crate::shell::{self, Result, cargo, root, say};
use clap::Args;
use std::{env, path::PathBuf};

/// Run what threads share, in the simulator and in the manager, under a model checker (shuttle)
///
/// The tests of `cudart-sim/tests/model` call the C functions from threads of the checker, which tries many orders of
/// events; those of `tests/tests/model` call the manager, with the simulator below it. The build is one of its own, in target/model. Variables: MODEL_SCHEDULES (how many drawn schedules for each
/// program; 1000), MODEL_PREEMPTIONS (added to the number of preemptions up to which all schedules are tried; 0), MODEL_SEED.
#[derive(Args)]
pub struct Arguments {
    /// Many more schedules: some twenty minutes
    #[arg(long)]
    full: bool,
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// The folder of all builds.
pub fn all_builds() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// A folder for builds that are unlike others, below the folder of all builds.
pub fn build_folder(name: &str) -> PathBuf {
    all_builds().join(name)
}

/// The two test programs: of which package, and what the long form sets.
const SUITES: [(&str, &[(&str, &str)]); 2] = [
    (
        "cudart-sim",
        &[("MODEL_SCHEDULES", "20000"), ("MODEL_PREEMPTIONS", "1")],
    ),
    ("memmgr-tests", &[("MODEL_SCHEDULES", "10000")]),
];

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    for (package, full) in SUITES {
        let mut command = cargo(["test", "--release", "-p", package, "--test", "model"]);
        command
            .arg("--target-dir")
            .arg(build_folder("model"))
            .env("RUSTFLAGS", format!("{flags} --cfg shuttle"))
            .env("RUST_BACKTRACE", "0")
            .args(["--", "--nocapture", "--test-threads", "1"])
            .args(&arguments.filter);
        for (variable, value) in full.iter().filter(|_| arguments.full) {
            if env::var_os(variable).is_none() {
                command.env(variable, value);
            }
        }
        say(format!(
            "model: building {package}: this takes a minute the first time"
        ));
        shell::run(&mut command)?;
    }
    Ok(())
}
