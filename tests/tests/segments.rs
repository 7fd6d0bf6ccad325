//! Several segments, also such that touch: blocks stay inside one, and each goes back whole and once. A process of its
//! own, since the tests want to know where the next segment will lie.

mod common;

use common::{KIB, MIB, assert_sound, checks::OWN_POOLS, manager, manager_of_segments};
use memmgr::{Observer, Place, SegmentChange};
use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// One test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes down all segments.
#[derive(Default)]
struct Log(Mutex<Vec<(Range<usize>, SegmentChange)>>);

impl Observer for Log {
    fn on_segment(&self, _: Place, range: Range<usize>, change: SegmentChange) {
        self.0.lock().unwrap().push((range, change));
    }
}

impl Log {
    fn of(&self, wanted: SegmentChange) -> Vec<(usize, usize)> {
        let log = self.0.lock().unwrap();
        let mut found: Vec<(usize, usize)> = log
            .iter()
            .filter(|(_, change)| *change == wanted)
            .map(|(range, _)| (range.start, range.len()))
            .collect();
        found.sort_unstable();
        found
    }
}

/// Case B10. The limit shapes the segments: 1 MiB, 1 MiB, 1.5 MiB.
#[test]
fn blocks_never_lie_in_two_segments_and_each_segment_goes_back_as_it_came() {
    let _alone = alone();
    for kind in OWN_POOLS {
        let manager = manager_of_segments();
        let log = Arc::new(Log::default());
        manager.set_observer(log.clone()).unwrap();
        #[cfg(feature = "sim")]
        let freed = || {
            cudart_sim::thread_calls_of("cudaFree") + cudart_sim::thread_calls_of("cudaFreeHost")
        };
        #[cfg(feature = "sim")]
        let (freed_before, memory_before) = (freed(), cudart_sim::memory_info(0));

        kind.set_pool_size(&manager, MIB).unwrap();
        kind.set_pool_limit(&manager, MIB);
        let mut blocks = Vec::new();
        for limit in [MIB, 2 * MIB] {
            kind.set_pool_limit(&manager, limit);
            for _ in 0..4 {
                blocks.push(kind.allocate(&manager, 256 * KIB).unwrap());
            }
        }
        let segments = log.of(SegmentChange::Added);
        assert_eq!(
            segments.iter().map(|(_, len)| *len).collect::<Vec<_>>(),
            [MIB; 2]
        );
        #[cfg(feature = "sim")]
        if kind != common::checks::Kind::Pinned {
            assert_eq!(
                segments[0].0 + MIB,
                segments[1].0,
                "the two segments touch, or this test shows nothing"
            );
        }
        assert_eq!(kind.stats(&manager).free_spans, 0);
        for number in [2, 5, 3, 8, 1, 7, 4, 6] {
            // SAFETY: nobody uses the block.
            unsafe { kind.free(&manager, blocks[number - 1]).unwrap() };
            assert_sound(&manager);
        }
        let stats = kind.stats(&manager);
        assert_eq!((stats.free_spans, stats.largest_idle), (2, MIB), "{kind:?}");
        assert_eq!((stats.idle, stats.reserved), (2 * MIB, 2 * MIB), "{kind:?}");

        // Two free MiB side by side are no 1.5 MiB.
        kind.set_pool_limit(&manager, 2 * MIB + 1536 * KIB);
        let large = kind.allocate(&manager, 1536 * KIB).unwrap();
        assert!(
            log.of(SegmentChange::Added)
                .iter()
                .any(|(base, len)| *base <= large.addr() && large.addr() + 1536 * KIB <= base + len),
            "{kind:?}: the block lies in one segment"
        );
        assert_eq!(kind.stats(&manager).growths, 3, "{kind:?}: a third segment");
        assert_sound(&manager);
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, large).unwrap() };
        manager.trim().unwrap();
        assert_eq!(
            log.of(SegmentChange::Removed),
            log.of(SegmentChange::Added),
            "{kind:?}: exactly the original segments go back, once each"
        );
        let report = manager.shutdown().unwrap();
        assert_eq!((report.released, report.live.len()), (0, 0), "{kind:?}");
        assert_eq!(kind.stats(&manager).reserved, 0);
        assert_eq!(log.of(SegmentChange::Removed).len(), 3);
        #[cfg(feature = "sim")]
        {
            assert_eq!(freed() - freed_before, 3, "{kind:?}");
            let (now, before) = (cudart_sim::memory_info(0), memory_before);
            assert_eq!(
                now.map(|info| info.blocks),
                before.map(|info| info.blocks),
                "{kind:?}: the driver holds nothing of it any more"
            );
        }
        assert_sound(&manager);
    }
}

/// Case B10, first half alone: neighbours in one segment do merge, over the whole of it.
#[test]
fn blocks_of_one_segment_merge_in_any_order() {
    let _alone = alone();
    for kind in OWN_POOLS {
        let manager = manager();
        kind.set_pool_size(&manager, 2 * MIB).unwrap();
        let blocks: Vec<_> = (0..8)
            .map(|_| kind.allocate(&manager, 256 * KIB).unwrap())
            .collect();
        for number in [2, 5, 3, 8, 1, 7, 4, 6] {
            // SAFETY: nobody uses the block.
            unsafe { kind.free(&manager, blocks[number - 1]).unwrap() };
        }
        let stats = kind.stats(&manager);
        assert_eq!((stats.free_spans, stats.largest_idle), (1, 2 * MIB));
        let large = kind.allocate(&manager, 1536 * KIB).unwrap();
        assert_eq!(large, blocks[0]);
        assert_sound(&manager);
        // SAFETY: nobody uses the block.
        unsafe { kind.free(&manager, large).unwrap() };
        // The other tests count what goes back.
        assert_eq!(manager.shutdown().unwrap().released, 2 * MIB);
    }
}

/// Case B34, last part: somebody frees a segment behind the manager's back, and the runtime gives the addresses out again.
#[test]
fn a_segment_that_the_runtime_gives_out_twice_is_refused() {
    memmgr_tests::sim_only!("a real runtime may take another address");
    let _alone = alone();
    let manager = manager_of_segments();
    let log = Arc::new(Log::default());
    manager.set_observer(log.clone()).unwrap();
    manager.set_device_pool_size(2 * MIB).unwrap();
    let p = manager.allocate_device(2 * MIB).unwrap();
    let [(base, _)] = log.of(SegmentChange::Added)[..] else {
        panic!("one segment");
    };
    // SAFETY: the segment came from cudaMalloc, and nothing uses its memory; the manager does not know of this, which is
    // what the test is about.
    let answer = unsafe { cuda_sys::cudaFree(std::ptr::with_exposed_provenance_mut(base)) };
    assert_eq!(answer.0, 0);
    manager.set_device_pool_limit(Some(4 * MIB));
    let refusal = manager.allocate_device(2 * MIB);
    match &refusal {
        Err(error) => assert!(error.to_string().contains(&format!("{base:#x}")), "{error}"),
        Ok(q) => panic!("{p:p} is live and {:p} was handed out", *q),
    }
    let stats = manager.stats().device[0].best_fit;
    assert_eq!((stats.live_blocks, stats.segments), (1, 1));
    assert_eq!((stats.in_use, stats.reserved), (2 * MIB, 2 * MIB));
    assert_sound(&manager);
    // SAFETY: nobody uses the block.
    unsafe { manager.free_device(p).unwrap() };
    assert_eq!(manager.shutdown().unwrap().released, 2 * MIB);
    assert_eq!(common::last_error(), 0);
}
