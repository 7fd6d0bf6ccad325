//! Cases in processes of their own: the test program runs itself again, and one of its tests reads which case it is.

use std::{
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// The variable that names the case to the test `the_case_that_the_environment_names`.
pub const CASE: &str = "MEMMGR_TEST_CASE";

/// Runs a case in a child that may take this long; how it ended, and what it wrote to stderr.
pub fn run(case: &str, patience: Duration) -> (ExitStatus, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        // One thread: the harness runs the test on the main thread then, so that its thread-locals go at exit.
        .args([
            "--exact",
            "the_case_that_the_environment_names",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CASE, case)
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > patience {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("{case} hangs\n{}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status, stderr)
}
