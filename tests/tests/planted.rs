//! What the ordering checker of the simulated runtime says when a protection of the manager is missing: each program runs
//! as it is, without a finding, and again with the mistake planted, which must be found, whether or not any byte went
//! wrong this time.
#![cfg(feature = "sim")]

mod common;

use common::{KIB, MIB, manager_in, manager_of, stall};
use cudart_sim::{Check, Finding, FindingKind};
use memmgr::{
    Config, DeviceAllocatorMode, DeviceBuffer, DeviceSource, MemoryManager, PerThreadStream,
    Stream,
    planted::{self, Mistake},
};
use memmgr_tests::Gate;
use std::{
    future::IntoFuture,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

/// Segments of `cudaMalloc`, which do not go before all work has ended. What a mistake has unmapped under work would end the
/// context, and with it the next program; `moving_mistake.rs` is about that.
fn config() -> Config {
    Config::default().device_source(DeviceSource::Malloc)
}

const ASYNC_MODES: [DeviceAllocatorMode; 2] = [
    DeviceAllocatorMode::AsyncStreamOrdered,
    DeviceAllocatorMode::CudaAsyncPool,
];

/// The findings are those of the process: one program at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static TWO_DEVICES: Once = Once::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    TWO_DEVICES
        .call_once(|| cudart_sim::configure(cudart_sim::Config::devices(2, 1 << 30)).unwrap());
    // Where work is done at once, half of these mistakes are none.
    cudart_sim::set_schedule(cudart_sim::Schedule::Lazy);
    cudart_sim::check(Check::Off);
    cudart_sim::check(Check::Report);
    turn
}

/// The findings of a program, with a mistake or without.
fn findings(mistake: Option<Mistake>, program: impl Fn()) -> Vec<Finding> {
    planted::make(mistake, program);
    cudart_sim::report()
}

/// Runs a program both ways; the first finding is of one of these kinds, and names the places in this file (or the drop of a
/// guard).
#[track_caller]
fn only_with(mistake: Mistake, kinds: &[FindingKind], program: impl Fn()) {
    let _turn = turn();
    let clean = findings(None, &program);
    assert!(clean.is_empty(), "without a mistake: {clean:?}");
    let found = findings(Some(mistake), &program);
    assert!(!found.is_empty(), "{mistake:?} was not seen");
    // What follows the first finding may be a consequence.
    let first = &found[0];
    assert!(kinds.contains(&first.kind), "{first}");
    for operation in first.first.iter().chain([&first.second]) {
        let site = operation.site.as_deref().unwrap_or("nowhere");
        let known = ["tests/planted.rs", "src/buffer/mod.rs"];
        assert!(known.iter().any(|file| site.contains(file)), "{first}");
    }
    assert!(first.first.is_some(), "both operations: {first}");
}

fn pool(bytes: usize) -> MemoryManager {
    manager_of(config(), bytes)
}

/// B22: two copies read pinned memory; both guards go at once, and the next owners write it.
#[test]
fn a_pinned_source_that_is_recycled_under_a_copy_is_seen() {
    only_with(
        Mistake::UsesAreForgotten,
        &[
            FindingKind::ReusedInUse,
            FindingKind::Race,
            FindingKind::FreedInUse,
        ],
        || {
            let mm = MemoryManager::new(config()).unwrap();
            let s = Stream::new().unwrap();
            let device = [(); 2].map(|()| mm.device::<u8>(MIB, &s).unwrap());
            for on_device in &device {
                let mut host = mm.pinned::<u8>(MIB).unwrap();
                host.as_mut_slice().unwrap().fill(0x11);
                let _ = s.copy_to_device(&host, on_device).unwrap();
            }
            let mut next = mm.pinned::<u8>(2 * MIB).unwrap();
            next.as_mut_slice().unwrap().fill(0xEE);
            s.synchronize().unwrap();
        },
    );
}

/// B22: a copy to the host is still writing when its target changes hands.
#[test]
fn a_pinned_target_that_is_recycled_under_a_copy_is_seen() {
    only_with(
        Mistake::UsesAreForgotten,
        &[
            FindingKind::ReusedInUse,
            FindingKind::Race,
            FindingKind::FreedInUse,
        ],
        || {
            let mm = MemoryManager::new(config()).unwrap();
            let s = Stream::new().unwrap();
            let device = mm.device::<u8>(MIB, &s).unwrap();
            let _ = s.memset(&device, 1).unwrap();
            let mut host = mm.pinned::<u8>(MIB).unwrap();
            let _ = s.copy_to_host(&device, &mut host).unwrap();
            drop(host);
            let next = mm.pinned::<u8>(MIB).unwrap();
            next.as_slice().unwrap();
            s.synchronize().unwrap();
        },
    );
}

