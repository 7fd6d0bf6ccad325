//! Virtual memory: addresses, physical memory, and what of them can be copied and freed.

use crate::{cuda::*, facts, is};
use std::ptr::null_mut;

fn granularity() {
    for (name, option) in [("minimum", 0), ("recommended", 1)] {
        let mut bytes = 0;
        let option = sys::CUmemAllocationGranularity_flags(option);
        let code = driver!(
            c"cuMemGetAllocationGranularity",
            PFN_cuMemGetAllocationGranularity_v10020(&mut bytes, &on_device_0(), option)
        );
        is(name, (code, bytes), (0, CHUNK));
    }
}

fn reservations() {
    for len in [256 * GIB, 64 << 40] {
        let (code, at) = reserve(len);
        is(format!("{len} bytes"), (code, at % CHUNK as u64), (0, 0));
        if code == 0 {
            is("giving them back", give_back(at, len), 0);
        }
    }
}

fn sizes() {
    for size in [2 * MIB, 32 * MIB, 256 * MIB, GIB] {
        let v = Mapped::new(size, 1);
        ok!(cudaMemset(v.pointer(size - 4096), 3, 4096));
        let end = read(v.pointer(size - 4096), 4096);
        is(
            format!("the end of {size} bytes"),
            Bytes(end),
            Bytes(vec![3; 4096]),
        );
        v.end();
    }
}

fn whole_or_not_at_all() {
    let (code, at) = reserve(2 * CHUNK);
    assert_eq!(code, 0);
    let (code, handle) = create(2 * CHUNK);
    assert_eq!(code, 0);
    is("map a part of a handle", map(at, CHUNK, handle), 801);
    is("map all of it", map(at, 2 * CHUNK, handle), 0);
    is("unmap the first half", unmap(at, CHUNK), 1);
    is("unmap the second half", unmap(at + CHUNK as u64, CHUNK), 1);
    is("unmap all of it", unmap(at, 2 * CHUNK), 0);
    is("release", release(handle), 0);
    is("give the addresses back", give_back(at, 2 * CHUNK), 0);
}

fn across_borders() {
    let v = Mapped::new(CHUNK, 8);
    let (s, n) = (stream(), v.len());
    let (plain, h, g) = (malloc(n), pinned(n), pinned(n));
    let d = v.pointer(0);
    let bytes = pattern(n);
    // SAFETY: both blocks have as many bytes, and no work uses them.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), h.cast(), n);
        g.cast::<u8>().write_bytes(0, n);
    }
    fill(d, 0, n);
    let (inner, from, to) = (
        v.pointer(100),
        h.wrapping_byte_add(100),
        g.wrapping_byte_add(100),
    );
    is(
        "H2D",
        cuda!(cudaMemcpyAsync(inner, from, n - 200, H2D, s)),
        0,
    );
    is("D2H", cuda!(cudaMemcpyAsync(to, inner, n - 200, D2H, s)), 0);
    ok!(cudaStreamSynchronize(s));
    // SAFETY: the block is alive, and the copy into it has run.
    let back = unsafe { std::slice::from_raw_parts(g.cast::<u8>(), n) };
    let mut want = vec![0; n];
    want[100..n - 100].copy_from_slice(&bytes[100..n - 100]);
    is("there and back", back == want, true);

    is("D2D", cuda!(cudaMemcpyAsync(plain, d, n, D2D, s)), 0);
    ok!(cudaStreamSynchronize(s));
    is("its bytes", read(plain, n) == want, true);
    let code = cuda!(cudaMemcpy2DAsync(plain, 5000, d, 6000, 4000, 2000, D2D, s));
    is("2-D", code, 0);
    ok!(cudaStreamSynchronize(s));
    let rows = read(plain, 5000 * 2000);
    let same = |row: usize| rows[row * 5000..][..4000] == want[row * 6000..][..4000];
    is("its rows", (0..2000).all(same), true);

    is(
        "memset",
        cuda!(cudaMemsetAsync(v.pointer(MIB), 3, 4 * MIB, s)),
        0,
    );
    is(
        "2-D memset",
        cuda!(cudaMemset2DAsync(d, 6000, 4, 4000, 2000, s)),
        0,
    );
    ok!(cudaStreamSynchronize(s));
    want[MIB..5 * MIB].fill(3);
    for row in 0..2000 {
        want[row * 6000..][..4000].fill(4);
    }
    is("what they left", read(d, n) == want, true);
    ok!(cudaFree(plain));
    ok!(cudaFreeHost(h));
    ok!(cudaFreeHost(g));
    v.end();
    destroy([s]);
}

