//! Handles of streams, and who counts as a user of one: as long as a user has a handle, the raw handle is alive.

use super::{StreamCore, StreamKind};
use crate::{
    capture,
    cuda::{self, RawEvent, RawStream},
    error::Result,
    planted::{self, Mistake},
    process,
    sync::{atomic::Ordering, lock},
};
use std::sync::{Arc, PoisonError};

/// A user of a stream: as long as one exists, the raw handle is alive.
pub(crate) struct Handle {
    pub(super) core: Arc<StreamCore>,
    /// [`USER`] or [`VISITOR`].
    pub(super) weight: u64,
}

/// A handle that the program holds, in [`StreamCore::users`].
pub(super) const USER: u64 = 1 << 32;
/// A handle that a call of the manager holds while it runs.
const VISITOR: u64 = 1;

impl Handle {
    pub fn core(&self) -> &Arc<StreamCore> {
        &self.core
    }

    pub fn raw(&self) -> RawStream {
        self.core.raw
    }

    pub fn device(&self) -> i32 {
        self.core.device
    }

    /// The stream is not being captured.
    pub fn record_raw(&self, event: RawEvent) -> Result<()> {
        self.core.record_raw(event)
    }

    /// Whether the stream is being captured.
    pub fn is_capturing(&self) -> Result<bool> {
        self.core.ask_capturing()
    }

    /// Whether nothing may be done to the stream because of a capture. Where no answer is to be had, the call itself will
    /// say why.
    pub fn is_out_of_bounds(&self) -> bool {
        self.core.is_out_of_bounds()
    }

    /// Refuses what would end the capture of the stream, if it is being captured.
    pub fn refuse_capture(&self, what: &str, instead: &str) -> Result<()> {
        if self.is_capturing()? {
            return Err(capture::refusal(what, instead));
        }
        Ok(())
    }

    pub fn wait_raw(&self, event: RawEvent) -> Result<()> {
        // SAFETY: this handle is alive, and events come from the cache, which never destroys one.
        self.core
            .with_device(|| unsafe { cuda::stream_wait_event(self.raw(), event) })
    }

    /// Runs `f` with the stream's device current where the raw handle does not name one.
    pub fn with_device<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.core.with_device(f)
    }

    pub fn synchronize(&self) -> Result<()> {
        self.refuse_capture("waiting for a stream", "wait after the capture has ended")?;
        // SAFETY: this handle is alive.
        self.core
            .with_device(|| unsafe { cuda::stream_synchronize(self.raw()) })
    }

    /// The stream is not being captured.
    pub fn query(&self) -> Result<bool> {
        // SAFETY: this handle is alive.
        self.core
            .with_device(|| unsafe { cuda::stream_query(self.raw()) })
    }

    /// From now on the stream's end may be asked for.
    pub fn owe(&self) {
        self.core.owes.store(true, Ordering::Release);
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        self.core.users.fetch_add(self.weight, Ordering::AcqRel);
        Self {
            core: self.core.clone(),
            weight: self.weight,
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !process::is_forked() {
            self.core.leave(self.weight);
        }
    }
}

impl StreamCore {
    /// A live handle, if the stream has one and any thread may use it.
    pub fn upgrade(self: &Arc<Self>) -> Option<Handle> {
        if self.is_per_thread() {
            None
        } else {
            self.add(VISITOR, |users| users > 0)
        }
    }

    pub(super) fn add_user(self: &Arc<Self>) -> Option<Handle> {
        self.add(USER, |users| users >= USER)
    }

    fn add(self: &Arc<Self>, weight: u64, alive: impl Fn(u64) -> bool) -> Option<Handle> {
        self.users
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| {
                alive(users).then(|| users + weight)
            })
            .ok()
            .map(|_| Handle {
                core: self.clone(),
                weight,
            })
    }

    /// Whether the raw handle is somebody else's, who may destroy it as soon as the last user's handle is gone.
    pub(super) fn is_borrowed(&self) -> bool {
        !self.owned.load(Ordering::Acquire)
            && matches!(self.kind, StreamKind::Blocking | StreamKind::NonBlocking)
    }

    /// A handle is gone.
    fn leave(self: &Arc<Self>, weight: u64) {
        let left = self.users.fetch_sub(weight, Ordering::AcqRel) - weight;
        if left >= USER || (weight == VISITOR && left > 0) {
            return;
        }
        // No user has a handle any more, and none will: only the visitors of a call that runs are left.
        if self.is_borrowed() {
            if weight == VISITOR {
                // Under the lock, so that the waiting user does not miss it.
                drop(lock(&self.end));
                self.ended.notify_all();
                return;
            }
            let mut end = lock(&self.end);
            while self.users.load(Ordering::Acquire) > 0
                && !planted::is_made(Mistake::VisitorsAreForgotten)
            {
                end = self.ended.wait(end).unwrap_or_else(PoisonError::into_inner);
            }
            drop(end);
            self.retire();
        } else if left == 0 {
            self.retire();
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use crate::{
        cuda,
        stream::{Stream, handle_of},
    };
    use std::{sync::mpsc, thread, time::Duration};

    /// The owner of a borrowed stream may destroy it once the last `Stream` is gone: no call of another thread uses it then.
    #[test]
    fn the_last_drop_of_a_borrowed_stream_waits_for_the_calls_that_use_it() {
        let raw = cuda::stream_create(cuda_sys::cudaStreamNonBlocking, 0).unwrap();
        // SAFETY: the stream is destroyed below, when the last handle is gone.
        let borrowed = unsafe { Stream::borrow_raw(cuda::pointer(raw.0)) }.unwrap();
        let visitor = handle_of(&borrowed).core().upgrade().unwrap();
        let (sender, receiver) = mpsc::channel();
        let dropper = thread::spawn(move || {
            drop(borrowed);
            sender.send(()).unwrap();
        });
        let early = receiver.recv_timeout(Duration::from_millis(200));
        assert!(early.is_err(), "the drop left a visitor behind");
        // Nobody comes after the last user, but for those who are there.
        drop(visitor.clone());
        drop(visitor);
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        dropper.join().unwrap();
        // SAFETY: no handle is left.
        unsafe { cuda::stream_destroy(raw) }.unwrap();
    }
}
