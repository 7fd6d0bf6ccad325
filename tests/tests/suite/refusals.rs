//! Case B17: "the device is full now" is not "this can never fit", and another error is neither.

#[cfg(feature = "sim")]
use crate::common::assert_sound;
use crate::common::{MIB, last_error};
use memmgr::MemoryManager;
use memmgr::{Config, DeviceSource, Error, PinnedSource, Stream};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

/// A manager that has one idle segment of 2 MiB, for the device or for pinned memory, and grows in steps of that.
struct Cached {
    mm: MemoryManager,
    stream: Stream,
    pinned: bool,
}

impl Cached {
    fn new(pinned: bool) -> Self {
        let config = Config::default()
            .device_source(DeviceSource::Malloc)
            .device_growth(2 * MIB)
            .pinned_growth(2 * MIB)
            .pinned_source(PinnedSource::HostAlloc)
            .device_pool_limit(Some(64 * MIB))
            .pinned_pool_limit(Some(64 * MIB));
        let cached = Self {
            mm: MemoryManager::new(config).unwrap(),
            stream: Stream::new().unwrap(),
            pinned,
        };
        let block = cached.allocate(2 * MIB).unwrap();
        cached.free(block);
        cached.stream.synchronize().unwrap();
        assert_eq!(cached.reserved(), 2 * MIB);
        cached
    }

    fn allocate(&self, size: usize) -> memmgr::Result<*mut std::ffi::c_void> {
        if self.pinned {
            self.mm.allocate_pinned(size)
        } else {
            self.mm.allocate_device_on(size, &self.stream)
        }
    }

    fn free(&self, block: *mut std::ffi::c_void) {
        // SAFETY: nobody uses the block.
        unsafe {
            if self.pinned {
                self.mm.free_pinned(block).unwrap();
            } else {
                self.mm.free_device_on(block, &self.stream).unwrap();
            }
        }
    }

    fn reserved(&self) -> usize {
        let stats = self.mm.stats();
        if self.pinned {
            stats.pinned.reserved
        } else {
            stats.device[0].best_fit.reserved
        }
    }

    #[cfg(feature = "sim")]
    fn call(&self) -> &'static str {
        if self.pinned {
            "cudaHostAlloc"
        } else {
            "cudaMalloc"
        }
    }
}

/// (a), (b), (d)
#[cfg(feature = "sim")]
#[test]
fn a_full_device_is_retried_after_a_trim_and_another_error_is_passed_on() {
    use cudart_sim::sys::cudaError;
    let full = cudaError::cudaErrorMemoryAllocation;
    for pinned in [false, true] {
        // (a) refused once; the idle segment is too short to be given back for this beforehand
        let cached = Cached::new(pinned);
        let fault = cudart_sim::fail(cached.call(), full);
        let block = cached.allocate(32 * MIB).unwrap();
        assert_eq!(fault.fired(), 1);
        drop(fault);
        assert_eq!(
            cached.reserved(),
            32 * MIB,
            "the idle segment went, one came"
        );
        cached.free(block);
        assert_sound(&cached.mm);

        // (b) refused for ever
        let cached = Cached::new(pinned);
        let live = cached.allocate(2 * MIB).unwrap();
        let idle = cached.allocate(2 * MIB).unwrap();
        cached.free(idle);
        cached.stream.synchronize().unwrap();
        let fault = cudart_sim::fail(cached.call(), full).times(u64::MAX);
        let error = cached.allocate(32 * MIB).unwrap_err();
        assert!(fault.fired() >= 2, "tried again: {}", fault.fired());
        drop(fault);
        let Error::OutOfMemory(refusal) = &error else {
            panic!("{error}")
        };
        assert_eq!(
            (refusal.requested, refusal.in_use, refusal.reserved),
            (32 * MIB, 2 * MIB, 2 * MIB)
        );
        assert!(refusal.can_ever_fit());
        let text = error.to_string();
        for figure in ["32.0 MiB requested", "2.0 MiB in use"] {
            assert!(text.contains(figure), "{figure} in: {text}");
        }
        cached.free(live);
        assert_eq!(last_error(), 0);

        // (d) another error: no trim, no retry
        let cached = Cached::new(pinned);
        let fault = cudart_sim::fail(cached.call(), cudaError::cudaErrorInvalidValue).times(9);
        let error = cached.allocate(32 * MIB).unwrap_err();
        assert_eq!(error.cuda_code(), Some(1), "{error}");
        assert_eq!(fault.fired(), 1);
        assert_eq!(cached.reserved(), 2 * MIB, "the idle segment stays");
        assert_eq!(last_error(), 0);
    }
}

/// (c)
#[test]
fn what_exceeds_the_limit_is_refused_at_once_and_nothing_is_given_back_or_asked_for() {
    for pinned in [false, true] {
        let cached = Cached::new(pinned);
        let asked = Arc::new(AtomicUsize::new(0));
        {
            let asked = asked.clone();
            cached.mm.on_out_of_memory(move |_| {
                asked.fetch_add(1, SeqCst);
                true
            });
        }
        let error = cached.allocate(65 * MIB).unwrap_err();
        assert!(
            matches!(error, Error::LimitExceeded { requested, limit, .. }
                if requested == 65 * MIB && limit == 64 * MIB),
            "{error}"
        );
        assert_eq!(asked.load(SeqCst), 0, "the hook cannot help");
        assert_eq!(cached.reserved(), 2 * MIB);
        assert_eq!(last_error(), 0);
    }
}

/// A device that is full for now and one that is too small are told apart.
#[test]
fn a_request_above_the_whole_memory_says_that_it_can_never_fit() {
    let mm = MemoryManager::new(Config::default()).unwrap();
    let stream = Stream::new().unwrap();
    let Error::OutOfMemory(refusal) = mm.allocate_device_on(1 << 46, &stream).unwrap_err() else {
        panic!("64 TiB were granted")
    };
    assert!(!refusal.can_ever_fit());
    assert_eq!(last_error(), 0);
}
