//! Captures, graphs and virtual memory, called at random: every call answers, nothing panics (which would answer 999),
//! aborts, hangs or leaks.

mod common;
use common::{Random, event, malloc, stream, under_every_schedule, unordered};
mod cuda;
use cuda::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const LENGTHS: &[usize] = &[
    0,
    1,
    4096,
    CHUNK,
    2 * CHUNK,
    3 * CHUNK,
    CHUNK + 1,
    1 << 40,
    1 << 63,
    usize::MAX,
    usize::MAX - CHUNK + 1,
];

#[test]
fn captures_and_graphs_answer_whatever_is_done_to_them() {
    under_every_schedule(|| {
        unordered();
        let mut r = Random(0x1234_5678_9ABC_DEF1);
        let pool = [stream(), stream(), common::blocking_stream()];
        let streams = [
            pool[0],
            pool[1],
            pool[2],
            null_mut(),
            common::PER_THREAD,
            0x77 as sys::cudaStream_t,
        ];
        let events = [event(), event(), null_mut(), 0x99 as sys::cudaEvent_t];
        let d = malloc(1 << 20);
        let mut graphs = vec![null_mut(), 0x55 as sys::cudaGraph_t];
        let mut execs = vec![null_mut(), 0x55 as sys::cudaGraphExec_t];
        let mut blocks = vec![null_mut(), d];
        let mut objects = vec![null_mut(), 0x55 as sys::cudaUserObject_t];
        let mut made = 0;
        GONE.store(0, SeqCst);
        for _ in 0..6_000 {
            let (s, e) = (r.of(&streams), r.of(&events));
            let (graph, exec, block) = (r.of(&graphs), r.of(&execs), r.of(&blocks));
            let mut mode = sys::cudaStreamCaptureMode((r.next() % 4) as u32);
            let mut out = null_mut();
            let object = r.of(&objects);
            let code = match r.next() % 26 {
                0 | 1 => cuda!(cudaStreamBeginCapture(s, mode)),
                2 | 3 => {
                    let mut graph = null_mut();
                    let code = cuda!(cudaStreamEndCapture(s, &mut graph));
                    graphs.extend((code == 0).then_some(graph));
                    code
                }
                4 | 5 => cuda!(cudaEventRecord(e, s)),
                6 | 7 => cuda!(cudaStreamWaitEvent(s, e, 0)),
                8 => cuda!(cudaMemsetAsync(d, 1, r.of(&[1, 4096, 1 << 20]), s)),
                9 => cuda!(cudaMallocAsync(&mut out, r.of(&[0, 256, 1 << 21]), s)),
                10 => cuda!(cudaFreeAsync(block.wrapping_byte_add(r.of(&[0, 1])), s)),
                11 => {
                    let mut exec = null_mut();
                    let flags = r.next() % 20;
                    let code = cuda!(cudaGraphInstantiate(&mut exec, graph, flags));
                    execs.extend((code == 0).then_some(exec));
                    code
                }
                12 | 13 => cuda!(cudaGraphLaunch(exec, s)),
                14 => cuda!(cudaGraphDestroy(graph)),
                15 => cuda!(cudaGraphExecDestroy(exec)),
                16 => cuda!(cudaEventQuery(e)),
                17 => cuda!(cudaStreamQuery(s)),
                18 => cuda!(cudaThreadExchangeStreamCaptureMode(&mut mode)),
                19 => cuda!(cudaStreamIsCapturing(
                    s,
                    &mut sys::cudaStreamCaptureStatus(0)
                )),
                20 => cudart_sim::launch(s, &[(d, 64)], &[(d, 64)], |_| {}).0,
                21 => cuda!(cudaDeviceSynchronize()),
                22 => {
                    let (mut status, mut graph) = (sys::cudaStreamCaptureStatus(0), null_mut());
                    let code = cuda!(cudaStreamGetCaptureInfo(
                        s,
                        &mut status,
                        null_mut(),
                        &mut graph,
                        null_mut(),
                        null_mut(),
                        null_mut(),
                    ));
                    graphs.extend((!graph.is_null()).then_some(graph));
                    code
                }
                23 => {
                    let mut object = null_mut();
                    let (count, flags) = (r.of(&[0, 1, 1, 3, u32::MAX]), r.of(&[0, 1, 1, 1, 2]));
                    let destroy = r.of(&[None, Some(gone as _), Some(gone as _)]);
                    let code = cuda!(cudaUserObjectCreate(
                        &mut object,
                        null_mut(),
                        destroy,
                        count,
                        flags,
                    ));
                    if code == 0 {
                        objects.push(object);
                        made += 1;
                    }
                    code
                }
                24 => cuda!(cudaUserObjectRelease(object, r.of(&[0, 1, 1, 2, u32::MAX]))),
                _ => {
                    let (count, flags) = (r.of(&[0, 1, 1, 2, u32::MAX]), r.of(&[0, 0, 1, 1, 2]));
                    cuda!(cudaGraphRetainUserObject(graph, object, count, flags))
                }
            };
            assert_ne!(code, 999);
            if code == 0 && !out.is_null() {
                blocks.push(out);
            }
        }
        let mut mode = sys::cudaStreamCaptureMode(2);
        assert_eq!(cuda!(cudaThreadExchangeStreamCaptureMode(&mut mode)), 0);
        for s in pool {
            assert_eq!(cuda!(cudaStreamDestroy(s)), 0);
        }
        cuda!(cudaStreamEndCapture(common::PER_THREAD, &mut null_mut()));
        for g in graphs {
            cuda!(cudaGraphDestroy(g));
        }
        for g in execs {
            cuda!(cudaGraphExecDestroy(g));
        }
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
        for p in blocks {
            cuda!(cudaFree(p));
        }
        for object in objects {
            while cuda!(cudaUserObjectRelease(object, 1)) == 0 {}
        }
        cuda!(cudaGetLastError());
        let until = Instant::now() + Duration::from_secs(30);
        while GONE.load(SeqCst) != made && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(made > 0);
        assert_eq!(GONE.load(SeqCst), made, "each is destroyed, once");
    });
}