/// B24, in every mode: a guard goes on its own stream while another still reads it.
#[test]
fn a_guard_that_goes_while_another_stream_uses_it_is_seen() {
    for mode in DeviceAllocatorMode::ALL {
        only_with(
            Mistake::UsesAreForgotten,
            &[
                FindingKind::ReusedInUse,
                FindingKind::FreedInUse,
                FindingKind::Race,
            ],
            || {
                let mm = manager_in(mode);
                let (s1, s2) = (Stream::new().unwrap(), Stream::new().unwrap());
                let mut host = mm.pinned::<u8>(MIB).unwrap();
                let x = mm.device::<u8>(MIB, &s1).unwrap();
                let _ = s2.memset(&x, 0x55).unwrap();
                let _ = s2.copy_to_host(&x, &mut host).unwrap();
                drop(x);
                let y = mm.device::<u8>(MIB, &s1).unwrap();
                let _ = s1.memset(&y, 0x66).unwrap();
                s2.synchronize().unwrap();
                s1.synchronize().unwrap();
            },
        );
    }
}

/// B26 (b): a stream goes with work behind it; its memory passes to one that has the same handle.
#[test]
fn memory_of_a_stream_that_is_gone_is_seen_in_the_hands_of_its_successor() {
    only_with(
        Mistake::EndsAreForgotten,
        &[FindingKind::ReusedInUse],
        || {
            let mm = pool(2 * MIB);
            let old = Stream::new().unwrap();
            let raw = old.as_raw();
            let x = mm.device::<u8>(2 * MIB, &old).unwrap();
            let _ = old.memset(&x, 0xAA).unwrap();
            drop((x, old));
            let new = Stream::new().unwrap();
            assert_eq!(raw, new.as_raw(), "the handle comes back");
            let y = mm.device::<u8>(2 * MIB, &new).unwrap();
            let _ = new.memset(&y, 0xBB).unwrap();
            new.synchronize().unwrap();
        },
    );
}

/// B22 with a transfer: it goes before its copy has run, and its memory passes on.
#[test]
fn a_transfer_that_is_dropped_under_its_copy_is_seen() {
    only_with(
        Mistake::UsesAreForgotten,
        &[
            FindingKind::ReusedInUse,
            FindingKind::Race,
            FindingKind::FreedInUse,
        ],
        || {
            let mm = MemoryManager::new(config()).unwrap();
            let s = Stream::new().unwrap();
            let host = mm.pinned_zeroed::<u8>(MIB).unwrap();
            let device = mm.device::<u8>(MIB, &s).unwrap();
            let transfer = s.transfer_to_device(host, device).unwrap();
            drop(transfer.into_future());
            let mut next = mm.pinned::<u8>(MIB).unwrap();
            next.as_mut_slice().unwrap().fill(0xEE);
            s.synchronize().unwrap();
        },
    );
}

/// D01: memory with an older mark passes through an owner that does nothing with it.
#[test]
fn a_free_that_washes_away_an_older_mark_is_seen() {
    for freed_on in 0..2 {
        only_with(
            Mistake::FreesReplaceMarks,
            &[FindingKind::ReusedInUse],
            || {
                let mm = pool(2 * MIB);
                let [a, b, c] = [(); 3].map(|()| Stream::new().unwrap());
                let x = mm.allocate_device_on(2 * MIB, &a).unwrap();
                // SAFETY: the blocks are ours, and their uses are ordered by the manager, which is what is tested.
                unsafe {
                    mm.memset(x, 0xAA, 2 * MIB, &a).unwrap();
                    mm.free_device_on(x, &a).unwrap();
                    let again = mm.allocate_device_on(2 * MIB, &b).unwrap();
                    assert_eq!(again, x);
                    match freed_on {
                        0 => mm.free_device(again).unwrap(),
                        _ => mm.free_device_on(again, &c).unwrap(),
                    }
                    let last = mm.allocate_device_on(2 * MIB, &c).unwrap();
                    mm.memset(last, 0xCC, 2 * MIB, &c).unwrap();
                    mm.free_device_on(last, &c).unwrap();
                }
                c.synchronize().unwrap();
                a.synchronize().unwrap();
            },
        );
    }
}

