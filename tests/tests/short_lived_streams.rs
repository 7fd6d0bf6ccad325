//! Streams that come and go by the thousand leave nothing behind.
//!
//! In a process of its own: what the calling thread makes and destroys is counted, and where other tests run, one of their calls
//! that looks whether all streams are idle may be the last to hold a stream, and destroy it in this thread's place.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, assert_sound, manager_of};
use memmgr::{Config, Stream};

#[test]
fn ten_thousand_short_lived_streams_leave_nothing_behind() {
    for mode in rig::modes() {
        let mm = manager_of(Config::default().mode(*mode), 8 * MIB);
        #[cfg(feature = "sim")]
        let count = |name| cudart_sim::thread_calls_of(name);
        #[cfg(feature = "sim")]
        let before = (
            count("cudaStreamCreateWithPriority"),
            count("cudaStreamDestroy"),
            count("cudaEventCreateWithFlags"),
        );
        for i in 0..10_000 {
            let stream = Stream::new().unwrap();
            let block = mm.allocate_device_on(64 * KIB, &stream).unwrap();
            let guard = mm.device::<u8>(KIB, &stream).unwrap();
            if i % 16 == 0 {
                let _ = stream.memset(&guard, 1).unwrap();
            }
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device_on(block, &stream).unwrap() };
        }
        #[cfg(feature = "sim")]
        {
            let made = count("cudaStreamCreateWithPriority") - before.0;
            let gone = count("cudaStreamDestroy") - before.1;
            // The manager keeps three of its own for each device at most.
            assert!(
                made - gone <= 3,
                "{mode}: {made} streams made, {gone} destroyed"
            );
            let events = count("cudaEventCreateWithFlags") - before.2;
            assert!(
                events <= 1024,
                "{mode}: {events} events for streams that are gone"
            );
        }
        let stats = mm.stats();
        assert_eq!((stats.in_use(), stats.drop_failures), (0, 0));
        assert!(stats.device[0].best_fit.growths <= 1);
        assert_sound(&mm);
        mm.shutdown().unwrap();
        assert_eq!(mm.stats().device[0].best_fit.reserved, 0);
        assert_eq!(mm.stats().device[0].best_fit.free_spans, 0);
    }
}
