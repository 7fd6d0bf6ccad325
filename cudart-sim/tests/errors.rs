//! Sizes of zero, wrong pointers, impossible sizes, and what they leave behind. Facts measured on an H200.

mod common;
use common::*;
use cudart_sim::sys;
use std::ffi::c_void;
use std::ptr::null_mut;

#[test]
fn size_zero_yields_a_null_pointer_and_freeing_null_does_nothing() {
    under_every_schedule(|| {
        let s = stream();
        let mut p = std::ptr::dangling_mut::<c_void>();
        assert_eq!((cuda!(cudaMalloc(&mut p, 0)), p), (0, null_mut()));
        p = std::ptr::dangling_mut::<c_void>();
        assert_eq!((cuda!(cudaMallocAsync(&mut p, 0, s)), p), (0, null_mut()));
        p = std::ptr::dangling_mut::<c_void>();
        assert_eq!((cuda!(cudaHostAlloc(&mut p, 0, 0)), p), (0, null_mut()));
        assert_eq!(cuda!(cudaFree(null_mut())), 0);
        assert_eq!(cuda!(cudaFreeHost(null_mut())), 0);
        assert_eq!(cuda!(cudaFreeAsync(null_mut(), s)), 0);
        assert_eq!(cuda!(cudaMemcpyAsync(null_mut(), null_mut(), 0, H2D, s)), 0);
        assert_eq!(cuda!(cudaMemsetAsync(null_mut(), 0, 0, s)), 0);
        assert_eq!(cuda!(cudaGetLastError()), 0);
    });
}

#[test]
fn freeing_what_is_not_a_live_block_is_error_1() {
    under_every_schedule(|| {
        let p = malloc(1 << 20);
        let mut local = 0u8;
        assert_eq!(cuda!(cudaFree(p.wrapping_byte_add(256))), 1);
        assert_eq!(cuda!(cudaFree(p)), 0);
        assert_eq!(cuda!(cudaFree(p)), 1);
        assert_eq!(cuda!(cudaGetLastError()), 1);
        assert_eq!(cuda!(cudaFree((&raw mut local).cast())), 1);
        assert_eq!(cuda!(cudaFreeHost((&raw mut local).cast())), 1);
        assert_eq!(cuda!(cudaFreeHost(malloc(64))), 1);
    });
}

#[test]
fn an_impossible_size_is_error_2_and_takes_nothing() {
    under_every_schedule(|| {
        let s = stream();
        let before = cudart_sim::memory_info(0).unwrap();
        for size in [1 << 50, usize::MAX, usize::MAX - 511, 1 << 63] {
            let mut p = null_mut();
            assert_eq!((cuda!(cudaMalloc(&mut p, size)), p), (2, null_mut()));
            assert_eq!(
                (cuda!(cudaMallocAsync(&mut p, size, s)), p),
                (2, null_mut())
            );
            assert_eq!((cuda!(cudaHostAlloc(&mut p, size, 0)), p), (2, null_mut()));
        }
        assert_eq!(cudart_sim::memory_info(0).unwrap(), before);
    });
}

#[test]
fn a_failed_call_leaves_its_error_until_it_is_fetched() {
    let _turn = machine();
    assert_eq!(cuda!(cudaSetDevice(9999)), 101);
    assert_eq!(cuda!(cudaPeekAtLastError()), 101);
    cuda!(cudaFree(malloc(256)));
    assert_eq!(
        cuda!(cudaPeekAtLastError()),
        101,
        "success does not clear it"
    );
    let mut p = null_mut();
    assert_eq!(cuda!(cudaMalloc(&mut p, 1 << 50)), 2);
    assert_eq!(
        cuda!(cudaPeekAtLastError()),
        2,
        "a later failure replaces it"
    );
    assert_eq!(cuda!(cudaGetLastError()), 2);
    assert_eq!(cuda!(cudaGetLastError()), 0);
    cuda!(cudaSetDevice(9999));
    std::thread::spawn(|| assert_eq!(cuda!(cudaGetLastError()), 0))
        .join()
        .unwrap();
    assert_eq!(cuda!(cudaGetLastError()), 101, "each thread has its own");
}