/// B56 (b), with guards: what one stream has copied in is read on another.
#[test]
fn a_guard_that_is_read_on_another_stream_without_a_wait_is_seen() {
    only_with(Mistake::GuardsDoNotWait, &[FindingKind::Race], || {
        let mm = MemoryManager::new(config()).unwrap();
        let (s, other) = (Stream::new().unwrap(), Stream::new().unwrap());
        let mut source = mm.pinned::<u64>(KIB).unwrap();
        source.as_mut_slice().unwrap().fill(7);
        let device = mm.device::<u64>(KIB, &s).unwrap();
        let _ = s.copy_to_device(&source, &device).unwrap();
        let mut back = mm.pinned::<u64>(KIB).unwrap();
        let _ = other.copy_to_host(&device, &mut back).unwrap();
        assert_eq!(back.as_slice().unwrap().len(), KIB);
        s.synchronize().unwrap();
    });
}

/// B57: the buffers of a graph go, and their next owner meets its launch.
#[test]
fn a_graph_that_does_not_keep_its_blocks_is_seen() {
    for mode in DeviceAllocatorMode::ALL {
        only_with(
            Mistake::GraphsKeepNothing,
            &[
                FindingKind::UsedAfterFree,
                FindingKind::ReusedInUse,
                FindingKind::FreedInUse,
                FindingKind::Race,
            ],
            || {
                let mm = manager_in(mode);
                let [s, other] = [(); 2].map(|()| Stream::new().unwrap());
                let x = mm.device::<u8>(MIB, &s).unwrap();
                let mut graph = s.capture(|s| s.memset(&x, 1).map(drop)).unwrap();
                drop(x);
                let y = mm.device::<u8>(MIB, &s).unwrap();
                let _ = s.memset(&y, 2).unwrap();
                // SAFETY: no slice is alive; whether the block is, is what is tested.
                let _ = unsafe { graph.launch(&other) }.unwrap();
                other.synchronize().unwrap();
                s.synchronize().unwrap();
            },
        );
    }
}

/// B56 (b) as it was reported: a copy of pageable memory in a non-blocking stream, and one back in the default stream.
/// Raw pointers promise no order between them; with an event between them there is one.
#[test]
fn a_pageable_copy_that_is_read_back_on_the_default_stream_is_seen() {
    let _turn = turn();
    let program = |waits: bool| {
        let mm = MemoryManager::new(config()).unwrap();
        let s = Stream::new().unwrap();
        let default = Stream::legacy(0).unwrap();
        let source: Vec<u8> = vec![7; MIB];
        let mut back: Vec<u8> = vec![0; MIB];
        let x = mm.allocate_device_on(MIB, &s).unwrap();
        // SAFETY: both vectors are as long as the copies, and stay until the streams have finished.
        unsafe {
            mm.copy_to_device_async(x, source.as_ptr().cast(), MIB, &s)
                .unwrap();
            if waits {
                default.wait(&s.record().unwrap()).unwrap();
            }
            mm.copy_to_host_async(back.as_mut_ptr().cast(), x, MIB, &default)
                .unwrap();
            s.synchronize().unwrap();
            default.synchronize().unwrap();
            mm.free_device_on(x, &s).unwrap();
        }
        cudart_sim::report()
    };
    assert!(program(true).is_empty());
    let found = program(false);
    assert!(
        found.iter().any(|finding| finding.kind == FindingKind::Race
            && finding.to_string().contains("cudaMemcpyAsync")),
        "{found:?}"
    );
}

/// Inside a pool: a copy that runs past its block into the next one, and one of a block that was freed.
#[test]
fn a_use_past_the_end_or_after_the_free_is_seen_inside_a_pool() {
    let _turn = turn();
    let mm = MemoryManager::new(config()).unwrap();
    let s = Stream::new().unwrap();
    let x = mm.allocate_device_on(KIB, &s).unwrap();
    let y = mm.allocate_device_on(KIB, &s).unwrap();
    assert_eq!(y as usize, x as usize + KIB, "neighbours");
    let fill = |len| {
        // SAFETY: the memory belongs to the pool's segment; that it is not this block's is what is tested.
        let code = unsafe { cuda_sys::cudaMemsetAsync(x, 1, len, s.as_raw().cast()) };
        assert_eq!(code.0, 0);
        cudart_sim::report()
    };
    assert!(fill(KIB).is_empty());
    let found = fill(KIB + 1);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].kind, FindingKind::NotAllocated);
    // SAFETY: the uses after it are the mistake that is tested.
    unsafe { mm.free_device_on(x, &s).unwrap() };
    let found = fill(8);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].kind, FindingKind::UsedAfterFree);
    s.synchronize().unwrap();
}

