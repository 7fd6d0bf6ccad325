//! The device that a subcommand works on: which backend it belongs to, choosing it, sizing a simulated
//! one, and what a manager holds of its memory.

use memmgr::{Backend, Config, DeviceAllocatorMode, MemoryManager};

use crate::cuda;
use crate::error::{Failure, Result};

/// The first line of everything this program prints.
pub fn backend_line() -> &'static str {
    match memmgr::backend() {
        Backend::Gpu => "backend: gpu",
        Backend::Simulated => "backend: simulated (no GPU is used; all times are modelled)",
    }
}

/// Makes the device current for this thread, or says which ones there are.
pub fn select(ordinal: i32) -> Result<()> {
    let count = match cuda::device_count() {
        Ok(count) if count > 0 => count,
        // The library says why there is none, and what helps.
        _ => memmgr::devices()?.len(),
    };
    if usize::try_from(ordinal).is_ok_and(|index| index < count) {
        return cuda::select_device(ordinal);
    }
    let which = match count {
        0 => "there is none at all".to_owned(),
        1 => "the only one is 0".to_owned(),
        _ => format!("they are 0 to {}", count - 1),
    };
    Err(Failure::message(format!(
        "there is no device {ordinal}: {which}"
    )))
}

/// The mode that the current device grants when `mode` is asked for.
pub fn granted(mode: DeviceAllocatorMode) -> Result<DeviceAllocatorMode> {
    let manager = MemoryManager::new(Config::default().mode(mode))?;
    Ok(manager.effective_device_allocator_mode()?)
}

/// What a manager holds and held of a device's memory, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub peak_in_use: u64,
    pub peak_reserved: u64,
    /// Requests that had to wait for another stream's work. CUDA's own pools do not say.
    pub waits: u64,
}

/// What `manager`, working in `mode`, holds of the current device, which is `ordinal`.
pub fn usage(manager: &MemoryManager, mode: DeviceAllocatorMode, ordinal: i32) -> Result<Usage> {
    if mode != DeviceAllocatorMode::BestFitPool {
        let native = manager.native_pool_usage(mode)?;
        return Ok(Usage {
            peak_in_use: native.used_high as u64,
            peak_reserved: native.reserved_high as u64,
            waits: 0,
        });
    }
    let stats = manager.stats();
    let device = stats.device.iter().find(|stats| stats.device == ordinal);
    Ok(device.map_or_else(Usage::default, |stats| Usage {
        peak_in_use: stats.best_fit.peak_in_use as u64,
        peak_reserved: stats.best_fit.peak_reserved as u64,
        waits: stats.best_fit.waits,
    }))
}

/// Prepares the simulated machine before the first CUDA call: its times follow the model, and its
/// devices hold several times `needed` bytes, where that is given. What the environment says about
/// either goes first. The result says what was decided about the memory.
#[cfg(feature = "sim")]
pub fn prepare_simulator(needed: Option<u64>) -> Result<Option<String>> {
    use cudart_sim::{Config, TimeModel};

    let mut config = Config::from_env();
    if std::env::var_os("CUDART_SIM_TIME").is_none() {
        config.time = Some(TimeModel::default());
    }
    let note = needed.map(|needed| {
        if std::env::var_os("CUDART_SIM_MEMORY").is_some() {
            let bytes = config.devices.first().map_or(0, |device| device.memory);
            format!(
                "simulated device: {:.1} GiB, as CUDART_SIM_MEMORY says",
                gib(bytes as u64)
            )
        } else {
            let bytes = simulated_size(needed);
            for device in &mut config.devices {
                device.memory = bytes as usize;
            }
            format!(
                "simulated device: {:.1} GiB, sized from the largest trace, which needs {:.1} GiB",
                gib(bytes),
                gib(needed)
            )
        }
    });
    cudart_sim::configure(config).map_err(Failure::message)?;
    Ok(note)
}

/// Without the simulator there is nothing to prepare.
#[cfg(not(feature = "sim"))]
pub fn prepare_simulator(_needed: Option<u64>) -> Result<Option<String>> {
    Ok(None)
}

/// Eight times what is needed, in whole GiB, so that no mode is held back by the device. Nothing is
/// committed until it is touched, but addresses are limited: a trace that needs more sees requests fail,
/// as it would on a GPU.
#[cfg(feature = "sim")]
fn simulated_size(needed: u64) -> u64 {
    const GIB: u64 = 1 << 30;
    needed
        .saturating_mul(8)
        .div_ceil(GIB)
        .clamp(1, 1024)
        .saturating_mul(GIB)
}

#[cfg(feature = "sim")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_device_holds_more_than_a_trace_needs_within_limits() {
        assert_eq!(simulated_size(0), 1 << 30);
        assert_eq!(simulated_size(3 << 30), 24 << 30);
        assert_eq!(simulated_size(u64::MAX), 1 << 40);
    }
}
