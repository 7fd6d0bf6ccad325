//! Which devices there are, what they can do, and keeping the caller's current device.

use crate::{
    context,
    cuda::{self, DeviceAttr},
    error::{Error, Result},
};
use std::fmt;

/// What executes CUDA calls in this build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The real CUDA runtime.
    Gpu,
    /// The simulated runtime (feature `sim`): correct, but its times are those of a host.
    Simulated,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Backend::Gpu => "gpu",
            Backend::Simulated => "simulated",
        })
    }
}

/// The backend of this build.
pub const fn backend() -> Backend {
    if cfg!(feature = "sim") {
        Backend::Simulated
    } else {
        Backend::Gpu
    }
}

/// Versions of the runtime and of the newest runtime that the driver supports, as 1000 × major + 10 × minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// `cudaRuntimeGetVersion`.
    pub runtime: i32,
    /// `cudaDriverGetVersion`; 0 where no driver is installed.
    pub driver: i32,
}

/// The versions of runtime and driver; also without a driver, whose version is 0 then.
///
/// # Errors
/// What the runtime says.
pub fn versions() -> Result<Versions> {
    Ok(Versions {
        runtime: cuda::runtime_version()?,
        driver: cuda::driver_version()?,
    })
}

/// One device, as `cudaGetDeviceProperties`, `cudaDeviceGetAttribute` and `cudaMemGetInfo` describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its ordinal.
    pub ordinal: i32,
    /// Its name.
    pub name: String,
    /// Its memory, in bytes.
    pub total_memory: usize,
    /// What of it is free now, in bytes.
    pub free_memory: usize,
    /// Major and minor compute capability.
    pub compute_capability: (i32, i32),
    /// Whether `cudaMallocAsync` and memory pools work.
    pub memory_pools_supported: bool,
    /// Whether physical memory can be mapped to addresses of the program's choice.
    pub virtual_memory_supported: bool,
}

/// All devices. Asking for free memory makes a context on each of them.
///
/// # Errors
/// [`Error::Unavailable`] without a driver or a device.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    (0..cuda::device_count()?).map(device).collect()
}

/// One device. Asking for free memory makes a context on it, and on no other.
///
/// # Errors
/// [`Error::WrongDevice`] for an ordinal that does not exist; otherwise as [`devices`].
pub fn device(ordinal: i32) -> Result<DeviceInfo> {
    let (free_memory, total_memory) = on_device(ordinal, cuda::mem_get_info)?;
    let attribute = |attribute| cuda::device_attribute(attribute, ordinal);
    let compute_capability = (
        attribute(DeviceAttr::cudaDevAttrComputeCapabilityMajor)?,
        attribute(DeviceAttr::cudaDevAttrComputeCapabilityMinor)?,
    );
    Ok(DeviceInfo {
        ordinal,
        name: cuda::device_name(ordinal)?,
        total_memory,
        free_memory,
        compute_capability,
        memory_pools_supported: memory_pools_supported(ordinal)?,
        virtual_memory_supported: virtual_memory_supported(ordinal)?,
    })
}

/// The ordinal of the calling thread's current device: the driver's, whichever runtime made it current.
///
/// # Errors
/// [`Error::Unavailable`] without a driver or a device.
pub fn current_device() -> Result<i32> {
    crate::process::gate()?;
    context::current_device()
}

/// Waits until nothing runs on a device any more. Ends no capture of another thread. Nothing in the manager needs it; it is for
/// who gives memory back that a graph may still use in a stream that is not known.
///
/// # Errors
/// What the runtime says, errors of earlier work included; [`Error::WrongDevice`] for an ordinal that does not exist.
pub fn synchronize_device(ordinal: i32) -> Result<()> {
    crate::process::gate()?;
    context::check(ordinal)?;
    on_device(ordinal, cuda::wait_for_device)
}

/// A driver of at least 11.2, and the attribute: an older driver does not know it and answers an error.
pub(crate) fn memory_pools_supported(ordinal: i32) -> Result<bool> {
    Ok(cuda::driver_version()? >= 11_020
        && cuda::device_attribute(DeviceAttr::cudaDevAttrMemoryPoolsSupported, ordinal)? != 0)
}

/// Whether physical memory can be mapped to reserved addresses: `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED` is 102.
pub(crate) fn virtual_memory_supported(ordinal: i32) -> Result<bool> {
    cuda::virtual_memory::attribute(ordinal, 102)
}

/// Whether network adapters can reach mapped memory: `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED` is 110.
pub(crate) fn mapped_memory_is_reachable(ordinal: i32) -> Result<bool> {
    cuda::virtual_memory::attribute(ordinal, 110)
}

/// The devices that mapped memory of this one can be given to, itself included.
pub(crate) fn devices_in_reach(ordinal: i32) -> Result<Vec<i32>> {
    let mut found = vec![ordinal];
    for other in (0..cuda::device_count()?).filter(|other| *other != ordinal) {
        if cuda::can_access_peer(other, ordinal)? && virtual_memory_supported(other)? {
            found.push(other);
        }
    }
    Ok(found)
}

/// Whether every device could use mapped memory of this one: copies in a stream of another device do.
pub(crate) fn all_in_reach(ordinal: i32) -> Result<bool> {
    let count = usize::try_from(cuda::device_count()?).unwrap_or(0);
    Ok(devices_in_reach(ordinal)?.len() >= count)
}

/// Whether the driver has the functions that map memory.
pub(crate) fn driver_maps_memory() -> bool {
    cuda::virtual_memory::is_there()
}

/// Runs code of the user's inside a call of the manager, and makes the caller's device current again, whichever it leaves.
pub(crate) fn keeping_current<T>(f: impl FnOnce() -> T) -> T {
    let before = cuda::get_device();
    let value = f();
    if let Ok(before) = before
        && cuda::get_device().is_ok_and(|now| now != before)
    {
        // As in `on_device`, nobody could be told of a failure.
        let _ = cuda::set_device(before);
    }
    value
}

/// Makes `ordinal` current for `f` on this thread and the former one again after it, whatever `f` did.
pub(crate) fn on_device<T>(ordinal: i32, f: impl FnOnce() -> Result<T>) -> Result<T> {
    /// Makes the former device current again.
    struct Restore(Option<i32>);
    impl Drop for Restore {
        fn drop(&mut self) {
            if let Some(device) = self.0 {
                // A failure leaves the thread on the other device and nobody to tell; the next call there reports it.
                let _ = cuda::set_device(device);
            }
        }
    }
    let current = cuda::get_device()?;
    let _restore = if current == ordinal {
        Restore(None)
    } else {
        cuda::set_device(ordinal).map_err(|error| match error {
            Error::Cuda {
                code: cuda::INVALID_DEVICE,
                ..
            } => Error::WrongDevice {
                reason: format!("there is no device {ordinal}"),
            },
            other => other,
        })?;
        Restore(Some(current))
    };
    f()
}