static GONE: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn gone(_: *mut c_void) {
    GONE.fetch_add(1, SeqCst);
}

#[test]
fn virtual_memory_answers_whatever_is_done_to_it() {
    under_every_schedule(|| {
        unordered();
        let mut r = Random(0xFEED_5678_9ABC_DEF1);
        let mut s = stream();
        let mut ranges: Vec<(u64, usize)> = vec![(0, 0), (CHUNK as u64, CHUNK)];
        let mut handles = vec![0, 0x99, u64::MAX];
        for _ in 0..6_000 {
            let (base, whole) = r.of(&ranges);
            let at = base.wrapping_add(r.of(&[0, 0, CHUNK as u64, 4096, u64::MAX]));
            let any = r.of(LENGTHS);
            let len = r.of(&[any, whole, CHUNK, CHUNK]);
            let handle = r.of(&handles);
            let p = at as *mut c_void;
            let offset = r.of(&[0, 0, CHUNK, 1]);
            let code = match r.next() % 14 {
                0 => {
                    let (mut found, align) = (0, r.of(&[0, 4096, 3, 1 << 30, 1 << 63]));
                    let code = driver!(cuMemAddressReserve: PFN_cuMemAddressReserve_v10020(
                        &mut found, len, align, at, 0,
                    ));
                    ranges.extend((code == 0).then_some((found, len)));
                    code
                }
                1 => free(at, len),
                2 => {
                    let (mut made, mut prop) = (0, on_device_0());
                    prop.location.id = r.of(&[0, 0, 0, 1, -1]);
                    let code =
                        driver!(cuMemCreate: PFN_cuMemCreate_v10020(&mut made, len, &prop, 0));
                    handles.extend((code == 0).then_some(made));
                    code
                }
                3 => release(handle),
                4..=6 => map(at, len, offset, handle),
                7 => unmap(at, len),
                8 => access(at, len, r.of(&[0, 1, 2, 3, 3, 3])),
                9 => driver!(cuMemRetainAllocationHandle: PFN_cuMemRetainAllocationHandle_v11000(
                    &mut 0, p,
                )),
                10 => driver!(cuMemGetAddressRange: PFN_cuMemGetAddressRange_v3020(
                    null_mut(), &mut 0, at,
                )),
                11 if at > 1 << 20 && at != u64::MAX && whole >= CHUNK && base > CHUNK as u64 => {
                    cuda!(cudaMemsetAsync(p, 3, len, s))
                }
                12 => cudart_sim::launch(s, &[(p, len)], &[(p, len)], |_| {}).0,
                _ => {
                    let mut found = sys::cudaPointerAttributes::default();
                    cuda!(cudaPointerGetAttributes(&mut found, p))
                }
            };
            assert_ne!(code, 999);
            if cuda!(cudaStreamQuery(null_mut())) == 700 {
                assert_eq!(cuda!(cudaDeviceReset()), 0);
                s = stream();
            }
        }
        cuda!(cudaDeviceReset());
        cuda!(cudaGetLastError());
        assert_eq!(cudart_sim::memory_info(0).unwrap().physical, (0, 0));
    });
}