/// A copy of one half is forgotten over a later one of the other half, and the host writes what it still reads.
#[test]
fn a_use_that_another_part_covers_is_seen() {
    only_with(Mistake::UsesCoverOtherParts, &[FindingKind::Race], || {
        let mm = MemoryManager::new(config()).unwrap();
        let s = Stream::new().unwrap();
        let device = mm.device::<u8>(2 * MIB, &s).unwrap();
        let mut host = mm.pinned_zeroed::<u8>(2 * MIB).unwrap();
        for half in [0..MIB, MIB..2 * MIB] {
            let (from, to) = (
                host.slice(half.clone()).unwrap(),
                device.slice(half).unwrap(),
            );
            let _ = s.copy_to_device(&from, &to).unwrap();
        }
        let mut front = host.slice_mut(..MIB).unwrap();
        front.as_mut_slice().unwrap().fill(1);
        s.synchronize().unwrap();
    });
}

/// Parts on two streams, each side with a part of its own of what the other writes.
#[test]
fn a_part_that_is_read_on_another_stream_without_a_wait_is_seen() {
    only_with(
        Mistake::GuardsDoNotWait,
        &[FindingKind::Race, FindingKind::UsedBeforeAllocation],
        || {
            let mm = MemoryManager::new(config()).unwrap();
            let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
            let device = mm.device::<u32>(100 * 100, &a).unwrap();
            let _ = a
                .memset_2d(&device.slice(10..).unwrap(), 100, 1, 10, 50)
                .unwrap();
            let other = mm.device::<u32>(100, &b).unwrap();
            let row = device.slice(20 * 100..21 * 100).unwrap();
            let _ = b.copy_device_to_device(&row, &other).unwrap();
            a.synchronize().unwrap();
            b.synchronize().unwrap();
        },
    );
}

/// A block goes with its first part, while the second still is in use. (In the async modes the runtime itself refuses
/// memory that is free.)
#[test]
fn a_block_that_goes_with_its_first_part_is_seen() {
    only_with(
        Mistake::PartsTakeTheBlockAlong,
        &[FindingKind::UsedAfterFree],
        || {
            let mm = MemoryManager::new(config()).unwrap();
            let s = Stream::new().unwrap();
            let whole = mm.device::<u8>(2 * MIB, &s).unwrap();
            let (front, back) = whole.split_at(MIB).unwrap();
            drop(front);
            let _ = s.memset(&back, 1).unwrap();
            s.synchronize().unwrap();
        },
    );
}

/// A slice goes back to its owner while a copy still writes it.
#[test]
fn a_scope_that_ends_before_its_copies_is_seen() {
    only_with(Mistake::ScopesDoNotWait, &[FindingKind::Race], || {
        let mm = MemoryManager::new(config()).unwrap();
        let s = Stream::new().unwrap();
        let device = mm.device_zeroed::<u8>(64 * KIB, &s).unwrap();
        // Page-locked: what copies pageable memory to the host waits for it.
        let mut pinned = mm.pinned_zeroed::<u8>(64 * KIB).unwrap();
        let target = pinned.as_mut_slice().unwrap();
        mm.scope(|scope| scope.copy_to_host(&device, target, &s))
            .unwrap();
        s.synchronize().unwrap();
    });
}

/// Adopted memory is freed while a copy on another stream still reads it.
#[test]
fn adopted_memory_that_goes_under_a_copy_is_seen() {
    only_with(
        Mistake::AdoptionsDoNotWait,
        &[FindingKind::FreedInUse, FindingKind::Race],
        || {
            let mm = MemoryManager::new(config()).unwrap();
            let (s, other) = (Stream::new().unwrap(), Stream::new().unwrap());
            let mut memory = std::ptr::null_mut();
            let raw = other.as_raw();
            // SAFETY: `memory` is a place for one pointer, and the stream is alive.
            let code = unsafe { cuda_sys::cudaMallocAsync(&mut memory, MIB, raw.cast()) };
            assert_eq!(code.0, 0);
            other.synchronize().unwrap();
            let (at, freeing) = (memory as usize, other.clone());
            let free = move || {
                let _called = cudart_sim::called_here();
                // SAFETY: the memory was allocated above, and its guard is gone.
                let code =
                    unsafe { cuda_sys::cudaFreeAsync(at as *mut _, freeing.as_raw().cast()) };
                assert_eq!(code.0, 0);
            };
            // SAFETY: the memory has these bytes and is freed by `free` alone.
            let device = unsafe { mm.adopt_device::<u8>(memory, MIB, &s, free) }.unwrap();
            let _ = s.memset(&device, 1).unwrap();
            drop(device);
            mm.trim().unwrap();
            s.synchronize().unwrap();
            other.synchronize().unwrap();
        },
    );
}

