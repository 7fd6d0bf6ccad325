//! Virtual memory and capture where the simulator follows the documentation, or its own judgement: nothing measured.

mod common;
use common::{event, machine, malloc, stream, under_every_schedule};
mod cuda;
use cuda::*;
use std::ffi::c_void;
use std::ptr::null_mut;

fn begin(s: sys::cudaStream_t, mode: u32) -> u32 {
    cuda!(cudaStreamBeginCapture(s, sys::cudaStreamCaptureMode(mode)))
}

fn end(s: sys::cudaStream_t) -> u32 {
    let mut graph = null_mut();
    let code = cuda!(cudaStreamEndCapture(s, &mut graph));
    if code == 0 {
        assert_eq!(cuda!(cudaGraphDestroy(graph)), 0);
    }
    code
}

fn status(s: sys::cudaStream_t) -> (u32, u32) {
    let mut status = sys::cudaStreamCaptureStatus(9);
    (cuda!(cudaStreamIsCapturing(s, &mut status)), status.0)
}

#[test]
fn wrong_arguments_of_virtual_memory_are_refused() {
    let _turn = machine();
    let at = reserve(4 * CHUNK);
    let handle = create(CHUNK);
    let mut place = 0;
    for (len, alignment) in [(0, 0), (4096, 0), (CHUNK + 1, 0), (CHUNK, 3)] {
        let code = driver!(cuMemAddressReserve: PFN_cuMemAddressReserve_v10020(
            &mut place, len, alignment, 0, 0,
        ));
        assert_eq!(code, 1);
    }
    let code = driver!(cuMemAddressReserve: PFN_cuMemAddressReserve_v10020(
        &mut place, 1 << 60, 0, 0, 0,
    ));
    assert_eq!(code, 2);
    // Not where a chunk starts, not reserved, past the end of the reservation; not the whole handle.
    assert_eq!(map(at + 4096, CHUNK, 0, handle), 1);
    assert_eq!(map(at, 4096, 0, handle), 801);
    assert_eq!(map(CHUNK as u64, CHUNK, 0, handle), 1);
    assert_eq!(map(at + 4 * CHUNK as u64, CHUNK, 0, handle), 1);
    assert_eq!(map(at, CHUNK, CHUNK, handle), 801);
    assert_eq!(map(at, CHUNK, 0, handle + 1), 1);
    // Access needs mappings, all of them and whole; a second mapping needs a free place.
    assert_eq!(access(at, CHUNK, 3), 1);
    assert_eq!(map(at, CHUNK, 0, handle), 0);
    assert_eq!(map(at, CHUNK, 0, handle), 1);
    assert_eq!(access(at, 2 * CHUNK, 3), 1);
    assert_eq!(access(at, 4096, 3), 1);
    assert_eq!(access(at, CHUNK, 2), 1);
    assert_eq!(unmap(at, 5 * CHUNK), 1);
    // Addresses go back whole, and with nothing mapped.
    assert_eq!(free(at, 4 * CHUNK), 1);
    assert_eq!(unmap(at, CHUNK), 0);
    assert_eq!(free(at, CHUNK), 1);
    assert_eq!(free(at, 4 * CHUNK), 0);
    assert_eq!(free(at, 4 * CHUNK), 1);
    assert_eq!(release(handle), 0);
    assert_eq!(release(handle), 1);
    assert_eq!(cudart_sim::memory_info(0).unwrap().physical, (0, 0));
}

#[test]
fn a_name_that_the_driver_does_not_have_yet_is_not_found() {
    let _turn = machine();
    let (at, status) = symbol_and_status("cuNoSuchFunction", 13000);
    assert!(at.is_null() && status == 1);
    let (at, status) = symbol_and_status("cuMemCreate", 10000);
    assert!(at.is_null() && status == 2);
}

#[test]
fn one_handle_at_two_addresses_is_one_memory() {
    under_every_schedule(|| {
        let at = reserve(2 * CHUNK);
        let handle = create(CHUNK);
        for offset in [0, CHUNK as u64] {
            assert_eq!(map(at + offset, CHUNK, 0, handle), 0);
        }
        assert_eq!(access(at, 2 * CHUNK, 3), 0);
        let (p, q) = (at as *mut c_void, (at + CHUNK as u64) as *mut c_void);
        fill(p, 8, CHUNK);
        assert_eq!(read(q, 4), [8; 4]);
        assert_eq!(cudart_sim::read_device(q, 4), [8; 4]);
        assert_eq!(unmap(at, 2 * CHUNK), 0);
        assert_eq!(release(handle), 0);
        assert_eq!(free(at, 2 * CHUNK), 0);
    });
}

