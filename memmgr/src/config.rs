//! How a manager is set up: pool sizes, limits, growth, the allocator mode; in code or from `MEMMGR_*` variables.

use crate::{
    error::{Error, Result},
    mode::DeviceAllocatorMode,
    source::DeviceSource,
};
use std::{ffi::OsString, path::PathBuf, time::Duration};

/// What a miss does first when memory of other streams is about to become free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reuse {
    /// Grow within the limits before waiting for other streams (the default).
    #[default]
    PreferSpeed,
    /// Wait for other streams' freed memory before growing; a device pool also waits on the host for the stream's own where that
    /// spares a good part of the growth, since memory can move, and segments join, only when no work touches them.
    PreferMemory,
}

/// How pinned segments are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PinnedSource {
    /// Memory of the host, in huge pages where there are such, that is registered with `cudaHostRegister` (the default). Short
    /// segments, and what cannot be registered, come from `cudaHostAlloc`.
    #[default]
    HostRegister,
    /// `cudaHostAlloc`.
    HostAlloc,
}

/// Settings of a [`MemoryManager`](crate::MemoryManager). All sizes are bytes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Reserved in the pinned pool at its first allocation; 0 grows by need.
    pub pinned_pool_size: usize,
    /// Reserved in each device's pool at its first allocation; 0 grows by need. In
    /// [`DeviceAllocatorMode::CudaAsyncPool`] this much stays in the pool when memory is released (0: everything).
    pub device_pool_size: usize,
    /// The most that the pinned pool may hold.
    pub pinned_pool_limit: Option<usize>,
    /// The most that each device's own pool may hold.
    pub device_pool_limit: Option<usize>,
    /// The same as a share of all memory of the device, above 0 and at most 1; if both are set, the lower counts. It becomes
    /// bytes at the pool's first allocation.
    pub device_pool_limit_share: Option<f64>,
    /// The smallest segment by which a device pool grows; segments that are idle then may become a part of it, and it has room for a
    /// whole number of the blocks that it is made for, if they are longer than 2 MiB. With virtual
    /// memory that is the first growth alone; from then on a pool grows by what is missing.
    pub device_growth: usize,
    /// The smallest segment by which the pinned pool grows.
    pub pinned_growth: usize,
    /// How much of the pinned pool is kept idle, ahead of need; none by default. `cudaHostAlloc` takes about half a
    /// millisecond for a MiB, which a program that must answer in time does not want to meet.
    ///
    /// After an allocation that leaves less idle than this, a thread of the manager's own first looks for copies that have
    /// finished, and then grows the pool, by [`Config::pinned_growth`] at a time. The first such allocation starts it;
    /// [`MemoryManager::warm_up_pinned`](crate::MemoryManager::warm_up_pinned) reserves before that. It sleeps otherwise,
    /// and ends with the manager. A request that fits never waits for it; one that does not waits for the segment that is
    /// on its way, and searches again.
    ///
    /// - The thread reserves no more than the peak of what was in use or waiting for copies, this much, and one growth. The
    ///   limit holds as well.
    /// - What is idle lies in pieces. A request that is longer than the longest grows the pool as ever: let
    ///   [`Config::pinned_growth`] be at least as long as the longest request.
    /// - Where the limit or CUDA refuses, the log gets one warning, and nothing is tried again before pinned memory is freed
    ///   or the limit is set.
    /// - [`MemoryManager::trim`](crate::MemoryManager::trim) and [`MemoryManager::shutdown`](crate::MemoryManager::shutdown)
    ///   wait for the segment that is on its way, and give it back too. The pool then stays as it is until the next pinned
    ///   allocation.
    /// - An observer is told of these segments on that thread.
    pub pinned_warm_up: Option<usize>,
    /// How pinned segments are made: registering takes about half the time of `cudaHostAlloc`, see `memmgr bench
    /// pinned-growth`. A forked child does not have registered memory.
    pub pinned_source: PinnedSource,
    /// Whether a pinned request that finds no memory is served with pageable memory, zeroed when it is made; off by
    /// default. The log gets a warning. Copies then take longer, and may wait on the host. Later requests may be served from
    /// there, too: [`MemoryManager::is_pinned`](crate::MemoryManager::is_pinned) tells. A limit still holds.
    pub pinned_fallback: bool,
    /// How much idle memory each pool may keep; by default all of it, until it is trimmed.
    ///
    /// A thread of the manager's own gives back segments that have been idle for [`Config::release_after`], until the pool
    /// holds this much, or its configured size if that is more. It looks four times in that time, whether they are idle
    /// then; only while a pool holds more, and only where no stream that the manager knows has work: `cudaFree` and
    /// `cudaFreeHost` would wait for it, and hold up others. Requests and frees that find what they need pay nothing.
    /// An observer is told of these segments on that thread.
    ///
    /// In [`DeviceAllocatorMode::CudaAsyncPool`] it is `cudaMemPoolAttrReleaseThreshold` of the pool (the configured size, if
    /// that is more), and CUDA gives back what is idle beyond when the program waits for a stream, an event or the device.
    pub release_threshold: Option<usize>,
    /// How long a segment is idle before it is given back; one second by default. Only with [`Config::release_threshold`].
    pub release_after: Duration,
    /// Where the memory of each device's own pool comes from. With virtual memory a pool is one range of addresses, idle memory
    /// moves to where it is needed, and growth is neither held up by full streams nor refused in a capture.
    pub device_source: DeviceSource,
    /// Whether other processes shall be able to open the memory of device pools with `cudaIpcGetMemHandle`. That takes
    /// `cudaMalloc`: [`DeviceSource::Auto`] means [`DeviceSource::Malloc`] then.
    pub shareable: bool,
    /// The requested device allocator.
    pub mode: DeviceAllocatorMode,
    /// Growing first, or waiting first.
    pub reuse: Reuse,
    /// Logs every allocation and free into files in RMM's CSV format, which `memmgr replay` and `memmgr report` read; none by
    /// default. `log.csv` gives `log.dev0.csv` for device 0, and so on, and `log.pinned.csv`; `%p` in the name is the number
    /// of the process. A file is begun anew by the first manager of a process that logs into it; others go on with it.
    ///
    /// Lines are written by a thread, within a second. A file that cannot be written gives one warning, and
    /// [`MemoryManager::flush_log`](crate::MemoryManager::flush_log) says why; the program goes on. A forked child logs
    /// nothing.
    pub log_file: Option<PathBuf>,
    /// How many of the last events are kept in memory, for
    /// [`MemoryManager::events`](crate::MemoryManager::events); 0, the default, is none. One takes about 100 bytes.
    pub event_ring: usize,
    /// Whether each block keeps the place in the program where it was allocated, for out-of-memory errors and reports of live
    /// blocks; off by default. It costs an allocation and its free about as much again, and what threads hand to each other
    /// without the lock is none of it.
    pub call_sites: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            pinned_pool_size: 0,
            device_pool_size: 0,
            pinned_pool_limit: None,
            device_pool_limit: None,
            device_pool_limit_share: None,
            device_growth: 32 << 20,
            pinned_growth: 8 << 20,
            pinned_warm_up: None,
            pinned_source: PinnedSource::default(),
            pinned_fallback: false,
            release_threshold: None,
            release_after: Duration::from_secs(1),
            device_source: DeviceSource::default(),
            shareable: false,
            mode: DeviceAllocatorMode::default(),
            reuse: Reuse::default(),
            log_file: None,
            event_ring: 0,
            call_sites: false,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $ty:ty;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, value: $ty) -> Self {
            self.$name = value;
            self
        }
    )*};
}