/// In the async modes a block is freed behind all that another stream does with it.
#[test]
fn an_async_free_that_does_not_wait_for_another_stream_is_seen() {
    for mode in ASYNC_MODES {
        for mistake in [
            Mistake::AsyncFreesDoNotWait,
            Mistake::AsyncFreesIgnoreOthers,
        ] {
            only_with(mistake, &[FindingKind::FreedInUse], || {
                let mm = manager_in(mode);
                let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
                let x = mm.device::<u8>(MIB, &a).unwrap();
                let _ = b.memset(&x, 1).unwrap();
                drop(x);
                a.synchronize().unwrap();
                b.synchronize().unwrap();
            });
        }
    }
}

/// In the async modes a block is freed on another stream than it was allocated on, and what the first one does with it
/// comes before.
#[test]
fn an_async_free_on_another_stream_that_does_not_follow_the_first_is_seen() {
    for mode in ASYNC_MODES {
        for mistake in [
            Mistake::AsyncFreesDoNotWait,
            Mistake::AsyncFreesIgnoreOthers,
        ] {
            only_with(
                mistake,
                &[FindingKind::FreedInUse, FindingKind::UsedBeforeAllocation],
                || {
                    let mm = manager_in(mode);
                    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
                    let x = mm.allocate_device_on(MIB, &a).unwrap();
                    // SAFETY: the block is ours; what uses it is ordered by the manager, which is what is tested.
                    unsafe {
                        mm.memset(x, 1, MIB, &a).unwrap();
                        mm.free_device_on(x, &b).unwrap();
                    }
                    a.synchronize().unwrap();
                    b.synchronize().unwrap();
                },
            );
        }
    }
}

/// In the async modes another stream may use a block behind its allocation only.
#[test]
fn an_async_allocation_that_another_stream_does_not_follow_is_seen() {
    for mode in ASYNC_MODES {
        only_with(
            Mistake::AllocationsAreNotFollowed,
            &[FindingKind::UsedBeforeAllocation],
            || {
                let mm = manager_in(mode);
                let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
                let x = mm.device::<u8>(MIB, &a).unwrap();
                let _ = b.memset(&x, 1).unwrap();
                b.synchronize().unwrap();
                a.synchronize().unwrap();
            },
        );
    }
}

/// A block was taken under a mark that its stream waits for; a third stream, which uses it through its guard, must as well.
#[test]
fn a_guard_whose_memory_is_still_in_use_is_seen_on_a_third_stream() {
    only_with(
        Mistake::InheritedMarksAreForgotten,
        &[
            FindingKind::ReusedInUse,
            FindingKind::Race,
            FindingKind::UsedAfterFree,
        ],
        || {
            let mm = pool(2 * MIB);
            let [a, b, c] = [(); 3].map(|()| Stream::new().unwrap());
            let x = mm.device::<u8>(2 * MIB, &a).unwrap();
            let _ = a.memset(&x, 1).unwrap();
            drop(x);
            let y = mm.device::<u8>(2 * MIB, &b).unwrap();
            let _ = c.memset(&y, 2).unwrap();
            for s in [a, b, c] {
                s.synchronize().unwrap();
            }
        },
    );
}

/// Memory that another stream has freed, for a request with a stream and for one without.
#[test]
fn a_request_that_does_not_wait_for_who_freed_its_memory_is_seen() {
    for with_stream in [true, false] {
        only_with(
            Mistake::RequestsDoNotWait,
            &[FindingKind::ReusedInUse],
            || {
                let mm = pool(2 * MIB);
                let [a, b] = [(); 2].map(|()| Stream::new().unwrap());
                let x = mm.device::<u8>(2 * MIB, &a).unwrap();
                let _ = a.memset(&x, 1).unwrap();
                drop(x);
                let y = if with_stream {
                    mm.allocate_device_on(2 * MIB, &b).unwrap()
                } else {
                    mm.allocate_device(2 * MIB).unwrap()
                };
                // SAFETY: the block is ours; its uses are ordered by the manager.
                unsafe {
                    mm.memset(y, 2, 2 * MIB, &b).unwrap();
                    mm.free_device_on(y, &b).unwrap();
                }
                a.synchronize().unwrap();
                b.synchronize().unwrap();
            },
        );
    }
}

