//! The program as its users run it, on the simulated runtime: what it prints, what it writes, and what
//! it says of bad input.

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use common::memmgr;

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";
const BACKEND: &str = "backend: simulated (no GPU; times are this machine's)";

fn run(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

/// Standard output of a run that must succeed.
#[track_caller]
fn success(command: &mut Command) -> String {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors, "", "nothing on standard error");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Standard output and standard error of a run that must succeed with something to say on the latter.
#[track_caller]
fn success_with_errors(command: &mut Command) -> (String, String) {
    let output = run(command);
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let (out, errors) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{errors}");
    assert_ne!(errors, "", "something on standard error");
    (out, errors)
}

/// What a run that must fail with exit code 2 says on standard error.
#[track_caller]
fn misuse(command: &mut Command) -> String {
    let output = run(command);
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{errors}");
    errors
}

/// The one line on standard error of a run that must fail with exit code 1.
#[track_caller]
fn failure(command: &mut Command) -> String {
    let output = run(command);
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.starts_with("memmgr: "), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    errors.trim_end().to_owned()
}

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/traces")
}

#[track_caller]
fn fits_a_terminal(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "wider than 80 columns: {line}");
    }
}

/// A file in a folder that goes away with it.
struct File {
    folder: tempfile::TempDir,
    path: PathBuf,
}

fn file(name: &str, contents: impl AsRef<[u8]>) -> File {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, contents).expect("written");
    File { folder, path }
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).expect("written");
    encoder.finish().expect("finished")
}

#[test]
fn info_shows_backend_versions_devices_and_modes() {
    let text = success(
        memmgr()
            .arg("info")
            .env("CUDART_SIM_DEVICES", "2")
            .env("CUDART_SIM_MEMORY", "4G"),
    );
    assert_eq!(text.lines().next(), Some(BACKEND));
    for part in [
        "runtime: CUDA 13.0, driver: for CUDA 13.0",
        "device 0: ",
        "device 1: ",
        "compute capability",
        "4096.0 MiB, ",
        "memory pools        yes",
        "virtual memory",
        "pool memory         vmm (asked for: auto); not for legacy IPC",
        "allocator modes     pool, async, cuda-pool",
    ] {
        assert!(text.contains(part), "{part} in:\n{text}");
    }
    fits_a_terminal(&text);
}

#[test]
fn a_simulated_device_has_what_the_environment_gives_it() {
    let text = success(
        memmgr()
            .arg("info")
            .env("CUDART_SIM_VIRTUAL_MEMORY", "0")
            .env("CUDART_SIM_MEMORY_POOLS", "0"),
    );
    for part in [
        "  memory              24576.0 MiB, ",
        "  memory pools        no\n",
        "  virtual memory      no\n",
        "  pool memory         malloc (asked for: auto)",
        "async (not supported: pool is used)",
    ] {
        assert!(text.contains(part), "{part} in:\n{text}");
    }
    let text = success(
        memmgr()
            .args(["demo", "--frames", "2"])
            .env("CUDART_SIM_MEMORY_POOLS", "0"),
    );
    assert!(text.contains("note: this device does not support async\n"));
}

#[test]
fn without_a_driver_or_a_device_the_remedy_is_named() {
    let no_driver = ("CUDART_SIM_DRIVER", "none");
    let no_device = ("CUDART_SIM_DEVICES", "0");
    let trace = traces().join("image_pipeline.csv.gz");
    for (name, value) in [no_driver, no_device] {
        for arguments in [
            vec!["info"],
            vec!["demo"],
            vec!["replay", trace.to_str().expect("UTF-8")],
        ] {
            let message = failure(memmgr().args(&arguments).env(name, value));
            assert!(message.contains("CUDA is not available"), "{message}");
            assert!(message.contains("feature `sim`"), "{message}");
        }
    }
}

#[test]
fn the_demo_verifies_every_frame_in_every_mode_under_every_schedule() {
    for schedule in ["eager", "lazy", "random:5"] {
        let text = success(
            memmgr()
                .args(["demo", "--frames", "7", "--streams", "3", "--seed", "11"])
                .env("CUDART_SIM_SCHEDULE", schedule),
        );
        assert_eq!(text.lines().next(), Some(BACKEND));
        assert!(text.contains("7 frames on 3 streams, seed 11"), "{text}");
        for mode in ["none ", "pool ", "async ", "cuda-pool "] {
            let rows = text.lines().filter(|line| line.starts_with(mode));
            assert_eq!(rows.count(), 2, "{mode}: a row and an explanation\n{text}");
        }
        assert!(text.contains("every byte of every frame was verified"));
        fits_a_terminal(&text);
    }
}

#[test]
fn the_demos_pool_serves_most_requests_by_reuse_and_plain_calls_none() {
    let text = success(memmgr().args(["demo", "--frames", "12", "--streams", "2"]));
    let row = |mode: &str| -> Vec<f64> {
        let line = text.lines().find(|line| line.starts_with(mode));
        let cells = line.expect(mode).split_whitespace().skip(1);
        let number = |cell: &str| cell.trim_end_matches('%').parse().expect("a number");
        cells.map(number).collect()
    };
    let (none, pool) = (row("none"), row("pool"));
    // frames/s, ms, reuse, calls, device in use and reserved, pinned in use and reserved
    assert_eq!((none.len(), pool.len()), (8, 8));
    assert_eq!(none[2], 0.0);
    assert!(pool[2] > 50.0, "{text}");
    assert!(pool[4] <= pool[5] && pool[6] <= pool[7], "{text}");
}

