//! Threads that come, use their own default stream, and end, leave nothing behind and confuse nothing. In a process of its
//! own, since it counts what the process makes.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, assert_sound, stall};
use memmgr::{Config, MemoryManager, PerThreadStream, Stream};
use memmgr_tests::Gate;
use std::sync::{Mutex, MutexGuard, PoisonError};

const THREADS: usize = 1000;
const AT_ONCE: usize = 8;

/// The counters are those of the process.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn manager(mode: memmgr::DeviceAllocatorMode) -> MemoryManager {
    MemoryManager::new(
        Config::default()
            .mode(mode)
            .device_pool_size(8 * MIB)
            .device_pool_limit(Some(8 * MIB)),
    )
    .expect("the size is its own limit")
}

/// Allocates, uses and frees on the stream of the calling thread, which ends with the work queued; what it hands over: a
/// block whose last use was recorded, and a copy of it in pinned memory.
fn live_and_end(mm: &MemoryManager, value: u8) -> (usize, memmgr::PinnedBuffer<u8>) {
    let mine = PerThreadStream::new().unwrap();
    let [first, second, kept] = [(); 3].map(|()| mm.allocate_device_on(64 * KIB, &mine).unwrap());
    let host = mm.pinned::<u8>(64 * KIB).unwrap();
    // SAFETY: the blocks are ours; what uses them is in the thread's stream, or recorded.
    unsafe {
        for block in [first, second, kept] {
            mm.memset(block, value, 64 * KIB, &mine).unwrap();
        }
        mm.copy_to_host_async(host.as_ptr(), kept, 64 * KIB, &mine)
            .unwrap();
        mm.free_device_on(first, &mine).unwrap();
        mm.record_use(second, &mine).unwrap();
        mm.free_device(second).unwrap();
        mm.record_use(kept, &mine).unwrap();
    }
    (kept.expose_provenance(), host)
}

#[test]
fn a_thousand_threads_with_their_default_streams_leave_nothing_behind() {
    let _turn = turn();
    for mode in rig::modes() {
        let mm = &manager(*mode);
        let after = Stream::new().unwrap();
        #[cfg(feature = "sim")]
        let before = [
            "cudaEventCreateWithFlags",
            "cudaStreamCreateWithPriority",
            "cudaStreamDestroy",
        ]
        .map(cudart_sim::calls);
        for round in 0..THREADS / AT_ONCE {
            let left: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..AT_ONCE)
                    .map(|i| scope.spawn(move || live_and_end(mm, (round * AT_ONCE + i) as u8)))
                    .collect();
                let ended = threads.into_iter().map(|thread| thread.join());
                ended.map(|left| left.expect("no thread panics")).collect()
            });
            for (i, (kept, host)) in left.into_iter().enumerate() {
                let value = (round * AT_ONCE + i) as u8;
                let what = format!("{mode}, thread {}", round * AT_ONCE + i);
                rig::assert_all(host.as_slice().unwrap(), value, &what);
                let kept = std::ptr::with_exposed_provenance_mut(kept);
                // SAFETY: the thread has ended, and the manager knows of what it did with the block.
                unsafe {
                    if i % 2 == 0 {
                        mm.free_device(kept).unwrap();
                    } else {
                        mm.free_device_on(kept, &after).unwrap();
                    }
                }
            }
        }
        #[cfg(feature = "sim")]
        {
            let [events, made, gone] = [
                "cudaEventCreateWithFlags",
                "cudaStreamCreateWithPriority",
                "cudaStreamDestroy",
            ]
            .map(cudart_sim::calls);
            let events = events - before[0];
            assert!(
                events <= 512,
                "{mode}: {events} events for {THREADS} threads"
            );
            let streams = (made - before[1]) - (gone - before[2]);
            assert!(streams <= 3, "{mode}: {streams} streams are left");
        }
        drop(after);
        let stats = mm.stats();
        assert_eq!((stats.in_use(), stats.drop_failures), (0, 0), "{mode}");
        assert!(stats.device[0].best_fit.growths <= 1, "{mode}");
        assert_sound(mm);
        assert!(mm.shutdown().unwrap().live.is_empty());
        let pool = mm.stats().device[0].best_fit;
        assert_eq!((pool.reserved, pool.free_spans, pool.segments), (0, 0, 0));
        assert_sound(mm);
        #[cfg(feature = "sim")]
        {
            let info = cudart_sim::memory_info(0).unwrap();
            assert_eq!((info.blocks.0, info.pool_blocks.0), (0, 0), "{info:?}");
        }
    }
}