/// A host request for pinned memory that a copy still reads.
#[test]
fn a_request_for_pinned_memory_that_does_not_wait_for_its_last_copy_is_seen() {
    only_with(
        Mistake::RequestsDoNotWait,
        &[FindingKind::ReusedInUse],
        || {
            let config = config().pinned_pool_size(MIB);
            let mm = MemoryManager::new(config.pinned_pool_limit(Some(MIB))).unwrap();
            let (s, gate) = (Stream::new().unwrap(), Gate::new());
            let device = mm.device::<u8>(MIB, &s).unwrap();
            let host = mm.pinned::<u8>(MIB).unwrap();
            stall(&s, &gate);
            let _ = s.copy_to_device(&host, &device).unwrap();
            let opener = gate.open_after(Duration::from_millis(100));
            drop(host);
            drop(mm.pinned::<u8>(MIB).unwrap());
            opener.join().unwrap();
            s.synchronize().unwrap();
        },
    );
}

/// Somebody asks for memory whose stream is busy.
#[test]
fn an_epoch_of_a_busy_stream_that_is_taken_for_done_is_seen() {
    only_with(
        Mistake::EpochsEndUnproven,
        &[FindingKind::ReusedInUse],
        || {
            let mm = pool(2 * MIB);
            let [a, b] = [(); 2].map(|()| Stream::new().unwrap());
            let x = mm.device::<u8>(2 * MIB, &a).unwrap();
            let _ = a.memset(&x, 1).unwrap();
            drop(x);
            let y = mm.device::<u8>(2 * MIB, &b).unwrap();
            let _ = b.memset(&y, 2).unwrap();
            a.synchronize().unwrap();
            b.synchronize().unwrap();
        },
    );
}

/// A third stream waits for what the memory was freed behind, with an event; a free after that needs another.
#[test]
fn a_free_that_joins_an_epoch_which_has_ended_is_seen() {
    only_with(Mistake::EpochsGoOn, &[FindingKind::ReusedInUse], || {
        let mm = pool(4 * MIB);
        let [a, b, c] = [(); 3].map(|()| Stream::new().unwrap());
        let [x, y] = [(); 2].map(|()| mm.device::<u8>(2 * MIB, &a).unwrap());
        let _ = a.memset(&x, 1).unwrap();
        drop(x);
        let again = mm.device::<u8>(2 * MIB, &a).unwrap();
        let _ = b.memset(&again, 2).unwrap();
        let _ = a.memset(&y, 3).unwrap();
        drop(y);
        let last = mm.device::<u8>(2 * MIB, &c).unwrap();
        let _ = c.memset(&last, 4).unwrap();
        for s in [a, b, c] {
            s.synchronize().unwrap();
        }
    });
}

/// What two streams were still using goes to one of them.
#[test]
fn memory_that_waits_for_two_streams_is_seen_in_the_hands_of_one() {
    only_with(
        Mistake::SharedMemoryIsAnybodys,
        &[FindingKind::ReusedInUse],
        || {
            let mm = pool(2 * MIB);
            let [a, b] = [(); 2].map(|()| Stream::new().unwrap());
            let x = mm.allocate_device(2 * MIB).unwrap();
            // SAFETY: the blocks are ours, and their uses are ordered by the manager.
            unsafe {
                mm.memset(x, 1, MIB, &a).unwrap();
                mm.memset(x.byte_add(MIB), 2, MIB, &b).unwrap();
                mm.free_device(x).unwrap();
            }
            for s in [&a, &b] {
                let y = mm.allocate_device_on(2 * MIB, s).unwrap();
                // SAFETY: as above.
                unsafe {
                    mm.memset(y, 3, 2 * MIB, s).unwrap();
                    mm.free_device_on(y, s).unwrap();
                }
            }
            a.synchronize().unwrap();
            b.synchronize().unwrap();
        },
    );
}

/// What a thread frees on its default stream is recorded at the free: nobody else can.
#[test]
fn memory_freed_on_a_threads_stream_without_an_event_is_seen() {
    only_with(
        Mistake::ThreadsLeaveNoEvents,
        &[FindingKind::ReusedInUse],
        || {
            let mm = pool(2 * MIB);
            let (own, s) = (PerThreadStream::new().unwrap(), Stream::new().unwrap());
            let x = mm.allocate_device_on(2 * MIB, &own).unwrap();
            // SAFETY: the blocks are ours, and their uses are ordered by the manager. The raw fill stands for a kernel.
            unsafe {
                let code = cuda_sys::cudaMemsetAsync(x, 1, 2 * MIB, own.as_raw().cast());
                assert_eq!(code.0, 0);
                mm.free_device_on(x, &own).unwrap();
                let y = mm.allocate_device_on(2 * MIB, &s).unwrap();
                mm.memset(y, 2, 2 * MIB, &s).unwrap();
                mm.free_device_on(y, &s).unwrap();
            }
            s.synchronize().unwrap();
            own.synchronize().unwrap();
        },
    );
}

