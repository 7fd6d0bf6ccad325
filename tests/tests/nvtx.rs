//! What tools are told through NVTX, by a tool of the test's own (`nvtx/tool.c`), which the system's compiler makes and NVTX
//! loads: that at any time the live blocks may be used and nothing else, and ranges around what takes long.
//!
//! On the simulated runtime; compute-sanitizer itself runs `examples/overrun.rs` on a GPU.

mod common;

use common::{KIB, MIB, child};
use memmgr::{Config, DeviceSource, MemoryManager, Stream};
use memmgr_tests::Rng;
use std::{
    collections::BTreeMap,
    ffi::c_void,
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::Duration,
};

/// Where the tool writes.
const OUT: &str = "MEMMGR_TEST_TOOL";

/// The headers that the library was built with.
fn headers() -> PathBuf {
    let fetched = "../target/toolchain/nvtx/nvidia/cu13/include";
    std::env::var_os("MEMMGR_NVTX_INCLUDE").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join(fetched),
        PathBuf::from,
    )
}

/// The tool, as a library.
fn tool() -> &'static Path {
    static TOOL: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let made = TOOL.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("tool.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvtx/tool.c");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wall", "-I"])
            .arg(headers())
            .arg(source)
            .arg("-o")
            .arg(&library)
            .output()
            .expect("a C compiler");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        (folder, library)
    });
    &made.1
}

/// A call that the tool has seen, or what the case has written between.
type Line = (String, usize, usize);

/// Runs a case with the tool; what it has written.
#[track_caller]
fn run(case: &str) -> Vec<Line> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::write(&out, "").unwrap();
    let case = format!("{case}={}={}", tool().display(), out.display());
    let (status, stderr) = child::run(&case, Duration::from_secs(60));
    assert!(status.success(), "{stderr}");
    let text = fs::read_to_string(out).unwrap();
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse().expect(line);
        (words[0].to_owned(), number(1), number(2))
    };
    text.lines().map(line).collect()
}

/// Keeps books as a checker of memory does: parts lie in memory that is known, and do not overlap. At each `check` of the case
/// they are the blocks that it says are live; how many checks there were.
#[track_caller]
fn audit(lines: &[Line]) -> usize {
    let mut heaps: BTreeMap<usize, usize> = BTreeMap::new();
    let mut parts: BTreeMap<usize, usize> = BTreeMap::new();
    let mut live: BTreeMap<usize, usize> = BTreeMap::new();
    let mut checks = 0;
    let before = |map: &BTreeMap<usize, usize>, at: usize| {
        let found = map.range(..at).next_back();
        found.map(|(start, size)| (*start, start + size))
    };
    for (word, start, size) in lines {
        let end = start + size;
        match word.as_str() {
            "heap" => {
                assert!(before(&heaps, end).is_none_or(|(_, end)| end <= *start));
                heaps.insert(*start, *size);
            }
            "heap-end" => {
                let size = heaps.remove(start).expect("a segment that is known");
                parts.retain(|at, _| !(*start..start + size).contains(at));
            }
            "region" => {
                let around = before(&heaps, start + 1).expect("in a segment");
                assert!(around.1 >= end, "{around:x?} {start:x} {end:x}");
                assert!(before(&parts, end).is_none_or(|(_, end)| end <= *start));
                parts.insert(*start, *size);
            }
            "region-end" => drop(parts.remove(start).expect("a part that is known")),
            "live" => drop(live.insert(*start, *size)),
            "check" => {
                assert_eq!(parts, std::mem::take(&mut live));
                checks += 1;
            }
            "unsound" => panic!("a call that no tool would understand"),
            _ => {}
        }
    }
    checks
}

#[test]
fn at_any_time_the_live_blocks_may_be_used_and_nothing_else() {
    let lines = run("malloc");
    assert_eq!(audit(&lines), 20);
    assert!(lines.iter().any(|line| line.0 == "heap-end"));
}

#[test]
fn of_mapped_memory_tools_are_told_nothing() {
    let lines = run("virtual");
    let told = |line: &&Line| line.0.starts_with("heap") || line.0.starts_with("region");
    assert_eq!(lines.iter().find(told), None);
    assert!(lines.iter().any(|line| line.0 == "push-memmgr-grow"));
}

#[test]
fn growth_trims_and_copies_are_ranges() {
    let lines = run("virtual");
    let mut open = 0;
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for (word, _, bytes) in &lines {
        if let Some(name) = word.strip_prefix("push-") {
            open += 1;
            *names.entry(name).or_default() += 1;
            assert!(name != "memmgr-copy" || *bytes == 100, "{bytes}");
        } else if word == "pop" {
            open -= 1;
            assert!(open >= 0);
        }
    }
    assert_eq!(open, 0, "each range ends");
    for name in ["memmgr-grow", "memmgr-trim", "memmgr-copy"] {
        assert!(names.contains_key(name), "{name}: {names:?}");
    }
    let domains = lines.iter().filter(|line| line.0.starts_with("domain-"));
    assert_eq!(domains.count(), 1);
}

/// The child's side: does nothing unless a case is named.
#[test]
fn the_case_that_the_environment_names() {
    let Ok(case) = std::env::var(child::CASE) else {
        return;
    };
    let words: Vec<&str> = case.split('=').collect();
    let [case, tool, out] = words[..] else {
        panic!("{case}");
    };
    // SAFETY: no other thread reads the environment now.
    unsafe {
        std::env::set_var("NVTX_INJECTION64_PATH", tool);
        std::env::set_var(OUT, out);
    }
    let mut out = OpenOptions::new().append(true).open(out).unwrap();
    let source = match case {
        "malloc" => DeviceSource::Malloc,
        _ => DeviceSource::Auto,
    };
    let mm = MemoryManager::new(
        Config::default()
            .device_source(source)
            .device_growth(2 * MIB),
    );
    let mm = mm.unwrap();
    program(&mm, &mut out);
}

fn program(mm: &MemoryManager, out: &mut fs::File) {
    let streams: Vec<Stream> = (0..2).map(|_| Stream::new().unwrap()).collect();
    let mut rng = Rng(3);
    let mut live: Vec<(*mut c_void, usize)> = Vec::new();
    let mut host = mm.pinned::<u8>(100).unwrap();
    for step in 0..1000 {
        let stream = &streams[rng.index(2)];
        if rng.below(5) < 3 || live.is_empty() {
            let size = 1 + rng.index(300 * KIB);
            live.push((mm.allocate_device_on(size, stream).unwrap(), size));
        } else {
            let (block, _) = live.swap_remove(rng.index(live.len()));
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device_on(block, stream).unwrap() };
        }
        let guard = mm.device::<u8>(100, stream).unwrap();
        let _ = stream.copy_to_host(&guard, &mut host).unwrap();
        drop(guard);
        if step % 50 == 49 {
            for (block, size) in &live {
                writeln!(out, "live {} {size}", *block as usize).unwrap();
            }
            writeln!(out, "check 0 0").unwrap();
        }
        if step % 200 == 199 {
            for (block, _) in live.drain(..) {
                // SAFETY: nobody uses the block.
                unsafe { mm.free_device_on(block, stream).unwrap() };
            }
            for stream in &streams {
                stream.synchronize().unwrap();
            }
            mm.trim_to(3 * MIB).unwrap();
        }
    }
    mm.check().unwrap();
}
