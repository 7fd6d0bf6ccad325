//! B57: `stream.capture(…)`, what graphs keep, and captures by other code.

#[path = "common/capturing.rs"]
mod capturing;
mod common;

use common::{KIB, MIB, MODES, assert_sound, manager, manager_in, stall};
use memmgr::{
    CaptureMode, Config, CopyKind, DeviceAllocatorMode, Error, Graph, MemoryManager,
    PerThreadStream, Result, Stream, cuda_calls_on_this_thread,
};
use memmgr_tests::Gate;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::null_mut,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// One test at a time: raw calls of one would end the global capture of another.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn in_use(mm: &MemoryManager) -> usize {
    let stats = mm.stats();
    let device = stats.device.first().expect("the device was used");
    device.best_fit.in_use + device.async_stream_ordered.in_use + device.cuda_async_pool.in_use
}

fn launch(graph: &mut Graph, stream: &Stream) {
    // SAFETY: the tests hold no slice of a buffer across a launch.
    let _ = unsafe { graph.launch(stream) }.expect("it can be launched");
}

/// Upload, copy inside the device, a fill of a part, download: with other data each time, launched on streams in turn.
#[test]
fn a_captured_pipeline_replays_a_thousand_times_with_its_data_verified() {
    let _turn = turn();
    const LEN: usize = 4 * KIB;
    for mode in MODES {
        let mm = manager_in(mode);
        let [recorded, a, b] = [(); 3].map(|()| Stream::new().unwrap());
        let mut input = mm.pinned_zeroed::<u64>(LEN).unwrap();
        let mut output = mm.pinned_zeroed::<u64>(LEN).unwrap();
        let first = mm.device::<u64>(LEN, &recorded).unwrap();
        let second = mm.device::<u64>(LEN, &a).unwrap();
        let mut graph = recorded
            .capture(|s| {
                let _ = s.copy_to_device(&input, &first)?;
                let _ = s.copy_device_to_device(&first, &second)?;
                // SAFETY: the range is the buffer's second quarter.
                unsafe {
                    let part = second.as_ptr().byte_add(2 * LEN);
                    mm.memset(part, 0xA5, 2 * LEN, s)?;
                }
                let _ = s.copy_to_host(&second, &mut output)?;
                Ok(())
            })
            .unwrap();
        assert!(
            output.as_slice().unwrap().iter().all(|x| *x == 0),
            "nothing has run"
        );
        // The graph keeps what only it uses from now on.
        drop((first, second));
        for round in 0..1000u64 {
            for (at, value) in input.as_mut_slice().unwrap().iter_mut().enumerate() {
                *value = round << 32 | at as u64;
            }
            launch(&mut graph, [&a, &b, &recorded][round as usize % 3]);
            let output = output.as_slice().unwrap();
            for (at, value) in output.iter().enumerate() {
                let filled = (LEN / 4..LEN / 2).contains(&at);
                let want = if filled {
                    0xA5A5_A5A5_A5A5_A5A5
                } else {
                    round << 32 | at as u64
                };
                assert_eq!(*value, want, "{mode}, round {round}, element {at}");
            }
        }
        drop((graph, input, output));
        mm.trim().unwrap();
        assert_eq!(in_use(&mm), 0, "{mode}");
        assert_sound(&mm);
        assert_eq!(mm.take_error(), None);
    }
}

