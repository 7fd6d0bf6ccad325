//! Virtual memory: reserved addresses, physical memory, and the page table that connects them.
//!
//! A reservation is a range of host addresses without access; a mapping is an entry in a table of the simulator, not a
//! mapping of the host (a process may have some 65,000 of those, and a large device has more chunks). Physical memory
//! is a range of its device's memory, so that its contents stay where they are whatever maps it. An operation has to be
//! mapped when it is submitted; work looks its addresses up again when it runs, piece by piece, and nothing here waits
//! for it.

use crate::check;
use crate::contents::Space;
use crate::device::PAGE;
use crate::error::{Answer, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::handles::Handles;
use crate::limit::Use;
use crate::mirror;
use crate::runtime::Runtime;
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The unit of physical memory and of mappings.
pub(crate) const GRANULARITY: u64 = PAGE;

/// A program has fewer addresses than this.
const MOST_ALIGNMENT: u64 = 1 << 48;

/// Reading alone, or reading and writing, as the driver numbers it.
pub(crate) const READ: u32 = 1;
pub(crate) const READ_WRITE: u32 = 3;

static TABLE: RwLock<Table> = RwLock::new(Table {
    reserved: BTreeMap::new(),
    mappings: BTreeMap::new(),
});

/// What work needs to know. Its lock is taken after the one of the runtime, or alone, and never while bytes move.
struct Table {
    /// Start → length.
    reserved: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
}

/// Physical memory at an address.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) len: u64,
    /// The device that the memory lies on.
    pub(crate) device: u32,
    physical: u64,
    space: Arc<Space>,
    at: usize,
    /// One bit a device that may read, or write.
    readable: u64,
    writable: u64,
}

/// Physical memory: a range of a device.
#[derive(Debug)]
struct Physical {
    device: u32,
    start: u64,
    len: u64,
    handle: usize,
    /// How often it has been created or retained, less how often it has been released.
    references: u32,
    mappings: u32,
}

/// All physical memory.
#[derive(Debug)]
pub(crate) struct Vmm {
    handles: Handles<u64>,
    physical: BTreeMap<u64, Physical>,
    next: u64,
}

fn table() -> RwLockReadGuard<'static, Table> {
    TABLE.read().unwrap_or_else(|e| e.into_inner())
}

fn table_mut() -> RwLockWriteGuard<'static, Table> {
    TABLE.write().unwrap_or_else(|e| e.into_inner())
}

impl Table {
    fn reservation(&self, address: u64) -> Option<(u64, u64)> {
        let (start, len) = self.reserved.range(..=address).next_back()?;
        (address - start < *len).then_some((*start, *len))
    }

    fn mapping(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.len).then_some((*start, mapping))
    }

    /// The starts of the mappings in a range that is reserved: none cut, and there may be holes.
    fn uncut(&self, start: u64, len: u64) -> Answer<Vec<u64>> {
        let end = start.checked_add(len).ok_or(INVALID_VALUE)?;
        let (reserved, size) = self.reservation(start).ok_or(INVALID_VALUE)?;
        let inside = end <= reserved.saturating_add(size);
        if len == 0 || !aligned(start) || !aligned(len) || !inside {
            return Err(INVALID_VALUE);
        }
        if self.mapping(start).is_some_and(|(place, _)| place != start) {
            return Err(INVALID_VALUE);
        }
        let mut found = Vec::new();
        for (place, mapping) in self.mappings.range(start..end) {
            if place.saturating_add(mapping.len) > end {
                return Err(INVALID_VALUE);
            }
            found.push(*place);
        }
        Ok(found)
    }

    /// The starts of the mappings that make up exactly this range: none missing, none cut.
    fn whole(&self, start: u64, len: u64) -> Answer<Vec<u64>> {
        let end = start.checked_add(len).ok_or(INVALID_VALUE)?;
        let mut found = Vec::new();
        let mut at = start;
        for (place, mapping) in self.mappings.range(start..end) {
            if *place != at {
                return Err(INVALID_VALUE);
            }
            at = place.saturating_add(mapping.len);
            found.push(*place);
        }
        if at != end || found.is_empty() {
            return Err(INVALID_VALUE);
        }
        Ok(found)
    }
}

/// The reservation that holds an address: its start and its length.
pub(crate) fn reservation(address: u64) -> Option<(u64, u64)> {
    table().reservation(address)
}

/// Whether the address is reserved.
pub(crate) fn reserved(address: u64) -> bool {
    reservation(address).is_some()
}

/// What is mapped at an address, and where that mapping starts.
pub(crate) fn mapping(address: u64) -> Option<(u64, Mapping)> {
    table().mapping(address).map(|(s, m)| (s, m.clone()))
}

