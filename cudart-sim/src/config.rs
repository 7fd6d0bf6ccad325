//! What the simulated machine looks like: devices, schedule, time model; from code or from the environment.

use std::{io::Write, time::Duration};

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
    /// What `cudaDriverGetVersion` tells, as 1000 × major + 10 × minor. If the major version is lower than the runtime's,
    /// every call answers `cudaErrorInsufficientDriver`; a call that came later than the driver answers
    /// `cudaErrorCallRequiresNewerDriver`.
    pub driver_version: i32,
    /// What `cudaRuntimeGetVersion` tells: the runtime that an old driver has to be old enough for. The functions and
    /// structures stay those of 13.0.
    pub runtime_version: i32,
    /// When work runs.
    pub schedule: Schedule,
    /// Under [`Schedule::Lazy`]: how long work lies before it runs without being asked for.
    pub patience: Duration,
    /// Under [`Schedule::Random`]: delays are shorter than this. What is drawn below a microsecond is no sleep; the work
    /// still goes from thread to thread.
    pub random_delay: Duration,
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
            driver_version: 13_000,
            runtime_version: 13_000,
            schedule: Schedule::Eager,
            patience: Duration::from_secs(1),
            random_delay: Duration::from_micros(300),
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
    /// `CUDART_SIM_VIRTUAL_MEMORY=0|1` and `CUDART_SIM_MEMORY_POOLS=0|1` (for every device),
    /// `CUDART_SIM_DRIVER_VERSION`, `CUDART_SIM_RUNTIME_VERSION`. A variable that is empty counts as unset; a value that cannot
    /// be read is reported on stderr and counts as unset too.
    pub fn from_env() -> Config {
        Config::default().or_env()
    }

    /// This machine, changed by the environment as in [`Config::from_env`]: what is unset or cannot be read stays as it
    /// is here. The number of devices is how often the first one is there.
    #[must_use]
    pub fn or_env(self) -> Config {
        self.or_lookup(|name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()))
    }

    fn or_lookup(mut self, get: impl Fn(&str) -> Option<String>) -> Config {
        fn read<T>(
            get: &impl Fn(&str) -> Option<String>,
            name: &str,
            accepted: &str,
            parse: impl Fn(&str) -> Option<T>,
        ) -> Option<T> {
            let text = get(name).filter(|text| !text.is_empty())?;
            let value = parse(text.trim());
            if value.is_none() {
                // Where stderr is closed nobody can be told.
                let _ = writeln!(std::io::stderr(), "{}", refusal(name, &text, accepted));
            }
            value
        }
        if let Some(count) = read(&get, "CUDART_SIM_DEVICES", "a number from 0 to 64", |t| {
            t.parse().ok().filter(|n| *n <= MAX_DEVICES)
        }) {
            let device = self.devices.first().cloned().unwrap_or_default();
            self.devices.resize(count, device);
        }
        if let Some(memory) = read(
            &get,
            "CUDART_SIM_MEMORY",
            "a size above 0, in bytes or as 24G, 512M, 64K",
            |t| parse_bytes(t).filter(|bytes| *bytes > 0),
        ) {
            for device in &mut self.devices {
                device.memory = memory;
            }
        }
        if let Some(supported) = read(&get, "CUDART_SIM_VIRTUAL_MEMORY", "0 or 1", |t| match t {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }) {
            for device in &mut self.devices {
                device.virtual_memory = supported;
            }
        }
        if let Some(supported) = read(&get, "CUDART_SIM_MEMORY_POOLS", "0 or 1", |t| match t {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }) {
            for device in &mut self.devices {
                device.memory_pools = supported;
            }
        }
        if let Some(driver) = read(&get, "CUDART_SIM_DRIVER", "none or yes", |t| match t {
            "none" => Some(false),
            "yes" => Some(true),
            _ => None,
        }) {
            self.driver = driver;
        }
        for (name, version) in [
            ("CUDART_SIM_DRIVER_VERSION", &mut self.driver_version),
            ("CUDART_SIM_RUNTIME_VERSION", &mut self.runtime_version),
        ] {
            let accepted = "1000 times the major version and 10 times the minor one, as 11020";
            if let Some(told) = read(&get, name, accepted, |t| t.parse().ok().filter(|v| *v > 0)) {
                *version = told;
            }
        }
        if let Some(schedule) = read(
            &get,
            "CUDART_SIM_SCHEDULE",
            "eager, lazy or random:SEED with a number as the seed",
            parse_schedule,
        ) {
            self.schedule = schedule;
        }
        if let Some(depth) = read(&get, "CUDART_SIM_QUEUE", "a number above 0", |t| {
            t.parse().ok().filter(|n| *n > 0)
        }) {
            self.queue_depth = depth;
        }
        if let Some(time) = read(&get, "CUDART_SIM_TIME", "model or off", |t| match t {
            "model" => Some(Some(TimeModel::default())),
            "off" => Some(None),
            _ => None,
        }) {
            self.time = time;
        }
        if let Some(fresh) = read(&get, "CUDART_SIM_FRESH", "a number from 0 to 255", |t| {
            t.parse().ok()
        }) {
            self.fresh = Some(fresh);
        }
        // What prints the trace looks for itself, for exactly `1`; here a mistake is reported.
        let trace = get("CUDART_SIM_TRACE");
        read(&get, "CUDART_SIM_TRACE", "1 or 0", |_| {
            matches!(trace.as_deref(), Some("1" | "0")).then_some(())
        });
        self
    }
}