#[test]
fn a_trace_is_replayed_in_all_modes_and_written_as_json() {
    let out = file("out.json", "old");
    let text = success(
        memmgr()
            .arg("replay")
            .arg(traces().join("image_pipeline.csv.gz"))
            .arg("--json")
            .arg(&out.path),
    );
    assert_eq!(text.lines().next(), Some(BACKEND));
    assert!(
        text.contains("simulated device: 15.0 GiB; the largest trace needs 1.9 GiB\n"),
        "{text}"
    );
    assert!(text.contains("\npeak live  the most bytes"), "{text}");
    assert!(
        text.contains("\npool: with the most bytes live, "),
        "{text}"
    );
    assert!(
        text.contains("image_pipeline: 8406 events, 4 streams"),
        "{text}"
    );
    fits_a_terminal(&text);

    let rows: Value =
        serde_json::from_slice(&std::fs::read(&out.path).expect("read")).expect("JSON");
    let rows = rows.as_array().expect("an array");
    let modes: Vec<_> = rows.iter().map(|row| row["mode"].as_str()).collect();
    assert_eq!(modes, [Some("pool"), Some("async"), Some("cuda-pool")]);
    for row in rows {
        let mode = row["mode"].as_str().expect("a mode");
        assert!(text.lines().any(|line| line.starts_with(mode)), "{text}");
        assert_eq!(row["trace"], "image_pipeline");
        assert_eq!(row["backend"], "simulated");
        assert_eq!((&row["streams"], &row["events"]), (&4.into(), &8406.into()));
        assert_eq!(row["failures"], 0);
        assert!(row["waits"].is_u64());
        let live = row["peak_live_bytes"].as_u64().expect("bytes");
        let reserved = row["peak_reserved_bytes"].as_u64().expect("bytes");
        assert_eq!(live >> 20, 1898);
        assert!(reserved >= live, "{row}");
        let times = row["ns_per_op"].as_array().expect("two passes");
        assert_eq!(times.len(), 2);
        assert!(
            times
                .iter()
                .all(|ns| ns.as_f64().is_some_and(|ns| ns > 0.0))
        );
        assert_eq!(row.as_object().map(serde_json::Map::len), Some(16));
        for figure in [
            "internal_waste",
            "external_waste",
            "pending",
            "largest_miss",
        ] {
            let tells = row[format!("{figure}_bytes")].is_u64();
            assert_eq!(tells, mode == "pool", "{figure}: {row}");
        }
    }
    assert_eq!(
        std::fs::read_dir(out.folder.path()).expect("list").count(),
        1
    );
}

/// Everything is freed between the passes.
#[test]
fn a_trace_that_is_repeated_reserves_no_more_than_the_first_time() {
    let out = memmgr()
        .args(["replay", "--mode", "pool", "--passes", "3", "--json", "-"])
        .args(
            ["gpt2", "image_pipeline", "llama_serve", "resnet50"]
                .map(|name| traces().join(format!("{name}.csv.gz"))),
        )
        .output()
        .expect("run");
    assert!(out.status.success());
    let rows: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    for row in rows.as_array().expect("an array") {
        assert_eq!(row["ns_per_op"].as_array().map(Vec::len), Some(3));
        let reserved = row["reserved_by_pass_bytes"].as_array().expect("passes");
        let reserved: Vec<f64> = reserved.iter().filter_map(Value::as_f64).collect();
        assert_eq!(reserved.len(), 3);
        assert!(reserved.iter().all(|later| *later <= reserved[0]), "{row}");
        assert_eq!(row["remaps_by_pass"].as_array().map(Vec::len), Some(3));
    }
    let text = String::from_utf8(out.stderr).expect("UTF-8");
    assert!(text.contains("last pass"), "{text}");
}

/// After a few passes all memory is mapped where a program that repeats itself has it.
#[test]
fn a_trace_that_is_repeated_maps_nothing_in_the_end() {
    let out = memmgr()
        .args(["replay", "--mode", "pool", "--passes", "8", "--json", "-"])
        .args(["gpt2", "resnet50"].map(|name| traces().join(format!("{name}.csv.gz"))))
        .output()
        .expect("run");
    assert!(out.status.success());
    let rows: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    for row in rows.as_array().expect("an array") {
        let remaps = row["remaps_by_pass"].as_array().expect("passes");
        let remaps: Vec<u64> = remaps.iter().filter_map(Value::as_u64).collect();
        assert!(remaps[0] > 0, "{row}");
        assert_eq!(remaps[5..], [remaps[5]; 3], "{row}");
        let reserved = row["reserved_by_pass_bytes"].as_array().expect("passes");
        assert_eq!(reserved[0], reserved[7], "{row}");
    }
}

/// What the pool reserves, over the most that is live, in the worst of three passes. The simulated runtime makes that exact.
#[test]
fn the_traces_reserve_little_more_than_is_live() {
    let bounds = [
        ("virtual", [1.020, 1.002, 1.018, 1.005]),
        ("malloc", [1.087, 1.120, 1.163, 1.061]),
    ];
    let names = ["gpt2", "image_pipeline", "llama_serve", "resnet50"];
    for (source, bounds) in bounds {
        let out = memmgr()
            .env("MEMMGR_DEVICE_SOURCE", source)
            .args(["replay", "--mode", "pool", "--passes", "3", "--json", "-"])
            .args(names.map(|name| traces().join(format!("{name}.csv.gz"))))
            .output()
            .expect("run");
        assert!(out.status.success());
        let rows: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        for (row, bound) in rows.as_array().expect("an array").iter().zip(bounds) {
            let live = row["peak_live_bytes"].as_f64().expect("bytes");
            let passes = row["reserved_by_pass_bytes"].as_array().expect("passes");
            assert_eq!(passes.len(), 3);
            for reserved in passes.iter().filter_map(Value::as_f64) {
                let ratio = reserved / live;
                assert!((1.0..bound).contains(&ratio), "{source}: {ratio}: {row}");
            }
        }
    }
}

