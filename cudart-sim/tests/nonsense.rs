//! Whatever the arguments, a call answers: it does not panic (which would answer 999), abort or hang.
//! Only host addresses that the caller must vouch for are real ones.

mod common;
use common::*;
use cudart_sim::sys;
use std::ffi::c_void;
use std::ptr::null_mut;

const SIZES: &[usize] = &[
    0,
    1,
    255,
    256,
    511,
    512,
    4096,
    65_537,
    (1 << 20) + 1,
    (2 << 20) - 1,
    1 << 31,
    1 << 40,
    1 << 62,
    1 << 63,
    usize::MAX - 4095,
    usize::MAX - 511,
    usize::MAX,
];

#[test]
fn every_call_answers_whatever_its_arguments() {
    under_every_schedule(|| {
        unordered();
        let mut r = Random(0x1234_5678_9ABC_DEF1);
        let (s, b) = (stream(), blocking_stream());
        let dead = stream();
        cuda!(cudaStreamDestroy(dead));
        let e = event();
        let (d, h) = (malloc(1 << 20), pinned(1 << 20));
        let q = malloc_async(1 << 20, s);
        let mut pool = null_mut();
        cuda!(cudaDeviceGetDefaultMemPool(&mut pool, 0));
        let streams = [
            null_mut(),
            LEGACY,
            PER_THREAD,
            s,
            b,
            dead,
            0x77 as sys::cudaStream_t,
            usize::MAX as sys::cudaStream_t,
        ];
        let events = [
            null_mut(),
            e,
            0x99 as sys::cudaEvent_t,
            s.cast(),
            usize::MAX as sys::cudaEvent_t,
        ];
        let pools = [null_mut(), pool, s.cast(), usize::MAX as sys::cudaMemPool_t];
        // None of these is pageable host memory, which a copy would really touch.
        let pointers: Vec<*mut c_void> = [d, h, q]
            .into_iter()
            .flat_map(|p| {
                [
                    p,
                    p.wrapping_byte_add(1),
                    p.wrapping_byte_add((1 << 20) - 1),
                ]
            })
            .chain([null_mut(), d.wrapping_byte_add(5 << 20)])
            .collect();
        let kinds: Vec<_> = [1, 2, 3, 4, 5, u32::MAX].map(sys::cudaMemcpyKind).to_vec();
        let devices = [0, 1, -1, i32::MAX, i32::MIN];
        for _ in 0..4_000 {
            let (x, y) = (r.of(&pointers), r.of(&pointers));
            let (n, m, k, l) = (r.of(SIZES), r.of(SIZES), r.of(SIZES), r.of(SIZES));
            let (s, e, p, kind) = (r.of(&streams), r.of(&events), r.of(&pools), r.of(&kinds));
            let dev = r.of(&devices);
            let flags = r.next() as u32;
            let small = r.next() as i32;
            let mut out = null_mut();
            let mut word = 0u64;
            let at: *mut c_void = (&raw mut word).cast();
            // The source or target may be the page-locked block: a range that leaves it is pageable, which no test
            // may let the device touch.
            let inside = |p: *mut c_void, len: usize| {
                let (start, end) = (h as usize, h as usize + (1 << 20));
                let p = p as usize;
                !(start..end).contains(&p) || p.checked_add(len).is_some_and(|e| e <= end)
            };
            let extent = |pitch: usize| {
                pitch
                    .checked_mul(l.saturating_sub(1))
                    .and_then(|x| x.checked_add(k))
            };
            let rows_inside = |p, pitch| extent(pitch).is_none_or(|len| inside(p, len));
            let code = match r.next() % 30 {
                0 => cuda!(cudaMalloc(&mut out, n)),
                1 => cuda!(cudaMallocAsync(&mut out, n, s)),
                2 => cuda!(cudaMallocFromPoolAsync(&mut out, n, p, s)),
                3 => cuda!(cudaFree(x.wrapping_byte_add(1))),
                4 => cuda!(cudaFreeAsync(x.wrapping_byte_add(1), s)),
                5 => cuda!(cudaFreeHost(x.wrapping_byte_add(1))),
                6 if inside(x, n) && inside(y, n) => cuda!(cudaMemcpyAsync(x, y, n, kind, s)),
                7 if inside(x, n) && inside(y, n) => cuda!(cudaMemcpy(x, y, n, kind)),
                8 if rows_inside(x, n) && rows_inside(y, m) => {
                    cuda!(cudaMemcpy2DAsync(x, n, y, m, k, l, kind, s))
                }
                9 if rows_inside(x, n) => cuda!(cudaMemset2DAsync(x, n, small, k, l, s)),
                10 if inside(x, n) => cuda!(cudaMemsetAsync(x, small, n, s)),
                11 if inside(x, n) => cuda!(cudaMemset(x, small, n)),
                12 if inside(x, n) && inside(y, n) => {
                    cuda!(cudaMemcpyPeerAsync(x, dev, y, 0, n, s))
                }
                13 => cuda!(cudaEventRecord(e, s)),
                14 => cuda!(cudaEventQuery(e)),
                15 => cuda!(cudaStreamWaitEvent(s, e, flags % 3)),
                16 => cuda!(cudaStreamQuery(s)),
                17 => cuda!(cudaStreamSynchronize(s)),
                18 => cuda!(cudaMemPoolTrimTo(p, n)),
                19 => cuda!(cudaMemPoolGetAttribute(
                    p,
                    sys::cudaMemPoolAttr(flags % 12),
                    at
                )),
                20 => cuda!(cudaHostAlloc(&mut out, n.min(1 << 20), flags)),
                21 => cuda!(cudaDeviceGetAttribute(
                    &mut 0,
                    sys::cudaDeviceAttr(flags % 300),
                    dev
                )),
                22 => cuda!(cudaPointerGetAttributes(&mut Default::default(), x)),
                23 => cuda!(cudaEventCreateWithFlags(&mut null_mut(), flags % 9)),
                24 => cuda!(cudaStreamGetId(s, &mut word)),
                25 => cuda!(cudaEventElapsedTime(&mut 0.0, e, r.of(&events))),
                26 => cuda!(cudaHostGetDevicePointer(&mut out, x, flags % 2)),
                27 => cuda!(cudaGetDeviceProperties(&mut Default::default(), dev)),
                28 => cuda!(cudaLaunchHostFunc(s, None, null_mut())),
                _ => cudart_sim::launch(s, &[(q, n)], &[(d, m)], |_| {}).0,
            };
            assert_ne!(code, 999);
            if code == 0 && !out.is_null() && out != x {
                // Freed in any way that may be right for it.
                let freed = [
                    cuda!(cudaFreeAsync(out, b)),
                    cuda!(cudaFree(out)),
                    cuda!(cudaFreeHost(out)),
                ];
                assert!(freed.contains(&0) || !freed.contains(&999));
            }
        }
        cuda!(cudaGetLastError());
    });
}
