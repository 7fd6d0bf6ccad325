//! Copies and fills: bytes arrive where they should, wrong ranges and kinds are refused, huge fills cost nothing.

mod common;
use common::*;
use cudart_sim::sys;
use std::ffi::c_void;
use std::ptr::null_mut;

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("RssShmem"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

#[test]
fn bytes_go_to_the_device_through_it_and_back() {
    under_every_schedule(|| {
        let s = stream();
        let n = 3 << 20;
        let (a, b, h) = (malloc(n), malloc(n), pinned(n));
        let source: Vec<u8> = (0..n).map(|i| (i * 7 + i / 255) as u8).collect();
        cuda!(cudaMemcpy(a, source.as_ptr().cast(), n, H2D));
        // A copy of pageable memory may return before its last bytes are on the device.
        cuda!(cudaDeviceSynchronize());
        cuda!(cudaMemcpyAsync(b, a, n, D2D, s));
        cuda!(cudaMemcpyAsync(h, b, n, D2H, s));
        cuda!(cudaStreamSynchronize(s));
        let mut back = vec![0u8; n];
        assert_eq!(cuda!(cudaMemcpy(back.as_mut_ptr().cast(), h, n, H2H)), 0);
        assert!(back == source);
        back.fill(0);
        assert_eq!(cuda!(cudaMemcpy(back.as_mut_ptr().cast(), b, n, ANY)), 0);
        assert!(back == source);
    });
}

#[test]
fn two_dimensional_copies_touch_their_rows_only() {
    under_every_schedule(|| {
        let s = stream();
        let (width, height, pitch) = (100usize, 50usize, 256usize);
        let d = malloc(pitch * height);
        cuda!(cudaMemset(d, 9, pitch * height));
        cuda!(cudaDeviceSynchronize());
        let rows: Vec<u8> = (0..width * height).map(|i| i as u8).collect();
        let code = cuda!(cudaMemcpy2DAsync(
            d,
            pitch,
            rows.as_ptr().cast(),
            width,
            width,
            height,
            H2D,
            s
        ));
        assert_eq!(code, 0);
        let mut back = vec![0u8; width * height];
        let at = back.as_mut_ptr().cast();
        assert_eq!(
            cuda!(cudaMemcpy2DAsync(
                at, width, d, pitch, width, height, D2H, s
            )),
            0
        );
        assert!(back == rows);
        assert_eq!(cuda!(cudaMemset2DAsync(d, pitch, 4, width, height, s)), 0);
        cuda!(cudaStreamSynchronize(s));
        for row in cudart_sim::read_device(d, pitch * height).chunks(pitch) {
            assert!(row[..width].iter().all(|b| *b == 4));
            assert!(row[width..].iter().all(|b| *b == 9));
        }
        let short = cuda!(cudaMemcpy2DAsync(
            d,
            width - 1,
            rows.as_ptr().cast(),
            width,
            width,
            height,
            H2D,
            s
        ));
        assert_eq!(short, 12, "a pitch below the width");
        cuda!(cudaGetLastError());
    });
}

#[test]
fn a_range_past_the_end_of_an_allocation_is_refused() {
    under_every_schedule(|| {
        let s = stream();
        let d = malloc(1000);
        let h = pinned(8192);
        let end = d.wrapping_byte_add(900);
        assert_eq!(cuda!(cudaMemcpyAsync(end, h, 100, H2D, s)), 0);
        assert_eq!(cuda!(cudaMemcpyAsync(end, h, 101, H2D, s)), 1);
        assert_eq!(cuda!(cudaMemcpyAsync(h, end, 101, D2H, s)), 1);
        assert_eq!(cuda!(cudaMemsetAsync(end, 0, 101, s)), 1);
        assert_eq!(cuda!(cudaMemsetAsync(end, 0, usize::MAX, s)), 1);
        assert_eq!(cuda!(cudaMemset2DAsync(d, 1 << 62, 0, 10, 1 << 62, s)), 1);
        assert_eq!(cuda!(cudaMemset2DAsync(d, 500, 0, 500, 3, s)), 1);
        cuda!(cudaFree(d));
        assert_eq!(cuda!(cudaMemcpyAsync(d, h, 1, H2D, s)), 1, "freed");
        cuda!(cudaGetLastError());
    });
}

/// The table was measured on an H200: a kind excludes pageable memory where it says device, and nothing else.
#[test]
fn a_kind_excludes_pageable_memory_where_it_says_device() {
    let _turn = machine();
    let mut pageable = [[0u8; 64]; 2];
    let [p, q] = pageable.each_mut().map(|bytes| bytes.as_mut_ptr().cast());
    let (to, from) = ([malloc(64), pinned(64), p], [malloc(64), pinned(64), q]);
    for (kind, wants) in [
        (H2H, (false, false)),
        (H2D, (true, false)),
        (D2H, (false, true)),
        (D2D, (true, true)),
        (sys::cudaMemcpyKind::cudaMemcpyDefault, (false, false)),
    ] {
        for (i, dst) in to.into_iter().enumerate() {
            for (j, src) in from.into_iter().enumerate() {
                let refused = (wants.0 && i == 2) || (wants.1 && j == 2);
                assert_eq!(
                    cuda!(cudaMemcpy(dst, src, 64, kind)),
                    u32::from(refused),
                    "{kind:?} from {j} to {i}"
                );
            }
        }
    }
    let odd = sys::cudaMemcpyKind(77);
    assert_eq!(cuda!(cudaMemcpy(to[0], from[0], 64, odd)), 21);
    assert_eq!(cuda!(cudaMemset(p, 0, 64)), 1);
    assert_eq!(cuda!(cudaMemset(to[1], 5, 64)), 0);
    cuda!(cudaGetLastError());
}

/// Measured on an H200.
#[test]
fn rows_longer_than_their_pitch_are_refused_and_a_pitch_has_no_limit() {
    let _turn = machine();
    let (d, e, s) = (malloc(4096), malloc(4096), std::ptr::null_mut());
    let copy = |pitch, height| cuda!(cudaMemcpy2DAsync(d, pitch, e, pitch, 16, height, D2D, s));
    assert_eq!((copy(8, 2), copy(8, 1)), (12, 1));
    assert_eq!(copy(1 << 40, 1), 0);
    assert_eq!(cuda!(cudaMemset2DAsync(d, 1 << 40, 1, 16, 1, s)), 0);
    // A fill is not a copy: another code for several rows, and a single one is filled whatever its pitch.
    assert_eq!(cuda!(cudaMemset2DAsync(d, 8, 2, 16, 2, s)), 1);
    assert_eq!(cuda!(cudaMemset2DAsync(d, 8, 3, 16, 1, s)), 0);
    assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
    assert_eq!(cudart_sim::read_device(d, 16), [3; 16]);
    cuda!(cudaGetLastError());
}

#[test]
fn filling_the_largest_device_commits_nothing() {
    let _turn = machine().devices(1, 141 << 30);
    let d = malloc(140 << 30);
    let before = resident();
    for value in [7, 0, 255] {
        assert_eq!(cuda!(cudaMemset(d, value, 140 << 30)), 0);
        cuda!(cudaDeviceSynchronize());
        let far = d.wrapping_byte_add((139 << 30) + 12345);
        assert_eq!(cudart_sim::read_device(far, 3), [value as u8; 3]);
    }
    assert!(resident() < before + (16 << 10), "less than 16 MiB more");
    assert_eq!(cuda!(cudaFree(d)), 0);
}

#[test]
fn freed_memory_goes_back_to_the_machine() {
    let _turn = machine();
    let before = resident();
    let d = malloc(64 << 20);
    let page = vec![1u8; 64 << 20];
    cuda!(cudaMemcpy(d, page.as_ptr().cast(), 64 << 20, H2D));
    assert!(resident() >= before + (60 << 10));
    cuda!(cudaFree(d));
    assert!(resident() < before + (8 << 10));
}

#[test]
fn fresh_memory_holds_the_byte_that_was_asked_for() {
    let _turn = machine().with(|c| c.fresh = Some(0xA5));
    let holds = |p, size| cudart_sim::read_device(p, size).iter().all(|b| *b == 0xA5);
    for size in [100, 3 << 20] {
        for _ in 0..2 {
            let p = malloc(size);
            assert!(holds(p, size));
            cuda!(cudaMemset(p, 0, size));
            cuda!(cudaFree(p));
        }
    }
    assert!(holds(malloc_async(1 << 20, stream()), 1 << 20));
}

#[test]
fn the_host_cannot_read_device_memory() {
    let _turn = machine();
    let d = malloc(4096);
    let mut ends = [0; 2];
    // SAFETY: a pipe of our own; the system is asked to read a device address on purpose, and refuses.
    let (read, error) = unsafe {
        libc::pipe(ends.as_mut_ptr());
        (libc::write(ends[1], d, 16), *libc::__errno_location())
    };
    assert_eq!((read, error), (-1, libc::EFAULT));
}

#[test]
fn pointers_tell_what_they_are_interior_ones_too() {
    let _turn = machine();
    let s = stream();
    let describe = |p: *mut c_void| {
        let mut a = sys::cudaPointerAttributes::default();
        assert_eq!(cuda!(cudaPointerGetAttributes(&mut a, p)), 0);
        (a.type_.0, a.device, a.devicePointer, a.hostPointer)
    };
    let (d, h, q) = (malloc(1000), pinned(1000), malloc_async(1000, s));
    let mut local = 0u8;
    for p in [d.wrapping_byte_add(77), q.wrapping_byte_add(999)] {
        assert_eq!(describe(p), (2, 0, p, null_mut()));
    }
    let inside = h.wrapping_byte_add(77);
    assert_eq!(describe(inside), (1, 0, inside, inside));
    assert_eq!(describe((&raw mut local).cast()).0, 0);
    assert_eq!(describe(0x64 as *mut c_void).0, 0);
    assert_eq!(describe(d.wrapping_byte_add(1000)).0, 0);
    cuda!(cudaFree(d));
    assert_eq!(describe(d).0, 0);
}

#[test]
fn page_locked_memory_knows_its_flags_and_its_limits() {
    let _turn = machine();
    let h = pinned(1 << 20);
    let mut flags = 0;
    assert_eq!((cuda!(cudaHostGetFlags(&mut flags, h)), flags), (0, 2));
    let (mut portable, asked) = (null_mut(), sys::cudaHostAllocPortable);
    assert_eq!(cuda!(cudaHostAlloc(&mut portable, 16, asked)), 0);
    assert_eq!(
        (cuda!(cudaHostGetFlags(&mut flags, portable)), flags),
        (0, 3)
    );
    // Page-locked memory of either kind is not registered once more.
    for start in [h.wrapping_byte_add(512), h.wrapping_byte_sub(16)] {
        assert_eq!(cuda!(cudaHostRegister(start, 4096, 0)), 1);
    }
    assert_eq!(cuda!(cudaHostUnregister(h)), 1);
    let mut mine = vec![0u8; 1 << 20];
    let at: *mut c_void = mine.as_mut_ptr().cast();
    assert_eq!(cuda!(cudaHostGetFlags(&mut flags, at)), 1);
    assert_eq!(cuda!(cudaHostRegister(at, 1 << 20, 1)), 0);
    assert_eq!(
        cuda!(cudaHostRegister(at.wrapping_byte_add(4096), 16, 0)),
        712
    );
    assert_eq!((cuda!(cudaHostGetFlags(&mut flags, at)), flags), (0, 3));
    let mut there = null_mut();
    assert_eq!(
        (cuda!(cudaHostGetDevicePointer(&mut there, at, 0)), there),
        (0, at)
    );
    assert_eq!(cuda!(cudaFreeHost(at)), 1);
    assert_eq!(cuda!(cudaHostUnregister(at)), 0);
    assert_eq!(cuda!(cudaHostUnregister(at)), 713);
    assert_eq!(cuda!(cudaHostRegister(at, 0, 0)), 1);
    assert_eq!(cuda!(cudaHostRegister(at, usize::MAX, 0)), 1);
    assert_eq!(cuda!(cudaHostAlloc(&mut there, 16, 0x80)), 1);
}

#[test]
fn what_is_free_follows_what_is_allocated() {
    let _turn = machine().devices(1, 64 << 20);
    let info = || {
        let (mut free, mut total) = (0, 0);
        assert_eq!(cuda!(cudaMemGetInfo(&mut free, &mut total)), 0);
        (free, total)
    };
    assert_eq!(info(), (64 << 20, 64 << 20));
    let a = malloc(40 << 20);
    let small: Vec<_> = (0..100).map(|_| malloc(100)).collect();
    assert_eq!(info().0, 22 << 20);
    let mut p = null_mut();
    assert_eq!(cuda!(cudaMalloc(&mut p, 23 << 20)), 2);
    assert_eq!(cuda!(cudaMalloc(&mut p, 22 << 20)), 0);
    for q in small.into_iter().chain([a, p]) {
        assert_eq!(cuda!(cudaFree(q)), 0);
    }
    assert_eq!(info().0, 64 << 20);
}

/// Two devices: no GPU has confirmed this yet.
#[test]
fn devices_have_memory_of_their_own_and_copies_go_between_them() {
    let _turn = machine().devices(2, 1 << 30);
    let mut count = 0;
    assert_eq!((cuda!(cudaGetDeviceCount(&mut count)), count), (0, 2));
    let a = malloc(1 << 20);
    cuda!(cudaMemset(a, 5, 1 << 20));
    cuda!(cudaDeviceSynchronize());
    assert_eq!(cuda!(cudaSetDevice(1)), 0);
    let b = malloc(1 << 20);
    let mut attributes = sys::cudaPointerAttributes::default();
    cuda!(cudaPointerGetAttributes(&mut attributes, b));
    assert_eq!(attributes.device, 1);
    let s = stream();
    assert_eq!(cuda!(cudaMemcpyPeerAsync(b, 1, a, 0, 1 << 20, s)), 0);
    cuda!(cudaStreamSynchronize(s));
    assert_eq!(cudart_sim::read_device(b, 4), [5; 4]);
    // A wrong device does no harm: the address tells.
    cuda!(cudaMemset(b, 6, 1 << 20));
    assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
    assert_eq!(cuda!(cudaMemcpyPeerAsync(b, 0, a, 1, 1 << 20, s)), 0);
    cuda!(cudaStreamSynchronize(s));
    assert_eq!(cudart_sim::read_device(b, 4), [5; 4]);
    let e = event();
    cuda!(cudaSetDevice(0));
    assert_eq!(
        cuda!(cudaEventRecord(e, null_mut())),
        400,
        "another device's event"
    );
    let mut can = 9;
    assert_eq!(
        (cuda!(cudaDeviceCanAccessPeer(&mut can, 0, 1)), can),
        (0, 1)
    );
    assert_eq!(cuda!(cudaDeviceEnablePeerAccess(1, 0)), 0);
    assert_eq!(cuda!(cudaDeviceEnablePeerAccess(1, 0)), 704);
    assert_eq!(cuda!(cudaDeviceDisablePeerAccess(1)), 0);
    assert_eq!(cuda!(cudaDeviceDisablePeerAccess(1)), 705);
    let mut device = 9;
    std::thread::spawn(move || assert_eq!((cuda!(cudaGetDevice(&mut device)), device), (0, 0)))
        .join()
        .unwrap();
}

#[test]
fn a_device_tells_that_it_is_simulated() {
    let _turn = machine();
    let mut p = sys::cudaDeviceProp::default();
    assert_eq!(cuda!(cudaGetDeviceProperties(&mut p, 0)), 0);
    let name: Vec<u8> = p
        .name
        .iter()
        .map(|c| *c as u8)
        .take_while(|c| *c != 0)
        .collect();
    assert_eq!(name, b"Simulated CUDA device");
    assert_eq!((p.totalGlobalMem, p.major), (24 << 30, 9));
    let ask = |attribute| {
        let mut n = -1;
        (cuda!(cudaDeviceGetAttribute(&mut n, attribute, 0)), n)
    };
    assert_eq!(
        ask(sys::cudaDeviceAttr::cudaDevAttrMemoryPoolsSupported),
        (0, 1)
    );
    assert_eq!(
        ask(sys::cudaDeviceAttr::cudaDevAttrUnifiedAddressing),
        (0, 1)
    );
    assert_eq!(ask(sys::cudaDeviceAttr(102)), (0, 1), "virtual memory");
    assert_eq!(ask(sys::cudaDeviceAttr(9999)).0, 1);
    let mut n = 0;
    assert_eq!((cuda!(cudaRuntimeGetVersion(&mut n)), n), (0, 13000));
    assert!(cudart_sim::VERSION_NOTE.contains("cudart-sim"));
}