#[test]
fn a_limit_of_the_environment_holds_and_is_said() {
    let trace = traces().join("image_pipeline.csv.gz");
    let replay = |limit: &str, more: &[&str]| {
        let mut command = memmgr();
        command.arg("replay").arg(&trace).args(more);
        command.env("MEMMGR_DEVICE_POOL_LIMIT", limit);
        command
    };
    let pool = ["--mode", "pool"];
    let with_json = ["--mode", "pool", "--json", "-"];
    // More than the peak of live bytes, and less than what the pool holds without a limit.
    let text = success(&mut replay("2G", &pool));
    let said = "\nlimit: mode pool holds at most 2.0 GiB (MEMMGR_DEVICE_POOL_LIMIT)\n";
    assert!(text.contains(said), "{text}");
    fits_a_terminal(&text);
    let output = run(&mut replay("1G", &with_json));
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(
        errors.contains("requests failed; the limit of the pool is 1.0\n  GiB\n"),
        "{errors}"
    );
    fits_a_terminal(&errors);
    let row = &json(&output.stdout)[0];
    assert_eq!(row["limit_bytes"], 1 << 30, "{row}");
    assert!(row["peak_reserved_bytes"].as_u64() <= Some(1 << 30));
    assert!(row["failures"].as_u64() > Some(0));
    // A share is one of the simulated device.
    let output = run(replay("25%", &with_json).env("CUDART_SIM_MEMORY", "4G"));
    let row = &json(&output.stdout)[0];
    assert_eq!(row["limit_bytes"], 1 << 30, "{row}");
    // With work in flight: the pools hold no more, the reference is not limited.
    let lag = [
        "--mode", "pool", "--lag", "0.01", "--rounds", "1", "--json", "-",
    ];
    let output = run(&mut replay("2G", &lag));
    let rows = json(&output.stdout);
    let held = |index: usize| rows[index]["peak_reserved_bytes"].as_u64();
    assert!((0..3).all(|index| held(index) <= Some(2 << 30)), "{rows}");
    assert!(held(3) > Some(2 << 30), "{rows}");
    assert_eq!(
        rows[0]["failures"], 0,
        "1.9 GiB are live, and memory that is pending is waited for: {rows}"
    );

    let text = success(
        memmgr()
            .args(["demo", "--frames", "4"])
            .env("MEMMGR_DEVICE_POOL_LIMIT", "100M")
            .env("MEMMGR_PINNED_POOL_LIMIT", "200M"),
    );
    for said in [
        "\nlimit: mode pool holds at most 100.0 MiB (MEMMGR_DEVICE_POOL_LIMIT)\n",
        "\nlimit: pinned memory of at most 200.0 MiB (MEMMGR_PINNED_POOL_LIMIT)\n",
    ] {
        assert!(text.contains(said), "{text}");
    }
    for name in ["MEMMGR_DEVICE_POOL_LIMIT", "MEMMGR_PINNED_POOL_LIMIT"] {
        let message = failure(memmgr().args(["demo", "--frames", "4"]).env(name, "1M"));
        let fix = format!("; a higher {name} would help");
        assert!(message.ends_with(&fix), "{message}");
    }
}

#[test]
fn other_settings_of_the_library_are_used_or_said_to_be_unused() {
    let trace = file(
        "small.csv",
        format!("{HEADER}\n0,0,allocate,0x1,1000,0x0\n"),
    );
    let path = trace.path.to_str().expect("UTF-8");
    let replay = ["replay", path, "--mode", "pool"];
    // A pool of this size is reserved at once.
    let size = ("MEMMGR_DEVICE_POOL_SIZE", "256M");
    let text = success(memmgr().args(replay).env(size.0, size.1));
    assert!(text.contains(" 256.0 "), "{text}");
    let unused = [
        (
            &replay[..],
            "replay",
            &[("MEMMGR_PINNED_POOL_SIZE", "1M")][..],
        ),
        (
            &["replay", path, "--mode", "async"],
            "replay",
            &[("MEMMGR_DEVICE_POOL_LIMIT", "1")],
        ),
        (
            &["replay", path, "--mode", "pool", "--capacity", "4M"],
            "replay",
            &[("MEMMGR_DEVICE_POOL_LIMIT", "1")],
        ),
        (
            &["replay", path, "--mode", "pool", "--lag", "0.1"],
            "replay",
            &[("MEMMGR_REUSE", "memory")],
        ),
        (
            &["demo", "--frames", "2"],
            "demo",
            &[("MEMMGR_DEVICE_ALLOCATOR", "async")],
        ),
        (
            &["bench", "hot", "--quick", "--passes", "1"],
            "bench",
            &[
                ("MEMMGR_PINNED_WARM_UP", "1M"),
                ("MEMMGR_DEVICE_POOL_LIMIT", "1"),
            ],
        ),
    ];
    for (arguments, command, set) in unused {
        let (_, errors) = success_with_errors(memmgr().args(arguments).envs(set.iter().copied()));
        assert!(
            errors.starts_with(&format!("note: set, but not used by `memmgr {command}`: ")),
            "{errors}"
        );
        for (name, _) in set {
            assert!(errors.contains(name), "{name}: {errors}");
        }
        fits_a_terminal(&errors);
    }
    // One that cannot be read ends each of them, used or not.
    for arguments in [
        &["info"][..],
        &["demo", "--frames", "2"],
        &replay,
        &["replay", path, "--lag", "0.1"],
        &["bench", "hot", "--quick"],
    ] {
        for name in ["MEMMGR_DEVICE_POOL_LIMIT", "MEMMGR_PINNED_WARM_UP"] {
            let message = failure(memmgr().args(arguments).env(name, "abc"));
            assert!(
                message.contains(&format!("{name}=abc: it must be")),
                "{message}"
            );
        }
    }
}

