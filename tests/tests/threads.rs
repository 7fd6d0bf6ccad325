//! Which types may go to other threads, and be shared with them; the reasons are in the documentation of each.

use memmgr::*;

/// Whether a type implements a trait, told at compile time: an inherent function wins over the trait's.
macro_rules! implements {
    ($type:ty, $what:path) => {{
        struct Probe<T: ?Sized>(std::marker::PhantomData<T>);
        trait Otherwise {
            const ANSWER: bool = false;
        }
        impl<T: ?Sized> Otherwise for Probe<T> {}
        #[allow(dead_code)]
        impl<T: ?Sized + $what> Probe<T> {
            const ANSWER: bool = true;
        }
        <Probe<$type>>::ANSWER
    }};
}

macro_rules! both {
    ($($type:ty),* $(,)?) => {
        $(
            assert!(implements!($type, Send), "{} is not Send", stringify!($type));
            assert!(implements!($type, Sync), "{} is not Sync", stringify!($type));
        )*
    };
}

#[test]
fn everything_but_the_per_thread_stream_may_go_to_any_thread_and_be_shared() {
    both!(
        MemoryManager,
        PinnedBuffer<u8>,
        DeviceBuffer<f64>,
        Stream,
        StreamBuilder,
        StreamKind,
        Event,
        Submitted,
        Transfer<PinnedBuffer<u8>, DeviceBuffer<u8>>,
        TransferError<DeviceBuffer<u8>, PinnedBuffer<u8>>,
        Completion,
        TransferFuture<DeviceBuffer<u8>, DeviceBuffer<u8>>,
        Config,
        Reuse,
        CopyKind,
        Backend,
        DeviceInfo,
        Versions,
        Error,
        OutOfMemory,
        Place,
        LiveBlock,
        ShutdownReport,
        DeviceAllocatorMode,
        UnknownMode,
        By,
        SegmentChange,
        DeviceStats,
        NativePoolUsage,
        PoolStats,
        Stats,
    );
    assert!(!implements!(PerThreadStream, Send));
    assert!(!implements!(PerThreadStream, Sync));
    assert!(!implements!(std::rc::Rc<u8>, Send), "the probe can say no");
}

/// A transfer is what it is made of.
#[test]
fn futures_and_transfers_need_no_pin() {
    assert!(implements!(Completion, Unpin));
    assert!(implements!(
        TransferFuture<std::marker::PhantomPinned, PinnedBuffer<u8>>,
        Unpin
    ));
}
