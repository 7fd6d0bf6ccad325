//! What an observer is told: every block and segment, in an order that a checker can rely on.

use crate::common::{KIB, MIB, manager, manager_in};
use crate::rig;
use memmgr::events::Action;
use memmgr::{By, DeviceAllocatorMode, MemoryManager, Observer, Place, SegmentChange, Stream};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex},
};

#[derive(Debug, Clone, PartialEq)]
enum Told {
    Allocated(Place, Range<usize>, By),
    Freed(Place, Range<usize>, By),
    Segment(Place, Range<usize>, SegmentChange),
}

#[derive(Default)]
struct Log(Mutex<Vec<Told>>);

impl Log {
    fn push(&self, told: Told) {
        self.0.lock().unwrap().push(told);
    }

    fn take(&self) -> Vec<Told> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Log {
    fn on_allocate(&self, place: Place, range: Range<usize>, by: By) {
        self.push(Told::Allocated(place, range, by));
    }

    fn on_free(&self, place: Place, range: Range<usize>, by: By) {
        self.push(Told::Freed(place, range, by));
    }

    fn on_segment(&self, place: Place, range: Range<usize>, change: SegmentChange) {
        self.push(Told::Segment(place, range, change));
    }
}

fn range(at: *mut std::ffi::c_void, size: usize) -> Range<usize> {
    at as usize..at as usize + size
}

#[test]
fn each_block_is_reported_with_its_range_and_its_order() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let log = Arc::new(Log::default());
        mm.set_observer(log.clone()).unwrap();
        assert!(
            mm.set_observer(log.clone()).is_err(),
            "one observer in a manager's life"
        );
        let stream = Stream::new().unwrap();
        let by = By::Stream(stream.id());
        let device = Place::Device(0);
        let no_segments = |log: &Log| {
            log.take()
                .into_iter()
                .filter(|told| !matches!(told, Told::Segment(..)))
                .collect::<Vec<_>>()
        };

        let a = mm.allocate_device_on(1000, &stream).unwrap();
        let b = mm.allocate_device(2000).unwrap();
        let c = mm.allocate_pinned(3000).unwrap();
        assert_eq!(
            no_segments(&log),
            [
                Told::Allocated(device, range(a, 1000), by),
                Told::Allocated(device, range(b, 2000), By::Host),
                Told::Allocated(Place::Pinned, range(c, 3000), By::Host),
            ],
            "{mode}"
        );
        // SAFETY: nobody uses the blocks.
        unsafe {
            mm.free_device_on(a, &stream).unwrap();
            mm.free_device(b).unwrap();
            mm.free_pinned(c).unwrap();
        }
        assert_eq!(
            no_segments(&log),
            [
                Told::Freed(device, range(a, 1000), by),
                Told::Freed(device, range(b, 2000), By::Host),
                Told::Freed(Place::Pinned, range(c, 3000), By::Host),
            ],
            "{mode}"
        );
        let guard = mm.device::<u32>(64, &stream).unwrap();
        let pinned = mm.pinned::<u32>(32).unwrap();
        let (guard_at, pinned_at) = (range(guard.as_ptr(), 256), range(pinned.as_ptr(), 128));
        drop(guard);
        drop(pinned);
        assert_eq!(
            no_segments(&log),
            [
                Told::Allocated(device, guard_at.clone(), by),
                Told::Allocated(Place::Pinned, pinned_at.clone(), By::Host),
                Told::Freed(device, guard_at, by),
                Told::Freed(Place::Pinned, pinned_at, By::Host),
            ],
            "{mode}"
        );
        // What is refused, and what is nothing, is not reported.
        // SAFETY: null is ignored; the others are refused.
        unsafe {
            mm.free_device(std::ptr::null_mut()).unwrap();
            assert!(mm.free_device(c).is_err());
            assert!(mm.free_pinned(a).is_err());
            assert!(mm.free_pinned(c).is_err());
        }
        assert!(mm.allocate_device(usize::MAX).is_err());
        assert!(mm.allocate_device(0).unwrap().is_null());
        drop(mm.pinned::<u64>(0).unwrap());
        assert_eq!(no_segments(&log), [], "{mode}");
        mm.shutdown().unwrap();
    }
}

