//! The device that a subcommand works on: which backend it belongs to, choosing it, sizing a simulated
//! one, and what a manager holds of its memory.

use memmgr::{Backend, Config, DeviceAllocatorMode, MemoryManager};

use crate::cuda;
use crate::error::{Failure, Result};
#[cfg(feature = "sim")]
use crate::table::people;

/// The machine as the environment describes it, before the first CUDA call. Its simulated form is read
/// once, so that what cannot be read is reported once.
pub struct Machine {
    #[cfg(feature = "sim")]
    config: cudart_sim::Config,
}

impl Machine {
    /// Without the simulator there is nothing to read.
    #[cfg(not(feature = "sim"))]
    pub fn read() -> Self {
        Self {}
    }

    /// A machine whose times follow the model, unless the environment says otherwise. Its devices have
    /// no memory, which no environment can ask for, until [`Machine::prepare`] gives it to them.
    #[cfg(feature = "sim")]
    pub fn read() -> Self {
        use cudart_sim::{Config, TimeModel};

        let base = Config {
            time: Some(TimeModel::default()),
            ..Config::devices(1, 0)
        };
        Self {
            config: base.or_env(),
        }
    }

    /// The first line of everything this program prints.
    pub fn backend_line(&self) -> &'static str {
        match memmgr::backend() {
            Backend::Gpu => "backend: gpu",
            Backend::Simulated if self.time_is_modelled() => {
                "backend: simulated (no GPU; CUDA's times are modelled)"
            }
            Backend::Simulated => "backend: simulated (no GPU; times are this machine's)",
        }
    }

    #[cfg(feature = "sim")]
    pub fn time_is_modelled(&self) -> bool {
        self.config.time.is_some()
    }

    #[cfg(not(feature = "sim"))]
    pub fn time_is_modelled(&self) -> bool {
        false
    }

    /// Without the simulator there is nothing to prepare.
    #[cfg(not(feature = "sim"))]
    pub fn prepare(self, _needed: Option<(u64, &str)>) -> Result<Option<String>> {
        Ok(None)
    }

    /// Makes this the simulated machine. Devices that the environment gives no memory hold several
    /// times the bytes that `needed` names, and what needs them, or the usual memory where that is not
    /// given. The result says what was decided about the memory.
    #[cfg(feature = "sim")]
    pub fn prepare(mut self, needed: Option<(u64, &str)>) -> Result<Option<String>> {
        let devices = &mut self.config.devices;
        let given = devices.first().map(|device| device.memory as u64);
        let note = match (given, needed) {
            (None, _) => None,
            (Some(0), None) => {
                // The memory alone: what else the environment says of the devices stays.
                let usual = cudart_sim::DeviceConfig::default().memory;
                for device in devices {
                    device.memory = usual;
                }
                None
            }
            (Some(0), Some((needed, whose))) => {
                let size = simulated_size(needed);
                for device in devices {
                    device.memory = size as usize;
                }
                let (size, needed) = (people(size), people(needed));
                Some(format!("simulated device: {size}; {whose} needs {needed}"))
            }
            (Some(_), None) => None,
            (Some(given), Some(_)) => Some(format!(
                "simulated device: {}, as CUDART_SIM_MEMORY says",
                people(given)
            )),
        };
        cudart_sim::configure(self.config).map_err(Failure::message)?;
        Ok(note)
    }
}

/// Turns the simulator's ordering checker off, whose cost would be measured too; says so where it was on.
#[cfg(feature = "sim")]
pub fn silence_checker() -> Option<&'static str> {
    let was_on = cudart_sim::is_checking();
    cudart_sim::check(cudart_sim::Check::Off);
    was_on.then_some("note: the ordering checker (CUDART_SIM_CHECK) is off while benchmarks run")
}

/// There is no checker without the simulator.
#[cfg(not(feature = "sim"))]
pub fn silence_checker() -> Option<&'static str> {
    None
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
    /// How often memory was mapped at another address.
    pub remaps: u64,
}

/// What `manager`, working in `mode`, holds of the current device, which is `ordinal`.
pub fn usage(manager: &MemoryManager, mode: DeviceAllocatorMode, ordinal: i32) -> Result<Usage> {
    if mode != DeviceAllocatorMode::BestFitPool {
        let native = manager.native_pool_usage(mode)?;
        return Ok(Usage {
            peak_in_use: native.used_high as u64,
            peak_reserved: native.reserved_high as u64,
            waits: 0,
            remaps: 0,
        });
    }
    let stats = manager.stats();
    let device = stats.device.iter().find(|stats| stats.device == ordinal);
    Ok(device.map_or_else(Usage::default, |stats| Usage {
        peak_in_use: stats.best_fit.peak_in_use as u64,
        peak_reserved: stats.best_fit.peak_reserved as u64,
        waits: stats.best_fit.waits,
        remaps: stats.best_fit.remaps,
    }))
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
