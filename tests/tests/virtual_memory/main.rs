//! Device pools of virtual memory: one range of addresses, idle memory that moves to where it is needed, growth by what is
//! missing; and what each source of device memory says of itself. A process of its own: tests limit the device and inject
//! faults.

#[cfg(feature = "sim")]
#[path = "../common/capturing.rs"]
mod capturing;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/rig.rs"]
mod rig;

mod beside;
mod faults;
mod giving_back;
mod growth;
mod moves;
mod sources;
mod stamped;
mod undone;

use common::MIB;
use memmgr::{Config, DeviceSource, MemoryManager, PoolStats};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A manager with virtual memory; `None` where the device has none.
fn virtual_memory(config: Config) -> Option<MemoryManager> {
    let supported = memmgr::devices().unwrap()[0].virtual_memory_supported;
    if !supported {
        memmgr_tests::skip("virtual_memory", "the device has none");
        return None;
    }
    let config = config
        .device_source(DeviceSource::Virtual)
        .device_growth(2 * MIB);
    Some(MemoryManager::new(config).unwrap())
}

fn stats(manager: &MemoryManager) -> PoolStats {
    let stats = manager.stats();
    stats
        .device
        .first()
        .map(|device| device.best_fit)
        .unwrap_or_default()
}
