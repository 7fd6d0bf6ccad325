//! Figures: steals and waits, what was copied, and peaks between two moments, against an account kept beside the manager.

use crate::common::{
    MIB, assert_sound,
    checks::{KINDS, Kind},
    manager, stall,
};
use crate::rig;
use memmgr::{
    CopyKind, DeviceAllocatorMode, DevicePeaks, MemoryManager, Peak, PeakScope, Peaks, Stream,
};
use memmgr_tests::{Gate, Rng};
use std::ffi::c_void;

const KIB: usize = 1 << 10;

#[test]
fn a_steal_takes_memory_that_still_has_anothers_mark_and_idle_memory_is_none() {
    let mm = rig::capped(2 * MIB);
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let figures = || {
        let of = mm.stats().device[0].best_fit;
        (of.steals, of.waits, of.reuses)
    };
    let take = |stream: &Stream| mm.allocate_device_on(2 * MIB, stream).unwrap();
    let free = |block, stream: &Stream| {
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(block, stream).unwrap() }
    };
    free(take(&a), &a);
    // Its own, and what it turns out to have finished with.
    free(take(&a), &a);
    a.synchronize().unwrap();
    free(take(&b), &b);
    assert_eq!(figures(), (0, 0, 3), "the first segment included");
    // Behind work that has not finished.
    let gate = Gate::new();
    stall(&b, &gate);
    free(take(&b), &b);
    assert_eq!(figures(), (0, 0, 4));
    let stolen = take(&a);
    assert_eq!(figures(), (1, 1, 5));
    gate.open();
    free(stolen, &a);
    a.synchronize().unwrap();
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

#[test]
fn what_is_copied_and_filled_is_counted_by_kind_and_what_is_refused_is_not() {
    let mm = manager();
    let stream = Stream::new().unwrap();
    let mut host = mm.pinned_zeroed::<u32>(1000).unwrap();
    let device = mm.device::<u32>(1000, &stream).unwrap();
    let other = mm.device_zeroed::<u32>(1000, &stream).unwrap();
    let copied = |of: memmgr::Copied| {
        let first = (of.host_to_device, of.device_to_host);
        (first.0, first.1, of.device_to_device, of.memset)
    };
    assert_eq!(copied(mm.stats().copied), (0, 0, 0, 4000));
    // Guards.
    let _ = stream.copy_to_device(&host, &device).unwrap();
    let _ = stream.copy_to_host(&device, &mut host).unwrap();
    let _ = stream.copy_device_to_device(&device, &other).unwrap();
    let _ = stream.memset(&device.slice(..10).unwrap(), 1).unwrap();
    assert_eq!(copied(mm.stats().copied), (4000, 4000, 4000, 4040));
    // Rectangles: the rows alone.
    let _ = stream
        .copy_2d_to_device(&host, 10, &device, 20, 3, 5)
        .unwrap();
    let _ = stream
        .copy_2d_to_host(&device, 20, &mut host, 10, 3, 5)
        .unwrap();
    let _ = stream.memset_2d(&device, 20, 0, 2, 4).unwrap();
    assert_eq!(copied(mm.stats().copied), (4060, 4060, 4000, 4072));
    // Plain slices.
    let (source, mut target) = ([1u32; 1000], [0u32; 1000]);
    mm.scope(|scope| {
        scope.copy_to_device(&source, &device, &stream)?;
        scope.copy_to_host(&device, &mut target, &stream)
    })
    .unwrap();
    assert_eq!(copied(mm.stats().copied), (8060, 8060, 4000, 4072));
    // Raw pointers.
    let (to, from) = (device.as_ptr(), host.as_ptr());
    // SAFETY: all blocks have 4000 bytes.
    unsafe {
        mm.copy_to_device_async(to, from, 400, &stream).unwrap();
        mm.copy_to_host_async(from, to, 300, &stream).unwrap();
        mm.copy_device_to_device(other.as_ptr(), to, 200, &stream)
            .unwrap();
        mm.memset(to, 0, 100, &stream).unwrap();
        mm.copy_2d(to, 64, from, 32, 8, 4, CopyKind::HostToDevice, &stream)
            .unwrap();
        mm.memset_2d(to, 64, 0, 8, 4, &stream).unwrap();
        // Beyond the end, and nothing.
        assert!(mm.memset(to, 0, 5000, &stream).is_err());
        mm.memset(to, 0, 0, &stream).unwrap();
    }
    assert_eq!(copied(mm.stats().copied), (8492, 8360, 4200, 4204));
    // Another manager has figures of its own.
    assert_eq!(manager().stats().copied, Default::default());
    stream.synchronize().unwrap();
    drop((host, device, other));
    assert_sound(&mm);
}