#[test]
fn a_log_whose_last_line_is_incomplete_is_used_up_to_there() {
    let rows = format!(
        "{HEADER}\n1,07:46:00:000001,allocate,0x100,64,0x7\n1,07:46:00:000002,free,0x100,64,0x7\n"
    );
    for cut in [
        "1,07:46",
        "1",
        "1,07:46:00:000003,allocate,0x200,64,0x",
        "1,07:46:00:000003,allocate,0x200,64,",
        "1,07:46:00:000003,free,0x100,64,",
    ] {
        for contents in [
            format!("{rows}{cut}").into_bytes(),
            gzip(&format!("{rows}{cut}")),
        ] {
            let log = file("cut.csv", contents);
            let (text, errors) = success_with_errors(
                memmgr()
                    .args(["replay", "--mode", "pool"])
                    .arg(&log.path)
                    .current_dir(log.folder.path()),
            );
            assert!(text.contains("cut: 2 events, 1 stream"), "{text}");
            let said = |errors: &str| {
                let words: Vec<&str> = errors.split_whitespace().collect();
                let line = words.join(" ");
                let end = "cut.csv: line 4, the last, is incomplete and was left out; \
                           what is before it is used";
                assert!(
                    line.starts_with("warning: ") && line.ends_with(end),
                    "{line}"
                );
            };
            said(&errors);
            let page = log.folder.path().join("page.html");
            let (_, errors) =
                success_with_errors(memmgr().arg("report").arg(&log.path).arg("-o").arg(&page));
            said(&errors);
            let page = std::fs::read_to_string(page).expect("a page");
            assert!(page.contains("Line 4, the last, is incomplete and was left out."));
        }
    }
    // What has an end, or is no beginning of a row, is an error as ever.
    for (more, reason) in [
        ("1,07:46\n", "line 4: 2 columns"),
        (
            "1,07:46\n1,07:46:00:000003,free,0x100,64,0x7",
            "line 4: 2 columns",
        ),
        (
            "1,07:46:00:000003,move,0x100,64,0x7",
            "line 4: unknown action",
        ),
    ] {
        let log = file("bad.csv", format!("{rows}{more}"));
        let message = failure(memmgr().arg("replay").arg(&log.path));
        assert!(message.contains(reason), "{message}");
    }
}

/// Four streams that each hold 1 MiB for a while.
fn four_streams() -> File {
    let mut text = format!("{HEADER}\n");
    for round in 0..10 {
        for stream in 1..=4 {
            let block = 16 * round + stream;
            text += &format!("0,0,allocate,{block:#x},1048576,{stream:#x}\n");
            text += &format!("0,0,free,{block:#x},1048576,{stream:#x}\n");
        }
    }
    file("four.csv", text)
}

#[test]
fn a_replay_with_work_in_flight_compares_pools_with_one_pool_per_stream() {
    let (out, trace) = (file("out.json", ""), four_streams());
    for modelled in ["off", "model"] {
        let text = success(
            memmgr()
                .args([
                    "replay", "--mode", "pool", "--lag", "2", "--rounds", "2", "--json",
                ])
                .arg(&out.path)
                .arg(&trace.path)
                .env("CUDART_SIM_TIME", modelled),
        );
        let heading = "four: 80 events, 4 streams, peak live 1.0 MiB, 2 ms of work behind each\n";
        assert!(text.contains(heading), "{text}");
        let rows = json(&std::fs::read(&out.path).expect("read"));
        let rows = rows.as_array().expect("an array");
        let names: Vec<_> = rows.iter().map(|row| row["allocator"].as_str()).collect();
        let wanted = ["pool", "pool, memory", "pool, 1.5 x", "per stream"];
        assert_eq!(names, wanted.map(Some));
        let number = |row: &Value, name: &str| row[name].as_f64().expect("a number");
        for row in rows {
            // Ten pieces of work, one after the other, on each stream.
            for wall in row["wall_ms"].as_array().expect("two passes") {
                assert!(wall.as_f64().expect("a number") >= 20.0, "{row}");
            }
            assert_eq!((&row["failures"], &row["lag_ms"]), (&0.into(), &2.0.into()));
            let name = row["allocator"].as_str().expect("a name");
            assert!(text.lines().any(|line| line.starts_with(name)), "{text}");
        }
        assert_eq!(number(&rows[3], "wall_over_reference"), 1.0);
        // A pool per stream grows four times; one that waits before it grows, once; the limit is 1.5 MiB.
        assert_eq!(
            number(&rows[3], "peak_reserved_bytes"),
            f64::from(128 << 20)
        );
        assert!(number(&rows[1], "peak_reserved_bytes") <= f64::from(32 << 20));
        assert!(number(&rows[2], "reserved_over_live") <= 1.5);
        assert!(number(&rows[2], "waits") > 0.0, "{text}");
        assert!(text.contains("x the wall time of one pool per"), "{text}");
        fits_a_terminal(&text);
    }
}

#[test]
fn the_smallest_pool_with_which_a_trace_passes_is_found() {
    // 3 MiB, 2 MiB and 1 MiB live; then 4 MiB beside the 2 MiB, which lie in the middle.
    let trace = file(
        "holes.csv",
        format!(
            "{HEADER}\n0,0,allocate,0x1,3145728,0x0\n0,0,allocate,0x2,2097152,0x0\n\
             0,0,allocate,0x3,1048576,0x0\n0,0,free,0x1,3145728,0x0\n0,0,free,0x3,1048576,0x0\n\
             0,0,allocate,0x4,4194304,0x0\n"
        ),
    );
    let out = file("out.json", "");
    for lag in [&[][..], &["--lag", "0.01"]] {
        let text = success(
            memmgr()
                .args(["replay", "--capacity", "64M", "--json"])
                .arg(&out.path)
                .arg(&trace.path)
                .args(lag),
        );
        let rows = json(&std::fs::read(&out.path).expect("read"));
        let found = rows[0]["capacity_bytes"].as_u64().expect("it passes");
        assert_eq!(
            (&rows[0]["peak_live_bytes"], found % (2 << 20)),
            (&(6 << 20).into(), 0)
        );
        assert!((8 << 20..=12 << 20).contains(&found), "{text}");
        let mib = found >> 20;
        assert!(text.contains(&format!("\n  {mib} MiB: passes\n")), "{text}");
        let below = format!("\n  {} MiB: 4.0 MiB do not fit\n", mib - 2);
        assert!(text.contains(&below), "{text}");
        assert!(
            text.contains(&format!("holes passes with a pool of {mib} MiB: ")),
            "{text}"
        );
        fits_a_terminal(&text);
    }
    let output = memmgr()
        .args(["replay", "--capacity", "4M"])
        .arg(&trace.path)
        .output()
        .expect("the program starts");
    let (text, message) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        text.contains("holes does not pass with a pool of 4 MiB"),
        "{text}"
    );
    assert_eq!(
        (output.status.code(), message.trim_end()),
        (
            Some(1),
            "memmgr: no pool of up to 4 MiB is enough for holes: try a larger --capacity"
        )
    );
    let refused = memmgr()
        .args(["replay", "--capacity", "1G", "--mode", "async"])
        .arg(&trace.path)
        .output()
        .expect("the program starts");
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(message.contains("--mode pool"), "{message}");
}