/// Captures what `work` submits to a stream, and runs it.
fn captured(what: &str, s: Stream, work: impl FnOnce() -> u32) {
    let mode = sys::cudaStreamCaptureMode::cudaStreamCaptureModeThreadLocal;
    ok!(cudaStreamBeginCapture(s, mode));
    let code = work();
    let (mut graph, mut exec) = (null_mut(), null_mut());
    let end = cuda!(cudaStreamEndCapture(s, &mut graph));
    is(format!("{what}: call, end"), (code, end), (0, 0));
    is(what, cuda!(cudaGraphInstantiate(&mut exec, graph, 0)), 0);
    is(what, cuda!(cudaGraphLaunch(exec, s)), 0);
    is(what, cuda!(cudaStreamSynchronize(s)), 0);
    ok!(cudaGraphExecDestroy(exec));
    ok!(cudaGraphDestroy(graph));
}

fn captured_across_borders() {
    let v = Mapped::new(CHUNK, 8);
    let (s, n, d) = (stream(), v.len(), v.pointer(0));
    let (plain, h) = (malloc(n), pinned(n));
    let bytes = pattern(n);
    // SAFETY: the block has as many bytes, and no work uses it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), h.cast(), n) };
    fill(d, 0, n);
    let inner = v.pointer(100);
    captured("H2D", s, || {
        cuda!(cudaMemcpyAsync(inner, h, n - 200, H2D, s))
    });
    captured("memset", s, || {
        cuda!(cudaMemsetAsync(v.pointer(MIB), 9, 4 * MIB, s))
    });
    captured("2-D memset", s, || {
        cuda!(cudaMemset2DAsync(d, 6000, 4, 4000, 2000, s))
    });
    captured("D2D", s, || cuda!(cudaMemcpyAsync(plain, d, n, D2D, s)));
    let mut want = vec![0; n];
    want[100..n - 100].copy_from_slice(&bytes[..n - 200]);
    want[MIB..5 * MIB].fill(9);
    for row in 0..2000 {
        want[row * 6000..][..4000].fill(4);
    }
    is("what they left", read(plain, n) == want, true);
    ok!(cudaFree(plain));
    ok!(cudaFreeHost(h));
    v.end();
    destroy([s]);
}

fn moves() {
    let bytes = pattern(CHUNK);
    let ((one, at), (two, elsewhere)) = (reserve(CHUNK), reserve(4 * CHUNK));
    let (three, handle) = create(CHUNK);
    assert_eq!((one, two, three), (0, 0, 0));
    is("map", (map(at, CHUNK, handle), allow(at, CHUNK)), (0, 0));
    ok!(cudaMemcpy(at as Pointer, bytes.as_ptr().cast(), CHUNK, H2D));
    ok!(cudaStreamSynchronize(null_mut()));
    is("unmap", unmap(at, CHUNK), 0);
    let to = elsewhere + 2 * CHUNK as u64;
    is(
        "map elsewhere",
        (map(to, CHUNK, handle), allow(to, CHUNK)),
        (0, 0),
    );
    is(
        "its contents",
        Bytes(read(to as Pointer, CHUNK)),
        Bytes(bytes),
    );
    is("unmap", unmap(to, CHUNK), 0);
    is("release", release(handle), 0);
    is("give back", give_back(at, CHUNK), 0);
    is("give back", give_back(elsewhere, 4 * CHUNK), 0);
}

/// A chunk at two addresses of one reservation, and its handle.
fn mapped_twice() -> (u64, u64, u64) {
    let (one, at) = reserve(3 * CHUNK);
    let (two, handle) = create(CHUNK);
    assert_eq!((one, two), (0, 0));
    let also = at + 2 * CHUNK as u64;
    is("map", (map(at, CHUNK, handle), allow(at, CHUNK)), (0, 0));
    let mapped = (map(also, CHUNK, handle), allow(also, CHUNK));
    is("map it a second time", mapped, (0, 0));
    (at, also, handle)
}