#[test]
fn segments_are_reported_before_their_blocks_and_after_them() {
    let mm = manager();
    let log = Arc::new(Log::default());
    mm.set_observer(log.clone()).unwrap();
    let block = mm.allocate_device(MIB).unwrap();
    let host = mm.allocate_pinned(MIB).unwrap();
    let told = log.take();
    let mut held = BTreeMap::new();
    for (i, told) in told.iter().enumerate() {
        match told {
            Told::Segment(place, range, change) => {
                assert_eq!(*change, SegmentChange::Added);
                held.insert((range.start, range.end), *place);
            }
            Told::Allocated(place, block, _) => assert!(
                held.iter().any(|((start, end), of)| {
                    of == place && *start <= block.start && block.end <= *end
                }),
                "report {i}: a block outside of every reported segment"
            ),
            Told::Freed(..) => panic!("nothing was freed"),
        }
    }
    assert_eq!(held.len(), 2);
    let bytes: usize = held.keys().map(|(start, end)| end - start).sum();
    let stats = mm.stats();
    assert_eq!(
        bytes,
        stats.pinned.reserved + stats.device[0].best_fit.reserved
    );
    // SAFETY: nobody uses the blocks.
    unsafe {
        mm.free_device(block).unwrap();
        mm.free_pinned(host).unwrap();
    }
    mm.shutdown().unwrap();
    for told in log.take() {
        if let Told::Segment(place, range, change) = told {
            assert_eq!(change, SegmentChange::Removed);
            assert_eq!(held.remove(&(range.start, range.end)), Some(place));
        }
    }
    assert!(held.is_empty(), "{held:?}");
}

/// Notes refusals.
#[derive(Default)]
struct Refusals(Mutex<Vec<(Place, usize, By, String)>>);

impl Observer for Refusals {
    fn on_failure(&self, place: Place, size: usize, by: By, error: &memmgr::Error) {
        let told = (place, size, by, error.to_string());
        self.0.lock().unwrap().push(told);
    }
}

#[test]
fn a_refusal_is_reported_with_who_asked_and_why() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let refusals = Arc::new(Refusals::default());
        mm.set_observer(refusals.clone()).unwrap();
        let stream = Stream::new().unwrap();
        let device = mm.allocate_device_on(1 << 60, &stream).unwrap_err();
        let pinned = mm.allocate_pinned(usize::MAX).unwrap_err();
        drop(mm.pinned::<u8>(KIB).unwrap());
        assert!(mm.allocate_device(0).unwrap().is_null());
        let told = std::mem::take(&mut *refusals.0.lock().unwrap());
        let by = By::Stream(stream.id());
        assert_eq!(
            told,
            [
                (Place::Device(0), 1 << 60, by, device.to_string()),
                (Place::Pinned, usize::MAX, By::Host, pinned.to_string()),
            ],
            "{mode}"
        );
    }
}

/// An observer that asks the manager back, and panics.
struct Rude(Mutex<Option<std::sync::Weak<MemoryManager>>>);

impl Rude {
    fn be_rude(&self) {
        let manager = self
            .0
            .lock()
            .unwrap()
            .as_ref()
            .and_then(std::sync::Weak::upgrade);
        if let Some(manager) = manager {
            let _ = manager.stats();
            manager.check().unwrap();
        }
        std::panic::resume_unwind(Box::new("rude"));
    }
}

impl Observer for Rude {
    fn on_allocate(&self, _: Place, _: Range<usize>, _: By) {
        self.be_rude();
    }

    fn on_free(&self, _: Place, _: Range<usize>, _: By) {
        self.be_rude();
    }

    fn on_segment(&self, _: Place, _: Range<usize>, _: SegmentChange) {
        self.be_rude();
    }
}

#[test]
fn an_observer_that_calls_back_and_panics_harms_nobody() {
    for mode in rig::modes() {
        let mm = Arc::new(manager_in(*mode));
        mm.set_observer(Arc::new(Rude(Mutex::new(Some(Arc::downgrade(&mm))))))
            .unwrap();
        let stream = Stream::new().unwrap();
        for _ in 0..3 {
            let block = mm.allocate_device_on(MIB, &stream).unwrap();
            let guard = mm.device::<u8>(KIB, &stream).unwrap();
            let pinned = mm.pinned::<u8>(KIB).unwrap();
            drop((guard, pinned));
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device_on(block, &stream).unwrap() };
        }
        assert_eq!(mm.stats().in_use(), 0);
        assert_eq!(mm.stats().drop_failures, 0);
        mm.shutdown().unwrap();
        mm.check().unwrap();
    }
}

/// Keeps the set of live ranges, as a checker does: no range is handed out while an earlier owner has it.
#[derive(Default)]
struct Checker {
    live: Mutex<BTreeMap<usize, usize>>,
    wrong: Mutex<Option<String>>,
}

