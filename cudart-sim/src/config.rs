//! What the simulated machine looks like: devices, schedule, time model; from code or from the environment.

use std::time::Duration;

/// The most devices that can be simulated.
pub(crate) const MAX_DEVICES: usize = 64;

/// One simulated device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Capacity in bytes. Nothing is committed until it is touched.
    pub memory: usize,
    /// Whether `cudaMallocAsync` and memory pools exist (attribute MemoryPoolsSupported).
    pub memory_pools: bool,
    /// Whether the driver's virtual memory functions work (attribute VirtualMemoryManagementSupported).
    pub virtual_memory: bool,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        DeviceConfig {
            memory: 24 << 30,
            memory_pools: true,
            virtual_memory: true,
        }
    }
}

/// When work in streams runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// As soon as its stream and the events it waits for allow.
    Eager,
    /// Not before somebody asks or waits for it, or [`Config::patience`] has passed.
    Lazy,
    /// As eager, but after delays drawn from this seed.
    Random(u64),
}

/// How long things take. Without a model they take as long as this machine needs.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeModel {
    /// Copies between pinned memory and a device, in GB/s.
    pub pinned_gb_s: f64,
    /// Copies between pageable memory and a device, in GB/s.
    pub pageable_gb_s: f64,
    /// Copies and fills inside a device, in GB/s.
    pub device_gb_s: f64,
    /// Added to every operation on a device.
    pub latency: Duration,
    /// Host time of a `cudaMalloc`, and of a `cudaFree`.
    pub malloc: Duration,
    /// Host time of a `cudaHostAlloc` or `cudaFreeHost`, per MiB.
    pub host_alloc_per_mib: Duration,
}

impl Default for TimeModel {
    /// About what one H200 on PCIe 5 did.
    fn default() -> Self {
        TimeModel {
            pinned_gb_s: 55.0,
            pageable_gb_s: 14.0,
            device_gb_s: 2000.0,
            latency: Duration::from_micros(5),
            malloc: Duration::from_micros(40),
            host_alloc_per_mib: Duration::from_micros(550),
        }
    }
}

/// The simulated machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The devices. Empty: `cudaErrorNoDevice`.
    pub devices: Vec<DeviceConfig>,
    /// False: every call answers `cudaErrorInsufficientDriver`.
    pub driver: bool,
    /// When work runs.
    pub schedule: Schedule,
    /// Under [`Schedule::Lazy`]: how long work lies before it runs without being asked for.
    pub patience: Duration,
    /// How many operations a stream takes beyond the running one before the caller is made to wait.
    pub queue_depth: usize,
    /// How long things take; `None`: no model.
    pub time: Option<TimeModel>,
    /// What device memory holds when it is new: this byte, or (`None`) zeros or what was there before. A program that
    /// relies on zeros is found out by a byte that is none.
    pub fresh: Option<u8>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            devices: vec![DeviceConfig::default()],
            driver: true,
            schedule: Schedule::Eager,
            patience: Duration::from_secs(1),
            queue_depth: 1021,
            time: None,
            fresh: None,
        }
    }
}

impl Config {
    /// That many devices of that many bytes, and defaults for the rest.
    pub fn devices(count: usize, memory: usize) -> Config {
        let device = DeviceConfig {
            memory,
            ..DeviceConfig::default()
        };
        Config {
            devices: vec![device; count],
            ..Config::default()
        }
    }

    /// The defaults, changed by the environment: `CUDART_SIM_DEVICES`, `CUDART_SIM_MEMORY`, `CUDART_SIM_DRIVER=none`,
    /// `CUDART_SIM_SCHEDULE=eager|lazy|random:SEED`, `CUDART_SIM_TIME=model`, `CUDART_SIM_QUEUE`, `CUDART_SIM_FRESH`,
    /// `CUDART_SIM_VIRTUAL_MEMORY=0|1` (for every device). A value that cannot be read is reported on stderr and ignored.
    pub fn from_env() -> Config {
        Config::from_lookup(|name| std::env::var(name).ok())
    }

    fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Config {
        fn read<T>(
            get: &impl Fn(&str) -> Option<String>,
            name: &str,
            parse: impl Fn(&str) -> Option<T>,
        ) -> Option<T> {
            let text = get(name)?;
            let value = parse(text.trim());
            if value.is_none() {
                eprintln!("cudart-sim: {name}={text} is not understood and is ignored");
            }
            value
        }
        let count = read(&get, "CUDART_SIM_DEVICES", |t| {
            t.parse().ok().filter(|n| *n <= MAX_DEVICES)
        });
        let memory = read(&get, "CUDART_SIM_MEMORY", parse_bytes);
        let mut config = Config::devices(
            count.unwrap_or(1),
            memory.unwrap_or(DeviceConfig::default().memory),
        );
        if let Some(supported) = read(&get, "CUDART_SIM_VIRTUAL_MEMORY", |t| match t {
            "0" => Some(false),
            "" | "1" => Some(true),
            _ => None,
        }) {
            for device in &mut config.devices {
                device.virtual_memory = supported;
            }
        }
        if let Some(driver) = read(&get, "CUDART_SIM_DRIVER", |t| match t {
            "none" => Some(false),
            "" | "yes" => Some(true),
            _ => None,
        }) {
            config.driver = driver;
        }
        if let Some(schedule) = read(&get, "CUDART_SIM_SCHEDULE", parse_schedule) {
            config.schedule = schedule;
        }
        if let Some(depth) = read(&get, "CUDART_SIM_QUEUE", |t| {
            t.parse().ok().filter(|n| *n > 0)
        }) {
            config.queue_depth = depth;
        }
        config.time = read(&get, "CUDART_SIM_TIME", |t| match t {
            "model" => Some(Some(TimeModel::default())),
            "" | "off" => Some(None),
            _ => None,
        })
        .flatten();
        config.fresh = read(&get, "CUDART_SIM_FRESH", |t| t.parse().ok());
        config
    }
}

/// Reads `24G`, `512M`, `64K`, or a number of bytes.
fn parse_bytes(text: &str) -> Option<usize> {
    let text = text.strip_suffix("iB").unwrap_or(text);
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (text.get(..at)?, 10),
        (at, 'm' | 'M') => (text.get(..at)?, 20),
        (at, 'g' | 'G') => (text.get(..at)?, 30),
        (at, 't' | 'T') => (text.get(..at)?, 40),
        _ => (text, 0),
    };
    digits
        .trim()
        .parse::<usize>()
        .ok()?
        .checked_mul(1usize << shift)
}

fn parse_schedule(text: &str) -> Option<Schedule> {
    match text {
        "" | "eager" => Some(Schedule::Eager),
        "lazy" => Some(Schedule::Lazy),
        _ => text
            .strip_prefix("random:")?
            .parse()
            .ok()
            .map(Schedule::Random),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        assert_eq!(parse_bytes("24G"), Some(24 << 30));
        assert_eq!(parse_bytes("512MiB"), Some(512 << 20));
        assert_eq!(parse_bytes("4096"), Some(4096));
        assert_eq!(parse_bytes("99999999999999T"), None);
        assert_eq!(parse_bytes("lots"), None);
        assert_eq!(parse_bytes(""), None);
    }

    #[test]
    fn the_environment_describes_the_machine() {
        let config = Config::from_lookup(|name| {
            Some(
                match name {
                    "CUDART_SIM_DEVICES" => "2",
                    "CUDART_SIM_MEMORY" => "1G",
                    "CUDART_SIM_SCHEDULE" => "random:7",
                    "CUDART_SIM_DRIVER" => "none",
                    "CUDART_SIM_TIME" => "model",
                    "CUDART_SIM_VIRTUAL_MEMORY" => "0",
                    _ => return None,
                }
                .into(),
            )
        });
        assert_eq!(config.devices.len(), 2);
        assert_eq!(config.devices[1].memory, 1 << 30);
        assert!(!config.devices[0].virtual_memory);
        assert_eq!(config.schedule, Schedule::Random(7));
        assert!(!config.driver);
        assert!(config.time.is_some());
    }

    #[test]
    fn nonsense_in_the_environment_is_ignored() {
        assert_eq!(
            Config::from_lookup(|_| Some("nonsense".into())),
            Config::default()
        );
    }
}
