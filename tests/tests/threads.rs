//! Which types may go to other threads, and be shared with them: the compiler decides. (That the per-thread stream may not
//! is among what does not compile.)

use memmgr::*;

macro_rules! all {
    ($bound:path: $($type:ty),* $(,)?) => {{
        fn holds<T: ?Sized + $bound>() -> &'static str {
            std::any::type_name::<T>()
        }
        [$(holds::<$type>()),*]
    }};
}

trait AnyThread: Send + Sync + 'static {}
impl<T: Send + Sync + 'static> AnyThread for T {}

#[test]
fn everything_but_the_per_thread_stream_may_go_to_any_thread_and_be_shared() {
    let held = all!(AnyThread:
        MemoryManager, PinnedBuffer<u8>, DeviceBuffer<f64>, Stream, StreamBuilder, StreamKind, Event, Submitted,
        Transfer<PinnedBuffer<u8>, DeviceBuffer<u8>>, TransferError<DeviceBuffer<u8>, PinnedBuffer<u8>>,
        Completion, TransferFuture<DeviceBuffer<u8>, DeviceBuffer<u8>>,
        Config, Reuse, CopyKind, Backend, DeviceInfo, Versions, Error, OutOfMemory, Place, LiveBlock, ShutdownReport,
        DeviceAllocatorMode, UnknownMode, By, SegmentChange, DeviceStats, NativePoolUsage, PoolStats, Stats,
        Fragmentation, PoolFragmentation, PeakScope, Peaks, Copied, Holder, Holders,
    );
    assert!(held.into_iter().all(|name| !name.is_empty()));
}

/// A future in a list can be polled where it is.
#[test]
fn futures_need_no_pin() {
    let held =
        all!(Unpin: Completion, TransferFuture<std::marker::PhantomPinned, PinnedBuffer<u8>>);
    assert!(held.into_iter().all(|name| !name.is_empty()));
}
