//! Steps with guards: the manager orders what uses them.

use crate::{
    rig::kernel_fill,
    worker::{Worker, allowed},
    world::{Guard, Host, lock, take},
};

impl Worker {
    pub fn guard_make(&mut self) -> Option<()> {
        let (len, on, by) = (self.size(), self.lane(), self.lane());
        let mm = &self.world.mm;
        if self.rng.below(6) == 0 {
            let buffer = allowed(mm.device_zeroed::<u8>(len, &on.stream))?;
            let expect = vec![0; len];
            lock(&self.world.guards).push(Guard { buffer, expect });
            return Some(());
        }
        let buffer = allowed(mm.device::<u8>(len, &on.stream))?;
        let expect = if self.chance(3) {
            let value = self.rng.next_u64() as u8;
            let _ = by.stream.memset(&buffer, value).unwrap();
            vec![value; len]
        } else {
            let (mut host, contents) = self.stamped(len)?;
            let _ = by.stream.copy_to_device(&host, &buffer).unwrap();
            match self.rng.below(4) {
                // A write waits for the copy.
                0 => host.as_mut_slice().unwrap().fill(0xEE),
                1 => assert_eq!(host.as_slice().unwrap(), contents),
                // A part of it goes on.
                2 if len > 1 => {
                    let (front, mut back) = host.split_at(len / 2).unwrap();
                    drop(front);
                    back.as_mut_slice().unwrap().fill(0xDD);
                }
                _ => drop(host),
            }
            contents
        };
        lock(&self.world.guards).push(Guard { buffer, expect });
        Some(())
    }

    pub fn guard_use(&mut self) -> Option<()> {
        let mut guard = take(&self.world.guards, &mut self.rng)?;
        self.use_guard(&mut guard);
        lock(&self.world.guards).push(guard);
        Some(())
    }

    fn use_guard(&mut self, guard: &mut Guard) -> Option<()> {
        let (one, two) = (self.lane(), self.lane());
        let (one, two) = (&one.stream, &two.stream);
        let len = guard.expect.len();
        let value = self.rng.next_u64() as u8;
        let at = self.rng.below(len as u64 + 1) as usize;
        if len == 0 {
            // What a split left: every operation does nothing, and there is no pointer for a kernel.
            let _ = one.memset(&guard.buffer, value).unwrap();
            return self.copy_out(&guard.buffer, &[]);
        }
        match self.rng.below(8) {
            0 => {
                let part = guard.buffer.slice(at..).unwrap();
                let _ = one.memset(&part, value).unwrap();
                guard.expect[at..].fill(value);
            }
            1 => {
                let width = 1 + self.rng.below(len as u64) as usize;
                let pitch = width + self.rng.below(8) as usize;
                let height = ((len - width) / pitch + 1).min(1 + self.rng.below(8) as usize);
                if self.chance(2) {
                    let _ = one
                        .memset_2d(&guard.buffer, pitch, value, width, height)
                        .unwrap();
                    for row in 0..height {
                        guard.expect[row * pitch..][..width].fill(value);
                    }
                } else {
                    let mut host = allowed(self.world.mm.pinned::<u8>(width * height))?;
                    let _ = one
                        .copy_2d_to_host(&guard.buffer, pitch, &mut host, width, width, height)
                        .unwrap();
                    let rows = guard.expect.chunks(pitch).take(height);
                    let expect = rows.flat_map(|row| &row[..width]).copied().collect();
                    self.keep_check(Host::Guard(host), expect, "rows");
                }
            }
            2 => {
                // Both halves of one source, on two streams, and one half is written again at once.
                let (mut host, contents) = self.stamped(len)?;
                let (front, back) = (..at, at..);
                let _ = one
                    .copy_to_device(
                        &host.slice(front).unwrap(),
                        &guard.buffer.slice(front).unwrap(),
                    )
                    .unwrap();
                let _ = two
                    .copy_to_device(
                        &host.slice(back.clone()).unwrap(),
                        &guard.buffer.slice(back.clone()).unwrap(),
                    )
                    .unwrap();
                guard.expect = contents;
                let mut again = host.slice_mut(front).unwrap();
                again.as_mut_slice().unwrap().fill(1);
            }
            3 => {
                let buffer = allowed(self.world.mm.device::<u8>(len, two))?;
                let _ = one.copy_device_to_device(&guard.buffer, &buffer).unwrap();
                let expect = guard.expect.clone();
                lock(&self.world.guards).push(Guard { buffer, expect });
            }
            4 => {
                // A kernel: the manager's own operation first, so that the stream follows all that used the buffer.
                let _ = one.memset(&guard.buffer, 0).unwrap();
                // SAFETY: the buffer is alive, the use is recorded, and the stream follows the others.
                unsafe { kernel_fill(guard.buffer.as_ptr(), value, len, one) };
                self.world
                    .mm
                    .record_use(guard.buffer.as_ptr(), one)
                    .unwrap();
                guard.expect.fill(value);
            }
            5 => {
                let buffer = &mut guard.buffer;
                let (front, back) = buffer.slice_mut(..).unwrap().split_at_mut(at).unwrap();
                let _ = one.memset(&front, value).unwrap();
                let _ = two.memset(&back, !value).unwrap();
                guard.expect[..at].fill(value);
                guard.expect[at..].fill(!value);
            }
            6 => {
                let _ = one.memset(&guard.buffer, value).unwrap();
                guard.expect.fill(value);
                self.copy_out(&guard.buffer, &guard.expect)?;
            }
            _ => self.copy_out(&guard.buffer, &guard.expect)?,
        }
        Some(())
    }

