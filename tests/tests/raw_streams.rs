//! Streams of other code, named by their raw handle in each call: what is recorded, and whose place in a pool's books they take.
//!
//! In a process of its own: CUDA calls of one thread are counted.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, MODES, assert_sound, config, manager_in, manager_of, stall};
use memmgr::{Error, MemoryManager, Stream};
use memmgr_tests::{Gate, Rng, sim_only};
use std::{ffi::c_void, ptr::null_mut};

/// A stream of code that knows nothing of the manager.
struct Foreign(*mut c_void);

impl Foreign {
    fn new() -> Self {
        let mut raw = null_mut();
        // SAFETY: `raw` is a place for one handle.
        let code = unsafe { cuda_sys::cudaStreamCreateWithFlags(&mut raw, 1) };
        assert_eq!(code.0, 0);
        Self(raw.cast())
    }

    fn allocate(&self, mm: &MemoryManager, size: usize) -> *mut c_void {
        // SAFETY: the stream is alive.
        unsafe { mm.allocate_device_on_raw(size, self.0).unwrap() }
    }

    /// A handle for one call.
    fn borrow(&self) -> Stream {
        // SAFETY: the stream is alive as long as the handle is used.
        unsafe { Stream::borrow_raw(self.0).unwrap() }
    }

    fn fill(&self, block: *mut c_void, value: u8, size: usize) {
        // SAFETY: the block has as many bytes, and the stream is alive.
        let code = unsafe { cuda_sys::cudaMemsetAsync(block, value.into(), size, self.0.cast()) };
        assert_eq!(code.0, 0);
    }

    fn free(&self, mm: &MemoryManager, block: *mut c_void) {
        // SAFETY: only work of this stream uses the block.
        unsafe { mm.free_device_on(block, &self.borrow()).unwrap() };
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: the manager has no handle of it.
        let code = unsafe { cuda_sys::cudaStreamDestroy(self.0.cast()) };
        assert_eq!(code.0, 0);
    }
}

fn capped(bytes: usize) -> MemoryManager {
    manager_of(config(), bytes)
}

#[test]
fn an_allocation_records_nothing_and_a_free_one_event() {
    sim_only!("calls are counted");
    #[cfg(feature = "sim")]
    {
        let mm = capped(8 * MIB);
        let foreign = Foreign::new();
        foreign.free(&mm, foreign.allocate(&mm, MIB));
        let of = cudart_sim::thread_calls_of;
        let records = || of("cudaEventRecord") + of("cuEventRecord");
        for _ in 0..10 {
            let before = records();
            let block = foreign.allocate(&mm, MIB);
            assert_eq!(records() - before, 0, "by an allocation");
            foreign.free(&mm, block);
            assert_eq!(records() - before, 1, "by a pair");
        }
        assert_sound(&mm);
    }
}

/// What was freed through a handle that went belongs to the same stream under the next one, at once.
#[test]
fn a_stream_has_what_it_freed_through_a_handle_that_went() {
    let mm = capped(8 * MIB);
    let (foreign, other) = (Foreign::new(), Stream::new().unwrap());
    let gate = Gate::new();
    stall(&foreign.borrow(), &gate);
    let first = foreign.allocate(&mm, 6 * MIB);
    foreign.fill(first, 1, 6 * MIB);
    foreign.free(&mm, first);
    for turn in 0..20 {
        let block = foreign.allocate(&mm, 6 * MIB);
        assert_eq!(block, first, "turn {turn}");
        foreign.fill(block, turn, 6 * MIB);
        foreign.free(&mm, block);
        assert_sound(&mm);
    }
    assert_eq!(mm.stats().device[0].best_fit.waits, 0);
    // Somebody else has it behind all of that, also when the stream is gone.
    drop(foreign);
    let taken = mm.allocate_device_on(6 * MIB, &other).unwrap();
    assert_eq!((taken, mm.stats().device[0].best_fit.waits), (first, 1));
    // SAFETY: the block is ours.
    unsafe {
        rig::kernel_fill(taken, 99, 6 * MIB, &other);
        gate.open();
        rig::assert_all(&rig::read_back(&mm, taken, 6 * MIB, &other), 99, "taken");
        mm.free_device_on(taken, &other).unwrap();
    }
    assert_sound(&mm);
}

