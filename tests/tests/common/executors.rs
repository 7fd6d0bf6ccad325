//! The executors that the tests await with.

use memmgr::Result;
use std::{future::Future, pin::Pin};

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
