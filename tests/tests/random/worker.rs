//! One thread of a program: what it does in a step.

use crate::{
    common::stall,
    world::{Captured, Check, Guard, Host, Lane, Transferring, World, lock, take},
};
use memmgr::{
    CaptureMode, DeviceAllocatorMode, DeviceBuffer, Error, PerThreadStream, PinnedBuffer, Result,
};
use memmgr_tests::{Gate, Rng, SIMULATED};
use std::{sync::Arc, time::Duration};

/// What limits and fullness may answer; everything else is a failure.
pub fn allowed<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::OutOfMemory(_) | Error::LimitExceeded { .. }) => None,
        Err(error) => panic!("{error:?}"),
    }
}

pub struct Worker {
    pub world: Arc<World>,
    pub rng: Rng,
    pub mine: PerThreadStream,
}

impl Worker {
    pub fn new(world: Arc<World>, seed: u64) -> Self {
        Self {
            world,
            rng: Rng(seed),
            mine: PerThreadStream::new().expect("a per-thread stream"),
        }
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.rng.below(one_in) == 0
    }

    pub fn lane(&mut self) -> Arc<Lane> {
        let at = self.rng.below(self.world.lanes.len() as u64) as usize;
        lock(&self.world.lanes[at]).clone()
    }

    /// Mostly small, now and then a good part of the pool.
    pub fn size(&mut self) -> usize {
        let most = match self.rng.below(12) {
            0 => self.world.cap / 3,
            1..4 => self.world.cap / 16,
            _ => 4096,
        };
        1 + self.rng.below(most as u64) as usize
    }

    pub fn stamp(&mut self, len: usize) -> Vec<u8> {
        let number = self.rng.next_u64();
        let mut contents = vec![number as u8; len];
        if len >= 16 {
            contents[..8].copy_from_slice(&number.to_le_bytes());
            contents[len - 8..].copy_from_slice(&number.to_be_bytes());
        }
        contents
    }

    /// Pinned memory with a stamp.
    pub fn stamped(&mut self, len: usize) -> Option<(PinnedBuffer<u8>, Vec<u8>)> {
        let contents = self.stamp(len);
        let mut host = match self.rng.below(12) {
            // On a GPU nobody has measured what a copy of pageable memory does that shares a page with registered memory.
            0 if SIMULATED => match self.world.mm.adopt(contents.clone()) {
                Ok(host) => {
                    self.world.count("adopted vector");
                    host
                }
                // Pages of a neighbour that is registered.
                Err(refused) if refused.error().cuda_code() == Some(712) => return None,
                Err(refused) => panic!("{refused:?}"),
            },
            1 => allowed(self.world.mm.pinned_zeroed::<u8>(len))?,
            _ => allowed(self.world.mm.pinned::<u8>(len))?,
        };
        host.as_mut_slice().unwrap().copy_from_slice(&contents);
        Some((host, contents))
    }

    pub fn keep_check(&mut self, host: Host, expect: Vec<u8>, what: &'static str) {
        lock(&self.world.checks).push(Check { host, expect, what });
    }

    /// Copies a buffer out, in the order of some stream, to be looked at later.
    pub fn copy_out(&mut self, buffer: &DeviceBuffer<u8>, expect: &[u8]) -> Option<()> {
        let mut host = allowed(self.world.mm.pinned::<u8>(buffer.len()))?;
        let lane = self.lane();
        let _ = lane.stream.copy_to_host(buffer, &mut host).unwrap();
        self.keep_check(Host::Guard(host), expect.to_vec(), "a guard");
        Some(())
    }

    fn settle_one(&mut self) -> Option<()> {
        let check = take(&self.world.checks, &mut self.rng)?;
        if self.chance(6) {
            // Goes with its copy in flight.
            match check.host {
                Host::Guard(host) => drop(host),
                Host::Raw { address, .. } => {
                    let ptr = std::ptr::with_exposed_provenance_mut(address);
                    // SAFETY: only the copy uses it, which the manager knows.
                    unsafe { self.world.mm.free_pinned(ptr).unwrap() };
                }
            }
            return Some(());
        }
        let expect = check.expect.clone();
        let host = self.world.settle(check)?;
        // What came down goes up again, or home to its vector.
        match self.rng.below(8) {
            0 => match host.into_vec() {
                Ok(vec) => self.world.verify(&vec, &expect, "a vector that came back"),
                Err(refused) => drop(refused.into_inner()),
            },
            1..4 => {
                let on = self.lane();
                let buffer = allowed(self.world.mm.device(expect.len(), &on.stream))?;
                let by = self.lane();
                let _ = by.stream.copy_to_device(&host, &buffer).unwrap();
                lock(&self.world.guards).push(Guard { buffer, expect });
            }
            _ => {}
        }
        Some(())
    }