#[test]
fn several_traces_share_a_run_and_one_mode_can_be_chosen() {
    let out = file("out.json", "");
    let small = file("small.csv", format!("{HEADER}\n0,0,allocate,0x1,100,0x0\n"));
    let text = success(
        memmgr()
            .args(["replay", "--mode", "cuda-pool", "--json"])
            .arg(&out.path)
            .arg(traces().join("resnet50.csv.gz"))
            .arg(&small.path),
    );
    assert!(
        text.contains("resnet50: 25693 events, 1 stream\n"),
        "{text}"
    );
    assert!(text.contains("small: 1 event, 1 stream\n"), "{text}");
    let rows: Value =
        serde_json::from_slice(&std::fs::read(&out.path).expect("read")).expect("JSON");
    let names: Vec<_> = rows
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| &row["trace"])
        .collect();
    assert_eq!(names, ["resnet50", "small"]);
}

#[test]
fn what_a_log_holds_beside_its_calls_is_left_out_with_a_warning() {
    let trace = file(
        "odd.csv",
        format!(
            "{HEADER}\n0,0,free,0x9,64,0x0\n0,0,allocate failure,(nil),64,0x0\n\
             0,0,allocate,(nil),0,0x0\n0,0,allocate,0x1,100,0x0\n"
        ),
    );
    let text = success(memmgr().args(["replay", "--mode", "pool"]).arg(&trace.path));
    let warning = "warning: 3 rows left out: 1 freeing a pointer that the log did not allocate, 1\n  \
                   that failed when the trace was recorded, 1 of zero bytes\n";
    assert!(text.contains(warning), "{text}");
    fits_a_terminal(&text);
}

#[test]
fn requests_that_a_small_device_cannot_meet_are_counted_and_reported() {
    let out = file("out.json", "");
    let (text, errors) = success_with_errors(
        memmgr()
            .args(["replay", "--mode", "pool"])
            .arg(traces().join("image_pipeline.csv.gz"))
            .arg("--json")
            .arg(&out.path)
            .env("CUDART_SIM_MEMORY", "1G"),
    );
    assert!(
        text.contains("simulated device: 1.0 GiB, as CUDART_SIM_MEMORY says"),
        "{text}"
    );
    let failures = json(&std::fs::read(&out.path).expect("read"))[0]["failures"].to_string();
    assert_ne!(failures, "0");
    let row = text.lines().find(|line| line.starts_with("pool"));
    let cells: Vec<_> = row.expect("a row").split_whitespace().collect();
    assert_eq!(cells[8], failures);
    assert!(cells[6].ends_with('*'), "the ratio is marked: {cells:?}");
    assert!(text.contains("\n* not comparable: "), "{text}");
    assert_eq!(
        errors,
        format!(
            "warning: image_pipeline, pool: {failures} requests failed; device 0 has 1.0 GiB\n"
        )
    );
    fits_a_terminal(&text);
    fits_a_terminal(&errors);
}

#[test]
fn a_size_that_no_device_has_is_a_failure_of_that_request_only() {
    let huge = 1_u64 << 60;
    let trace = file(
        "huge.csv",
        format!(
            "{HEADER}\n0,0,allocate,0x1,{huge},0x0\n0,0,free,0x1,{huge},0x0\n\
             0,0,allocate,0x2,64,0x0\n0,0,free,0x2,64,0x0\n"
        ),
    );
    let (text, errors) = success_with_errors(memmgr().arg("replay").arg(&trace.path));
    for mode in ["pool", "async", "cuda-pool"] {
        let row = text
            .lines()
            .find(|line| line.starts_with(mode))
            .expect(mode);
        assert!(row.ends_with(" 2"), "one failure in each pass: {row}");
        let warning = format!("warning: huge, {mode}: 2 requests failed; device 0 has 1024.0 GiB");
        assert!(errors.contains(&warning), "{errors}");
    }
}

#[test]
fn traces_with_one_file_name_are_told_apart() {
    let one = file("same.csv", format!("{HEADER}\n0,0,allocate,0x1,100,0x0\n"));
    let other = file("same.csv", format!("{HEADER}\n0,0,allocate,0x1,200,0x0\n"));
    let output = run(memmgr()
        .args(["replay", "--mode", "pool", "--json", "-"])
        .args([&one.path, &other.path]));
    let rows = json(&output.stdout);
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    for (row, path) in rows.as_array().expect("rows").iter().zip([&one, &other]) {
        let path = path.path.to_str().expect("UTF-8");
        assert_eq!(row["trace"], path);
        assert!(errors.contains(&format!("\n{path}: 1 event")), "{errors}");
    }
}