/// Memory is asked for through a handle of one call, and goes back through another; in between another stream waits for it.
#[test]
fn a_block_of_a_handle_that_went_is_freed_in_the_order_of_its_stream() {
    for mode in MODES {
        let mm = manager_in(mode);
        let (foreign, other) = (Foreign::new(), Stream::new().unwrap());
        for turn in 0..30u8 {
            let gate = Gate::new();
            let block = foreign.allocate(&mm, MIB);
            stall(&foreign.borrow(), &gate);
            foreign.fill(block, turn, MIB);
            foreign.free(&mm, block);
            let taken = mm.allocate_device_on(MIB, &other).unwrap();
            // SAFETY: the block is ours.
            unsafe {
                rig::kernel_fill(taken, 200, MIB, &other);
                gate.open();
                rig::assert_all(&rig::read_back(&mm, taken, MIB, &other), 200, "taken");
                // In the order of another stream than the one that it was made for, which follows.
                mm.free_device_on(taken, &other).unwrap();
            }
        }
        assert_sound(&mm);
        mm.shutdown().unwrap();
    }
}

/// Blocks change hands among streams that the manager knows for one call only, and one that it knows for good.
#[test]
fn blocks_that_change_hands_among_foreign_streams_are_nobodys_twice() {
    for mode in MODES {
        let mm = manager_in(mode);
        let mut foreign = [Foreign::new(), Foreign::new(), Foreign::new()];
        let known = Stream::new().unwrap();
        let mut rng = Rng(7);
        let mut live: Vec<(*mut c_void, usize, usize)> = Vec::new();
        for step in 0..400 {
            let at = rng.index(foreign.len());
            match rng.below(8) {
                0..=2 if live.len() < 12 => {
                    let size = KIB + rng.index(64 * KIB);
                    let block = foreign[at].allocate(&mm, size);
                    foreign[at].fill(block, step as u8, size);
                    live.push((block, size, at));
                }
                3..=5 if !live.is_empty() => {
                    let (block, size, at) = live.swap_remove(rng.index(live.len()));
                    foreign[at].fill(block, 3, size);
                    foreign[at].free(&mm, block);
                }
                6 => {
                    let block = mm.allocate_device_on(16 * KIB, &known).unwrap();
                    // SAFETY: the block is ours.
                    unsafe {
                        rig::kernel_fill(block, 5, 16 * KIB, &known);
                        mm.free_device_on(block, &known).unwrap();
                    }
                }
                // The stream goes, and what it freed stays behind.
                _ if !live.iter().any(|(_, _, on)| *on == at) => foreign[at] = Foreign::new(),
                _ => {}
            }
            if step % 20 == 0 {
                assert_sound(&mm);
            }
        }
        for (block, _, at) in live {
            foreign[at].free(&mm, block);
        }
        drop(foreign);
        known.synchronize().unwrap();
        assert_sound(&mm);
        mm.shutdown().unwrap();
    }
}

#[test]
fn a_limit_as_a_share_may_be_set_at_any_time() {
    sim_only!("the share of a known memory");
    let mm = MemoryManager::new(config()).unwrap();
    let total = memmgr::device(0).unwrap().total_memory;
    let kept = mm.allocate_device_at(0, MIB).unwrap();
    for share in [0.0, -1.0, 1.5, f64::NAN] {
        for refused in [
            mm.set_device_pool_limit_share(share),
            mm.set_device_pool_limit_share_at(0, share),
        ] {
            assert!(matches!(refused, Err(Error::InvalidSetting { .. })));
        }
    }
    let limit = |size: usize| match mm.allocate_device_at(0, size) {
        Err(Error::LimitExceeded { limit, .. }) => limit,
        other => panic!("{other:?}"),
    };
    mm.set_device_pool_limit_share(0.5).unwrap();
    assert_eq!(limit(total / 4 * 3), total / 2);
    mm.set_device_pool_limit_share_at(0, 0.25).unwrap();
    assert_eq!(limit(total / 2), total / 4);
    // The one that is set last counts.
    mm.set_device_pool_limit(Some(64 * MIB));
    assert_eq!(limit(65 * MIB), 64 * MIB);
    assert!(mm.set_device_pool_limit_share_at(99, 0.5).is_err());
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device(kept).unwrap() };
    assert!(mm.usable().is_ok());
    mm.note_failure(Error::ForkedChild);
    assert_eq!(mm.stats().drop_failures, 1);
    assert!(matches!(mm.take_error(), Some(Error::ForkedChild)));
}