/// What is freed stays out of everybody's hands as long as the graph may be launched, and comes back after it.
#[test]
fn blocks_that_a_graph_uses_are_not_handed_out_before_it_is_gone() {
    let _turn = turn();
    for mode in MODES {
        let mm = manager_in(mode);
        let s = Stream::new().unwrap();
        let mut host = mm.pinned_zeroed::<u8>(MIB).unwrap();
        let raw = mm.allocate_device_on(MIB, &s).unwrap();
        let named = mm.allocate_device_on(MIB, &s).unwrap();
        let mut graph = s
            .capture(|s| {
                // SAFETY: the block is ours and as long as the operations; the graph keeps it.
                unsafe {
                    mm.memset(raw, 7, MIB, s)?;
                    mm.record_use(named, s)?;
                    mm.free_device_on(named, s)?;
                    mm.copy_to_host_async(host.as_ptr(), raw, MIB, s)?;
                    mm.free_device(raw)
                }
            })
            .unwrap();
        assert_eq!(in_use(&mm), 2 * MIB, "{mode}");
        let live = mm.shutdown().unwrap().live;
        assert_eq!(live.iter().filter(|block| block.kept_by_graph).count(), 2);
        // SAFETY: what is tested is that these are refused.
        unsafe {
            let again = mm.free_device(raw);
            assert_eq!(
                again,
                Err(Error::DoubleFree { ptr: raw as usize }),
                "{mode}"
            );
            let used = mm.memset(raw, 1, 8, &s);
            assert!(
                matches!(used, Err(Error::UnknownPointer { .. })),
                "{used:?}"
            );
        }
        for value in [1u8, 2] {
            let others: Vec<_> = (0..8).map(|_| mm.device::<u8>(MIB, &s).unwrap()).collect();
            for other in &others {
                let start = other.as_ptr() as usize;
                assert!(start != raw as usize && start != named as usize);
                let _ = s.memset(other, value).unwrap();
            }
            launch(&mut graph, &s);
            assert!(host.as_slice().unwrap().iter().all(|x| *x == 7), "{mode}");
            host.as_mut_slice().unwrap().fill(0);
        }
        drop(graph);
        mm.trim().unwrap();
        assert_eq!(in_use(&mm), 0, "{mode}");
        assert_sound(&mm);
    }
}

/// A block that is allocated in the closure and dropped there is the graph's, without a copy that names it.
#[test]
fn what_is_allocated_inside_the_closure_is_kept_by_the_graph() {
    let _turn = turn();
    let mm = manager();
    let s = Stream::new().unwrap();
    drop(mm.device::<u8>(4 * MIB, &s).unwrap());
    let mut inside = [0; 2];
    let graph = s
        .capture(|s| {
            for address in &mut inside {
                let before = cuda_calls_on_this_thread();
                *address = mm.device::<u8>(MIB, s)?.as_ptr() as usize;
                assert_eq!(
                    cuda_calls_on_this_thread(),
                    before,
                    "a hit makes no CUDA call"
                );
            }
            Ok(())
        })
        .unwrap();
    assert_ne!(inside[0], inside[1], "both are the graph's");
    let outside = mm.device::<u8>(MIB, &s).unwrap().as_ptr() as usize;
    assert!(!inside.contains(&outside));
    drop(graph);
    assert_eq!(in_use(&mm), 0);
    let again = mm.device::<u8>(MIB, &s).unwrap().as_ptr() as usize;
    assert_eq!(again, inside[0], "it is free again");
}

/// The launch follows what other streams do with its blocks, and what they do next follows the launch.
#[test]
fn launches_are_ordered_with_other_uses_of_the_blocks() {
    let _turn = turn();
    let mm = manager();
    let [s, other] = [(); 2].map(|()| Stream::new().unwrap());
    let device = mm.device::<u8>(MIB, &other).unwrap();
    let mut host = mm.pinned_zeroed::<u8>(MIB).unwrap();
    let mut graph = s
        .capture(|s| s.copy_to_host(&device, &mut host).map(drop))
        .unwrap();
    for round in 1..=20u8 {
        let gate = Gate::new();
        stall(&other, &gate);
        let _ = other.memset(&device, round).unwrap();
        launch(&mut graph, &s);
        // Must not overtake the launch.
        let _ = other.memset(&device, 0xFF).unwrap();
        gate.open();
        assert!(
            host.as_slice().unwrap().iter().all(|x| *x == round),
            "{round}"
        );
    }
}

#[test]
fn a_graph_that_is_dropped_while_it_runs_runs_to_its_end() {
    let _turn = turn();
    let mm = manager();
    let s = Stream::new().unwrap();
    let mut host = mm.pinned_zeroed::<u8>(MIB).unwrap();
    let gate = Gate::new();
    let mut graph = s
        .capture(|s| {
            let device = mm.device_zeroed::<u8>(MIB, s)?;
            let _ = s.memset(&device, 9)?;
            s.copy_to_host(&device, &mut host).map(drop)
        })
        .unwrap();
    stall(&s, &gate);
    launch(&mut graph, &s);
    let before = Instant::now();
    drop(graph);
    assert!(
        before.elapsed() < Duration::from_secs(5),
        "a drop waits for nothing"
    );
    // Whoever gets the memory comes after the launch.
    let next = mm.device::<u8>(MIB, &s).unwrap();
    let _ = s.memset(&next, 1).unwrap();
    gate.open();
    assert!(host.as_slice().unwrap().iter().all(|x| *x == 9));
    s.synchronize().unwrap();
    mm.trim().unwrap();
}

