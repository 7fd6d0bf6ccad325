//! Memory that a default stream has freed goes back as soon as that stream has been waited for.
//!
//! In a process of its own: the default streams wait for each other and for the blocking streams of the whole process, so that
//! work of other tests keeps their memory for as long as it runs.

mod common;

use common::{MIB, assert_sound, manager};
use memmgr::{PerThreadStream, Stream};

#[test]
fn trim_gives_back_what_a_synchronised_default_stream_has_freed() {
    let manager = manager();
    let legacy = Stream::legacy(0).unwrap();
    let mine = PerThreadStream::new().unwrap();
    let p = manager.allocate_device_on(MIB, &mine).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { manager.free_device_on(p, &mine).unwrap() };
    mine.synchronize().unwrap();
    manager.trim().unwrap();
    assert_eq!(manager.stats().device[0].best_fit.reserved, 0, "per thread");
    let p = manager.allocate_device_on(MIB, &legacy).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { manager.free_device_on(p, &legacy).unwrap() };
    legacy.synchronize().unwrap();
    manager.trim().unwrap();
    assert_eq!(manager.stats().device[0].best_fit.reserved, 0, "legacy");
    assert_sound(&manager);
}
