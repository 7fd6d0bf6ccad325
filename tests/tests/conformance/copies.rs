//! Which copies and fills are refused.

use crate::{cuda::*, facts, is};
use std::ptr::null_mut;

fn kinds() {
    let mut pageable = [[0u8; 64]; 2];
    let [p, q] = pageable.each_mut().map(|bytes| bytes.as_mut_ptr().cast());
    let (to, from) = ([malloc(64), pinned(64), p], [malloc(64), pinned(64), q]);
    let places = ["device", "pinned", "pageable"];
    // For each kind, whether it calls the destination and the source device memory.
    let named = [
        ("host to host", (false, false)),
        ("host to device", (true, false)),
        ("device to host", (false, true)),
        ("device to device", (true, true)),
        ("default", (false, false)),
    ];
    for (kind, (name, device)) in named.into_iter().enumerate() {
        let kind = sys::cudaMemcpyKind(kind as u32);
        for (i, dst) in to.into_iter().enumerate() {
            for (j, src) in from.into_iter().enumerate() {
                let refused = (device.0 && i == 2) || (device.1 && j == 2);
                let what = format!("{name}, from {} to {}", places[j], places[i]);
                is(
                    what,
                    cuda!(cudaMemcpy(dst, src, 64, kind)),
                    u32::from(refused),
                );
            }
        }
    }
    let kind = sys::cudaMemcpyKind(7);
    is("kind 7", cuda!(cudaMemcpy(to[0], from[0], 64, kind)), 21);
    is(
        "memset of pinned memory",
        cuda!(cudaMemset(to[1], 5, 64)),
        0,
    );
    is("memset of pageable memory", cuda!(cudaMemset(p, 0, 64)), 1);
    cuda!(cudaGetLastError());
    ok!(cudaDeviceSynchronize());
    for i in [to, from] {
        ok!(cudaFree(i[0]));
        ok!(cudaFreeHost(i[1]));
    }
}

fn pitches() {
    let (d, e, s) = (malloc(4096), malloc(4096), stream());
    let copy = |pitch, height| cuda!(cudaMemcpy2DAsync(d, pitch, e, pitch, 16, height, D2D, s));
    is("width 16, pitch 8, two rows", copy(8, 2), 12);
    is("width 16, pitch 8, one row", copy(8, 1), 1);
    is("pitch 1 << 40, one row", copy(1 << 40, 1), 0);
    ok!(cudaStreamSynchronize(s));
    cuda!(cudaGetLastError());
    ok!(cudaFree(d));
    ok!(cudaFree(e));
    destroy([s]);
}

fn past_the_end() {
    let (d, h, s) = (malloc(4096), pinned(8192), stream());
    is("all of it", cuda!(cudaMemcpyAsync(d, h, 4096, H2D, s)), 0);
    is(
        "to it, a byte more",
        cuda!(cudaMemcpyAsync(d, h, 4097, H2D, s)),
        1,
    );
    is(
        "from it, a byte more",
        cuda!(cudaMemcpyAsync(h, d, 4097, D2H, s)),
        1,
    );
    is(
        "memset, a byte more",
        cuda!(cudaMemsetAsync(d, 0, 4097, s)),
        1,
    );
    cuda!(cudaGetLastError());
    ok!(cudaStreamSynchronize(s));
    ok!(cudaFree(d));
    ok!(cudaFreeHost(h));
    destroy([s]);
}

fn zero_bytes() {
    let s = stream();
    let copy = cuda!(cudaMemcpyAsync(null_mut(), null_mut(), 0, H2D, s));
    is("copy of nothing", copy, 0);
    is(
        "fill of nothing",
        cuda!(cudaMemsetAsync(null_mut(), 0, 0, s)),
        0,
    );
    destroy([s]);
}

fn rows() {
    let s = stream();
    let (width, height, pitch) = (100, 50, 256);
    let (d, h) = (malloc(pitch * height), pinned(width * height));
    fill(d, 9, pitch * height);
    let source = pattern(width * height);
    // SAFETY: the page-locked block has room for as many bytes, and no work uses it.
    unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), h.cast(), source.len()) };
    let up = cuda!(cudaMemcpy2DAsync(d, pitch, h, width, width, height, H2D, s));
    is("copy of rows", up, 0);
    ok!(cudaStreamSynchronize(s));
    let mut want = vec![9; pitch * height];
    for row in 0..height {
        want[row * pitch..][..width].copy_from_slice(&source[row * width..][..width]);
    }
    let there = Bytes(read(d, pitch * height));
    is("the rows, and what lies between", there, Bytes(want));
    // SAFETY: as above.
    unsafe { h.cast::<u8>().write_bytes(0, width * height) };
    let down = cuda!(cudaMemcpy2DAsync(h, width, d, pitch, width, height, D2H, s));
    is("copy of rows back", down, 0);
    ok!(cudaStreamSynchronize(s));
    // SAFETY: the block is alive, and the copy into it has run.
    let back = unsafe { std::slice::from_raw_parts(h.cast::<u8>(), width * height) };
    is("the rows", Bytes(back.to_vec()), Bytes(source));
    let code = cuda!(cudaMemset2DAsync(d, pitch, 4, width, height, s));
    is("fill of rows", code, 0);
    ok!(cudaStreamSynchronize(s));
    let mut want = vec![9; pitch * height];
    for row in 0..height {
        want[row * pitch..][..width].fill(4);
    }
    let there = Bytes(read(d, pitch * height));
    is("filled rows, and what lies between", there, Bytes(want));
    ok!(cudaFree(d));
    ok!(cudaFreeHost(h));
    destroy([s]);
}

fn low_byte() {
    let (s, d) = (stream(), malloc(4096));
    is(
        "cudaMemsetAsync",
        cuda!(cudaMemsetAsync(d, 0x1AB, 4096, s)),
        0,
    );
    ok!(cudaStreamSynchronize(s));
    is("its bytes", Bytes(read(d, 4096)), Bytes(vec![0xAB; 4096]));
    is(
        "cudaMemset2DAsync",
        cuda!(cudaMemset2DAsync(d, 64, -2, 64, 64, s)),
        0,
    );
    ok!(cudaStreamSynchronize(s));
    is("its bytes", Bytes(read(d, 4096)), Bytes(vec![0xFE; 4096]));
    ok!(cudaFree(d));
    destroy([s]);
}

facts! {
    kinds, Gpu: "A kind refuses pageable memory (1) where it says device, and nothing else; an unknown kind is error 21";
    pitches, Gpu: "Rows longer than their pitch are error 12, a single such row error 1; a pitch has no limit";
    past_the_end, Gpu: "One byte past the end of a block is error 1";
    zero_bytes, Documentation: "Copies and fills of nothing succeed";
    rows, Documentation: "Two-dimensional copies and fills touch their rows and nothing between them";
    low_byte, Documentation: "A fill takes the low byte of its value";
}
