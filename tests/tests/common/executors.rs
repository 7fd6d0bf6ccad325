//! The executors that the tests await with, and what they do by hand.
#![allow(dead_code)]

use memmgr::Result;
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

pub type Program = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// One that blocks the thread, one with a single thread, one with several.
pub const ALL: [fn(Program) -> Result<()>; 3] = [pollster::block_on::<Program>, one_thread, tokio];

pub fn one_thread(program: Program) -> Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
        .block_on(program)
}

pub fn tokio(program: Program) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime")
        .block_on(async { tokio::spawn(program).await.expect("the task has ended") })
}

/// Counts how often it is woken, and does something then.
pub struct Counting<F = fn()>(AtomicUsize, F);

impl<F: Fn() + Send + Sync + 'static> Counting<F> {
    pub fn new(then: F) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(0), then))
    }

    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl<F: Fn() + Send + Sync + 'static> Wake for Counting<F> {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
        (self.1)();
    }
}

/// Polls once.
pub fn poll<T: Future + Unpin>(future: &mut T, waker: &Waker) -> Poll<T::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}