    fn arrive(&mut self) -> Option<()> {
        let transfer = take(&self.world.transfers, &mut self.rng)?;
        self.world.arrive(transfer);
        Some(())
    }

    fn transfer(&mut self) -> Option<()> {
        let lane = self.lane();
        let transfer = if self.chance(2) {
            let len = self.size();
            let (host, contents) = self.stamped(len)?;
            let buffer = allowed(self.world.mm.device(len, &lane.stream))?;
            let by = self.lane();
            let transfer = by.stream.transfer_to_device(host, buffer).unwrap();
            Transferring::ToDevice(transfer, contents)
        } else {
            let guard = take(&self.world.guards, &mut self.rng)?;
            let Some(host) = allowed(self.world.mm.pinned(guard.expect.len())) else {
                lock(&self.world.guards).push(guard);
                return None;
            };
            let transfer = lane.stream.transfer_to_host(guard.buffer, host).unwrap();
            Transferring::ToHost(transfer, guard.expect)
        };
        match self.rng.below(12) {
            0..3 => self.world.arrive(transfer),
            3..6 => drop(transfer),
            6 => lock(&self.world.forgotten).push(transfer),
            _ => lock(&self.world.transfers).push(transfer),
        }
        Some(())
    }

    /// A graph that fills and copies into a buffer, captured on a stream of its own.
    fn capture(&mut self) -> Option<()> {
        let mut target = take(&self.world.guards, &mut self.rng)?;
        let len = target.expect.len();
        let Some((host, contents)) = self.stamped(len) else {
            lock(&self.world.guards).push(target);
            return None;
        };
        let lane = memmgr::Stream::new().unwrap();
        let value = self.rng.next_u64() as u8;
        let at = self.rng.below(len as u64 + 1) as usize;
        let mode = match (self.world.at_once, self.rng.below(3)) {
            // Other threads make calls that end it.
            (true, 0) | (_, 1) => CaptureMode::ThreadLocal,
            (false, 0) => CaptureMode::Global,
            _ => CaptureMode::Relaxed,
        };
        let captured = lane.capturing().mode(mode).run(|s| {
            let _ = s.memset(&target.buffer, value)?;
            let _ = s.copy_to_device(&host.slice(at..)?, &target.buffer.slice(at..)?)?;
            Ok(())
        });
        let graph = match captured {
            Ok(graph) => graph,
            // Adopted memory, which no graph can keep.
            Err(Error::Unsupported { .. }) => {
                lock(&self.world.guards).push(target);
                return None;
            }
            Err(error) => panic!("{error:?}"),
        };
        let mut effect = contents;
        effect[..at].fill(value);
        drop(host);
        let mut captured = Captured {
            graph,
            target: None,
            effect,
        };
        if self.chance(3) {
            self.launch(&mut captured);
            target.expect.clone_from(&captured.effect);
            self.copy_out(&target.buffer, &target.expect);
            drop(target);
        } else {
            captured.target = Some(target);
        }
        lock(&self.world.captured).push(captured);
        Some(())
    }

    fn launch(&mut self, captured: &mut Captured) {
        let lane = self.lane();
        // SAFETY: no slice of its buffers is alive: their guards are gone or in our hands.
        let _ = unsafe { captured.graph.launch(&lane.stream) }.unwrap();
        self.world.count("launch");
        if let Some(target) = &mut captured.target {
            target.expect.clone_from(&captured.effect);
        }
    }

    fn use_graph(&mut self) -> Option<()> {
        let mut captured = take(&self.world.captured, &mut self.rng)?;
        for _ in 0..self.rng.below(3) {
            self.launch(&mut captured);
        }
        if let Some(target) = captured.target.take() {
            match self.rng.below(3) {
                0 => captured.target = Some(target),
                1 => {
                    self.copy_out(&target.buffer, &target.expect);
                    // The graph goes on with a buffer that nobody else has.
                    drop(target);
                }
                _ => {
                    // Its next launch would change what another thread counts on.
                    drop(captured);
                    lock(&self.world.guards).push(target);
                    return Some(());
                }
            }
        }
        if !self.chance(4) {
            lock(&self.world.captured).push(captured);
        } else if let Some(target) = captured.target.take() {
            drop(captured);
            lock(&self.world.guards).push(target);
        }
        Some(())
    }