/// In the async modes, what a thread allocates on its default stream is freed behind the allocation.
#[test]
fn memory_allocated_on_a_threads_stream_without_an_event_is_seen() {
    for mode in ASYNC_MODES {
        only_with(
            Mistake::ThreadsLeaveNoEvents,
            &[FindingKind::UsedBeforeAllocation],
            || {
                let mm = manager_in(mode);
                let (own, s) = (PerThreadStream::new().unwrap(), Stream::new().unwrap());
                let x = mm.allocate_device_on(MIB, &own).unwrap();
                // SAFETY: the block is ours, and nothing uses it.
                unsafe { mm.free_device_on(x, &s).unwrap() };
                s.synchronize().unwrap();
                own.synchronize().unwrap();
            },
        );
    }
}

/// A shared view waits for the last write, whatever has read since.
#[test]
fn a_read_that_hides_an_earlier_write_is_seen() {
    only_with(Mistake::ReadsReplaceWrites, &[FindingKind::Race], || {
        let mm = MemoryManager::new(config()).unwrap();
        let s = Stream::new().unwrap();
        let device = mm.device_zeroed::<u8>(MIB, &s).unwrap();
        let mut host = mm.pinned_zeroed::<u8>(MIB).unwrap();
        let _ = s.copy_to_host(&device, &mut host).unwrap();
        let _ = s.copy_to_device(&host, &device).unwrap();
        assert_eq!(host.as_slice().unwrap()[9], 0);
        s.synchronize().unwrap();
    });
}

/// A block of which many parts are in use keeps few fences, and each proves the last.
#[test]
fn uses_that_are_joined_to_the_first_are_seen() {
    only_with(Mistake::JoinedUsesEndEarly, &[FindingKind::Race], || {
        let mm = MemoryManager::new(config()).unwrap();
        let (s, gate) = (Stream::new().unwrap(), Gate::new());
        let device = mm.device_zeroed::<u8>(200 * 64, &s).unwrap();
        let mut host = mm.pinned_zeroed::<u8>(200 * 64).unwrap();
        // As long as nothing has finished, no use goes.
        stall(&s, &gate);
        for part in 0..100 {
            let range = part * 64..(part + 1) * 64;
            let from = device.slice(range.clone()).unwrap();
            let _ = s
                .copy_to_host(&from, &mut host.slice_mut(range).unwrap())
                .unwrap();
        }
        let opener = gate.open_after(Duration::from_millis(100));
        // One that was joined with earlier ones.
        let joined = host.slice(20 * 64..21 * 64).unwrap();
        assert_eq!(joined.as_slice().unwrap()[0], 0);
        opener.join().unwrap();
        s.synchronize().unwrap();
    });
}

/// Views settle first, shared ones and exclusive ones.
#[test]
fn a_view_that_is_given_out_under_a_copy_is_seen() {
    for kind in 0..2 {
        only_with(
            Mistake::ViewsDoNotWait,
            &[FindingKind::Race, FindingKind::FreedInUse],
            || {
                let mm = MemoryManager::new(config()).unwrap();
                let s = Stream::new().unwrap();
                let device = mm.device_zeroed::<u8>(MIB, &s).unwrap();
                let mut host = mm.pinned_zeroed::<u8>(MIB).unwrap();
                let _ = match kind {
                    0 => s.copy_to_host(&device, &mut host).unwrap(),
                    _ => s.copy_to_device(&host, &device).unwrap(),
                };
                match kind {
                    0 => assert_eq!(host.as_slice().unwrap().len(), MIB),
                    _ => host.as_mut_slice().unwrap()[0] = 1,
                }
                s.synchronize().unwrap();
            },
        );
    }
}

/// A new segment is zeroed before anybody has it.
#[test]
fn a_segment_that_is_given_out_before_it_is_zeroed_is_seen() {
    only_with(
        Mistake::ZeroingIsNotAwaited,
        &[
            FindingKind::Race,
            FindingKind::ReusedInUse,
            FindingKind::UsedBeforeAllocation,
        ],
        || {
            let mm = pool(2 * MIB);
            let s = Stream::new().unwrap();
            let x = mm.device::<u8>(MIB, &s).unwrap();
            let _ = s.memset(&x, 1).unwrap();
            s.synchronize().unwrap();
        },
    );
}