/// What is said of a value that cannot be read.
fn refusal(name: &str, text: &str, accepted: &str) -> String {
    format!("cudart-sim: {name}={text} is ignored: it must be {accepted}")
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
        "eager" => Some(Schedule::Eager),
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

    /// The machine that an environment with one variable describes, over this one.
    fn with(base: Config, name: &str, value: &str) -> Config {
        base.or_lookup(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn the_environment_describes_the_machine() {
        let config = Config::default().or_lookup(|name| {
            Some(
                match name {
                    "CUDART_SIM_DEVICES" => "2",
                    "CUDART_SIM_MEMORY" => "1G",
                    "CUDART_SIM_SCHEDULE" => "random:7",
                    "CUDART_SIM_DRIVER" => "none",
                    "CUDART_SIM_TIME" => "model",
                    "CUDART_SIM_VIRTUAL_MEMORY" => "0",
                    "CUDART_SIM_MEMORY_POOLS" => "0",
                    "CUDART_SIM_DRIVER_VERSION" => "12080",
                    "CUDART_SIM_RUNTIME_VERSION" => "12090",
                    _ => return None,
                }
                .into(),
            )
        });
        assert_eq!(config.devices.len(), 2);
        assert_eq!(config.devices[1].memory, 1 << 30);
        assert!(!config.devices[0].virtual_memory && !config.devices[1].memory_pools);
        assert_eq!(
            (config.driver_version, config.runtime_version),
            (12_080, 12_090)
        );
        assert_eq!(config.schedule, Schedule::Random(7));
        assert!(!config.driver);
        assert!(config.time.is_some());
    }

    #[test]
    fn what_the_environment_does_not_say_stays() {
        let base = || Config {
            time: Some(TimeModel::default()),
            fresh: Some(3),
            ..Config::devices(1, 5 << 20)
        };
        assert_eq!(base().or_lookup(|_| None), base());
        assert_eq!(with(base(), "CUDART_SIM_TIME", "modell"), base());
        assert_eq!(with(base(), "CUDART_SIM_TIME", "off").time, None);
        let two = with(base(), "CUDART_SIM_DEVICES", "2");
        assert_eq!(two.devices, Config::devices(2, 5 << 20).devices);
        assert!(with(base(), "CUDART_SIM_DEVICES", "0").devices.is_empty());
    }

    #[test]
    fn nonsense_and_nothing_in_the_environment_count_as_unset() {
        for value in ["nonsense", "", "-1"] {
            assert_eq!(
                Config::default().or_lookup(|_| Some(value.into())),
                Config::default(),
                "{value}"
            );
        }
    }

    #[test]
    fn a_device_without_memory_is_refused() {
        for value in ["0", "0G", "99999999999999T"] {
            let config = with(Config::default(), "CUDART_SIM_MEMORY", value);
            assert_eq!(config, Config::default(), "{value}");
        }
    }

    #[test]
    fn a_refusal_says_what_is_accepted() {
        assert_eq!(
            refusal("CUDART_SIM_TIME", "on", "model or off"),
            "cudart-sim: CUDART_SIM_TIME=on is ignored: it must be model or off"
        );
    }
}