fn aliases() {
    let bytes = pattern(CHUNK);
    let other: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    let (at, also, handle) = mapped_twice();
    let s = stream();
    for (name, to, from, bytes) in [
        ("what one shows of the other", at, also, &bytes),
        ("and the other of the one", also, at, &other),
    ] {
        let source = bytes.as_ptr().cast();
        ok!(cudaMemcpyAsync(to as Pointer, source, CHUNK, H2D, s));
        ok!(cudaStreamSynchronize(s));
        is(name, read(from as Pointer, CHUNK) == *bytes, true);
    }
    is("unmap one", unmap(at, CHUNK), 0);
    let left = read(also as Pointer, CHUNK) == other;
    is("the other stays", left, true);
    is("release", release(handle), 0);
    let left = read(also as Pointer, CHUNK) == other;
    is("without its handle too", left, true);
    is("unmap", unmap(also, CHUNK), 0);
    is("give back", give_back(at, 3 * CHUNK), 0);
    destroy([s]);
}

fn one_of_two_goes() {
    let (at, also, handle) = mapped_twice();
    let s = stream();
    timed(
        "unmapping one while the other is filled",
        s,
        Returns,
        || {
            for _ in 0..100 {
                ok!(cudaMemsetAsync(at as Pointer, 7, CHUNK, s));
            }
            unmap(also, CHUNK)
        },
    );
    ok!(cudaStreamSynchronize(s));
    let filled = read(at as Pointer, CHUNK) == vec![7; CHUNK];
    is("the fills", filled, true);
    is("unmap", unmap(at, CHUNK), 0);
    is("release", release(handle), 0);
    is("give back", give_back(at, 3 * CHUNK), 0);
    destroy([s]);
}

fn refused() {
    let (v, s) = (Mapped::new(CHUNK, 1), stream());
    is("cudaFree", cuda!(cudaFree(v.pointer(0))), 1);
    is("cudaFreeAsync", cuda!(cudaFreeAsync(v.pointer(0), s)), 1);
    is("last error", cuda!(cudaGetLastError()), 1);
    v.end();
    destroy([s]);
}

fn ranges() {
    let v = Mapped::new(CHUNK, 4);
    let inside = v.pointer(3 * MIB);
    let mut found = sys::cudaPointerAttributes::default();
    let code = cuda!(cudaPointerGetAttributes(&mut found, inside));
    // A GPU gives no device pointer where access was given to several chunks at once.
    let got = (code, found.type_.0, found.device);
    is("attributes of an interior pointer", got, (0, 2, 0));
    let (mut base, mut size) = (0, 0);
    let code = driver!(
        c"cuMemGetAddressRange",
        PFN_cuMemGetAddressRange_v3020(&mut base, &mut size, inside as u64)
    );
    let chunk = v.at + CHUNK as u64;
    is(
        "cuMemGetAddressRange",
        (code, base, size),
        (0, chunk, CHUNK),
    );
    v.end();
}

fn counted() {
    const SIZE: usize = 256 * MIB;
    let before = memory().0;
    let less = || before as i64 - memory().0 as i64;
    let all = |bytes: i64| (SIZE as i64..SIZE as i64 + (32 << 20)).contains(&bytes);
    let ((one, at), (two, handle)) = (reserve(SIZE), create(SIZE));
    assert_eq!((one, two), (0, 0));
    let check = |what: &str, taken: bool| {
        let less = less();
        is(format!("{what}: {less} less"), all(less), taken);
    };
    check("created", true);
    is("map", map(at, SIZE, handle), 0);
    is("release", release(handle), 0);
    check("released while mapped", true);
    is("unmap", unmap(at, SIZE), 0);
    check("unmapped", false);
    is("give back", give_back(at, SIZE), 0);
}

/// Code, type, device, device pointer, host pointer.
fn attributes(at: u64) -> (u32, u32, i32, Pointer, Pointer) {
    let mut f = sys::cudaPointerAttributes::default();
    let code = cuda!(cudaPointerGetAttributes(&mut f, at as Pointer));
    (code, f.type_.0, f.device, f.devicePointer, f.hostPointer)
}

fn address_range(at: u64) -> u32 {
    driver!(
        c"cuMemGetAddressRange",
        PFN_cuMemGetAddressRange_v3020(&mut 0, &mut 0, at)
    )
}