#[test]
fn a_closure_that_fails_or_panics_ends_the_capture_and_leaves_nothing() {
    let _turn = turn();
    let mm = manager();
    let s = Stream::new().unwrap();
    let device = mm.device_zeroed::<u8>(KIB, &s).unwrap();
    for mode in CaptureMode::ALL {
        let failed = s.capturing().mode(mode).run(|s| {
            let _ = s.memset(&device, 1)?;
            s.synchronize()
        });
        let Err(Error::Unsupported { reason }) = failed else {
            panic!("{failed:?}");
        };
        assert!(reason.contains("captured"), "{reason}");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            s.capturing().mode(mode).run(|s| {
                let _ = s.memset(&device, 1)?;
                drop(mm.device::<u8>(KIB, s)?);
                panic!("on purpose");
            })
        }));
        let text = panicked.expect_err("the panic goes on");
        assert_eq!(text.downcast_ref::<&str>(), Some(&"on purpose"));
        assert_eq!(capturing::status(s.as_raw()), 0);
        s.synchronize().unwrap();
        assert_eq!(in_use(&mm), KIB);
    }
    drop(device);
    assert_eq!(in_use(&mm), 0);
}

#[test]
fn a_capture_inside_a_capture_and_one_of_a_default_stream_are_refused() {
    let _turn = turn();
    let s = Stream::new().unwrap();
    let graph = s.capture(|s| {
        let inner = s.capture(|_| Ok(()));
        assert!(matches!(inner, Err(Error::Unsupported { .. })), "{inner:?}");
        Ok(())
    });
    assert!(graph.is_ok(), "{graph:?}");
    let legacy = Stream::legacy(0).unwrap().capture(|_| Ok(()));
    assert!(
        matches!(legacy, Err(Error::Unsupported { .. })),
        "{legacy:?}"
    );
}

/// In the async modes, memory for a stream that is captured is refused, with what would help.
#[test]
fn the_async_modes_refuse_memory_for_a_captured_stream() {
    let _turn = turn();
    for mode in [
        DeviceAllocatorMode::AsyncStreamOrdered,
        DeviceAllocatorMode::CudaAsyncPool,
    ] {
        let mm = manager_in(mode);
        let s = Stream::new().unwrap();
        let graph = s.capture(|s| {
            let refused = mm.device::<u8>(KIB, s);
            let Err(Error::Unsupported { reason }) = refused else {
                panic!("{refused:?}");
            };
            assert!(reason.contains("before the capture begins"), "{reason}");
            mm.device::<u8>(KIB, &Stream::new()?).map(drop)
        });
        assert!(graph.is_ok(), "{graph:?}");
    }
}

/// A graph that other code captures and launches keeps the manager's blocks until it is destroyed.
#[test]
fn a_graph_of_other_code_keeps_its_blocks_until_it_is_destroyed() {
    let _turn = turn();
    for (mode, capture) in MODES.into_iter().zip(CaptureMode::ALL) {
        let mm = manager_in(mode);
        let [s, on] = [(); 2].map(|()| Stream::new().unwrap());
        let mut source = mm.pinned_zeroed::<u8>(MIB).unwrap();
        let mut target = mm.pinned_zeroed::<u8>(MIB).unwrap();
        let device = mm.device::<u8>(MIB, &s).unwrap();
        s.synchronize().unwrap();
        capturing::begin(&s, capture);
        let _ = s.copy_to_device(&source, &device).unwrap();
        let _ = s.copy_to_host(&device, &mut target).unwrap();
        drop(device);
        let (code, graph) = capturing::end(s.as_raw());
        assert_eq!(code, 0);
        let mut exec = null_mut();
        // SAFETY: the graph is alive, `exec` a place for one handle.
        let code = unsafe { cuda_sys::cudaGraphInstantiate(&mut exec, graph, 0) };
        assert_eq!(code.0, 0);
        capturing::destroy(graph);
        for round in 1..4u8 {
            source.as_mut_slice().unwrap().fill(round);
            // Would be handed the block's memory if it were free.
            let other = mm.device::<u8>(MIB, &s).unwrap();
            let _ = s.memset(&other, 0xEE).unwrap();
            // SAFETY: the graph keeps its blocks, and nobody looks at them before the synchronisation.
            let code = unsafe { cuda_sys::cudaGraphLaunch(exec, on.as_raw().cast()) };
            assert_eq!(code.0, 0);
            on.synchronize().unwrap();
            assert!(
                target.as_slice().unwrap().iter().all(|x| *x == round),
                "{mode}, {round}"
            );
        }
        assert_eq!(in_use(&mm), MIB, "{mode}");
        // SAFETY: nobody uses the handle afterwards.
        assert_eq!(unsafe { cuda_sys::cudaGraphExecDestroy(exec) }.0, 0);
        // The runtime says so on a thread of its own.
        let until = Instant::now() + Duration::from_secs(30);
        while in_use(&mm) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            mm.trim().unwrap();
        }
        assert_eq!(in_use(&mm), 0, "{mode}");
        assert_eq!(mm.take_error(), None);
        drop((source, target));
    }
}