#[test]
fn a_device_without_virtual_memory_says_so() {
    let _turn = machine();
    let device = cudart_sim::DeviceConfig {
        virtual_memory: false,
        ..Default::default()
    };
    let config = cudart_sim::Config {
        devices: vec![device],
        ..Default::default()
    };
    cudart_sim::configure(config).unwrap();
    let mut supported = 7;
    let attribute = sys::cudaDeviceAttr(102);
    let code = cuda!(cudaDeviceGetAttribute(&mut supported, attribute, 0));
    assert_eq!((code, supported), (0, 0));
    let mut place = 0;
    let prop = on_device_0();
    let code = driver!(cuMemCreate: PFN_cuMemCreate_v10020(&mut place, CHUNK, &prop, 0));
    assert_eq!(code, 801);
    let code =
        driver!(cuMemAddressReserve: PFN_cuMemAddressReserve_v10020(&mut place, CHUNK, 0, 0, 0));
    assert_eq!(code, 801);
}

#[test]
fn a_write_to_what_may_only_be_read_breaks_the_context_and_a_read_does_not() {
    let _turn = machine();
    let v = Mapped::new(CHUNK, 1);
    assert_eq!(access(v.at, CHUNK, 1), 0);
    read(v.pointer(0), 16);
    assert_eq!(cuda!(cudaMemset(v.pointer(0), 1, 16)), 0);
    assert_eq!(cuda!(cudaDeviceSynchronize()), 700);
}

#[test]
fn a_reset_forgets_mapped_memory() {
    let _turn = machine();
    let v = Mapped::new(CHUNK, 3);
    assert_eq!(
        cudart_sim::memory_info(0).unwrap().physical,
        (3, 3 * CHUNK as u64)
    );
    assert_eq!(cuda!(cudaDeviceReset()), 0);
    assert_eq!(unmap(v.at, 3 * CHUNK), 0, "nothing is mapped there");
    assert_eq!(release(v.handles[0]), 1);
    assert_eq!(free(v.at, 3 * CHUNK), 0);
}

#[test]
fn calls_of_the_driver_can_be_made_to_fail() {
    let _turn = machine();
    let _fault = cudart_sim::fail("cuMemCreate", sys::cudaError(2));
    let (mut handle, prop) = (0, on_device_0());
    let code = driver!(cuMemCreate: PFN_cuMemCreate_v10020(&mut handle, CHUNK, &prop, 0));
    assert_eq!(code, 2);
    assert_eq!(cuda!(cudaGetLastError()), 0);
}

#[test]
fn captures_begin_and_end_where_they_must() {
    let _turn = machine();
    let (s, other, e) = (stream(), stream(), event());
    assert_eq!(begin(null_mut(), 0), 900);
    assert_eq!(begin(s, 3), 1);
    assert_eq!(end(s), 401);
    assert_eq!(begin(s, 0), 0);
    assert_eq!(begin(s, 0), 401);
    assert_eq!(status(s), (0, 1));
    // On a stream that was pulled in: 903.
    assert_eq!(cuda!(cudaEventRecord(e, s)), 0);
    assert_eq!(cuda!(cudaStreamWaitEvent(other, e, 0)), 0);
    assert_eq!(end(other), 903);
    assert_eq!(end(s), 901);
    // Another thread may end a relaxed capture only.
    for (mode, code) in [(0, 908), (1, 908), (2, 0)] {
        assert_eq!(begin(s, mode), 0);
        let name = s as usize;
        let elsewhere = std::thread::spawn(move || end(name as sys::cudaStream_t));
        assert_eq!(elsewhere.join().unwrap(), code);
        assert_eq!(end(s), if code == 0 { 401 } else { 0 });
    }
}