/// Whether all of a range is mapped.
pub(crate) fn mapped(address: u64, len: usize) -> bool {
    let table = table();
    let Some(end) = address.checked_add(len as u64) else {
        return false;
    };
    let mut at = address;
    while at < end {
        match table.mapping(at) {
            Some((start, mapping)) => at = start.saturating_add(mapping.len),
            None => return false,
        }
    }
    true
}

/// Where the byte at an address lies, and how many bytes follow it there; `None` if the device may not do that.
pub(crate) fn piece(address: u64, device: u32, write: bool) -> Option<(Arc<Space>, usize, usize)> {
    let table = table();
    let (start, mapping) = table.mapping(address)?;
    let rights = if write {
        mapping.writable
    } else {
        mapping.readable
    };
    if rights & bit(device) == 0 {
        return None;
    }
    let offset = address - start;
    let rest = (mapping.len - offset) as usize;
    Some((mapping.space.clone(), mapping.at + offset as usize, rest))
}

impl Mapping {
    /// Whether the device that the memory lies on may read it.
    pub(crate) fn reachable(&self) -> bool {
        self.readable & bit(self.device) != 0
    }
}

fn bit(device: u32) -> u64 {
    1u64.checked_shl(device).unwrap_or(0)
}

fn aligned(value: u64) -> bool {
    value.is_multiple_of(GRANULARITY)
}

/// Reserves addresses.
pub(crate) fn reserve(len: u64, alignment: u64, hint: u64) -> Answer<u64> {
    // Measured: 1 << 63 is no alignment.
    let strange = alignment != 0 && !alignment.is_power_of_two() || alignment >= MOST_ALIGNMENT;
    if len == 0 || !aligned(len) || strange {
        return Err(INVALID_VALUE);
    }
    let size = usize::try_from(len).map_err(|_| OUT_OF_MEMORY)?;
    let align = usize::try_from(alignment.max(GRANULARITY)).map_err(|_| OUT_OF_MEMORY)?;
    let start = mirror::reserve(size, align, hint as usize).ok_or(OUT_OF_MEMORY)? as u64;
    table_mut().reserved.insert(start, len);
    Ok(start)
}

/// Gives a reservation back, all of it, with nothing mapped in it.
pub(crate) fn free(start: u64, len: u64) -> Answer {
    let mut table = table_mut();
    if table.reserved.get(&start) != Some(&len) {
        return Err(INVALID_VALUE);
    }
    let end = start.saturating_add(len);
    if table.mappings.range(start..end).next().is_some() {
        return Err(INVALID_VALUE);
    }
    table.reserved.remove(&start);
    check::gone(start, len);
    mirror::release(start as usize, len as usize);
    Ok(())
}

/// Says what a device may do with a range of mappings.
pub(crate) fn set_access(start: u64, len: u64, rights: &[(u32, u32)]) -> Answer {
    let mut table = table_mut();
    for place in table.whole(start, len)? {
        let Some(mapping) = table.mappings.get_mut(&place) else {
            continue;
        };
        for (device, flags) in rights {
            let bit = bit(*device);
            mapping.readable &= !bit;
            mapping.writable &= !bit;
            if matches!(*flags, READ | READ_WRITE) {
                mapping.readable |= bit;
            }
            if *flags == READ_WRITE {
                mapping.writable |= bit;
            }
        }
    }
    Ok(())
}

impl Vmm {
    pub(crate) const fn new() -> Vmm {
        Vmm {
            handles: Handles::new(),
            physical: BTreeMap::new(),
            next: 1,
        }
    }

    /// How many chunks of physical memory a device has given, and their bytes.
    pub(crate) fn held(&self, device: u32) -> (usize, u64) {
        let here = self.physical.values().filter(|p| p.device == device);
        here.fold((0, 0), |(n, sum), p| (n + 1, sum + p.len))
    }

    fn handle(&mut self, id: u64) -> Answer<usize> {
        let known = self.physical.get(&id).map_or(0, |p| p.handle);
        if known != 0 {
            return Ok(known);
        }
        let handle = self.handles.insert(id)?;
        if let Some(physical) = self.physical.get_mut(&id) {
            physical.handle = handle;
        }
        Ok(handle)
    }
}

impl Runtime {
    /// Takes physical memory from a device; returns its handle.
    pub(crate) fn create_physical(&mut self, ordinal: i32, len: u64) -> Answer<usize> {
        if len == 0 || !aligned(len) {
            return Err(INVALID_VALUE);
        }
        let device = self.device(ordinal)?;
        if !device.config.virtual_memory {
            return Err(NOT_SUPPORTED);
        }
        let start = device.take_pages(len, Use::Physical)?;
        let id = self.vmm.next;
        self.vmm.next += 1;
        let physical = Physical {
            device: ordinal as u32,
            start,
            len,
            handle: 0,
            references: 1,
            mappings: 0,
        };
        self.vmm.physical.insert(id, physical);
        let handle = self.vmm.handle(id);
        if handle.is_err() {
            self.vmm.physical.remove(&id);
            self.device(ordinal)?.give_pages(start, len, Use::Physical);
        }
        handle
    }