/// The peaks of one kind of memory on the first device.
fn of(kind: Kind, peaks: &Peaks) -> Peak {
    let device = peaks.device.iter().find(|of| of.device == 0);
    let device: DevicePeaks = device.copied().unwrap_or_default();
    match kind {
        Kind::Pinned => peaks.pinned,
        Kind::Device(DeviceAllocatorMode::BestFitPool) => device.best_fit,
        Kind::Device(DeviceAllocatorMode::AsyncStreamOrdered) => device.async_stream_ordered,
        Kind::Device(DeviceAllocatorMode::CudaAsyncPool) => device.cuda_async_pool,
    }
}

/// One kind of memory with a full record of what was live.
struct Recorded {
    kind: Kind,
    mm: MemoryManager,
    live: Vec<(*mut c_void, usize)>,
    record: Vec<(usize, usize)>,
}

impl Recorded {
    /// As `stats` sees it. The pools do not shrink by themselves, so that nothing is missed in between.
    fn note(&mut self) {
        let stats = self.kind.stats(&self.mm);
        let in_use: usize = self.live.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(stats.in_use, in_use);
        self.record.push((in_use, stats.reserved));
    }

    fn allocate(&mut self, size: usize) {
        let block = self.kind.allocate(&self.mm, size).unwrap();
        let own = self.kind.is_own_pool();
        let bytes = if own {
            size.next_multiple_of(256)
        } else {
            size
        };
        self.live.push((block, bytes));
        self.note();
    }

    fn free(&mut self, which: usize) {
        let (block, _) = self.live.swap_remove(which);
        // SAFETY: nobody uses the block.
        unsafe { self.kind.free(&self.mm, block).unwrap() };
        self.note();
    }

    fn assert_peak(&self, peaks: &Peaks, from: usize) {
        let peak = of(self.kind, peaks);
        let since = &self.record[from..];
        let highest = |of: fn(&(usize, usize)) -> usize| since.iter().map(of).max().unwrap();
        assert_eq!(
            (peak.in_use_at_begin, peak.reserved_at_begin),
            self.record[from],
            "{:?}",
            self.kind
        );
        assert_eq!(
            (peak.in_use, peak.reserved),
            (highest(|of| of.0), highest(|of| of.1)),
            "{:?}",
            self.kind
        );
        assert_eq!(peak.in_use_above_begin(), peak.in_use - since[0].0);
        assert_eq!(peak.reserved_above_begin(), peak.reserved - since[0].1);
    }
}