impl Config {
    setters! {
        /// Sets [`Config::pinned_pool_size`], in bytes.
        pinned_pool_size: usize;
        /// Sets [`Config::device_pool_size`], in bytes.
        device_pool_size: usize;
        /// Sets [`Config::pinned_pool_limit`], in bytes.
        pinned_pool_limit: Option<usize>;
        /// Sets [`Config::device_pool_limit`], in bytes.
        device_pool_limit: Option<usize>;
        /// Sets [`Config::pinned_source`].
        pinned_source: PinnedSource;
        /// Sets [`Config::pinned_fallback`].
        pinned_fallback: bool;
        /// Sets [`Config::release_threshold`], in bytes.
        release_threshold: Option<usize>;
        /// Sets [`Config::release_after`].
        release_after: Duration;
        /// Sets [`Config::device_growth`], in bytes.
        device_growth: usize;
        /// Sets [`Config::pinned_growth`], in bytes.
        pinned_growth: usize;
        /// Sets [`Config::pinned_warm_up`], in bytes.
        pinned_warm_up: Option<usize>;
        /// Sets [`Config::device_source`].
        device_source: DeviceSource;
        /// Sets [`Config::shareable`].
        shareable: bool;
        /// Sets [`Config::mode`].
        mode: DeviceAllocatorMode;
        /// Sets [`Config::reuse`].
        reuse: Reuse;
        /// Sets [`Config::event_ring`].
        event_ring: usize;
        /// Sets [`Config::call_sites`].
        call_sites: bool;
    }

