//! The checks can fail: with a protection missing, the programs do, in a process of their own.

use std::process::Command;

/// The program of that test, with that mistake, must fail in that way.
fn is_found(mistake: &str, program: &str, how: &str) {
    let me = std::env::current_exe().expect("a test program");
    let output = Command::new(me)
        .args(["--exact", program, "--nocapture"])
        .env("MODEL_MISTAKE", mistake)
        .env("MODEL_SCHEDULES", "1000")
        .output()
        .expect("it starts");
    let printed = String::from_utf8_lossy(&output.stderr);
    let end = printed.len().saturating_sub(2000);
    let tail = printed.get(end..).unwrap_or_default();
    assert!(!output.status.success(), "{mistake} was not found: {tail}");
    assert!(printed.contains(how), "{mistake}: {tail}");
}