/// Scopes that lie inside one another and overlap, beside resets, against the record.
#[test]
fn scopes_have_the_peaks_of_their_own_time_however_they_overlap() {
    for kind in KINDS {
        let mut rng = Rng(7);
        let mut recorded = Recorded {
            kind,
            mm: kind.manager(),
            live: Vec::new(),
            record: Vec::new(),
        };
        let mut open: Vec<(PeakScope, usize)> = Vec::new();
        let mut reset = 0;
        recorded.note();
        for _ in 0..600 {
            match rng.below(10) {
                0..4 => recorded.allocate(1 + rng.index(64 * KIB)),
                4..6 if !recorded.live.is_empty() => {
                    recorded.free(rng.index(recorded.live.len()));
                }
                6 if rng.below(3) == 0 => {
                    recorded.mm.trim().unwrap();
                    recorded.note();
                }
                7 => open.push((recorded.mm.peak_scope(), recorded.record.len() - 1)),
                8 if !open.is_empty() => {
                    let (scope, from) = open.swap_remove(rng.index(open.len()));
                    recorded.assert_peak(&scope.end(), from);
                }
                9 if rng.below(4) == 0 => {
                    recorded.mm.reset_peak();
                    reset = recorded.record.len() - 1;
                }
                _ => {}
            }
            for (scope, from) in &open {
                recorded.assert_peak(&scope.peaks(), *from);
            }
            let stats = kind.stats(&recorded.mm);
            let highest = recorded.record[reset..].iter().map(|of| of.0).max();
            assert_eq!(Some(stats.peak_in_use), highest, "{kind:?}");
        }
        drop(open);
        while !recorded.live.is_empty() {
            recorded.free(0);
        }
        assert_sound(&recorded.mm);
        recorded.mm.shutdown().unwrap();
    }
}

#[test]
fn a_scope_sees_devices_that_come_later_other_threads_and_outlives_the_manager() {
    let mm = manager();
    let scope = mm.peak_scope();
    let inner = std::thread::scope(|threads| {
        let thread = threads.spawn(|| {
            let inner = mm.peak_scope();
            drop(mm.pinned::<u8>(5000).unwrap());
            let stream = Stream::new().unwrap();
            drop(mm.device::<u8>(3000, &stream).unwrap());
            stream.synchronize().unwrap();
            inner
        });
        thread.join().unwrap()
    });
    let expected = |peaks: &Peaks| {
        assert_eq!(peaks.pinned.in_use_above_begin(), 5120);
        let [device] = &peaks.device[..] else {
            panic!("{peaks:?}");
        };
        let of = (device.best_fit.in_use_at_begin, device.best_fit.in_use);
        assert_eq!((device.device, of), (0, (0, 3072)));
        assert!(device.best_fit.reserved_above_begin() >= 3072);
    };
    expected(&inner.end());
    drop(mm);
    expected(&scope.end());
}

/// Threads that push and pop at any moment: a scope has at least what its own thread had, and no more than the one around
/// all of them.
#[test]
fn scopes_of_many_threads_lie_inside_the_one_around_them() {
    const THREADS: usize = 4;
    const BLOCK: usize = 64 * KIB;
    let mm = manager();
    let outer = mm.peak_scope();
    let inner: Vec<Peak> = std::thread::scope(|threads| {
        let work = |seed| {
            let mm = &mm;
            move || {
                let mut rng = Rng(seed);
                let mut peaks = Vec::new();
                for _ in 0..200 {
                    let scope = mm.peak_scope();
                    let blocks = 1 + rng.index(8);
                    let held: Vec<_> = (0..blocks)
                        .map(|_| mm.pinned::<u8>(BLOCK).unwrap())
                        .collect();
                    let nested = mm.peak_scope();
                    drop(held);
                    let nested = nested.end().pinned;
                    assert!(nested.in_use_at_begin >= blocks * BLOCK);
                    let peak = scope.end().pinned;
                    assert!(peak.in_use >= nested.in_use && nested.in_use >= blocks * BLOCK);
                    peaks.push(peak);
                }
                peaks
            }
        };
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|seed| threads.spawn(work(seed)))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let outer = outer.end().pinned;
    let highest = inner.iter().map(|peak| peak.in_use).max();
    assert_eq!(highest, Some(outer.in_use), "nothing was live beside them");
    // A block that others hold back is counted as live.
    let most = THREADS * 8 * BLOCK + outer.reserved / 100;
    assert!(outer.in_use <= most, "{outer:?}");
    assert_eq!(mm.stats().pinned.in_use, 0);
    assert_sound(&mm);
}