    /// Sets [`Config::log_file`].
    #[must_use]
    pub fn log_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.log_file = Some(path.into());
        self
    }

    /// Sets [`Config::device_pool_limit_share`], 0.5 for half of the device.
    #[must_use]
    pub fn device_pool_limit_share(mut self, share: impl Into<Option<f64>>) -> Self {
        self.device_pool_limit_share = share.into();
        self
    }

    /// The defaults, overridden by `MEMMGR_PINNED_POOL_SIZE`, `MEMMGR_DEVICE_POOL_SIZE`, `MEMMGR_PINNED_POOL_LIMIT`,
    /// `MEMMGR_DEVICE_POOL_LIMIT`, `MEMMGR_PINNED_WARM_UP`, `MEMMGR_RELEASE_THRESHOLD` (bytes, or with a suffix K, M, G; the
    /// limit of the device pools also as `50%` of the device), `MEMMGR_RELEASE_AFTER` (milliseconds), `MEMMGR_DEVICE_SOURCE`
    /// (`auto`, `malloc`, `vmm`), `MEMMGR_PINNED_SOURCE` (`register`, `alloc`), `MEMMGR_PINNED_FALLBACK` (`on`, `off`),
    /// `MEMMGR_DEVICE_ALLOCATOR` (`pool`, `async`, `cuda-pool`), `MEMMGR_REUSE` (`speed`, `memory`), `MEMMGR_LOG_FILE` (a path),
    /// `MEMMGR_EVENT_RING` (a number of events) and `MEMMGR_CALL_SITES` (`1` or `on`, `0` or `off`).
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] names the variable whose value cannot be read (one that is no UTF-8 cannot, but for the path of
    /// the log), or sizes that contradict each other.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    fn from_lookup(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let mut config = Self::default();
        let lookup = |name: &str| -> Result<Option<String>> {
            let text = variable(name).map(OsString::into_string).transpose();
            text.map_err(|bytes| bad(name, &bytes.to_string_lossy(), "UTF-8"))
        };
        let size = |name: &str| -> Result<Option<usize>> {
            lookup(name)?
                .map(|text| {
                    parse_size(&text).ok_or_else(|| bad(name, &text, "bytes, such as 512M or 2G"))
                })
                .transpose()
        };
        if let Some(bytes) = size("MEMMGR_PINNED_POOL_SIZE")? {
            config.pinned_pool_size = bytes;
        }
        if let Some(bytes) = size("MEMMGR_DEVICE_POOL_SIZE")? {
            config.device_pool_size = bytes;
        }
        config.pinned_pool_limit = size("MEMMGR_PINNED_POOL_LIMIT")?;
        const LIMIT: &str = "MEMMGR_DEVICE_POOL_LIMIT";
        match lookup(LIMIT)? {
            Some(text) if text.trim_end().ends_with('%') => {
                let share = parse_percent(&text).ok_or_else(|| {
                    bad(
                        LIMIT,
                        &text,
                        "bytes, such as 8G, or above 0% and at most 100%",
                    )
                })?;
                config.device_pool_limit_share = Some(share);
            }
            _ => config.device_pool_limit = size(LIMIT)?,
        }
        config.release_threshold = size("MEMMGR_RELEASE_THRESHOLD")?;
        if let Some(text) = lookup("MEMMGR_RELEASE_AFTER")? {
            let millis = text
                .trim()
                .parse()
                .map_err(|_| bad("MEMMGR_RELEASE_AFTER", &text, "milliseconds, such as 500"))?;
            config.release_after = Duration::from_millis(millis);
        }
        config.pinned_warm_up = size("MEMMGR_PINNED_WARM_UP")?;
        if let Some(text) = lookup("MEMMGR_DEVICE_SOURCE")? {
            config.device_source = text
                .parse()
                .map_err(|_| bad("MEMMGR_DEVICE_SOURCE", &text, "auto, malloc or vmm"))?;
        }
        if let Some(text) = lookup("MEMMGR_DEVICE_ALLOCATOR")? {
            config.mode = text
                .parse()
                .map_err(|_| bad("MEMMGR_DEVICE_ALLOCATOR", &text, "pool, async or cuda-pool"))?;
        }
        if let Some(text) = lookup("MEMMGR_REUSE")? {
            config.reuse = match text.as_str() {
                "speed" => Reuse::PreferSpeed,
                "memory" => Reuse::PreferMemory,
                _ => return Err(bad("MEMMGR_REUSE", &text, "speed or memory")),
            };
        }
        if let Some(text) = lookup("MEMMGR_PINNED_SOURCE")? {
            config.pinned_source = match text.as_str() {
                "register" => PinnedSource::HostRegister,
                "alloc" => PinnedSource::HostAlloc,
                _ => return Err(bad("MEMMGR_PINNED_SOURCE", &text, "register or alloc")),
            };
        }
        if let Some(text) = lookup("MEMMGR_PINNED_FALLBACK")? {
            config.pinned_fallback = match text.as_str() {
                "on" => true,
                "off" => false,
                _ => return Err(bad("MEMMGR_PINNED_FALLBACK", &text, "on or off")),
            };
        }
        config.log_file =
            (variable("MEMMGR_LOG_FILE").filter(|path| !path.is_empty())).map(Into::into);
        if let Some(text) = lookup("MEMMGR_EVENT_RING")? {
            config.event_ring = (text.trim().parse()).map_err(|_| {
                bad(
                    "MEMMGR_EVENT_RING",
                    &text,
                    "a number of events, such as 100000",
                )
            })?;
        }
        if let Some(text) = lookup("MEMMGR_CALL_SITES")? {
            config.call_sites = match text.trim() {
                "1" | "on" => true,
                "0" | "off" => false,
                _ => return Err(bad("MEMMGR_CALL_SITES", &text, "1 or 0")),
            };
        }
        config.validate()?;
        Ok(config)
    }

    /// The source of device memory that is asked for, [`Config::shareable`] included.
    pub(crate) fn requested_source(&self) -> DeviceSource {
        if self.shareable {
            DeviceSource::Malloc
        } else {
            self.device_source
        }
    }

    /// Refuses settings that contradict each other.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.shareable && self.device_source == DeviceSource::Virtual {
            return Err(Error::InvalidSetting {
                reason: "shareable memory comes from cudaMalloc: set device_source (MEMMGR_DEVICE_SOURCE) to auto or malloc".into(),
            });
        }
        let warm_up = self.pinned_warm_up.unwrap_or(0);
        for (what, [of_size, of_limit], size, limit) in [
            (
                "a pinned pool",
                ["PINNED_POOL_SIZE", "PINNED_POOL_LIMIT"],
                self.pinned_pool_size,
                self.pinned_pool_limit,
            ),
            (
                "a device pool",
                ["DEVICE_POOL_SIZE", "DEVICE_POOL_LIMIT"],
                self.device_pool_size,
                self.device_pool_limit,
            ),
            (
                "a pinned warm-up",
                ["PINNED_WARM_UP", "PINNED_POOL_LIMIT"],
                warm_up,
                self.pinned_pool_limit,
            ),
        ] {
            if let Some(limit) = limit.filter(|limit| size > *limit) {
                return Err(Error::InvalidSetting {
                    reason: format!(
                        "{what} of {size} bytes exceeds its limit of {limit} bytes; in the environment they are MEMMGR_{of_size} and \
                         MEMMGR_{of_limit}"
                    ),
                });
            }
        }
        if let Some(share) = self
            .device_pool_limit_share
            .filter(|share| !is_share(*share))
        {
            return Err(Error::InvalidSetting {
                reason: format!(
                    "a device pool's limit of {share} times the device's memory: it must be above 0 and at most 1"
                ),
            });
        }
        Ok(())
    }
}

pub(crate) fn is_share(share: f64) -> bool {
    share > 0.0 && share <= 1.0
}

/// `50%`, as 0.5.
fn parse_percent(text: &str) -> Option<f64> {
    let number = text.trim().strip_suffix('%')?.trim();
    // Signs, exponents and names of numbers have no place here.
    if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    let share = number.parse::<f64>().ok()? / 100.0;
    is_share(share).then_some(share)
}

fn bad(name: &str, text: &str, wanted: &str) -> Error {
    Error::InvalidSetting {
        reason: format!("{name}={text}: it must be {wanted}"),
    }
}

/// `4096`, `64K`, `512M`, `2G`, `1T` (powers of 1024; a trailing `iB` or `B` is allowed).
fn parse_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests;
