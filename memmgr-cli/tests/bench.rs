//! `memmgr bench` as its users run it, on the simulated runtime: every workload in its shortest form, what is written as
//! JSON, and what is said of bad input. Times are not looked at.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use common::memmgr;

const WORKLOADS: [&str; 12] = [
    "hot",
    "random",
    "tail",
    "holes",
    "pinned",
    "pinned-growth",
    "threads",
    "producer",
    "streams",
    "replay",
    "copy",
    "overlap",
];

fn bench(arguments: &[&str]) -> Command {
    let mut command = memmgr();
    command.arg("bench").args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[track_caller]
fn success(command: &mut Command) -> Output {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

/// What a run says on standard error that must fail with this exit code.
#[track_caller]
fn failure(command: &mut Command, code: i32) -> String {
    let output = command.output().expect("the program starts");
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    errors
}

#[track_caller]
fn fits_a_terminal(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "wider than 80 columns: {line}");
    }
}

fn trace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/traces/image_pipeline.csv.gz")
}

#[track_caller]
fn rows(json: &[u8]) -> Vec<Value> {
    match serde_json::from_slice(json).expect("JSON") {
        Value::Array(rows) => rows,
        other => panic!("no array: {other}"),
    }
}

#[test]
fn every_workload_is_measured_beside_the_references() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("bench.json");
    std::fs::copy(trace(), folder.path().join("pipeline.csv.gz")).expect("copied");
    let output = success(
        bench(&["--quick", "--passes", "1", "--reference", "both", "--json"])
            .arg(&json)
            .arg("--traces")
            .arg(folder.path()),
    );
    assert_eq!(text(&output.stderr), "", "nothing on standard error");
    let shown = text(&output.stdout);
    fits_a_terminal(&shown);
    assert!(shown.starts_with("backend: simulated (no GPU;"), "{shown}");
    for workload in WORKLOADS {
        assert!(shown.contains(&format!("\n{workload}: ")), "{shown}");
    }
    assert!(shown.contains("\nmemmgr, k=65536 over k=16: x"), "{shown}");
    assert!(!shown.contains(" failed"), "{shown}");

    let rows = rows(&std::fs::read(&json).expect("written"));
    let name = |row: &Value, key: &str| row[key].as_str().expect("a text").to_owned();
    let workloads: BTreeSet<String> = rows.iter().map(|row| name(row, "workload")).collect();
    assert_eq!(workloads, WORKLOADS.map(str::to_owned).into());
    for row in &rows {
        let line = row.to_string();
        assert_eq!(row["backend"], "simulated", "{line}");
        assert_eq!(row["passes"], 1, "{line}");
        let number = |key: &str| row[key].as_f64().expect("a number");
        assert!(number("value") >= 0.0, "{line}");
        assert!(number("low") <= number("value") && number("value") <= number("high"));
        let subject = name(row, "subject");
        assert!(["memmgr", "null", "list", "btree", "cuda", "+event"].contains(&&*subject));
        // Nothing can be compared with a loop alone, or with a figure of 0.
        let compared = !["memmgr", "null"].contains(&&*subject) && number("value") > 0.0;
        assert_eq!(row.get("ratio").is_some(), compared, "{line}");
        assert!(row.get("failures").is_none_or(|failures| failures == 0));
    }
    let has = |workload: &str, case: &str, subject: &str| {
        rows.iter().any(|row| {
            row["workload"] == workload && row["case"] == case && row["subject"] == subject
        })
    };
    for (workload, case) in [
        ("hot", "hot 4 KiB"),
        ("random", "n=10000 max=1024MiB"),
        ("tail", "n=10000 free p99.9"),
        ("holes", "k=65536"),
        ("pinned", "n=1000 max=1MiB"),
        ("threads", "T=1 one stream"),
        ("replay", "pipeline 2nd"),
    ] {
        for subject in ["memmgr", "null", "list", "btree"] {
            assert!(
                has(workload, case, subject),
                "{workload}, {case}, {subject}"
            );
        }
    }
    assert!(has("threads", "T=1 own stream", "memmgr"));
    assert!(has("copy", "D2H 64 KiB call", "cuda"));
    assert!(has("streams", "K=64 n=1000", "memmgr"));
    // The trace's peak is known, and no allocator can hold less.
    let replayed = rows.iter().find(|row| row["case"] == "pipeline 1st");
    let replayed = replayed.expect("replayed");
    assert!(replayed["peak_reserved_bytes"].as_u64() >= replayed["peak_live_bytes"].as_u64());
    assert!(replayed["peak_live_bytes"].as_u64() > Some(1 << 30));
}

#[test]
fn only_what_is_named_is_measured_and_json_can_have_standard_output() {
    let arguments = ["--quick", "--passes", "3", "hot", "--json", "-"];
    let output = success(
        bench(&arguments)
            .env("CUDART_SIM_DEVICES", "2")
            .args(["--device", "1"]),
    );
    let rows = rows(&output.stdout);
    let cases: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| {
            (
                row["case"].as_str().unwrap(),
                row["subject"].as_str().unwrap(),
            )
        })
        .collect();
    let sizes = ["hot 4 KiB", "hot 1 MiB", "hot 64 MiB"];
    let expected = sizes
        .iter()
        .flat_map(|size| [(*size, "memmgr"), (*size, "null")]);
    assert_eq!(cases, expected.collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row["passes"] == 3));
    let shown = text(&output.stderr);
    fits_a_terminal(&shown);
    assert!(shown.contains("; median of 3 after a"), "{shown}");
}