/// B57 (c), and the same on a thread's default stream: no later call meets a captured event.
#[test]
fn no_event_of_a_capture_is_left_behind() {
    let _turn = turn();
    let mm = manager();
    let (s, own) = (Stream::new().unwrap(), PerThreadStream::new().unwrap());
    let [x, y] = [(); 2].map(|()| mm.allocate_device_on(MIB, &s).unwrap());
    let z = mm.allocate_device_on(MIB, &own).unwrap();
    s.synchronize().unwrap();
    capturing::begin(&s, CaptureMode::ThreadLocal);
    // SAFETY: the blocks are ours and as long as the operations.
    unsafe {
        mm.memset(x, 1, MIB, &s).unwrap();
        mm.copy_2d(
            y,
            MIB / 4,
            x,
            MIB / 4,
            MIB / 8,
            4,
            CopyKind::DeviceToDevice,
            &s,
        )
        .unwrap();
        mm.free_device_on(x, &s).unwrap();
        mm.free_device_on(y, &s).unwrap();
        mm.free_device_on(z, &own).unwrap();
    }
    let (code, graph) = capturing::end(s.as_raw());
    assert_eq!(code, 0);
    capturing::destroy(graph);
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        for size in [KIB, MIB, 2 * MIB] {
            drop(mm.device_zeroed::<u8>(size, &s).unwrap());
            let block = mm.allocate_device(size).unwrap();
            // SAFETY: the block is ours and unused.
            unsafe { mm.free_device(block).unwrap() };
        }
        mm.trim().unwrap();
        if in_use(&mm) == 0 || Instant::now() > until {
            break;
        }
    }
    assert_eq!(in_use(&mm), 0);
    own.synchronize().unwrap();
    s.synchronize().unwrap();
    assert_eq!(mm.shutdown().unwrap().live, []);
    assert_eq!(common::last_error(), 0);
}

/// A stream that is dropped while it is captured is destroyed after the capture.
#[test]
fn a_stream_that_is_dropped_while_it_is_captured_lives_until_the_end() {
    let _turn = turn();
    let mm = manager();
    let s = Stream::new().unwrap();
    let raw = s.as_raw();
    let block = mm.device::<u8>(MIB, &s).unwrap();
    let _ = s.memset(&block, 1).unwrap();
    capturing::begin(&s, CaptureMode::Global);
    drop(block);
    drop(s);
    let other = Stream::new().unwrap();
    assert_ne!(other.as_raw(), raw, "the handle is in use");
    drop(mm.device_zeroed::<u8>(3 * MIB, &other).unwrap());
    assert_eq!(capturing::status(raw), 1);
    let (code, graph) = capturing::end(raw);
    assert_eq!(code, 0);
    capturing::destroy(graph);
    // Its memory is proved free by the end that was recorded late.
    assert_eq!(mm.shutdown().unwrap().live, []);
    let stats = mm.stats().device[0].best_fit;
    assert_eq!((stats.in_use, stats.pending, stats.reserved), (0, 0, 0));
}

