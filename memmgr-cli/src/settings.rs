//! The library's settings in the environment (`MEMMGR_*`), as far as a subcommand uses them.
//!
//! A subcommand names those that it uses. Others that are set are named on standard error, so that nobody takes a figure
//! for that of a setting which did nothing; one that cannot be read ends the program, used or not.

use std::env;
use std::io::{self, Write};

use memmgr::Config;

use crate::cuda;
use crate::error::Result;
use crate::table::{people, wrapped};

pub const PINNED_POOL_SIZE: &str = "MEMMGR_PINNED_POOL_SIZE";
pub const PINNED_POOL_LIMIT: &str = "MEMMGR_PINNED_POOL_LIMIT";
pub const PINNED_WARM_UP: &str = "MEMMGR_PINNED_WARM_UP";
pub const PINNED_SOURCE: &str = "MEMMGR_PINNED_SOURCE";
pub const PINNED_FALLBACK: &str = "MEMMGR_PINNED_FALLBACK";
pub const DEVICE_POOL_SIZE: &str = "MEMMGR_DEVICE_POOL_SIZE";
pub const DEVICE_POOL_LIMIT: &str = "MEMMGR_DEVICE_POOL_LIMIT";
pub const DEVICE_SOURCE: &str = "MEMMGR_DEVICE_SOURCE";
pub const DEVICE_ALLOCATOR: &str = "MEMMGR_DEVICE_ALLOCATOR";
pub const RELEASE_THRESHOLD: &str = "MEMMGR_RELEASE_THRESHOLD";
pub const RELEASE_AFTER: &str = "MEMMGR_RELEASE_AFTER";
pub const REUSE: &str = "MEMMGR_REUSE";
pub const CALL_SITES: &str = "MEMMGR_CALL_SITES";
pub const LOG_FILE: &str = "MEMMGR_LOG_FILE";
pub const EVENT_RING: &str = "MEMMGR_EVENT_RING";

/// Copies what a variable has set from one set of settings to another.
type Take = fn(&mut Config, &Config);

/// Every variable, and what it sets.
const ALL: [(&str, Take); 15] = [
    (PINNED_POOL_SIZE, |to, from| {
        to.pinned_pool_size = from.pinned_pool_size;
    }),
    (PINNED_POOL_LIMIT, |to, from| {
        to.pinned_pool_limit = from.pinned_pool_limit;
    }),
    (PINNED_WARM_UP, |to, from| {
        to.pinned_warm_up = from.pinned_warm_up;
    }),
    (PINNED_SOURCE, |to, from| {
        to.pinned_source = from.pinned_source;
    }),
    (PINNED_FALLBACK, |to, from| {
        to.pinned_fallback = from.pinned_fallback;
    }),
    (DEVICE_POOL_SIZE, |to, from| {
        to.device_pool_size = from.device_pool_size;
    }),
    (DEVICE_POOL_LIMIT, |to, from| {
        to.device_pool_limit = from.device_pool_limit;
        to.device_pool_limit_share = from.device_pool_limit_share;
    }),
    (DEVICE_SOURCE, |to, from| {
        to.device_source = from.device_source;
    }),
    (DEVICE_ALLOCATOR, |to, from| to.mode = from.mode),
    (RELEASE_THRESHOLD, |to, from| {
        to.release_threshold = from.release_threshold;
    }),
    (RELEASE_AFTER, |to, from| {
        to.release_after = from.release_after;
    }),
    (REUSE, |to, from| to.reuse = from.reuse),
    (CALL_SITES, |to, from| to.call_sites = from.call_sites),
    (LOG_FILE, |to, from| to.log_file = from.log_file.clone()),
    (EVENT_RING, |to, from| to.event_ring = from.event_ring),
];

/// The settings of the managers that a subcommand makes.
#[derive(Clone, Debug)]
pub struct Settings {
    config: Config,
}

impl Settings {
    /// The defaults, with what the variables in `used` say. Says on standard error which others are set, that `command`
    /// does not use.
    pub fn read(command: &str, used: &[&str]) -> Result<Self> {
        let named = Config::from_env()?;
        let mut config = Config::default();
        let mut idle = Vec::new();
        for (name, take) in ALL {
            if used.contains(&name) {
                take(&mut config, &named);
            } else if env::var_os(name).is_some_and(|value| !value.is_empty()) {
                idle.push(name);
            }
        }
        if !idle.is_empty() {
            let text = format!(
                "note: set, but not used by `memmgr {command}`: {}",
                idle.join(", ")
            );
            // Where standard error is closed nobody can be told.
            let _ = writeln!(io::stderr(), "{}", wrapped(&text));
        }
        Ok(Self { config })
    }

    pub fn config(&self) -> Config {
        self.config.clone()
    }

    /// The most that the pool of the current device may hold, in bytes.
    pub fn device_limit(&self) -> Result<Option<u64>> {
        let bytes = self.config.device_pool_limit.map(|bytes| bytes as u64);
        let Some(share) = self.config.device_pool_limit_share else {
            return Ok(bytes);
        };
        let (_, total) = cuda::device_memory()?;
        let share = (total as f64 * share) as u64;
        Ok(Some(bytes.map_or(share, |bytes| bytes.min(share))))
    }

    /// A line for each limit that is in force on the current device.
    pub fn limits(&self) -> Result<Vec<String>> {
        let device = self.device_limit()?.map(|bytes| {
            let bytes = people(bytes);
            format!("limit: mode pool holds at most {bytes} ({DEVICE_POOL_LIMIT})")
        });
        let pinned = self.config.pinned_pool_limit.map(|bytes| {
            let bytes = people(bytes as u64);
            format!("limit: pinned memory of at most {bytes} ({PINNED_POOL_LIMIT})")
        });
        Ok(device.into_iter().chain(pinned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A setting that the library has and this list lacks would be ignored without a word.
    #[test]
    fn every_setting_of_the_library_is_in_the_list() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../memmgr/src/config.rs");
        let text = std::fs::read_to_string(file).expect("the library's source");
        let mut words: Vec<&str> = text
            .split(|letter: char| !letter.is_ascii_uppercase() && letter != '_')
            .filter(|word| word.starts_with("MEMMGR_") && !word.ends_with('_'))
            .collect();
        words.sort_unstable();
        words.dedup();
        let mut known: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        known.sort_unstable();
        assert_eq!(words, known);
    }
}