/// A manager goes while a stream of another device still works on its memory: `cudaFree` does not wait for that one.
#[test]
fn a_segment_of_a_dropped_manager_that_goes_back_under_pending_work_is_seen() {
    only_with(
        Mistake::OrphansDoNotWait,
        &[FindingKind::FreedInUse],
        || {
            let [mm, next] = [(); 2].map(|()| common::manager_of_segments());
            let (s, source, opener) = across_devices(&mm, &next);
            drop(mm);
            next.trim().unwrap();
            opener.join().unwrap();
            s.synchronize().unwrap();
            drop(source);
        },
    );
}

/// Memory of device 1 that is free, and that the answered stream of device 0 is about to write until the thread ends.
fn across_devices(
    mm: &MemoryManager,
    source: &MemoryManager,
) -> (Stream, DeviceBuffer<u8>, JoinHandle<()>) {
    let [s, far] = [0, 1].map(|device| Stream::builder().device(device).build().unwrap());
    let x = source.device_zeroed::<u8>(MIB, &s).unwrap();
    let y = mm.device::<u8>(MIB, &far).unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    let _ = s.copy_device_to_device(&x, &y).unwrap();
    (s, x, gate.open_after(Duration::from_millis(100)))
}

/// Adopted memory is there for the stream that it was adopted on: another stream follows that one.
#[test]
fn adopted_memory_that_another_stream_uses_without_a_wait_is_seen() {
    only_with(
        Mistake::AllocationsAreNotFollowed,
        &[FindingKind::UsedBeforeAllocation],
        || {
            let mm = MemoryManager::new(config()).unwrap();
            let (s, other) = (Stream::new().unwrap(), Stream::new().unwrap());
            let mut memory = std::ptr::null_mut();
            let called = cudart_sim::called_here();
            // SAFETY: `memory` is a place for one pointer, and the stream is alive.
            let code = unsafe { cuda_sys::cudaMallocAsync(&mut memory, MIB, s.as_raw().cast()) };
            assert_eq!(code.0, 0);
            drop(called);
            let (at, freeing) = (memory as usize, s.clone());
            let free = move || {
                let _called = cudart_sim::called_here();
                // SAFETY: the memory was allocated above, and its guard is gone.
                let code =
                    unsafe { cuda_sys::cudaFreeAsync(at as *mut _, freeing.as_raw().cast()) };
                assert_eq!(code.0, 0);
            };
            // SAFETY: the memory has these bytes and is freed by `free` alone.
            let device = unsafe { mm.adopt_device::<u8>(memory, MIB, &s, free) }.unwrap();
            let _ = other.memset(&device, 1).unwrap();
            s.synchronize().unwrap();
            other.synchronize().unwrap();
            drop(device);
            mm.trim().unwrap();
            s.synchronize().unwrap();
        },
    );
}

/// A launch follows what was done to its blocks on other streams.
#[test]
fn a_launch_that_does_not_wait_for_other_uses_of_its_blocks_is_seen() {
    only_with(
        Mistake::GuardsDoNotWait,
        &[FindingKind::Race, FindingKind::UsedBeforeAllocation],
        || {
            let mm = MemoryManager::new(config()).unwrap();
            let [s, other] = [(); 2].map(|()| Stream::new().unwrap());
            let x = mm.device::<u8>(MIB, &s).unwrap();
            let mut graph = s.capture(|s| s.memset(&x, 1).map(drop)).unwrap();
            let _ = s.memset(&x, 2).unwrap();
            // SAFETY: no slice is alive.
            let _ = unsafe { graph.launch(&other) }.unwrap();
            other.synchronize().unwrap();
            s.synchronize().unwrap();
        },
    );
}

/// A launch marks its blocks: views wait for it.
#[test]
fn a_launch_that_leaves_no_mark_is_seen() {
    only_with(Mistake::UsesAreForgotten, &[FindingKind::Race], || {
        let mm = MemoryManager::new(config()).unwrap();
        let s = Stream::new().unwrap();
        let x = mm.device_zeroed::<u8>(MIB, &s).unwrap();
        s.synchronize().unwrap();
        let mut host = mm.pinned_zeroed::<u8>(MIB).unwrap();
        let mut graph = s
            .capture(|s| s.copy_to_host(&x, &mut host).map(drop))
            .unwrap();
        // SAFETY: no slice is alive.
        let _ = unsafe { graph.launch(&s) }.unwrap();
        assert_eq!(host.as_slice().unwrap()[0], 0);
        s.synchronize().unwrap();
    });
}