fn holes() {
    let (code, at) = reserve(2 * CHUNK);
    assert_eq!(code, 0);
    let ((one, first), (two, second)) = (create(CHUNK), create(CHUNK));
    assert_eq!((one, two), (0, 0));
    is("range of an unknown address", address_range(64), 500);
    is("range of a hole", address_range(at), 500);
    let found = attributes(at);
    is("attributes of a hole", (found.0, found.1), (0, 0));
    is("unmapping a hole", unmap(at, CHUNK), 0);
    is("map", map(at, CHUNK, first), 0);
    is("range without access", address_range(at), 500);
    let none = (0, 2, 0, null_mut(), null_mut());
    is("attributes without access", attributes(at), none);
    is("access to a chunk and a hole", allow(at, 2 * CHUNK), 1);
    is("access to a hole", allow(at + CHUNK as u64, CHUNK), 1);
    is("access", allow(at, CHUNK), 0);
    is("range with access", address_range(at), 0);
    let all = (0, 2, 0, at as Pointer, null_mut());
    is("attributes with access", attributes(at), all);
    is("map where something is", map(at, CHUNK, second), 1);
    is("unmap", unmap(at, CHUNK), 0);
    is("unmap again", unmap(at, CHUNK), 0);
    is("release", (release(first), release(second)), (0, 0));
    is("release again", release(first), 1);
    is("give back", give_back(at, 2 * CHUNK), 0);
}

fn work_in_a_hole() {
    let ((code, at), s) = (reserve(CHUNK), stream());
    assert_eq!(code, 0);
    let fill = cuda!(cudaMemsetAsync(at as Pointer, 1, 4096, s));
    is("a fill", fill, 1);
    cuda!(cudaGetLastError());
    is("the stream", cuda!(cudaStreamSynchronize(s)), 0);
    ok!(cudaFree(malloc(MIB)));
    is("give back", give_back(at, CHUNK), 0);
    destroy([s]);
}

fn does_not_wait() {
    let s = stream();
    let idle = Mapped::new(CHUNK, 1);
    timed("beside a stalled stream", s, Returns, || {
        let code = unmap(idle.at, CHUNK);
        code + release(idle.handles[0])
    });
    is("give back", give_back(idle.at, CHUNK), 0);

    let v = Mapped::new(CHUNK, 3);
    let middle = v.at + CHUNK as u64;
    timed("beside fills of its neighbours", s, Returns, || {
        for _ in 0..100 {
            ok!(cudaMemsetAsync(v.pointer(0), 1, CHUNK, s));
            ok!(cudaMemsetAsync(v.pointer(2 * CHUNK), 1, CHUNK, s));
        }
        unmap(middle, CHUNK)
    });
    is("unmap the first", unmap(v.at, CHUNK), 0);
    is("unmap the last", unmap(middle + CHUNK as u64, CHUNK), 0);
    for handle in &v.handles {
        is("release", release(*handle), 0);
    }
    is("give back", give_back(v.at, v.len()), 0);

    let mut made = None;
    timed("creating and mapping", s, Returns, || {
        made = Some(Mapped::new(CHUNK, 2));
        0
    });
    made.expect("it was made").end();
    destroy([s]);
}

facts! {
    granularity, Gpu: "Physical memory comes in multiples of 2 MiB";
    reservations, Gpu: "256 GiB and 64 TiB of addresses can be reserved";
    sizes, Gpu: "Chunks of 2 MiB to 1 GiB can be created, mapped, used, unmapped and released";
    whole_or_not_at_all, Gpu: "A handle maps whole (801 otherwise), and a mapping is unmapped whole (1 otherwise)";
    across_borders, Gpu: "Copies and fills, two-dimensional ones too, cross the borders of chunks";
    captured_across_borders, Gpu: "So do captured ones";
    counted, Documentation: "Physical memory is taken when it is created, and comes back when it is both released and unmapped";
    moves, Gpu: "A chunk keeps its contents when it is mapped elsewhere";
    aliases, Gpu: "A chunk can be mapped at two addresses, shows at each what was written at the other, and stays at one when the other is unmapped";
    one_of_two_goes, Documentation: "Of two addresses of a chunk one can be unmapped while work runs through the other";
    refused, Gpu: "`cudaFree` and `cudaFreeAsync` refuse mapped memory (1)";
    ranges, Gpu: "The range of an interior pointer to mapped memory is its chunk";
    holes, Gpu: "A taken place is not mapped over (1), a hole gets no access (1) and has no range (500), but is unmapped with 0; no access, no device pointer";
    work_in_a_hole, Gpu: "A fill of what is not mapped is refused when it is submitted (1), and the context stays whole";
    does_not_wait, Gpu: "Mapping, and unmapping idle chunks, do not wait for running work";
}