    fn events(&mut self) -> Option<()> {
        let lane = self.lane();
        match self.rng.below(6) {
            0 | 1 => {
                let event = lane.stream.record().unwrap();
                lock(&self.world.events).push(event);
            }
            2 | 3 => {
                if let Some(event) = take(&self.world.events, &mut self.rng) {
                    lane.stream.wait(&event).unwrap();
                }
            }
            4 => {
                if let Some(event) = take(&self.world.events, &mut self.rng) {
                    let _ = event.is_done().unwrap();
                }
            }
            _ if self.chance(4) => lane.stream.synchronize().unwrap(),
            _ => drop(lane.stream.query().unwrap()),
        }
        Some(())
    }

    /// A stream goes with whatever is in it, and another takes its place.
    fn replace_stream(&mut self) -> Option<()> {
        let next = Lane::new(&mut self.rng);
        let at = self.rng.below(self.world.lanes.len() as u64) as usize;
        let former = std::mem::replace(&mut *lock(&self.world.lanes[at]), next);
        drop(former);
        Some(())
    }

    /// A stream that stops for a moment. One at a time: a device may run all host functions on one thread.
    fn stall(&mut self) -> Option<()> {
        let lane = self.lane();
        let mut opener = lock(&self.world.gate);
        if opener.as_ref().is_some_and(|opener| !opener.is_finished()) {
            return None;
        }
        let gate = Gate::new();
        stall(&lane.stream, &gate);
        *opener = Some(gate.open_after(Duration::from_micros(self.rng.below(2000))));
        Some(())
    }

    fn manage(&mut self) -> &'static str {
        let (cap, rng) = (self.world.cap, &mut self.rng);
        let mm = &self.world.mm;
        match rng.below(16) {
            0..5 => {
                mm.set_device_allocator_mode(DeviceAllocatorMode::ALL[rng.below(3) as usize]);
                "mode"
            }
            5 => {
                mm.set_device_pool_limit(Some(cap / 2 + rng.below(cap as u64) as usize));
                "limit"
            }
            6 => {
                mm.set_pinned_pool_limit(Some(cap + rng.below(cap as u64) as usize));
                "limit"
            }
            7 => {
                mm.set_device_pool_limit(Some(cap));
                mm.set_pinned_pool_limit(None);
                "limit"
            }
            8..10 => {
                mm.trim().unwrap();
                "trim"
            }
            10 => {
                mm.shutdown().unwrap();
                "shutdown"
            }
            11 => {
                let world = Arc::downgrade(&self.world);
                let again = rng.below(2) == 0;
                mm.on_out_of_memory(move |_| {
                    // Gives pinned memory back, its copy in flight.
                    let given = world.upgrade().and_then(|world| {
                        world.count("out of memory");
                        let mut checks = lock(&world.checks);
                        let at = checks
                            .iter()
                            .position(|check| matches!(check.host, Host::Guard(_)))?;
                        Some(checks.swap_remove(at))
                    });
                    again && given.is_some()
                });
                "hook"
            }
            12 => {
                drop(mm.native_pool_usage(DeviceAllocatorMode::CudaAsyncPool));
                "figures"
            }
            13 => {
                mm.reset_peak();
                "figures"
            }
            14 => {
                mm.check().unwrap();
                "check"
            }
            _ => {
                let stats = mm.stats();
                assert!(stats.pinned.in_use <= stats.pinned.reserved, "{stats:?}");
                "figures"
            }
        }
    }

    pub fn step(&mut self) {
        let (what, done) = match self.rng.below(64) {
            0..8 => ("raw allocation", self.raw_allocate()),
            8..12 => ("raw use", self.raw_use()),
            12..18 => ("raw free", self.raw_free()),
            18..25 => ("guard", self.guard_make()),
            25..32 => ("guard use", self.guard_use()),
            32..36 => ("guard drop", self.guard_drop()),
            36..38 => ("split", self.guard_split()),
            38..42 => ("look at a copy", self.settle_one()),
            42..45 => ("transfer", self.transfer()),
            45 => ("end of a transfer", self.arrive()),
            46 => ("capture", self.capture()),
            47 | 48 => ("use of a graph", self.use_graph()),
            49..52 => ("event", self.events()),
            52 => ("stream replaced", self.replace_stream()),
            53 => ("stall", self.stall()),
            54..57 => ("per-thread stream", self.own_stream()),
            57 => ("adopted device memory", self.adopt_device()),
            58 | 59 => ("scope", self.scope()),
            _ => (self.manage(), Some(())),
        };
        if done.is_some() {
            self.world.count(what);
        }
        // Whatever piles up goes again.
        while lock(&self.world.checks).len() > 24 {
            self.settle_one();
        }
        if lock(&self.world.raws).len() > 24 {
            self.raw_free();
        }
        if lock(&self.world.guards).len() > 24 {
            self.guard_drop();
        }
    }
}