#[test]
fn json_on_standard_output_is_alone_there() {
    let trace = file("small.csv", format!("{HEADER}\n0,0,allocate,0x1,100,0x0\n"));
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["-", "/dev/stdout"] {
        let (text, errors) = success_with_errors(
            memmgr()
                .args(["replay", "--json", name])
                .arg(&trace.path)
                .current_dir(folder.path()),
        );
        assert_eq!(json(text.as_bytes()).as_array().map(Vec::len), Some(3));
        assert_eq!(errors.lines().next(), Some(BACKEND));
        assert!(errors.contains("small: 1 event, 1 stream"), "{errors}");
    }
    // Standard output may be a file, which is not replaced under it.
    let both = folder.path().join("both.json");
    let output = std::fs::File::create(&both).expect("made");
    let status = memmgr()
        .args(["replay", "--json", "both.json"])
        .arg(&trace.path)
        .current_dir(folder.path())
        .stdout(output)
        .stderr(Stdio::null())
        .status();
    assert!(status.expect("it ran").success());
    let rows = json(&std::fs::read(&both).expect("read"));
    assert_eq!(rows.as_array().map(Vec::len), Some(3));
    assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 1);
}

#[test]
fn json_never_replaces_a_trace_a_device_a_pipe_or_a_link() {
    use std::os::unix::fs::FileTypeExt;

    let contents = format!("{HEADER}\n0,0,allocate,0x1,100,0x0\n");
    let trace = file("small.csv", &contents);
    let replay = |out: &Path| {
        let mut command = memmgr();
        command
            .arg("replay")
            .arg(&trace.path)
            .arg("--json")
            .arg(out);
        command
    };
    let at = |name: &str| trace.folder.path().join(name);

    std::os::unix::fs::symlink("small.csv", at("link")).expect("linked");
    for name in ["small.csv", "./small.csv", "link"] {
        let message = failure(&mut replay(&at(name)));
        assert!(message.contains("which would be lost"), "{message}");
        assert_eq!(
            std::fs::read_to_string(&trace.path).expect("read"),
            contents
        );
    }

    success(&mut replay(Path::new("/dev/null")));
    let message = failure(&mut replay(Path::new("/dev/full")));
    assert!(
        message.starts_with("memmgr: cannot write /dev/full: No space left"),
        "{message}"
    );
    for device in ["/dev/null", "/dev/full"] {
        let kind = std::fs::metadata(device).expect(device).file_type();
        assert!(kind.is_char_device(), "{device}");
    }

    let pipe = at("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).expect("read")
    });
    success(&mut replay(&pipe));
    let rows = json(&reader.join().expect("it ends"));
    assert_eq!(rows.as_array().map(Vec::len), Some(3));
    let kind = std::fs::metadata(&pipe).expect("there").file_type();
    assert!(kind.is_fifo());

    std::os::unix::fs::symlink("target.json", at("to-target")).expect("linked");
    success(&mut replay(&at("to-target")));
    assert!(at("to-target").is_symlink());
    assert!(at("target.json").is_file());

    let message = failure(&mut replay(Path::new("/proc/out.json")));
    assert!(
        message.starts_with("memmgr: cannot write /proc/out.json: ")
            && !message.contains(".memmgr-"),
        "{message}"
    );
}

