//! One device: its addresses, its capacity, and `cudaMalloc`'s use of them.
//!
//! Addresses are plentiful (several times the capacity), memory is counted in pages of 2 MiB, as on a real device:
//! a device whose free memory lies in pieces still grants one large block. Small blocks share pages.

use crate::config::DeviceConfig;
use crate::contents::Space;
use crate::error::{Answer, OUT_OF_MEMORY};
use crate::heap::Ranges;
use crate::limit::{Limits, Use};
use crate::mirror;
use std::sync::Arc;

/// The unit in which memory is taken from a device.
pub(crate) const PAGE: u64 = 2 << 20;
/// The unit of small blocks.
pub(crate) const GRANULE: u64 = 512;
/// Blocks up to this share pages.
const SMALL: u64 = 1 << 20;

/// A device.
pub(crate) struct Device {
    pub(crate) config: DeviceConfig,
    space: Option<Arc<Space>>,
    used: u64,
    pub(crate) limits: Limits,
    pages: Ranges,
    small: Ranges,
    pub(crate) default_pool: usize,
    pub(crate) current_pool: usize,
    pub(crate) peers: Vec<u32>,
    pub(crate) bus: [u64; 2],
    /// What new memory is filled with.
    fresh: Option<u8>,
    /// Whether it was said that there are no addresses for it.
    told: bool,
}

/// Rounds up, or fails on overflow as out of memory.
pub(crate) fn round_up(size: u64, unit: u64) -> Answer<u64> {
    size.checked_next_multiple_of(unit).ok_or(OUT_OF_MEMORY)
}

impl Device {
    pub(crate) fn new(config: DeviceConfig, fresh: Option<u8>) -> Device {
        Device {
            config,
            space: None,
            used: 0,
            limits: Limits::default(),
            pages: Ranges::new(),
            small: Ranges::new(),
            default_pool: 0,
            current_pool: 0,
            peers: Vec::new(),
            bus: [0; 2],
            fresh,
            told: false,
        }
    }

    /// Bytes of capacity.
    pub(crate) fn capacity(&self) -> u64 {
        self.config.memory as u64
    }

    /// Bytes of capacity that nothing holds.
    pub(crate) fn available(&self) -> u64 {
        let most = self.limits.device.unwrap_or(u64::MAX).min(self.capacity());
        (most / PAGE * PAGE).saturating_sub(self.used)
    }

    /// The device's memory, if it has been used.
    pub(crate) fn space(&self) -> Option<&Arc<Space>> {
        self.space.as_ref()
    }

    /// Whether the address lies in the device's range.
    pub(crate) fn owns(&self, address: u64) -> bool {
        self.space
            .as_ref()
            .is_some_and(|s| address >= s.base() && address - s.base() < s.len() as u64)
    }

    /// Reserves the addresses of the device's memory, if that has not been done: four times its capacity, or less where the system
    /// refuses, or where too few were left for programs that map memory.
    pub(crate) fn reserve(&mut self) -> Answer {
        if self.space.is_some() {
            return Ok(());
        }
        let capacity = round_up(self.capacity().max(PAGE), PAGE)?;
        let mut refused = OUT_OF_MEMORY;
        for factor in [4, 2, 1] {
            let Some(len) = capacity
                .checked_mul(factor)
                .and_then(|l| usize::try_from(l).ok())
            else {
                continue;
            };
            // The bytes lie at other addresses than the device's.
            let taken = len.saturating_add(capacity as usize).saturating_mul(2);
            if factor > 1 && !mirror::are_free(taken) {
                continue;
            }
            match Space::new(len) {
                Ok(space) => {
                    let (base, len) = (space.base(), len as u64);
                    self.pages.insert(base, len, 0, (base, base + len));
                    self.space = Some(Arc::new(space));
                    return Ok(());
                }
                Err(code) => refused = code,
            }
        }
        if !std::mem::replace(&mut self.told, true) {
            eprintln!(
                "cudart-sim: cannot reserve addresses for a device of {} MiB: set CUDART_SIM_MEMORY to less, or allow the process \
                 more addresses (ulimit -v)",
                capacity >> 20
            );
        }
        Err(refused)
    }

