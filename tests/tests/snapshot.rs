//! Snapshots: that they say what the books say, and that PyTorch's own viewer opens their files.
//!
//! The viewer is `_memory_viz.py` of PyTorch, which needs Python alone; `MEMMGR_TORCH_VIZ` names it (`cargo xtask ci --only
//! torch-viewer` fetches it).

mod common;

use common::{KIB, MIB, config, stall};
use memmgr::{
    Config, DeviceAllocatorMode, DeviceSource, MemoryManager, Place, PoolStats, Snapshot, Stream,
    events::Action,
    snapshot::{Block, BlockState},
};
use memmgr_tests::{Gate, Rng, skip};
use std::{
    collections::BTreeMap,
    ffi::c_void,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn manager(config: Config) -> MemoryManager {
    MemoryManager::new(config).expect("the settings are valid")
}

/// Each segment is filled by its blocks; the figures are those of the manager.
#[track_caller]
fn assert_agrees(mm: &MemoryManager, snapshot: &Snapshot) {
    let mut sums: BTreeMap<String, [usize; 4]> = BTreeMap::new();
    for segment in &snapshot.segments {
        let mut at = segment.address;
        let key = format!("{} {:?}", segment.place, segment.mode);
        let [reserved, live, pending, idle] = sums.entry(key).or_default();
        *reserved += segment.size;
        for block in &segment.blocks {
            assert_eq!(block.address, at, "no gap and no overlap");
            assert!(block.size > 0 && block.requested <= block.size);
            at += block.size;
            match block.state {
                BlockState::Live | BlockState::KeptByGraph => *live += block.size,
                BlockState::Pending => *pending += block.size,
                _ => *idle += block.size,
            }
        }
        assert_eq!(at, segment.address + segment.size);
    }
    let stats = mm.stats();
    let figures = |of: &PoolStats| [of.reserved, of.in_use, of.pending, of.idle];
    let sum = |key: String| sums.get(&key).copied().unwrap_or_default();
    let own = Some(DeviceAllocatorMode::BestFitPool);
    for device in &stats.device {
        let key = format!("device {} {own:?}", device.device);
        assert_eq!(sum(key), figures(&device.best_fit));
    }
    let pinned = format!("{} {:?}", Place::Pinned, None::<DeviceAllocatorMode>);
    assert_eq!(sum(pinned), figures(&stats.pinned));
}

#[track_caller]
fn at(snapshot: &Snapshot, address: *const c_void) -> Block {
    let blocks = (snapshot.segments.iter()).flat_map(|segment| &segment.blocks);
    let mut found = blocks.filter(|block| block.address == address as usize);
    found.next().expect("a block starts there").clone()
}

/// # Safety
/// Nobody uses the block.
unsafe fn free_on(mm: &MemoryManager, block: *mut c_void, stream: &Stream) {
    // SAFETY: as this function demands.
    unsafe { mm.free_device_on(block, stream).unwrap() };
}

#[test]
fn a_snapshot_tells_what_is_live_what_is_pending_and_what_is_idle() {
    let mm = manager(config().event_ring(100));
    let (one, other) = (Stream::new().unwrap(), Stream::new().unwrap());
    let live = mm.allocate_device_on(1000, &one).unwrap();
    let own = mm.allocate_device_on(3 * KIB, &one).unwrap();
    let wall = mm.allocate_device(KIB).unwrap();
    let both = mm.allocate_device_on(5 * KIB, &one).unwrap();
    let guard = mm.device::<u8>(7, &other).unwrap();
    let pinned = mm.pinned::<u8>(100).unwrap();
    let gate = Gate::new();
    stall(&one, &gate);
    stall(&other, &gate);
    mm.record_use(both, &other).unwrap();
    // SAFETY: nobody uses the blocks but the recorded use.
    unsafe {
        free_on(&mm, own, &one);
        free_on(&mm, both, &one);
    }
    let snapshot = mm.snapshot();
    assert_agrees(&mm, &snapshot);
    let what = |address| {
        let block = at(&snapshot, address);
        (
            block.state,
            block.size,
            block.requested,
            block.stream,
            block.raw,
        )
    };
    let (first, second) = (Some(one.id()), Some(other.id()));
    assert_eq!(what(live), (BlockState::Live, 1024, 1000, first, true));
    assert_eq!(what(wall), (BlockState::Live, KIB, KIB, None, true));
    // What one stream waits for, it may have again; both must be done with the other.
    assert_eq!(what(own), (BlockState::Pending, 3 * KIB, 0, first, false));
    assert_eq!(what(both), (BlockState::Pending, 5 * KIB, 0, None, false));
    let of_guard = guard.as_ptr().cast::<c_void>();
    assert_eq!(what(of_guard), (BlockState::Live, 256, 7, second, false));
    let of_pinned = pinned.as_ptr().cast::<c_void>();
    assert_eq!(what(of_pinned), (BlockState::Live, 256, 100, None, false));
    assert_eq!(snapshot.events, mm.events());
    gate.open();
    one.synchronize().unwrap();
    other.synchronize().unwrap();
    drop((guard, pinned));
    // SAFETY: nobody uses the blocks.
    unsafe {
        free_on(&mm, live, &one);
        mm.free_device(wall).unwrap();
    }
    mm.trim().unwrap();
    let after = mm.snapshot();
    assert_agrees(&mm, &after);
    let blocks = (after.segments.iter()).flat_map(|segment| &segment.blocks);
    assert!(blocks.clone().all(|block| block.state == BlockState::Idle));
}

#[test]
fn names_and_call_sites_are_in_a_snapshot_and_its_events() {
    for mode in DeviceAllocatorMode::ALL {
        let mm = manager(config().mode(mode).call_sites(true).event_ring(10));
        let stream = Stream::new().unwrap();
        let guard = mm.device::<u8>(1000, &stream).unwrap();
        let line = line!() - 1;
        let guard = guard.with_name("a \"weight\"");
        let snapshot = mm.snapshot();
        let block = at(&snapshot, guard.as_ptr().cast());
        assert_eq!(block.name.as_deref(), Some("a \"weight\""));
        let site = block.call_site.expect("call sites are kept");
        assert_eq!((site.file(), site.line()), (file!(), line));
        assert_eq!(snapshot.events.last().unwrap().call_site, Some(site));
        let file = tempfile::NamedTempFile::new().unwrap();
        snapshot.write_json(file.path()).unwrap();
        let text = fs::read_to_string(file.path()).unwrap();
        let name = "\"name\":\"a \\u0022weight\\u0022\"";
        let frame = format!("{{{name},\"filename\":\"{}\",\"line\":{line}}}", file!());
        assert!(text.contains(&frame), "{frame}: {text}");
    }
}

#[test]
fn a_snapshot_agrees_with_the_books_whatever_came_before() {
    for source in [DeviceSource::Malloc, DeviceSource::Auto] {
        for seed in 0..8 {
            let mm = manager(config().device_source(source).device_growth(2 * MIB));
            let streams: Vec<Stream> = (0..3).map(|_| Stream::new().unwrap()).collect();
            let mut rng = Rng(seed);
            let mut live = Vec::new();
            for step in 0..400 {
                let stream = &streams[rng.index(3)];
                if rng.below(5) < 3 || live.is_empty() {
                    let size = 1 + rng.index(300 * KIB);
                    live.push(mm.allocate_device_on(size, stream).unwrap());
                } else {
                    let block = live.swap_remove(rng.index(live.len()));
                    // SAFETY: nobody uses the block.
                    unsafe { free_on(&mm, block, stream) };
                }
                if step % 100 == 99 {
                    mm.trim_to(MIB).unwrap();
                    let snapshot = mm.snapshot();
                    assert_agrees(&mm, &snapshot);
                    for block in &live {
                        assert_eq!(at(&snapshot, *block).state, BlockState::Live);
                    }
                }
            }
            for block in live {
                // SAFETY: nobody uses the block.
                unsafe { mm.free_device(block).unwrap() };
            }
        }
    }
}

#[test]
fn blocks_of_the_async_modes_are_segments_of_their_own() {
    for mode in [
        DeviceAllocatorMode::AsyncStreamOrdered,
        DeviceAllocatorMode::CudaAsyncPool,
    ] {
        let mm = manager(config().mode(mode));
        let stream = Stream::new().unwrap();
        let guard = mm.device::<u8>(1000, &stream).unwrap();
        let snapshot = mm.snapshot();
        let [segment] = &snapshot.segments[..] else {
            panic!("{snapshot:?}");
        };
        assert_eq!((segment.mode, segment.size), (Some(mode), 1000));
        let block = at(&snapshot, guard.as_ptr().cast());
        assert_eq!(
            (block.state, block.stream),
            (BlockState::Live, Some(stream.id()))
        );
    }
}

#[test]
fn what_another_thread_does_meanwhile_harms_no_snapshot() {
    let mm = &manager(config().event_ring(1000));
    let done = &std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            scope.spawn(move || {
                let stream = Stream::new().unwrap();
                let mut rng = Rng(seed);
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(mm.device::<u8>(1 + rng.index(MIB), &stream).unwrap());
                }
            });
        }
        for _ in 0..50 {
            for segment in mm.snapshot().segments {
                let sum: usize = segment.blocks.iter().map(|block| block.size).sum();
                assert_eq!(sum, segment.size);
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_file_is_written_whole_or_not_at_all() {
    let mm = manager(config());
    let snapshot = mm.snapshot();
    let folder = tempfile::tempdir().unwrap();
    let write = |json: bool, path: &Path| match json {
        true => snapshot.write_json(path),
        false => snapshot.write_pickle(path),
    };
    for json in [false, true] {
        assert!(write(json, &folder.path().join("no/such/folder")).is_err());
        assert!(write(json, folder.path()).is_err());
        write(json, &folder.path().join("file")).unwrap();
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let text = fs::read_to_string(folder.path().join("file")).unwrap();
    assert!(text.starts_with("{\"segments\":[]"), "{text}");
}

/// A program with everything that an event can be, and what is left at its end.
fn program(config: Config) -> MemoryManager {
    let mm = manager(config.event_ring(10_000).device_pool_limit(Some(64 * MIB)));
    let streams: Vec<Stream> = (0..2).map(|_| Stream::new().unwrap()).collect();
    let mut rng = Rng(7);
    let mut live: Vec<*mut c_void> = Vec::new();
    for step in 0..600 {
        let stream = &streams[rng.index(2)];
        if rng.below(5) < 3 || live.is_empty() {
            let size = 1 + rng.index(200 * KIB);
            live.push(mm.allocate_device_on(size, stream).unwrap());
        } else {
            let block = live.swap_remove(rng.index(live.len()));
            // SAFETY: nobody uses the block.
            unsafe { free_on(&mm, block, stream) };
        }
        drop(mm.pinned::<u8>(1 + rng.index(KIB)).unwrap());
        if step == 300 {
            for block in live.drain(..) {
                // SAFETY: nobody uses the block.
                unsafe { free_on(&mm, block, stream) };
            }
            stream.synchronize().unwrap();
            mm.trim().unwrap();
        }
    }
    // Refused by the limit, or by the device.
    assert!(mm.allocate_device(1 << 50).is_err());
    mm
}

/// Walks the events of a place backwards from what is there at the end, as viewers do: blocks come and go within segments, and
/// before the first event there is nothing.
#[track_caller]
fn assert_history_fits(snapshot: &Snapshot, place: Place) {
    let (mut pages, mut live) = (BTreeMap::new(), BTreeMap::new());
    let own = |mode| matches!(mode, None | Some(DeviceAllocatorMode::BestFitPool));
    let segments = snapshot
        .segments
        .iter()
        .filter(|segment| segment.place == place);
    for segment in segments {
        if own(segment.mode) {
            pages.insert(segment.address, segment.address + segment.size);
        }
        let blocks = segment.blocks.iter();
        for block in blocks.filter(|block| block.state == BlockState::Live) {
            live.insert(block.address, block.requested);
        }
    }
    let events = snapshot.events.iter().filter(|event| event.place == place);
    for event in events.rev() {
        let range = event.address..event.address + event.size;
        let around = |pages: &BTreeMap<usize, usize>| {
            let before = pages.range(..=range.start).next_back();
            before
                .map(|(start, end)| (*start, *end))
                .filter(|(_, end)| *end >= range.end)
        };
        match event.action {
            Action::Allocate => {
                let requested = live.remove(&event.address);
                assert_eq!(requested, Some(event.requested), "{event:?}");
            }
            Action::Free => {
                assert!(!own(event.mode) || around(&pages).is_some(), "{event:?}");
                let former = live.insert(event.address, event.requested);
                assert_eq!(former, None, "{event:?}");
            }
            Action::SegmentAdded => {
                let (start, end) = around(&pages).expect("what was added is there");
                pages.remove(&start);
                pages.extend(
                    [(start, range.start), (range.end, end)]
                        .into_iter()
                        .filter(|(a, b)| a < b),
                );
                assert_eq!(live.range(range).count(), 0, "{event:?}");
            }
            Action::SegmentRemoved => {
                let (mut start, mut end) = (range.start, range.end);
                let before = pages.range(..=start).next_back().map(|(a, b)| (*a, *b));
                if let Some((a, b)) = before.filter(|(_, b)| *b >= start) {
                    assert_eq!(b, start, "{event:?}: it was there");
                    start = a;
                }
                end = pages.remove(&end).unwrap_or(end);
                pages.insert(start, end);
            }
            _ => {}
        }
    }
    assert!(
        pages.is_empty() && live.is_empty(),
        "{place}: {pages:x?} {live:x?}"
    );
}

#[test]
fn events_and_segments_of_a_snapshot_fit_together() {
    let modes = DeviceAllocatorMode::ALL.map(|mode| config().mode(mode));
    let malloc = config().device_source(DeviceSource::Malloc);
    for config in modes.into_iter().chain([malloc]) {
        let snapshot = program(config).snapshot();
        assert!(snapshot.events.len() > 1000);
        for place in [Place::Device(0), Place::Pinned] {
            assert_history_fits(&snapshot, place);
        }
    }
}

/// Runs the viewer; what it says.
#[track_caller]
fn view(script: &Path, folder: &Path, words: &[&str]) -> String {
    let output = Command::new("python3")
        .arg(script)
        .args(words)
        .current_dir(folder)
        .env("HOME", folder)
        .output()
        .expect("python3 starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn the_viewer_of_pytorch_opens_a_pickle_in_each_of_its_commands() {
    let Some(script) = std::env::var_os("MEMMGR_TORCH_VIZ").map(PathBuf::from) else {
        skip(
            "the_viewer",
            "MEMMGR_TORCH_VIZ does not name _memory_viz.py",
        );
        return;
    };
    let script = fs::canonicalize(script).expect("MEMMGR_TORCH_VIZ names a file");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // What draws flame graphs is fetched from elsewhere; here it hands on what it is to draw.
    let draws = folder.join(".cache/flamegraph.pl");
    fs::create_dir(folder.join(".cache")).unwrap();
    fs::write(&draws, "#!/bin/sh\nexec cat\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&draws, mode).unwrap();

    manager(config())
        .snapshot()
        .write_pickle(folder.join("empty.pickle"))
        .unwrap();
    let modes = DeviceAllocatorMode::ALL.map(|mode| config().mode(mode));
    let malloc = config().device_source(DeviceSource::Malloc);
    for config in modes.into_iter().chain([malloc]) {
        let name = format!("{:?}", config.mode);
        let mm = program(config);
        let snapshot = mm.snapshot();
        snapshot.write_pickle(folder.join("all.pickle")).unwrap();

        let stats = view(&script, folder, &["stats", "all.pickle"]);
        let segments = format!("segments: {}\n", snapshot.segments.len());
        assert!(stats.contains(&segments), "{name}: {stats}");

        let trace = view(&script, folder, &["trace", "all.pickle"]);
        for told in [
            "Device 0 ---",
            "del ",
            "free completed for",
            "TOTAL MEM",
            "OutOfMemoryError",
        ] {
            assert!(trace.contains(told), "{name}: {told}\n{trace}");
        }
        let pinned = format!("Device {} ---", snapshot.devices);
        assert!(trace.contains(&pinned), "{name}: {pinned}");

        let total: usize = snapshot.segments.iter().map(|segment| segment.size).sum();
        // `compare` wants files of an older form; what PyTorch writes now is not read by it either.
        for words in [
            &["memory", "all.pickle", "-o", "out"][..],
            &["segments", "all.pickle", "-o", "out"],
        ] {
            view(&script, folder, words);
            let lines = fs::read_to_string(folder.join("out")).unwrap();
            let bytes = lines.lines().map(|line| line.rsplit(' ').next().unwrap());
            let sum: usize = bytes.map(|bytes| bytes.parse::<usize>().unwrap()).sum();
            // A free block is given as nothing that was asked for, and a gap.
            assert_eq!(sum, total, "{name}: {words:?}");
        }
        for words in [
            &["trace_plot", "all.pickle", "-o", "out"][..],
            &["trace_plot", "all.pickle", "-s", "-o", "out"],
            &["trace_plot", "all.pickle", "-f", "-o", "out"],
            &["segment_plot", "all.pickle", "-o", "out"],
        ] {
            let said = view(&script, folder, words);
            // It tells of frees that do not fit together.
            assert_eq!(said, "", "{name}: {words:?}");
            let page = fs::read_to_string(folder.join("out")).unwrap();
            assert!(page.contains("snapshot.pickle"), "{name}: {words:?}");
        }
    }
    view(&script, folder, &["stats", "empty.pickle"]);
    view(&script, folder, &["trace", "empty.pickle"]);
}
