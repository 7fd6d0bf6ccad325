//! Where the segments of a device pool come from.

use crate::{
    device,
    error::{Error, Result},
};
use std::{fmt, str::FromStr};

/// Where the memory of a device's own pool comes from. It is fixed when the device is first used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DeviceSource {
    /// Virtual memory where the device has it, every other device can reach it, and the process has addresses left to map it to;
    /// `cudaMalloc` otherwise.
    #[default]
    Auto,
    /// Segments of `cudaMalloc`.
    Malloc,
    /// Physical memory in chunks, mapped to reserved addresses. Where the device does not have that, it is an error to use the
    /// device.
    Virtual,
}

impl DeviceSource {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Malloc, Self::Virtual];

    /// What a device is served from, if this is asked for: never [`DeviceSource::Auto`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] for [`DeviceSource::Virtual`] where the device does not have it; what the runtime says.
    pub fn on(self, ordinal: i32) -> Result<Self> {
        let supported = self != Self::Malloc
            && device::virtual_memory_supported(ordinal)?
            && device::driver_maps_memory();
        // What another device cannot reach, a copy in a stream of that device would fail on.
        let supported = supported && (self == Self::Virtual || device::all_in_reach(ordinal)?);
        match self {
            Self::Virtual if !supported => Err(Error::Unsupported {
                reason: format!(
                    "virtual memory on device {ordinal}, which device_source (MEMMGR_DEVICE_SOURCE) asks for: set it to auto or malloc, or update the driver"
                ),
            }),
            _ if supported => Ok(Self::Virtual),
            _ => Ok(Self::Malloc),
        }
    }

    /// What blocks of this source are not fit for, in a few words; none for those of `cudaMalloc`.
    pub fn cannot(self) -> Option<&'static str> {
        match self {
            Self::Virtual => Some(
                "legacy IPC (cudaIpcGetMemHandle; Config::shareable(true) helps), devices without peer access",
            ),
            Self::Auto | Self::Malloc => None,
        }
    }
}

impl fmt::Display for DeviceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Malloc => "malloc",
            Self::Virtual => "vmm",
        })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for DeviceSource {
    /// As it is printed.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A name of a source that is none; the text lists those that are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown device source `{0}`: auto, malloc or vmm")]
pub struct UnknownSource(String);

impl FromStr for DeviceSource {
    type Err = UnknownSource;

    fn from_str(s: &str) -> Result<Self, UnknownSource> {
        match s.to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "malloc" => Ok(Self::Malloc),
            "vmm" | "virtual" => Ok(Self::Virtual),
            _ => Err(UnknownSource(s.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_reads_back_what_it_prints() {
        for source in DeviceSource::ALL {
            assert_eq!(source.to_string().parse(), Ok(source));
        }
        let error = "cuda".parse::<DeviceSource>().unwrap_err().to_string();
        assert!(error.contains("cuda") && error.contains("vmm"), "{error}");
    }
}
