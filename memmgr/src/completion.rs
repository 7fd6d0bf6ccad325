//! What is awaited: [`Completion`] of a point in a stream, and [`TransferFuture`]. They know wakers, and no executor.

use crate::{
    buffer::{Transfer, TransferResult},
    error::Result,
    event::{Event, Fence, Submitted},
    watchdog::{self, Awaited},
};
use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// Completes when everything before a point in a stream has finished: what `event.await` and `submitted.await` wait for.
/// Works with any executor, and may be dropped at any time.
///
/// A waker is called on a thread of the manager's own, never in a host function: it may do anything, but as long as it
/// blocks nobody else is woken.
///
/// To poll it once more after it has completed asks again. It completes with an error where the runtime cannot tell any
/// more, for example because the context is broken or the process exits.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct Completion(State);

#[derive(Debug)]
enum State {
    /// There was nothing to do.
    Nothing,
    /// Nobody has asked yet.
    Fresh(Arc<Fence>),
    /// The watchdog knows the waker.
    Awaited(Awaited),
}

impl Completion {
    fn new(event: Option<&Event>) -> Self {
        Self(event.map_or(State::Nothing, |event| State::Fresh(event.fence.clone())))
    }
}

impl Future for Completion {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &self.0 {
            State::Nothing => Poll::Ready(Ok(())),
            State::Awaited(awaited) => awaited.poll(context.waker()),
            State::Fresh(fence) => match fence.query() {
                Ok(true) => Poll::Ready(Ok(())),
                Err(error) => Poll::Ready(Err(error)),
                Ok(false) => {
                    match watchdog::watch(fence, context.waker()) {
                        Some(awaited) => self.0 = State::Awaited(awaited),
                        // There is no thread that could wake it: it asks for itself, again and again.
                        None => context.waker().wake_by_ref(),
                    }
                    Poll::Pending
                }
            },
        }
    }
}

impl IntoFuture for &Event {
    type Output = Result<()>;
    type IntoFuture = Completion;

    fn into_future(self) -> Completion {
        Completion::new(Some(self))
    }
}

impl IntoFuture for Event {
    type Output = Result<()>;
    type IntoFuture = Completion;

    fn into_future(self) -> Completion {
        (&self).into_future()
    }
}

impl IntoFuture for &Submitted {
    type Output = Result<()>;
    type IntoFuture = Completion;

    fn into_future(self) -> Completion {
        Completion::new(self.event())
    }
}

impl IntoFuture for Submitted {
    type Output = Result<()>;
    type IntoFuture = Completion;

    fn into_future(self) -> Completion {
        (&self).into_future()
    }
}

/// Completes with the buffers of a [`Transfer`] when its copy has finished: what `transfer.await` waits for.
///
/// Dropping it drops the transfer; [`TransferFuture::into_transfer`] gives it back, for example after a timeout. Once it
/// has completed it stays pending for ever.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct TransferFuture<S, D> {
    transfer: Option<Transfer<S, D>>,
    completion: Completion,
}

impl<S, D> TransferFuture<S, D> {
    /// The transfer, unless the future has completed.
    pub fn into_transfer(self) -> Option<Transfer<S, D>> {
        self.transfer
    }
}

/// The buffers are never pinned: only the futures above are polled.
impl<S, D> Unpin for TransferFuture<S, D> {}

impl<S, D> Future for TransferFuture<S, D> {
    type Output = TransferResult<S, D, (S, D)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.transfer.is_none() {
            return Poll::Pending;
        }
        let Poll::Ready(how) = Pin::new(&mut self.completion).poll(context) else {
            return Poll::Pending;
        };
        match self.transfer.take() {
            Some(transfer) => Poll::Ready(transfer.ended(how)),
            None => Poll::Pending,
        }
    }
}

impl<S, D> IntoFuture for Transfer<S, D> {
    type Output = TransferResult<S, D, (S, D)>;
    type IntoFuture = TransferFuture<S, D>;

    fn into_future(self) -> TransferFuture<S, D> {
        TransferFuture {
            completion: self.submitted().into_future(),
            transfer: Some(self),
        }
    }
}