impl Checker {
    fn complain(&self, what: String) {
        self.wrong.lock().unwrap().get_or_insert(what);
    }
}

impl Observer for Checker {
    fn on_allocate(&self, _: Place, range: Range<usize>, _: By) {
        let mut live = self.live.lock().unwrap();
        let before = live.range(..range.end).next_back().map(|(s, e)| (*s, *e));
        if let Some((_, end)) = before
            && end > range.start
        {
            self.complain(format!("{range:x?} is handed out while it is live"));
        }
        live.insert(range.start, range.end);
    }

    fn on_free(&self, _: Place, range: Range<usize>, _: By) {
        if self.live.lock().unwrap().remove(&range.start) != Some(range.end) {
            self.complain(format!("{range:x?} is freed and not live"));
        }
    }
}

#[test]
fn a_free_is_reported_before_anybody_else_can_get_the_block() {
    for mode in rig::modes() {
        let mm = &manager_in(*mode);
        let checker = Arc::new(Checker::default());
        mm.set_observer(checker.clone()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    let stream = Stream::new().unwrap();
                    for i in 0..300 {
                        let size = 256 * (1 + (i * 7 + thread) % 5);
                        let block = mm.allocate_device_on(size, &stream).unwrap();
                        let plain = mm.allocate_device(size).unwrap();
                        let pinned = mm.pinned::<u8>(size).unwrap();
                        // SAFETY: nobody uses the blocks.
                        unsafe {
                            mm.free_device_on(block, &stream).unwrap();
                            mm.free_device(plain).unwrap();
                        }
                        drop(pinned);
                    }
                });
            }
        });
        let wrong = checker.wrong.lock().unwrap().take();
        assert_eq!(wrong, None, "{mode}");
        assert!(checker.live.lock().unwrap().is_empty());
        mm.shutdown().unwrap();
    }
    let _ = DeviceAllocatorMode::ALL;
}

/// Allocates and frees in each of its reports, and counts them.
struct Busy {
    mm: std::sync::Weak<MemoryManager>,
    stream: Stream,
    /// What the first report has allocated and left.
    left: Mutex<Option<usize>>,
    told: Mutex<Vec<(&'static str, Range<usize>)>>,
}

impl Busy {
    fn work(&self, what: &'static str, range: Range<usize>) {
        self.told.lock().unwrap().push((what, range));
        let mm = self.mm.upgrade().unwrap();
        drop(mm.pinned::<u8>(KIB).unwrap());
        drop(mm.device::<u8>(KIB, &self.stream).unwrap());
        let mut left = self.left.lock().unwrap();
        if left.is_none() {
            *left = Some(mm.allocate_device(5000).unwrap().expose_provenance());
        }
    }
}

impl Observer for Busy {
    fn on_allocate(&self, _: Place, range: Range<usize>, _: By) {
        self.work("allocated", range);
    }

    fn on_free(&self, _: Place, range: Range<usize>, _: By) {
        self.work("freed", range);
    }

    fn on_segment(&self, _: Place, _: Range<usize>, _: SegmentChange) {
        self.mm.upgrade().unwrap().pinned::<u8>(KIB).unwrap();
    }
}

#[test]
fn what_a_report_allocates_and_frees_itself_is_not_reported() {
    for mode in rig::modes() {
        let config = crate::common::config().mode(*mode).event_ring(100);
        let mm = Arc::new(MemoryManager::new(config).unwrap());
        let busy = Arc::new(Busy {
            mm: Arc::downgrade(&mm),
            stream: Stream::new().unwrap(),
            left: Mutex::default(),
            told: Mutex::default(),
        });
        mm.set_observer(busy.clone()).unwrap();
        let a = mm.allocate_device(1000).unwrap();
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device(a).unwrap() };
        let left = busy.left.lock().unwrap().unwrap();
        let left = std::ptr::with_exposed_provenance_mut(left);
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device(left).unwrap() };
        let told = std::mem::take(&mut *busy.told.lock().unwrap());
        assert_eq!(
            told,
            [
                ("allocated", range(a, 1000)),
                ("freed", range(a, 1000)),
                ("freed", range(left, 5000)),
            ],
            "{mode}"
        );
        // The ring has all of it.
        let events = mm.events();
        let found = |action| {
            let of = events
                .iter()
                .filter(|event| event.address == left as usize && event.requested == 5000);
            of.filter(|event| event.action == action).count()
        };
        assert_eq!(
            (found(Action::Allocate), found(Action::Free)),
            (1, 1),
            "{mode}"
        );
        mm.check().unwrap();
    }
}