    /// Takes whole pages for a pool, or as physical memory.
    pub(crate) fn take_pages(&mut self, len: u64, by: Use) -> Answer<u64> {
        let len = round_up(len, PAGE)?;
        self.limits.room(by, len)?;
        let start = self.pages(len)?;
        self.limits.taken(by, len);
        Ok(start)
    }

    fn pages(&mut self, len: u64) -> Answer<u64> {
        if len > self.available() {
            return Err(OUT_OF_MEMORY);
        }
        self.reserve()?;
        let (start, _) = self.pages.take(len).ok_or(OUT_OF_MEMORY)?;
        self.used += len;
        self.refresh(start, len);
        Ok(start)
    }

    fn refresh(&self, start: u64, len: u64) {
        if let (Some(byte), Some(space)) = (self.fresh, &self.space) {
            space.fill((start - space.base()) as usize, len as usize, byte);
        }
    }

    /// Gives back what [`take_pages`](Device::take_pages) took.
    pub(crate) fn give_pages(&mut self, start: u64, len: u64, by: Use) {
        self.limits.given(by, len);
        self.pages_back(start, len);
    }

    fn pages_back(&mut self, start: u64, len: u64) {
        if let Some(space) = &self.space {
            space.discard((start - space.base()) as usize, len as usize);
            let (base, end) = (space.base(), space.base() + space.len() as u64);
            self.pages.insert(start, len, 0, (base, end));
            self.used = self.used.saturating_sub(len);
        }
    }

    /// Takes a block as `cudaMalloc` does.
    pub(crate) fn take(&mut self, size: u64) -> Answer<u64> {
        self.limits.room(Use::Malloc, size)?;
        let start = self.block(size)?;
        self.limits.taken(Use::Malloc, size);
        Ok(start)
    }

    fn block(&mut self, size: u64) -> Answer<u64> {
        let len = round_up(size, GRANULE)?;
        if len > SMALL {
            return self.pages(round_up(len, PAGE)?);
        }
        if let Some((start, _)) = self.small.take(len) {
            self.refresh(start, len);
            return Ok(start);
        }
        let page = self.pages(PAGE)?;
        self.small.insert(page, PAGE, 0, (page, page + PAGE));
        let (start, _) = self.small.take(len).ok_or(OUT_OF_MEMORY)?;
        Ok(start)
    }

    /// Gives back a block that [`take`](Device::take) returned for that size.
    pub(crate) fn give(&mut self, start: u64, size: u64) {
        self.limits.given(Use::Malloc, size);
        let Ok(len) = round_up(size, GRANULE) else {
            return;
        };
        if len > SMALL {
            if let Ok(len) = round_up(len, PAGE) {
                self.pages_back(start, len);
            }
            return;
        }
        let page = start / PAGE * PAGE;
        if self.small.insert(start, len, 0, (page, page + PAGE)) == (page, PAGE) {
            self.small.remove(page);
            self.pages_back(page, PAGE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(memory: usize) -> Device {
        let config = DeviceConfig {
            memory,
            ..DeviceConfig::default()
        };
        Device::new(config, None)
    }

    #[test]
    fn small_blocks_share_a_page_and_give_it_back_with_the_last_of_them() {
        let mut d = device(64 << 20);
        let blocks: Vec<u64> = (0..50).map(|_| d.take(100).unwrap()).collect();
        assert_eq!(d.available(), 62 << 20);
        assert_eq!(blocks.iter().fold(0, |m, b| m | b) & 0xfff, 0xe00);
        for b in blocks {
            d.give(b, 100);
        }
        assert_eq!(d.available(), 64 << 20);
    }

    #[test]
    fn memory_in_pieces_still_grants_one_large_block() {
        let mut d = device(64 << 20);
        let blocks: Vec<u64> = (0..32).map(|_| d.take(2 << 20).unwrap()).collect();
        assert_eq!(d.take(1), Err(OUT_OF_MEMORY));
        for b in blocks.iter().step_by(2) {
            d.give(*b, 2 << 20);
        }
        assert!(d.take(32 << 20).is_ok());
    }

    #[test]
    fn sizes_near_the_end_of_the_number_range_are_out_of_memory() {
        let mut d = device(64 << 20);
        for size in [u64::MAX, u64::MAX - 511, 1 << 63, 1 << 50, (64 << 20) + 1] {
            assert_eq!(d.take(size), Err(OUT_OF_MEMORY));
        }
        assert_eq!(d.available(), 64 << 20);
    }
}