/// The handle of the per-thread stream is the same number on every thread: memory that an ended thread freed is not taken
/// for the next thread's own.
#[test]
fn the_next_thread_is_not_taken_for_the_one_that_ended() {
    let _turn = turn();
    for mode in rig::modes() {
        let mm = &MemoryManager::new(
            Config::default()
                .mode(*mode)
                .device_pool_size(2 * MIB)
                .device_pool_limit(Some(2 * MIB)),
        )
        .unwrap();
        for round in 0..20u8 {
            let gate = &Gate::new();
            let busy = &Stream::new().unwrap();
            stall(busy, gate);
            let event = &busy.record().unwrap();
            // What the first leaves in its stream waits for the gate.
            let left = std::thread::scope(|scope| {
                let first = scope.spawn(move || {
                    let mine = PerThreadStream::new().unwrap();
                    let block = mm.allocate_device_on(2 * MIB, &mine).unwrap();
                    // SAFETY: the raw event lives as long as the program; the block is ours.
                    unsafe {
                        behind(&mine, busy);
                        mm.memset(block, 0xA0, 2 * MIB, &mine).unwrap();
                        mm.free_device_on(block, &mine).unwrap();
                    }
                    block.expose_provenance()
                });
                first.join().unwrap()
            });
            let opener = gate.open_after(std::time::Duration::from_millis(2));
            let second = std::thread::scope(|scope| {
                let second = scope.spawn(move || {
                    let mine = PerThreadStream::new().unwrap();
                    let block = mm.allocate_device_on(2 * MIB, &mine).unwrap();
                    let host = mm.pinned::<u8>(2 * MIB).unwrap();
                    // SAFETY: the block is ours, and the copy the manager's.
                    unsafe {
                        mm.memset(block, round, 2 * MIB, &mine).unwrap();
                        // Time for what must not come any more.
                        event.synchronize().unwrap();
                        mm.copy_to_host_async(host.as_ptr(), block, 2 * MIB, &mine)
                            .unwrap();
                        mm.free_device_on(block, &mine).unwrap();
                    }
                    rig::assert_all(host.as_slice().unwrap(), round, &format!("{mode}"));
                    block.expose_provenance()
                });
                second.join().unwrap()
            });
            if *mode == memmgr::DeviceAllocatorMode::BestFitPool {
                assert_eq!(left, second, "the pool has one place");
            }
            opener.join().unwrap();
        }
        assert_sound(mm);
        mm.shutdown().unwrap();
    }
}

/// Has the thread's stream wait for what a stream has so far.
///
/// # Safety
/// Both streams are alive.
unsafe fn behind(mine: &PerThreadStream, stream: &Stream) {
    let mut event = std::ptr::null_mut();
    // SAFETY: `event` is a place for one handle, the streams are alive, and the event goes after its last use.
    unsafe {
        assert_eq!(cuda_sys::cudaEventCreate(&mut event).0, 0);
        let (raw, mine) = (stream.as_raw().cast(), mine.as_raw().cast());
        assert_eq!(cuda_sys::cudaEventRecord(event, raw).0, 0);
        assert_eq!(cuda_sys::cudaStreamWaitEvent(mine, event, 0).0, 0);
        assert_eq!(cuda_sys::cudaEventDestroy(event).0, 0);
    }
}