#[test]
fn two_captures_do_not_meet() {
    let _turn = machine();
    let (a, b, e) = (stream(), stream(), event());
    assert_eq!(begin(a, 2), 0);
    assert_eq!(begin(b, 2), 0);
    assert_eq!(cuda!(cudaEventRecord(e, a)), 0);
    assert_eq!(cuda!(cudaStreamWaitEvent(b, e, 0)), 902);
    assert_eq!((end(a), end(b)), (901, 901));
    // What a dead capture's stream is given answers 901; an event of a capture that has come to nothing is as if
    // never recorded, one of a capture that has ended well is refused.
    assert_eq!(begin(a, 2), 0);
    assert_eq!(cuda!(cudaStreamQuery(a)), 900);
    let p = null_mut();
    assert_eq!(cuda!(cudaMallocAsync(&mut { p }, 256, a)), 901);
    assert_eq!(cuda!(cudaEventRecord(e, a)), 901);
    assert_eq!(end(a), 901);
    assert_eq!(cuda!(cudaEventQuery(e)), 0);
    assert_eq!(begin(a, 2), 0);
    assert_eq!(cuda!(cudaEventRecord(e, a)), 0);
    assert_eq!(end(a), 0);
    assert_eq!(cuda!(cudaEventQuery(e)), 1);
    assert_eq!(cuda!(cudaEventSynchronize(e)), 1);
    assert_eq!(cuda!(cudaEventRecord(e, a)), 0);
    assert_eq!(cuda!(cudaEventSynchronize(e)), 0);
}

#[test]
fn a_thread_mode_that_does_not_exist_is_taken_given_back_and_forbids_as_thread_local_does() {
    let _turn = machine();
    let mut mode = sys::cudaStreamCaptureMode(3);
    assert_eq!(cuda!(cudaThreadExchangeStreamCaptureMode(&mut mode)), 0);
    let (s, e) = (stream(), event());
    assert_eq!(begin(s, 1), 0);
    assert_eq!((cuda!(cudaEventQuery(e)), end(s)), (900, 901));
    mode.0 = 0;
    assert_eq!(cuda!(cudaThreadExchangeStreamCaptureMode(&mut mode)), 0);
    assert_eq!(mode.0, 3);
}

#[test]
fn an_end_without_a_place_for_the_graph_ends_nothing() {
    let _turn = machine();
    let s = stream();
    assert_eq!(cuda!(cudaStreamEndCapture(s, null_mut())), 401);
    assert_eq!(begin(s, 2), 0);
    assert_eq!(cuda!(cudaStreamEndCapture(s, null_mut())), 1);
    assert_eq!(end(s), 0);
}

#[test]
fn the_legacy_stream_is_forbidden_while_a_blocking_stream_captures() {
    let _turn = machine();
    let s = common::blocking_stream();
    let p = malloc(4096);
    assert_eq!(begin(s, 2), 0);
    assert_eq!(status(null_mut()).0, 906);
    assert_eq!(status(s), (0, 1), "that question kills nothing");
    assert_eq!(cuda!(cudaMemsetAsync(p, 1, 4096, null_mut())), 906);
    assert_eq!(status(s), (0, 2));
    assert_eq!(end(s), 901);
    // A stream that does not follow the legacy stream leaves it alone.
    let s = stream();
    assert_eq!(begin(s, 2), 0);
    assert_eq!(cuda!(cudaMemsetAsync(p, 1, 4096, null_mut())), 0);
    assert_eq!(end(s), 0);
}

#[test]
fn a_capturing_stream_that_is_destroyed_takes_its_capture_along() {
    let _turn = machine();
    let s = stream();
    assert_eq!(begin(s, 0), 0);
    assert_eq!(cuda!(cudaMallocAsync(&mut null_mut(), 1 << 20, s)), 0);
    assert_eq!(cuda!(cudaStreamDestroy(s)), 0);
    assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
    assert_eq!(cudart_sim::memory_info(0).unwrap().pool_blocks, (0, 0));
}

#[test]
fn memory_of_a_graph_stays_until_graph_and_launches_are_gone() {
    under_every_schedule(|| {
        let s = stream();
        let blocks = || cudart_sim::memory_info(0).unwrap().pool_blocks;
        assert_eq!(begin(s, 0), 0);
        let mut p = null_mut();
        assert_eq!(cuda!(cudaMallocAsync(&mut p, 4096, s)), 0);
        assert_eq!(cuda!(cudaMemsetAsync(p, 6, 4096, s)), 0);
        let (mut graph, mut exec) = (null_mut(), null_mut());
        assert_eq!(cuda!(cudaStreamEndCapture(s, &mut graph)), 0);
        assert_eq!(cuda!(cudaGraphInstantiate(&mut exec, graph, 0)), 0);
        assert_eq!(cuda!(cudaGraphDestroy(graph)), 0);
        assert_eq!(blocks(), (1, 4096));
        assert_eq!(cuda!(cudaGraphLaunch(exec, s)), 0);
        assert_eq!(cuda!(cudaGraphExecDestroy(exec)), 0);
        assert_eq!(cuda!(cudaGraphExecDestroy(exec)), 1);
        assert_eq!(cuda!(cudaGetLastError()), 1);
        assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
        assert_eq!(blocks(), (0, 0));
    });
}

