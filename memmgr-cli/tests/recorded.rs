//! What a manager records is what the program reads: its own log, replayed and reported about.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use common::memmgr;

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

/// A trace of its own, so that the test is short: a third of the blocks stay live for long, on three streams.
fn small_trace(folder: &Path) -> PathBuf {
    let mut text = "Thread,Time,Action,Pointer,Size,Stream\n".to_owned();
    let row = |action: &str, block: u64| {
        let (size, stream) = (1 + block * block % 700_000, block % 3);
        format!(
            "1,10:00:00.000000,{action},{:#x},{size},{stream:#x}\n",
            4096 + block
        )
    };
    for block in 0..1500 {
        text += &row("allocate", block);
        if block % 3 > 0 {
            text += &row("free", block);
        }
        if block % 3 == 2 && block > 900 {
            text += &row("free", block - 902 + block % 2);
        }
    }
    let path = folder.join("small.csv");
    fs::write(&path, text).expect("written");
    path
}

/// The exact figures of that name on a page, one for each recording.
fn figures(page: &str, name: &str) -> Vec<u64> {
    let mark = format!("data-figure=\"{name}\" data-value=\"");
    let parts = page.split(&mark).skip(1);
    let digits = |part: &str| part.split('"').next().expect("a value").parse();
    parts.map(|part| digits(part).expect("a number")).collect()
}

#[test]
fn a_snapshot_of_a_replay_is_reported_about_in_both_forms() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let trace = small_trace(folder.path());
    for (mode, source) in [("pool", "auto"), ("pool", "malloc"), ("async", "auto")] {
        let mut pages = Vec::new();
        for name in ["peak.pickle", "peak.json"] {
            let mut command = memmgr();
            command.env("MEMMGR_DEVICE_SOURCE", source);
            command.arg("replay").arg(&trace).args(["--mode", mode]);
            command.arg("--snapshot").arg(at(name));
            success(command.arg("--json").arg(at("row.json")));
            let mut command = memmgr();
            command
                .arg("report")
                .arg(at(name))
                .arg("-o")
                .arg(at("page.html"));
            let said = success(&mut command);
            assert!(said.contains("peak live"), "{said}");
            pages.push(fs::read_to_string(at("page.html")).expect("a page"));
        }
        let rows = fs::read(at("row.json")).expect("results");
        let rows: Value = serde_json::from_slice(&rows).expect("JSON");
        for page in &pages {
            let peak = figures(page, "peak-live");
            assert_eq!(peak, [rows[0]["peak_live_bytes"].as_u64().expect("bytes")]);
            assert!(page.contains("memory snapshot of memmgr"));
            assert!(!page.contains("passed over"), "every action is known");
            assert!(!page.contains("before the recorded calls"));
        }
        let leaked = pages.iter().map(|page| figures(page, "never-freed"));
        let leaked: Vec<_> = leaked.collect();
        assert_eq!(leaked[0], leaked[1]);
    }
}

#[test]
fn a_snapshot_is_of_one_trace_in_one_mode_and_goes_to_a_file_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("peak.pickle");
    let trace = trace("gpt2");
    let refused = |words: &[&std::ffi::OsStr]| {
        let output = memmgr()
            .arg("replay")
            .args(words)
            .output()
            .expect("it starts");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let word = std::ffi::OsStr::new;
    let (trace, file) = (trace.as_os_str(), file.as_os_str());
    let option = word("--snapshot");
    assert!(refused(&[trace, option, file]).contains("one mode"));
    let pool = [word("--mode"), word("pool"), option];
    let two = [&[trace, trace][..], &pool, &[file]].concat();
    assert!(refused(&two).contains("one trace"));
    let over_the_trace = [&[trace][..], &pool, &[trace]].concat();
    assert!(refused(&over_the_trace).contains("would be lost"));
    let no_file = [&[trace][..], &pool, &[word("-")]].concat();
    assert!(refused(&no_file).contains("name of a file"));
    let lag = [&[trace][..], &pool, &[file, word("--lag"), word("1")]].concat();
    assert!(refused(&lag).contains("cannot be used with"));
    assert_eq!(fs::read_dir(folder.path()).expect("a list").count(), 0);
}
