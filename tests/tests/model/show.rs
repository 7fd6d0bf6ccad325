//! Machines, short forms, and what must hold at the end of every run.

use crate::explore::{self, MACHINE, Machine};
use cudart_sim::Schedule;
use memmgr::{Config, DeviceSource, MemoryManager, Stream, model, planted::Mistake};
use shuttle::thread::{self, JoinHandle};
use std::ffi::c_void;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// Work runs as soon as a worker does it.
pub const EAGER: Machine = Machine {
    before: begin,
    after: end,
    coarse: true,
    checked: true,
    ..MACHINE
};

/// Work runs when somebody waits or asks.
pub const LAZY: Machine = Machine {
    when: Schedule::Lazy,
    ..EAGER
};

/// The mistake that `mistakes.rs` has planted in this process.
fn begin() {
    let mistake = match std::env::var("MODEL_MISTAKE").as_deref() {
        Ok("FencesWakeNobody") => Some(Mistake::FencesWakeNobody),
        Ok("VisitorsAreForgotten") => Some(Mistake::VisitorsAreForgotten),
        Ok("RequestsDoNotWait") => Some(Mistake::RequestsDoNotWait),
        Ok("GrowthWakesNobody") => Some(Mistake::GrowthWakesNobody),
        Ok("GraphsKeepNothing") => Some(Mistake::GraphsKeepNothing),
        Ok("UsesAreForgotten") => Some(Mistake::UsesAreForgotten),
        Ok("EndsAreForgotten") => Some(Mistake::EndsAreForgotten),
        _ => None,
    };
    model::begin(mistake);
}

fn end() {
    let left = model::end();
    assert!(left.is_empty(), "{left:?}");
}

/// Both ways: all schedules within the bound, and drawn ones; under both machines.
pub fn everywhere(name: &str, bound: usize, program: fn()) {
    explore::all(name, bound, EAGER, program);
    explore::drawn(name, EAGER, program);
    explore::drawn(&format!("{name}, lazy"), LAZY, program);
}

/// Whether some work has run.
#[derive(Clone, Default)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Puts work on a stream that sets it.
    pub fn set_by(&self, stream: &Stream) {
        let flag = self.clone();
        let work = move || {
            cudart_sim::model::point();
            flag.0.store(true, Relaxed);
        };
        stream.launch_host(work).unwrap();
    }

    /// Puts work on a stream before which it must be set; the answer is set when that has run.
    pub fn needed_by(&self, stream: &Stream) -> Flag {
        let (flag, ran) = (self.clone(), Flag::default());
        let inner = ran.clone();
        let work = move || {
            cudart_sim::model::point();
            // A failure in a host function is nobody's: whoever looks finds that this has not run.
            if flag.is_set() {
                inner.0.store(true, Relaxed);
            }
        };
        stream.launch_host(work).unwrap();
        ran
    }
}

/// A manager whose device pool has just this much.
pub fn pool_of(bytes: usize) -> MemoryManager {
    let config = Config::default()
        .device_source(DeviceSource::Malloc)
        .device_pool_size(bytes)
        .device_pool_limit(Some(bytes));
    MemoryManager::new(config).unwrap()
}

/// The books are sound, and nothing is live.
pub fn sound_and_empty(manager: &MemoryManager) {
    manager.check().unwrap();
    let stats = manager.stats();
    assert_eq!(stats.pinned.in_use, 0);
    for device in &stats.device {
        assert_eq!(device.best_fit.in_use, 0);
    }
    assert!(manager.take_error().is_none());
    assert_eq!(stats.drop_failures, 0);
}

/// A block that threads may hand to each other.
#[derive(Clone, Copy)]
pub struct Block(pub *mut c_void);

// SAFETY: an address; the manager's books and the streams' order say who uses it.
unsafe impl Send for Block {}

impl Block {
    /// Allocates on a stream and fills it there.
    pub fn on(manager: &MemoryManager, bytes: usize, stream: &Stream) -> Block {
        let block = Block(manager.allocate_device_on(bytes, stream).unwrap());
        block.fill(manager, bytes, stream);
        block
    }

    pub fn fill(self, manager: &MemoryManager, bytes: usize, stream: &Stream) {
        // SAFETY: the block is live and as long.
        unsafe { manager.memset(self.0, 1, bytes, stream) }.unwrap();
    }

    pub fn free_on(self, manager: &MemoryManager, stream: &Stream) {
        // SAFETY: whoever has the block frees it once.
        unsafe { manager.free_device_on(self.0, stream) }.unwrap();
    }

    pub fn free(self, manager: &MemoryManager) {
        // SAFETY: as above, and nothing touches it any more.
        unsafe { manager.free_device(self.0) }.unwrap();
    }
}

/// Starts the threads of a program.
pub fn start(body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::spawn(body)
}

/// Waits for them.
pub fn join<const N: usize>(threads: [JoinHandle<()>; N]) {
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}