#[test]
fn files_are_written_though_nobody_reads_standard_output() {
    let trace = file("small.csv", format!("{HEADER}\n0,0,allocate,0x1,100,0x0\n"));
    let (replayed, benched) = (file("replay.json", ""), file("bench.json", ""));
    let replay = ["replay", trace.path.to_str().expect("a path")].map(str::to_owned);
    for (arguments, path) in [
        (replay.to_vec(), &replayed.path),
        (
            ["bench", "hot", "--quick"].map(str::to_owned).to_vec(),
            &benched.path,
        ),
    ] {
        let mut child = memmgr()
            .args(arguments)
            .arg("--json")
            .arg(path)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("the program starts");
        drop(child.stdout.take());
        assert!(child.wait().expect("it ends").success());
        let rows = json(&std::fs::read(path).expect("read"));
        assert!(
            rows.as_array().is_some_and(|rows| !rows.is_empty()),
            "{rows}"
        );
    }
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for asked in [&["--help"][..], &["--version"], &["replay", "-h"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let full = full.expect("a device that is full");
        let message = failure(memmgr().args(asked).stdout(full));
        assert!(
            message.starts_with("memmgr: cannot write to standard output: "),
            "{message}"
        );
    }
}

#[test]
fn traces_that_no_workload_needs_are_refused() {
    let message = failure(memmgr().args(["bench", "hot", "--traces"]).arg(traces()));
    assert!(
        message.contains("--traces is for the workload replay"),
        "{message}"
    );
}

/// A pool reserves addresses, too: the device's memory needs some before.
#[test]
fn a_simulated_device_takes_its_addresses_before_a_pool_does() {
    let trace = file("small.csv", format!("{HEADER}\n0,0,allocate,0x1,100,0x0\n"));
    let program = memmgr();
    let mut limited = std::process::Command::new("sh");
    limited
        .args(["-c", "ulimit -v 30000000 && exec \"$@\"", "sh"])
        .arg(program.get_program())
        .args(["replay", "--mode", "pool"])
        .arg(&trace.path);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.env("CUDART_SIM_MEMORY", "8G");
    let text = success(&mut limited);
    let row = text.lines().find(|line| line.starts_with("pool  "));
    assert!(
        row.is_some_and(|row| row.ends_with(" 0        0")),
        "{text}"
    );
}

#[test]
fn what_a_search_for_a_capacity_found_is_no_page() {
    let trace = file("small.csv", format!("{HEADER}\n0,0,allocate,0x1,100,0x0\n"));
    let (found, page) = (file("capacity.json", ""), file("page.html", ""));
    let capacity = ["replay", "--capacity", "4M", "--json"];
    success(memmgr().args(capacity).arg(&found.path).arg(&trace.path));
    let report = memmgr()
        .arg("report")
        .arg(&found.path)
        .arg("-o")
        .arg(&page.path)
        .output();
    let report = report.expect("the program starts");
    let message = String::from_utf8_lossy(&report.stderr);
    assert_eq!(report.status.code(), Some(1), "{message}");
    assert!(
        message.contains("--capacity or --lag, of which there is no page"),
        "{message}"
    );
}

#[test]
fn a_simulated_device_for_which_there_are_no_addresses_says_so_once() {
    let rows = "0,0,allocate,0x1,100,0x0\n0,0,allocate,0x2,100,0x0\n";
    let trace = file("small.csv", format!("{HEADER}\n{rows}"));
    // More than a process of this architecture can have.
    let (text, errors) = success_with_errors(
        memmgr()
            .args(["replay", "--mode", "pool"])
            .arg(&trace.path)
            .env("CUDART_SIM_MEMORY", "200000G"),
    );
    let said = "cudart-sim: cannot reserve addresses for a device of 204800000 MiB: set CUDART_SIM_MEMORY to less";
    assert_eq!(errors.matches(said).count(), 1, "{errors}");
    let row = text.lines().find(|line| line.starts_with("pool"));
    assert!(row.is_some_and(|row| row.ends_with(" 4")), "{text}");
}

#[test]
fn a_variable_that_cannot_be_read_counts_as_unset() {
    let trace = file("small.csv", format!("{HEADER}\n0,0,allocate,0x1,100,0x0\n"));
    let (text, errors) = success_with_errors(
        memmgr()
            .args(["replay", "--mode", "pool"])
            .arg(&trace.path)
            .env("CUDART_SIM_MEMORY", "99999999999G"),
    );
    assert!(
        text.contains("\nsimulated device: 1.0 GiB; the largest trace needs 100 bytes\n"),
        "{text}"
    );
    assert_eq!(
        errors,
        "cudart-sim: CUDART_SIM_MEMORY=99999999999G is ignored: \
         it must be a size above 0, in bytes or as 24G, 512M, 64K\n"
    );
    let modelled = "backend: simulated (no GPU; CUDA's times are modelled)";
    let text = success(memmgr().arg("info").env_remove("CUDART_SIM_TIME"));
    assert_eq!(text.lines().next(), Some(modelled));
    let (text, errors) = success_with_errors(memmgr().arg("info").env("CUDART_SIM_TIME", "fast"));
    assert_eq!(text.lines().next(), Some(modelled));
    assert_eq!(
        errors,
        "cudart-sim: CUDART_SIM_TIME=fast is ignored: it must be model or off\n"
    );
}

#[test]
fn a_demo_that_runs_out_of_memory_says_how_much_was_wanted_and_what_helps() {
    let larger = "; a larger device (CUDART_SIM_MEMORY) would help";
    let fewer = "; fewer --streams than 64, or a larger device (CUDART_SIM_MEMORY) would help";
    for (streams, memory, fix) in [
        ("4", "16M", larger),
        ("1", "16M", larger),
        ("64", "100M", fewer),
    ] {
        let message = failure(
            memmgr()
                .args(["demo", "--streams", streams])
                .env("CUDART_SIM_MEMORY", memory),
        );
        let has = format!("(device 0 has {}.0 MiB): ", memory.trim_end_matches('M'));
        for part in [&has, " MiB were asked for", fix] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn a_file_that_is_no_trace_is_refused_with_its_name_and_the_reason() {
    let row = |row: &str| format!("{HEADER}\n0,0,allocate,0x1,64,0x0\n{row}\n");
    let many: String = (1..5000)
        .map(|i| format!("0,{i},allocate,{i:#x},{i},0x0\n"))
        .collect();
    let whole = gzip(&format!("{HEADER}\n{many}"));
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty.csv", vec![], "the file is empty"),
        ("empty.csv.gz", gzip("").to_vec(), "the file is empty"),
        (
            "binary.csv",
            b"\x7fELF\x02\x01\0\0".to_vec(),
            "this is not a trace",
        ),
        (
            "binary.csv.gz",
            gzip("\x7fELF\x02\x01\0\0"),
            "this is not a trace",
        ),
        (
            "cut.csv.gz",
            whole[..whole.len() / 2].to_vec(),
            "the file was cut off",
        ),
        (
            "trail.csv.gz",
            [&whole[..], b"garbage\n"].concat(),
            "the compressed data is complete, but something else follows it",
        ),
        (
            "header.csv",
            format!("{HEADER}\n").into_bytes(),
            "no allocation",
        ),
        (
            "none.csv",
            b"0,0,allocate,0x1,64,0x0\n".to_vec(),
            "line 1: expected the header",
        ),
        (
            "columns.csv",
            row("0,0,free,0x1").into(),
            "line 3: 4 columns",
        ),
        (
            "size.csv",
            row("0,0,allocate,0x2,big,0x0").into(),
            "line 3: size `big`",
        ),
        (
            "large.csv",
            row("0,0,allocate,0x2,9223372036854775809,0x0").into(),
            "line 3: size 9223372036854775809 is above 2^63",
        ),
        (
            "action.csv",
            row("0,0,move,0x2,64,0x0").into(),
            "line 3: unknown action `move`",
        ),
        (
            "twice.csv",
            row("0,0,allocate,0x1,64,0x0").into(),
            "line 3: allocates 0x1, which line 2",
        ),
    ];
    for (name, contents, reason) in cases {
        let file = file(name, contents);
        let message = failure(memmgr().arg("replay").arg(&file.path));
        assert!(
            message.contains(name) && message.contains(reason),
            "{message}"
        );
    }
}

#[test]
fn a_file_that_cannot_be_read_or_written_is_named() {
    let message = failure(memmgr().args(["replay", "no/such/trace.csv"]));
    assert!(
        message.contains("no/such/trace.csv: cannot read it: No such file"),
        "{message}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let message = failure(memmgr().arg("replay").arg(folder.path()));
    assert!(message.contains("Is a directory"), "{message}");
    let trace = file("small.csv", format!("{HEADER}\n0,0,allocate,0x1,100,0x0\n"));
    let message = failure(
        memmgr()
            .arg("replay")
            .arg(&trace.path)
            .args(["--json", "no/such/folder/out.json"]),
    );
    assert!(
        message.contains("cannot write no/such/folder/out.json: "),
        "{message}"
    );
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let trace = traces().join("image_pipeline.csv.gz");
    let trace = trace.to_str().expect("UTF-8");
    for (option, value, reason) in [
        ("--frames", "0", "it must be a whole number, at least 1"),
        ("--frames", "-1", "it must be a whole number, at least 1"),
        ("--frames", "x", "it must be a whole number, at least 1"),
        ("--streams", "0", "it must be a whole number from 1 to 64"),
        ("--streams", "65", "it must be a whole number from 1 to 64"),
        ("--streams", "-4", "it must be a whole number from 1 to 64"),
        ("--seed", "-1", "it must be a whole number from 0 to "),
        ("--device", "one", ""),
    ] {
        let message = misuse(memmgr().args(["demo", option, value]));
        assert!(
            message.contains(reason) && message.contains(&format!("'{value}' for '{option} <")),
            "{message}"
        );
    }
    for (arguments, reason) in [
        (
            vec!["demo", "--device", "3"],
            "there is no device 3: the only one is 0",
        ),
        (
            vec!["replay", trace, "--device", "-1"],
            "there is no device -1: the only one is 0",
        ),
    ] {
        let message = failure(memmgr().args(&arguments));
        assert!(message.contains(reason), "{message}");
    }
    let message = failure(
        memmgr()
            .args(["demo", "--device", "2"])
            .env("CUDART_SIM_DEVICES", "2"),
    );
    assert!(
        message.contains("there is no device 2: they are 0 to 1"),
        "{message}"
    );
}

#[test]
fn the_second_device_can_be_used() {
    let trace = traces().join("image_pipeline.csv.gz");
    let text = success(
        memmgr()
            .args(["replay", "--device", "1"])
            .arg(trace)
            .env("CUDART_SIM_DEVICES", "2"),
    );
    assert!(text.contains("image_pipeline"), "{text}");
    success(
        memmgr()
            .args(["demo", "--frames", "4", "--device", "1"])
            .env("CUDART_SIM_DEVICES", "2"),
    );
}

#[test]
fn a_command_line_that_is_not_understood_gives_exit_code_2_and_help_gives_0() {
    for arguments in [
        vec![],
        vec!["dance"],
        vec!["replay"],
        vec!["replay", "x.csv", "--mode", "fast"],
        vec!["replay", "x.csv", "--lag", "0"],
        vec!["replay", "x.csv", "--lag", "-1"],
        vec!["replay", "x.csv", "--lag", "1ms"],
        vec!["replay", "x.csv", "--lag", "NaN"],
        vec!["replay", "x.csv", "--lag"],
        vec!["replay", "x.csv", "--lag", "1", "--rounds", "0"],
        vec!["replay", "x.csv", "--rounds", "5"],
        vec![
            "replay",
            "x.csv",
            "--lag",
            "1",
            "--capacity",
            "4M",
            "--rounds",
            "5",
        ],
        vec!["replay", "x.csv", "--capacity", "0"],
        vec!["replay", "x.csv", "--capacity", "1"],
        vec!["replay", "x.csv", "--capacity", "-1"],
        vec!["replay", "x.csv", "--capacity", "1.5G"],
        vec!["replay", "x.csv", "--capacity", "99999999999T"],
        vec!["demo", "--frames", "many"],
    ] {
        assert_eq!(
            run(memmgr().args(&arguments)).status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
    for arguments in [["--help"], ["--version"]] {
        assert_eq!(run(memmgr().args(arguments)).status.code(), Some(0));
    }
    for command in ["info", "demo", "replay", "bench"] {
        let help = success(memmgr().args([command, "--help"]));
        assert!(help.contains("Usage: memmgr"), "{help}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = memmgr()
        .args(["demo", "--frames", "2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
}

#[test]
fn the_last_figures_are_written_for_prometheus_beside_the_json() {
    let trace = file(
        "small.csv",
        format!("{HEADER}\n0,0,allocate,0x1,1000,0x0\n"),
    );
    let (text, rows) = (file("figures.prom", "old"), file("rows.json", ""));
    success(
        memmgr()
            .args(["replay", "--mode", "pool"])
            .args([&trace.path, Path::new("--prometheus"), &text.path])
            .args([Path::new("--json"), &rows.path]),
    );
    let text = std::fs::read_to_string(&text.path).expect("read");
    let labels = r#"{pool="device",device="0",mode="pool",backend="simulated"}"#;
    for line in [
        // Once in each of the two passes.
        format!("memmgr_allocations_total{labels} 2"),
        format!("memmgr_peak_in_use_bytes{labels} 1024"),
        format!("memmgr_in_use_bytes{labels} 0"),
        "# TYPE memmgr_in_use_bytes gauge".to_owned(),
    ] {
        let there = text.lines().filter(|other| **other == line).count();
        assert_eq!(there, 1, "{line}: {text}");
    }
    // Alone on standard output.
    let (text, errors) = success_with_errors(
        memmgr()
            .args(["replay", "--mode", "async", "--prometheus", "-"])
            .arg(&trace.path),
    );
    assert!(text.starts_with("# HELP memmgr_"), "{text}");
    assert_eq!(errors.lines().next(), Some(BACKEND));
    let message = failure(
        memmgr()
            .args(["replay", "--prometheus", "both", "--json", "both"])
            .arg(&trace.path)
            .current_dir(trace.folder.path()),
    );
    assert!(message.contains("name the same file"), "{message}");
    let message = misuse(
        memmgr()
            .args(["replay", "--prometheus", "-", "--capacity", "1G"])
            .arg(&trace.path),
    );
    assert!(message.contains("--capacity"), "{message}");
}
