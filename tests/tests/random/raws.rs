//! Steps with raw pointers: the program itself orders what uses them.

use crate::{
    rig::kernel_fill,
    worker::{Worker, allowed},
    world::{Host, Lane, Raw, lock, take, write},
};
use memmgr::{CopyKind, Stream};

fn follow(raw: &Raw, stream: &Stream) {
    if let Some(event) = &raw.after {
        stream.wait(event).unwrap();
    }
}

fn used(raw: &mut Raw, stream: &Stream, recorded: bool) {
    (raw.after, raw.recorded) = (Some(stream.record().unwrap()), recorded);
}

impl Worker {
    pub fn raw_allocate(&mut self) -> Option<()> {
        let (size, lane) = (self.size(), self.lane());
        let mm = &self.world.mm;
        let (result, after) = match self.rng.below(4) {
            0 => (mm.allocate_device(size), None),
            _ => (mm.allocate_device_on(size, &lane.stream), Some(&lane)),
        };
        let ptr = allowed(result)?;
        // An owner that does nothing: what its memory waits for must not be forgotten with it.
        if self.chance(4) {
            let other = self.lane();
            let mm = &self.world.mm;
            // SAFETY: nobody used the block.
            unsafe {
                match self.rng.below(3) {
                    0 => mm.free_device(ptr).unwrap(),
                    1 => mm.free_device_on(ptr, &other.stream).unwrap(),
                    _ => mm.free_device_on(ptr, &self.mine).unwrap(),
                }
            }
            return Some(());
        }
        let mut raw = Raw {
            address: ptr.expose_provenance(),
            after: after.map(|lane| lane.stream.record().unwrap()),
            recorded: true,
            expect: vec![0; size],
        };
        self.raw_fill(&mut raw);
        lock(&self.world.raws).push(raw);
        Some(())
    }

    /// Writes all of a block on some stream.
    fn raw_fill(&mut self, raw: &mut Raw) {
        let lane = self.lane();
        let stream = &lane.stream;
        follow(raw, stream);
        let (ptr, len) = (raw.ptr(), raw.len());
        let contents = self.stamp(len);
        let value = contents[len / 2];
        let mm = &self.world.mm;
        let mut recorded = true;
        // SAFETY: the block is ours, the stream follows all that used it, and sources stay until their copies have run.
        unsafe {
            match self.rng.below(5) {
                0 | 1 => {
                    kernel_fill(ptr, value, len, stream);
                    raw.expect.fill(value);
                    recorded = self.rng.below(2) == 0;
                    if recorded {
                        mm.record_use(ptr, stream).unwrap();
                    }
                }
                2 => {
                    mm.memset(ptr, value, len, stream).unwrap();
                    raw.expect.fill(value);
                }
                3 => {
                    let Some(host) = allowed(mm.allocate_pinned(len)) else {
                        mm.memset(ptr, value, len, stream).unwrap();
                        raw.expect.fill(value);
                        used(raw, stream, true);
                        return;
                    };
                    write(host, &contents);
                    mm.copy_to_device_async(ptr, host, len, stream).unwrap();
                    mm.free_pinned(host).unwrap();
                    raw.expect = contents;
                }
                _ => {
                    mm.copy_to_device_async(ptr, contents.as_ptr().cast(), len, stream)
                        .unwrap();
                    raw.expect.clone_from(&contents);
                    lock(&self.world.pageable).push(contents);
                }
            }
        }
        used(raw, stream, recorded);
    }

    pub fn raw_use(&mut self) -> Option<()> {
        let mut raw = take(&self.world.raws, &mut self.rng)?;
        let lane = self.lane();
        let len = raw.len();
        let width = 1 + self.rng.below(len as u64) as usize;
        let pitch = width + self.rng.below(8) as usize;
        let height = ((len - width) / pitch + 1).min(1 + self.rng.below(8) as usize);
        let value = self.rng.next_u64() as u8;
        let mm = &self.world.mm;
        match self.rng.below(4) {
            0 => {
                follow(&raw, &lane.stream);
                // SAFETY: as in `raw_fill`.
                unsafe {
                    mm.memset_2d(raw.ptr(), pitch, value, width, height, &lane.stream)
                        .unwrap();
                }
                for row in 0..height {
                    raw.expect[row * pitch..][..width].fill(value);
                }
                used(&mut raw, &lane.stream, true);
            }
            1 => {
                let Some(host) = allowed(mm.allocate_pinned(width * height)) else {
                    lock(&self.world.raws).push(raw);
                    return None;
                };
                follow(&raw, &lane.stream);
                // SAFETY: as in `raw_fill`.
                unsafe {
                    write(host, &vec![value; width * height]);
                    let (to, kind) = (raw.ptr(), CopyKind::HostToDevice);
                    mm.copy_2d(to, pitch, host, width, width, height, kind, &lane.stream)
                        .unwrap();
                    mm.free_pinned(host).unwrap();
                }
                for row in 0..height {
                    raw.expect[row * pitch..][..width].fill(value);
                }
                used(&mut raw, &lane.stream, true);
            }
            2 => {
                if let Some(mut other) = take(&self.world.raws, &mut self.rng) {
                    let most = len.min(other.len());
                    follow(&raw, &lane.stream);
                    follow(&other, &lane.stream);
                    // SAFETY: as in `raw_fill`, for both blocks.
                    unsafe {
                        self.world
                            .mm
                            .copy_device_to_device(raw.ptr(), other.ptr(), most, &lane.stream)
                            .unwrap();
                    }
                    raw.expect[..most].copy_from_slice(&other.expect[..most]);
                    used(&mut raw, &lane.stream, true);
                    used(&mut other, &lane.stream, true);
                    lock(&self.world.raws).push(other);
                }
            }
            _ => self.raw_fill(&mut raw),
        }
        lock(&self.world.raws).push(raw);
        Some(())
    }