    /// Drops a reference. The memory goes when nobody refers to it and nothing maps it.
    pub(crate) fn release_physical(&mut self, handle: usize) -> Answer {
        let id = *self.vmm.handles.get(handle).ok_or(INVALID_VALUE)?;
        let physical = self.vmm.physical.get_mut(&id).ok_or(INVALID_VALUE)?;
        physical.references = physical.references.saturating_sub(1);
        if physical.references == 0 {
            physical.handle = 0;
            self.vmm.handles.remove(handle);
            self.drop_unused(id);
        }
        Ok(())
    }

    fn drop_unused(&mut self, id: u64) {
        let Some(physical) = self.vmm.physical.get(&id) else {
            return;
        };
        if physical.references > 0 || physical.mappings > 0 {
            return;
        }
        let (device, start, len) = (physical.device, physical.start, physical.len);
        self.vmm.physical.remove(&id);
        check::physical_gone(id);
        if let Some(device) = self.devices.get_mut(device as usize) {
            device.give_pages(start, len, Use::Physical);
        }
    }

    /// Another reference to what is mapped at an address; returns its handle.
    pub(crate) fn retain_physical(&mut self, address: u64) -> Answer<usize> {
        let id = table()
            .mapping(address)
            .map(|(_, m)| m.physical)
            .ok_or(INVALID_VALUE)?;
        let handle = self.vmm.handle(id)?;
        let physical = self.vmm.physical.get_mut(&id).ok_or(INVALID_VALUE)?;
        physical.references = physical.references.saturating_add(1);
        Ok(handle)
    }

    /// Maps all of a handle's memory at an address that is reserved and free.
    pub(crate) fn map_physical(
        &mut self,
        start: u64,
        len: u64,
        offset: u64,
        handle: usize,
    ) -> Answer {
        let id = *self.vmm.handles.get(handle).ok_or(INVALID_VALUE)?;
        let physical = self.vmm.physical.get_mut(&id).ok_or(INVALID_VALUE)?;
        // Whatever is not the whole handle, sizes and offsets that make no sense too (measured).
        if len != physical.len || offset != 0 {
            return Err(NOT_SUPPORTED);
        }
        let end = start.checked_add(len).ok_or(INVALID_VALUE)?;
        if !aligned(start) {
            return Err(INVALID_VALUE);
        }
        let device = self.devices.get(physical.device as usize);
        let space = device.and_then(|d| d.space()).ok_or(INVALID_VALUE)?.clone();
        let mut table = table_mut();
        let (reserved, size) = table.reservation(start).ok_or(INVALID_VALUE)?;
        let taken =
            table.mapping(start).is_some() || table.mappings.range(start..end).next().is_some();
        if end > reserved.saturating_add(size) || taken {
            return Err(INVALID_VALUE);
        }
        let mapping = Mapping {
            len,
            device: physical.device,
            physical: id,
            at: (physical.start - space.base()) as usize,
            space,
            readable: 0,
            writable: 0,
        };
        table.mappings.insert(start, mapping);
        physical.mappings += 1;
        check::mapped(start, len, id, offset);
        Ok(())
    }

    /// Takes whole mappings away; holes between them do no harm. Work that is running is not waited for.
    pub(crate) fn unmap_physical(&mut self, start: u64, len: u64) -> Answer {
        let mut table = table_mut();
        let mut gone = Vec::new();
        for place in table.uncut(start, len)? {
            gone.extend(table.mappings.remove(&place).map(|m| (place, m)));
        }
        drop(table);
        for (place, mapping) in gone {
            check::unmapped("cuMemUnmap", place, mapping.len);
            let id = mapping.physical;
            if let Some(physical) = self.vmm.physical.get_mut(&id) {
                physical.mappings = physical.mappings.saturating_sub(1);
            }
            self.drop_unused(id);
        }
        Ok(())
    }

    /// Forgets the physical memory of one device, which is being reset, or (`None`) all memory and all reservations.
    pub(crate) fn forget_physical(&mut self, device: Option<u32>) {
        let gone = |d: u32| device.is_none_or(|x| x == d);
        let mut table = table_mut();
        table.mappings.retain(|start, m| {
            if gone(m.device) {
                check::mapping_gone(*start, m.len);
            }
            !gone(m.device)
        });
        self.vmm.physical.retain(|id, p| {
            if gone(p.device) {
                check::physical_gone(*id);
            }
            !gone(p.device)
        });
        let physical = &self.vmm.physical;
        self.vmm.handles.retain(|id| physical.contains_key(id));
        if device.is_none() {
            for (start, len) in std::mem::take(&mut table.reserved) {
                mirror::release(start as usize, len as usize);
            }
        }
    }
}