/// While a blocking stream is captured, any use of the legacy stream would end that: it is refused.
#[test]
fn the_legacy_stream_is_refused_while_a_blocking_stream_is_captured() {
    let _turn = turn();
    for mode in MODES {
        let mm = manager_in(mode);
        let blocking = Stream::builder().blocking(true).build().unwrap();
        let legacy = Stream::legacy(0).unwrap();
        let device = mm.device_zeroed::<u8>(KIB, &legacy).unwrap();
        let mut host = mm.pinned_zeroed::<u8>(KIB).unwrap();
        let done = Stream::new().unwrap().record().unwrap();
        done.synchronize().unwrap();
        legacy.synchronize().unwrap();
        let mut graph = Stream::new().unwrap().capture(|_| Ok(())).unwrap();
        capturing::begin(&blocking, CaptureMode::Relaxed);
        let refused = [
            ("synchronize", legacy.synchronize()),
            ("query", legacy.query().map(drop)),
            ("record", legacy.record().map(drop)),
            ("memset", legacy.memset(&device, 1).map(drop)),
            ("a copy", legacy.copy_to_host(&device, &mut host).map(drop)),
            ("record_use", mm.record_use(device.as_ptr(), &legacy)),
            ("launch_host", legacy.launch_host(|| ())),
            ("another handle", Stream::legacy(0).map(drop)),
            // SAFETY: no slice of its buffers is alive.
            ("a launch", unsafe { graph.launch(&legacy) }.map(drop)),
        ];
        for (what, result) in refused {
            let Err(Error::Unsupported { reason }) = result else {
                panic!("{mode}, {what}: {result:?}");
            };
            assert!(reason.contains("non-blocking"), "{what}: {reason}");
        }
        let block = mm.allocate_device_on(KIB, &legacy);
        let served = mode == DeviceAllocatorMode::BestFitPool;
        assert_eq!(block.is_ok(), served, "{mode}: {block:?}");
        drop((device, legacy));
        mm.trim().unwrap();
        assert_eq!(capturing::status(blocking.as_raw()), 1, "{mode}");
        let (code, captured) = capturing::end(blocking.as_raw());
        assert_eq!(code, 0, "{mode}");
        capturing::destroy(captured);
        Stream::legacy(0).unwrap().synchronize().unwrap();
        mm.trim().unwrap();
        assert_sound(&mm);
        assert_eq!(mm.take_error(), None);
    }
}

/// The same beside a capture by other code, after which nobody has told the manager that it is over.
#[test]
fn memory_of_a_stream_that_other_code_captured_comes_back_after_the_capture() {
    let _turn = turn();
    for ask_without_a_stream in [false, true] {
        let limit = Config::default().device_pool_limit(Some(4 * MIB));
        let mm = MemoryManager::new(limit).unwrap();
        let [s, other] = [(); 2].map(|()| Stream::new().unwrap());
        let block = mm.device::<u8>(4 * MIB, &s).unwrap();
        let _ = s.memset(&block, 1).unwrap();
        drop(block);
        let ask = || -> Result<()> {
            if ask_without_a_stream {
                let block = mm.allocate_device(4 * MIB)?;
                // SAFETY: the block is ours and unused.
                return unsafe { mm.free_device(block) };
            }
            mm.device::<u8>(4 * MIB, &other).map(drop)
        };
        capturing::begin(&s, CaptureMode::ThreadLocal);
        for _ in 0..3 {
            let refused = ask();
            assert!(
                matches!(refused, Err(Error::Unsupported { .. })),
                "{refused:?}"
            );
        }
        let (code, graph) = capturing::end(s.as_raw());
        assert_eq!(code, 0);
        capturing::destroy(graph);
        ask().unwrap();
        other.synchronize().unwrap();
        s.synchronize().unwrap();
        assert_sound(&mm);
    }
}

/// What was freed on a stream that is captured since is out of reach: refused with what would help, and served afterwards.
#[test]
fn memory_that_a_captured_stream_has_freed_comes_back_after_the_capture() {
    let _turn = turn();
    let mm = MemoryManager::new(Config::default().device_pool_limit(Some(4 * MIB))).unwrap();
    let [s, other] = [(); 2].map(|()| Stream::new().unwrap());
    let block = mm.device::<u8>(4 * MIB, &s).unwrap();
    let _ = s.memset(&block, 1).unwrap();
    drop(block);
    let ask = || -> Result<()> {
        let block = mm.device::<u8>(4 * MIB, &other)?;
        other.memset(&block, 2).map(drop)
    };
    let graph = s.capture(|s| {
        let refused = ask();
        let Err(Error::Unsupported { reason }) = refused else {
            panic!("{refused:?}");
        };
        assert!(reason.contains("before the capture begins"), "{reason}");
        // The stream itself has it at once.
        mm.device::<u8>(4 * MIB, s).map(drop)
    });
    drop(graph.unwrap());
    ask().unwrap();
    other.synchronize().unwrap();
    s.synchronize().unwrap();
}