    /// Copies a block out in the order of a stream, and frees it.
    pub fn raw_free(&mut self) -> Option<()> {
        let mut raw = take(&self.world.raws, &mut self.rng)?;
        let lane = self.lane();
        if !self.raw_copy_out(&mut raw, &lane) {
            // What cannot be looked at is freed all the same, so that memory comes back.
            follow(&raw, &lane.stream);
        }
        if self.chance(4) {
            // SAFETY: the block is ours and the stream follows all that used it.
            unsafe { kernel_fill(raw.ptr(), 0xEE, raw.len(), &lane.stream) };
            raw.recorded = false;
        }
        let third = self.lane();
        let mm = &self.world.mm;
        // SAFETY: nobody uses the block afterwards; what did is in `lane`, or recorded.
        unsafe {
            match self.rng.below(4) {
                0 if raw.recorded => mm.free_device(raw.ptr()).unwrap(),
                1 if raw.recorded => mm.free_device_on(raw.ptr(), &third.stream).unwrap(),
                2 if raw.recorded => mm.free_device_on(raw.ptr(), &self.mine).unwrap(),
                _ => mm.free_device_on(raw.ptr(), &lane.stream).unwrap(),
            }
        }
        Some(())
    }

    fn raw_copy_out(&mut self, raw: &mut Raw, lane: &Lane) -> bool {
        let len = raw.len();
        let mm = &self.world.mm;
        follow(raw, &lane.stream);
        let host = if self.rng.below(2) == 0 {
            let Some(host) = allowed(mm.pinned::<u8>(len)) else {
                return false;
            };
            // SAFETY: both blocks are ours and large enough; a view of the guard waits for the copy.
            unsafe {
                mm.copy_to_host_async(host.as_ptr(), raw.ptr(), len, &lane.stream)
                    .unwrap();
            }
            Host::Guard(host)
        } else {
            let Some(host) = allowed(mm.allocate_pinned(len)) else {
                return false;
            };
            // SAFETY: both blocks are ours and large enough; nobody looks before the event.
            unsafe {
                mm.copy_to_host_async(host, raw.ptr(), len, &lane.stream)
                    .unwrap();
            }
            Host::Raw {
                address: host.expose_provenance(),
                after: lane.stream.record().unwrap(),
            }
        };
        used(raw, &lane.stream, true);
        self.keep_check(host, raw.expect.clone(), "a raw block");
        true
    }

    /// A block on the thread's own default stream, which may be handed to the others.
    pub fn own_stream(&mut self) -> Option<()> {
        let len = self.size();
        let contents = self.stamp(len);
        let value = contents[len / 2];
        let (mm, mine) = (&self.world.mm, &self.mine);
        let ptr = allowed(mm.allocate_device_on(len, mine))?;
        // SAFETY: the block is ours, and the stream orders all that uses it.
        unsafe { mm.memset(ptr, value, len, mine).unwrap() };
        let expect = vec![value; len];
        if self.rng.below(4) == 0 {
            mine.synchronize().unwrap();
            lock(&self.world.raws).push(Raw {
                address: ptr.expose_provenance(),
                after: None,
                recorded: true,
                expect,
            });
            return Some(());
        }
        if let Some(host) = allowed(mm.pinned::<u8>(len)) {
            // SAFETY: as above; a view of the guard waits for the copy.
            unsafe {
                mm.copy_to_host_async(host.as_ptr(), ptr, len, mine)
                    .unwrap();
            }
            self.keep_check(Host::Guard(host), expect, "a block of a thread's stream");
        }
        let other = self.lane();
        let (mm, mine) = (&self.world.mm, &self.mine);
        // SAFETY: nobody uses the block afterwards; what did is in the thread's stream, and recorded where another frees.
        unsafe {
            match self.rng.below(4) {
                0 => mm.free_device(ptr).unwrap(),
                1 => {
                    mm.record_use(ptr, mine).unwrap();
                    mm.free_device_on(ptr, &other.stream).unwrap();
                }
                _ => mm.free_device_on(ptr, mine).unwrap(),
            }
        }
        Some(())
    }
}
