//! What a manager records is what the program reads: its own log, replayed and reported about.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn memmgr() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memmgr"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CUDART_SIM_") || text.starts_with("MEMMGR_") {
            command.env_remove(&name);
        }
    }
    command.env("CUDART_SIM_TIME", "off");
    command
}

#[track_caller]
fn success(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/data/traces/{name}.csv.gz"))
}

/// The one row of a replay.
#[track_caller]
fn replay(trace: &Path, folder: &Path, log: Option<&Path>) -> Value {
    let json = folder.join("replay.json");
    let mut command = memmgr();
    if let Some(log) = log {
        command.env("MEMMGR_LOG_FILE", log);
    }
    command.arg("replay").arg(trace);
    success(command.args(["--mode", "pool", "--json"]).arg(&json));
    let rows = fs::read(json).expect("results");
    let rows: Value = serde_json::from_slice(&rows).expect("JSON");
    rows[0].clone()
}

#[test]
fn the_log_of_a_replay_replays_with_the_same_peak_and_is_reported_about() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("own.csv");
    let recorded = replay(&trace("gpt2"), folder.path(), Some(&log));
    // Both passes of the replay are in the log of the device; no pinned memory was used.
    let own = folder.path().join("own.dev0.csv");
    assert!(!folder.path().join("own.pinned.csv").exists());
    let text = fs::read_to_string(&own).expect("a log");
    let frees = text.lines().filter(|line| line.contains(",free,")).count();
    let allocations = text.lines().filter(|line| line.contains(",allocate,"));
    assert_eq!(allocations.count(), frees);
    let again = replay(&own, folder.path(), None);
    for figure in ["peak_live_bytes", "streams"] {
        assert_eq!(again[figure], recorded[figure], "{figure}");
    }
    // Four passes may move more memory than two.
    let reserved = |row: &Value| row["peak_reserved_bytes"].as_f64().expect("bytes");
    let ratio = reserved(&again) / reserved(&recorded);
    assert!((0.98..1.02).contains(&ratio), "{ratio}");
    assert_eq!(again["failures"], 0);

    let page = folder.path().join("page.html");
    let said = success(memmgr().arg("report").arg(&own).arg("-o").arg(&page));
    assert!(said.contains("own.dev0.csv: peak live"), "{said}");
    let page = fs::read_to_string(page).expect("a page");
    let peak = format!(
        "data-figure=\"peak-live\" data-value=\"{}\"",
        recorded["peak_live_bytes"]
    );
    assert!(page.contains(&peak));
    // Each line has a time, and its thread.
    assert!(!page.contains("times cannot be read"));
}

#[test]
fn a_log_that_cannot_be_written_is_said_and_harms_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = memmgr();
    command.env("MEMMGR_LOG_FILE", folder.path().join("no/log.csv"));
    let trace = folder.path().join("trace.csv");
    let rows = "1,10:00:00.000000,allocate,0x100,64,0x0\n1,10:00:00.000001,free,0x100,64,0x0\n";
    let header = "Thread,Time,Action,Pointer,Size,Stream";
    fs::write(&trace, format!("{header}\n{rows}")).expect("written");
    command.arg("replay").arg(&trace).args(["--mode", "pool"]);
    let output = command.output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(
        errors.contains("no/log.dev0.csv") && errors.contains("MEMMGR_LOG_FILE"),
        "{errors}"
    );
}