#[test]
fn launches_of_one_graph_follow_one_another() {
    under_every_schedule(|| {
        let (a, b) = (stream(), stream());
        let p = malloc(4096);
        fill(p, 1, 4096);
        assert_eq!(begin(a, 0), 0);
        assert_eq!(cuda!(cudaMemsetAsync(p, 2, 4096, a)), 0);
        let (mut graph, mut exec) = (null_mut(), null_mut());
        assert_eq!(cuda!(cudaStreamEndCapture(a, &mut graph)), 0);
        assert_eq!(cuda!(cudaGraphInstantiate(&mut exec, graph, 0)), 0);
        let gate = common::Gate::on(a);
        assert_eq!(cuda!(cudaGraphLaunch(exec, a)), 0);
        assert_eq!(cuda!(cudaGraphLaunch(exec, b)), 0);
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(cuda!(cudaStreamQuery(b)), 600);
        assert_eq!(cudart_sim::read_device(p, 1), [1]);
        gate.open();
        assert_eq!(cuda!(cudaStreamSynchronize(b)), 0);
        assert_eq!(cudart_sim::read_device(p, 1), [2]);
        // A graph inside a graph.
        fill(p, 1, 4096);
        assert_eq!(begin(a, 0), 0);
        assert_eq!(cuda!(cudaGraphLaunch(exec, a)), 0);
        let mut outer = null_mut();
        assert_eq!(cuda!(cudaStreamEndCapture(a, &mut outer)), 0);
        let mut runs = null_mut();
        assert_eq!(cuda!(cudaGraphInstantiate(&mut runs, outer, 0)), 0);
        assert_eq!(cuda!(cudaGraphLaunch(runs, b)), 0);
        assert_eq!(cuda!(cudaStreamSynchronize(b)), 0);
        assert_eq!(cudart_sim::read_device(p, 1), [2]);
    });
}

#[test]
fn threads_that_move_memory_and_capture_at_the_same_time_do_not_disturb_one_another() {
    under_every_schedule(|| {
        let mover = |seed: u8| {
            let s = stream();
            let at = reserve(8 * CHUNK);
            let handle = create(CHUNK);
            for round in 0..60u8 {
                let place = at + u64::from(round % 8) * CHUNK as u64;
                let p = place as *mut c_void;
                assert_eq!(map(place, CHUNK, 0, handle), 0);
                assert_eq!(access(place, CHUNK, 3), 0);
                if round > 0 {
                    assert_eq!(
                        cudart_sim::read_device(p, 1),
                        [seed.wrapping_add(round - 1)]
                    );
                }
                let value = i32::from(seed.wrapping_add(round));
                assert_eq!(cuda!(cudaMemsetAsync(p, value, CHUNK, s)), 0);
                assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
                assert_eq!(unmap(place, CHUNK), 0);
            }
            assert_eq!(release(handle), 0);
            assert_eq!(free(at, 8 * CHUNK), 0);
        };
        let capturer = || {
            let s = stream();
            let p = malloc(4096);
            for _ in 0..60 {
                assert_eq!(begin(s, 1), 0);
                assert_eq!(cuda!(cudaMemsetAsync(p, 1, 4096, s)), 0);
                let (mut graph, mut exec) = (null_mut(), null_mut());
                assert_eq!(cuda!(cudaStreamEndCapture(s, &mut graph)), 0);
                assert_eq!(cuda!(cudaGraphInstantiate(&mut exec, graph, 0)), 0);
                assert_eq!(cuda!(cudaGraphLaunch(exec, s)), 0);
                assert_eq!(cuda!(cudaGraphDestroy(graph)), 0);
                assert_eq!(cuda!(cudaGraphExecDestroy(exec)), 0);
            }
            assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
        };
        std::thread::scope(|scope| {
            for seed in [10, 100] {
                scope.spawn(move || mover(seed));
            }
            for _ in 0..2 {
                scope.spawn(capturer);
            }
        });
    });
}