#[test]
fn not_ready_is_no_error() {
    under_every_schedule(|| {
        let (s, e) = (stream(), event());
        assert_eq!(cuda!(cudaEventQuery(e)), 0, "never recorded");
        let gate = Gate::on(s);
        assert_eq!(cuda!(cudaEventRecord(e, s)), 0);
        assert_eq!(cuda!(cudaEventQuery(e)), 600);
        assert_eq!(cuda!(cudaStreamQuery(s)), 600);
        assert_eq!(cuda!(cudaGetLastError()), 0);
        gate.open();
        assert_eq!(cuda!(cudaEventSynchronize(e)), 0);
        assert_eq!(cuda!(cudaEventQuery(e)), 0);
    });
}

#[test]
fn cuda_calls_in_a_host_function_are_refused_and_leave_no_error() {
    extern "C" fn call(answer: *mut c_void) {
        let mut p = null_mut();
        let codes = [
            cuda!(cudaPeekAtLastError()),
            cuda!(cudaMalloc(&mut p, 256)),
            cuda!(cudaDeviceSynchronize()),
            cuda!(cudaPeekAtLastError()),
        ];
        // SAFETY: the test passes an array of four that outlives the stream's work.
        unsafe { *(answer as *mut [u32; 4]) = codes };
    }
    under_every_schedule(|| {
        let s = stream();
        // Twice, for the thread may be the same: the second one finds no error of the first.
        for _ in 0..2 {
            let mut answer = [9u32; 4];
            let at = (&raw mut answer).cast();
            assert_eq!(cuda!(cudaLaunchHostFunc(s, Some(call), at)), 0);
            assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
            assert_eq!(answer, [0, 800, 800, 800]);
            assert_eq!(cuda!(cudaGetLastError()), 0);
        }
    });
}

#[test]
fn a_host_function_may_ask_for_an_event_and_for_the_number_of_devices() {
    struct Asked {
        done: sys::cudaEvent_t,
        pending: sys::cudaEvent_t,
        answers: [u32; 3],
        count: i32,
    }
    extern "C" fn call(data: *mut c_void) {
        // SAFETY: the test passes one that outlives the stream's work, and looks at it afterwards.
        let asked = unsafe { &mut *data.cast::<Asked>() };
        asked.answers = [
            cuda!(cudaEventQuery(asked.done)),
            cuda!(cudaEventQuery(asked.pending)),
            cuda!(cudaGetDeviceCount(&mut asked.count)),
        ];
    }
    under_every_schedule(|| {
        let (s, other) = (stream(), stream());
        let mut asked = Asked {
            done: event(),
            pending: event(),
            answers: [9; 3],
            count: -1,
        };
        cuda!(cudaEventRecord(asked.done, other));
        cuda!(cudaStreamSynchronize(other));
        let gate = Gate::on(other);
        cuda!(cudaEventRecord(asked.pending, other));
        let at = (&raw mut asked).cast();
        assert_eq!(cuda!(cudaLaunchHostFunc(s, Some(call), at)), 0);
        assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
        assert_eq!((asked.answers, asked.count), ([0, 600, 0], 1));
        gate.open();
    });
}

#[test]
fn a_fault_fails_the_chosen_calls_without_doing_anything() {
    let _turn = machine();
    let e = event();
    let code = sys::cudaError::cudaErrorUnknown;
    let fault = cudart_sim::fail("cudaEventRecord", code).after(1).times(2);
    let answers: Vec<u32> = (0..4).map(|_| cuda!(cudaEventRecord(e, LEGACY))).collect();
    assert_eq!(answers, [0, 999, 999, 0]);
    assert_eq!(fault.fired(), 2);
    assert_eq!(cuda!(cudaGetLastError()), 999);
    let other = cudart_sim::fail("cudaMalloc", code);
    std::thread::spawn(|| cuda!(cudaFree(malloc(16))))
        .join()
        .unwrap();
    assert_eq!(other.fired(), 0, "for this thread only");
    drop(other);
    malloc(16);
    let any = cudart_sim::fail("cudaMalloc", code).any_thread();
    let refused = std::thread::spawn(|| cuda!(cudaMalloc(&mut null_mut(), 16)));
    assert_eq!(refused.join().unwrap(), 999);
    assert_eq!(any.fired(), 1);
}