    pub fn guard_drop(&mut self) -> Option<()> {
        let guard = take(&self.world.guards, &mut self.rng)?;
        self.copy_out(&guard.buffer, &guard.expect)
    }

    /// Two owners of one block; they go on alone or come together again.
    pub fn guard_split(&mut self) -> Option<()> {
        let Guard { buffer, mut expect } = take(&self.world.guards, &mut self.rng)?;
        let at = self.rng.below(expect.len() as u64 + 1) as usize;
        let (front, back) = buffer.split_at(at).unwrap();
        let (one, value) = (self.lane(), self.rng.next_u64() as u8);
        let _ = one.stream.memset(&back, value).unwrap();
        expect[at..].fill(value);
        if self.chance(2) {
            let buffer = front.join(back).unwrap();
            lock(&self.world.guards).push(Guard { buffer, expect });
            return Some(());
        }
        self.copy_out(&front, &expect[..at]);
        drop(front);
        if back.is_empty() {
            return Some(());
        }
        let expect = expect.split_off(at);
        let mut back = Guard {
            buffer: back,
            expect,
        };
        self.use_guard(&mut back);
        lock(&self.world.guards).push(back);
        Some(())
    }

    /// Plain slices, up and down.
    pub fn scope(&mut self) -> Option<()> {
        let guard = &mut take(&self.world.guards, &mut self.rng)?;
        let (up, down) = (self.lane(), self.lane());
        let len = guard.expect.len();
        let contents = self.stamp(len);
        let at = self.rng.below(len as u64 + 1) as usize;
        let mm = &self.world.mm;
        // Page-locked in the second case: what copies pageable memory to the host waits by itself.
        let mut target = vec![0; len];
        let mut pinned = allowed(mm.pinned_zeroed::<u8>(len))?;
        let below = if self.rng.below(2) == 0 {
            &mut target[..]
        } else {
            pinned.as_mut_slice().unwrap()
        };
        let (front, back) = below.split_at_mut(at);
        mm.scope(|scope| {
            scope.copy_to_device(&contents, &guard.buffer, &up.stream)?;
            scope.copy_to_host(&guard.buffer.slice(..at)?, front, &down.stream)?;
            scope.copy_to_host(&guard.buffer.slice(at..)?, back, &up.stream)
        })
        .unwrap();
        self.world.verify(below, &contents, "a scope's slice");
        pinned.as_mut_slice().unwrap().fill(0x5A);
        // What a scope that did not wait would still use.
        lock(&self.world.pageable).extend([contents.clone(), target]);
        self.copy_out(&guard.buffer, &contents)
    }

    /// Memory of other code, which frees it on a stream of its own.
    pub fn adopt_device(&mut self) -> Option<()> {
        let (theirs, on, by) = (self.lane(), self.lane(), self.lane());
        let len = self.size();
        let asynchronous = self.world.has_pools && self.chance(2);
        let mut memory = std::ptr::null_mut();
        let raw = theirs.stream.as_raw().cast();
        // SAFETY: `memory` is a place for one pointer, and the stream is alive.
        let code = unsafe {
            match asynchronous {
                true => cuda_sys::cudaMallocAsync(&mut memory, len, raw),
                false => cuda_sys::cudaMalloc(&mut memory, len),
            }
        };
        if code.0 == 2 {
            // SAFETY: the function has no preconditions.
            unsafe { cuda_sys::cudaGetLastError() };
            return None;
        }
        assert_eq!(code.0, 0, "an allocation of other code");
        on.stream.wait(&theirs.stream.record().unwrap()).unwrap();
        let address = memory.expose_provenance();
        let free = move || {
            #[cfg(feature = "sim")]
            let _called = cudart_sim::called_here();
            let memory = std::ptr::with_exposed_provenance_mut(address);
            let raw = theirs.stream.as_raw().cast();
            // SAFETY: the memory was allocated for the buffer, which is gone.
            let code = unsafe {
                match asynchronous {
                    true => cuda_sys::cudaFreeAsync(memory, raw),
                    false => cuda_sys::cudaFree(memory),
                }
            };
            assert_eq!(code.0, 0, "a free of other code");
        };
        let mm = &self.world.mm;
        // SAFETY: the memory has these bytes, the stream follows its allocation, and `free` alone frees it.
        let buffer = unsafe { mm.adopt_device::<u8>(memory, len, &on.stream, free) }.unwrap();
        let value = self.rng.next_u64() as u8;
        let _ = by.stream.memset(&buffer, value).unwrap();
        let expect = vec![value; len];
        if self.chance(2) {
            self.copy_out(&buffer, &expect);
            if self.chance(2) {
                drop(buffer);
                self.world.mm.trim().unwrap();
            }
        } else {
            lock(&self.world.guards).push(Guard { buffer, expect });
        }
        Some(())
    }
}