#[test]
fn the_ordering_checker_is_off_and_that_is_said() {
    let arguments = ["hot", "--quick", "--passes", "1"];
    let note = "the ordering checker (CUDART_SIM_CHECK) is off";
    for (value, said) in [("report", true), ("abort", true), ("off", false)] {
        let output = success(bench(&arguments).env("CUDART_SIM_CHECK", value));
        assert_eq!(text(&output.stdout).contains(note), said);
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn requests_that_a_small_device_refuses_are_counted() {
    let arguments = ["hot", "random", "--quick", "--passes", "1"];
    let output = success(bench(&arguments).env("CUDART_SIM_MEMORY", "48M"));
    let shown = text(&output.stdout);
    fits_a_terminal(&shown);
    let line = |start: &str| {
        let mut lines = shown.lines().filter(|line| line.starts_with(start));
        lines.next().expect(start).to_owned()
    };
    assert!(!line("memmgr hot 1 MiB").contains("failed"), "{shown}");
    assert!(line("memmgr hot 64 MiB").ends_with(" failed"), "{shown}");
    assert!(
        line("memmgr n=1000 max=1MiB").ends_with(" failed"),
        "{shown}"
    );
    assert!(
        !line("null   n=1000 max=1MiB").contains("failed"),
        "{shown}"
    );
}

#[test]
fn what_is_wrong_with_the_command_line_is_said() {
    for (arguments, said) in [
        (&["dance"][..], "invalid value 'dance'"),
        (
            &["--passes", "0"],
            "it must be a whole number from 1 to 1000",
        ),
        (
            &["--passes", "-5"],
            "it must be a whole number from 1 to 1000",
        ),
        (
            &["--reference", "fast"],
            "[possible values: list, btree, both]",
        ),
        (&["--traces"], "--traces <PATH>"),
    ] {
        let errors = failure(&mut bench(arguments), 2);
        assert!(errors.contains(said), "{errors}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let trace = folder.path().join("copy.csv.gz");
    for (arguments, said) in [
        (
            &["replay", "--traces", path][..],
            "there is no trace (.csv or .csv.gz)",
        ),
        (
            &["replay", "--traces", "no/such.csv"],
            "no/such.csv: cannot read it",
        ),
        (&["hot", "--json", path], "cannot write"),
        (
            &["hot", "replay"],
            "the workload replay needs traces: --traces tests/data/traces",
        ),
        (
            &["hot", "--device", "7"],
            "there is no device 7: the only one is 0",
        ),
    ] {
        let errors = failure(&mut bench(arguments), 1);
        assert!(
            errors.starts_with("memmgr: ") && errors.contains(said),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    std::fs::copy(self::trace(), &trace).expect("copied");
    let errors = failure(
        bench(&["replay", "--traces", path, "--json"]).arg(&trace),
        1,
    );
    assert!(errors.contains("which would be lost"), "{errors}");
}

#[test]
fn help_names_the_workloads_and_fits_a_terminal() {
    let help = text(&success(&mut bench(&["--help"])).stdout);
    fits_a_terminal(&help);
    for workload in WORKLOADS {
        assert!(
            help.contains(&format!("\n  - {workload}")) || help.contains(&format!("- {workload}:")),
            "{help}"
        );
    }
    assert!(!help.contains("counted"), "{help}");
}

#[test]
fn the_source_of_device_memory_is_the_one_that_the_environment_names() {
    // The most that each source holds in a replay, in which the pools grow by need.
    let held = |source: &str| {
        let trace = trace();
        let trace = trace.to_str().expect("UTF-8");
        let words = ["replay", "--passes", "1", "--json", "-", "--traces", trace];
        let output = success(bench(&words).env("MEMMGR_DEVICE_SOURCE", source));
        let rows = rows(&output.stdout);
        let ours = rows.iter().find(|row| row["subject"] == "memmgr");
        ours.expect("a row")["peak_reserved_bytes"].as_u64()
    };
    assert_ne!(held("malloc"), held("vmm"));
    let errors = failure(
        bench(&["hot", "--quick"]).env("MEMMGR_DEVICE_SOURCE", "disk"),
        1,
    );
    assert!(errors.contains("MEMMGR_DEVICE_SOURCE"), "{errors}");
}

#[test]
fn passes_for_a_profiler_say_what_they_did() {
    let output = success(bench(&["--counted"]).env("CUDART_SIM_MEMORY", "24G"));
    let shown = text(&output.stdout);
    let passes = rows(shown.lines().last().expect("a line").as_bytes());
    assert_eq!(passes.len(), 39);
    for three in passes.chunks(3) {
        let subjects = [0, 1, 2].map(|index| three[index]["subject"].as_str().unwrap());
        assert_eq!(subjects, ["memmgr", "null", "btree"]);
        assert!(three.iter().all(|pass| pass["case"] == three[0]["case"]));
        assert!(
            three
                .iter()
                .all(|pass| pass["operations"] == three[0]["operations"])
        );
    }
    let errors = failure(bench(&["--counted"]).env("CUDART_SIM_MEMORY", "100M"), 1);
    assert!(errors.contains("so nothing was counted"), "{errors}");
}