#[test]
fn calls_are_counted_for_the_process_and_for_the_thread() {
    let _turn = machine();
    let (all, mine, total) = (
        cudart_sim::calls("cudaMalloc"),
        cudart_sim::thread_calls_of("cudaMalloc"),
        cudart_sim::thread_calls(),
    );
    malloc(16);
    std::thread::spawn(|| malloc(16) as usize).join().unwrap();
    assert_eq!(cudart_sim::calls("cudaMalloc"), all + 2);
    assert_eq!(cudart_sim::thread_calls_of("cudaMalloc"), mine + 1);
    assert_eq!(cudart_sim::thread_calls(), total + 1);
}

#[test]
fn what_is_not_simulated_answers_801() {
    let _turn = machine();
    let shared = sys::cudaEventInterprocess | sys::cudaEventDisableTiming;
    let mut e = null_mut();
    assert_eq!(cuda!(cudaEventCreateWithFlags(&mut e, shared)), 801);
    let mut props = sys::cudaMemPoolProps {
        allocType: sys::cudaMemAllocationType::cudaMemAllocationTypePinned,
        handleTypes: sys::cudaMemAllocationHandleType(1),
        ..Default::default()
    };
    props.location.type_ = sys::cudaMemLocationType::cudaMemLocationTypeDevice;
    let mut pool = null_mut();
    assert_eq!(cuda!(cudaMemPoolCreate(&mut pool, &props)), 801);
    let mut function = std::ptr::dangling_mut::<c_void>();
    let mut status = sys::cudaDriverEntryPointQueryResult(9);
    assert_eq!(
        cuda!(cudaGetDriverEntryPointByVersion(
            c"cuMemImportFromShareableHandle".as_ptr(),
            &mut function,
            12000,
            0,
            &mut status
        )),
        0
    );
    assert!(function.is_null());
    assert_eq!(
        status,
        sys::cudaDriverEntryPointQueryResult::cudaDriverEntryPointSymbolNotFound
    );
}

#[test]
fn null_places_for_results_are_invalid_values() {
    let _turn = machine();
    assert_eq!(cuda!(cudaMalloc(null_mut(), 16)), 1);
    assert_eq!(cuda!(cudaHostAlloc(null_mut(), 16, 0)), 1);
    assert_eq!(cuda!(cudaStreamCreate(null_mut())), 1);
    assert_eq!(cuda!(cudaEventCreate(null_mut())), 1);
    assert_eq!(cuda!(cudaMemGetInfo(null_mut(), null_mut())), 1);
    assert_eq!(cuda!(cudaPointerGetAttributes(null_mut(), null_mut())), 1);
    assert_eq!(cuda!(cudaGetDeviceCount(null_mut())), 1);
    assert_eq!(cuda!(cudaMemPoolCreate(null_mut(), null_mut())), 1);
}

#[test]
fn a_broken_context_answers_its_error_until_it_is_reset() {
    let _turn = machine();
    let s = stream();
    let p = malloc(16);
    cudart_sim::break_context(0, sys::cudaError::cudaErrorIllegalAddress);
    assert_eq!(cuda!(cudaMemsetAsync(p, 0, 16, s)), 700);
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 700);
    assert_eq!(cuda!(cudaGetLastError()), 700);
    assert_eq!(cuda!(cudaGetLastError()), 700, "it does not go away");
    assert_eq!(cuda!(cudaDeviceReset()), 0);
    assert_eq!(cuda!(cudaMemsetAsync(malloc(16), 0, 16, LEGACY)), 0);
}

#[test]
fn after_unloading_every_call_answers_4() {
    let _turn = machine();
    let p = malloc(16);
    cudart_sim::unload();
    assert_eq!(cuda!(cudaFree(p)), 4);
    assert_eq!(cuda!(cudaGetLastError()), 4);
    assert_eq!(cuda!(cudaStreamSynchronize(LEGACY)), 4);
    cudart_sim::reset();
    malloc(16);
}

#[test]
fn a_forked_child_gets_errors_and_does_not_hang() {
    let _turn = machine();
    let s = stream();
    let _gate = Gate::on(s);
    // SAFETY: the child only calls functions that refuse at once, and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut p = null_mut();
        let codes = [
            cuda!(cudaMalloc(&mut p, 16)),
            cuda!(cudaStreamSynchronize(s)),
            cuda!(cudaGetLastError()),
        ];
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(codes != [3, 3, 3])) };
    }
    let mut status = -1;
    // SAFETY: `child` is our child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
}
