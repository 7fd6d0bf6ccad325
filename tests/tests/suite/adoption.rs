//! Memory of others in guards: vectors that move in and come back, device memory with a function that frees it.

use crate::common::{KIB, MIB, assert_sound, last_error, manager, stall};
use crate::rig;
use memmgr::{Error, MemoryManager, Stream};
use memmgr_tests::{Gate, sim_only};
use std::{
    ffi::c_void,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// How often `free` was called, for memory of `cudaMalloc`.
fn malloc(
    bytes: usize,
) -> (
    *mut c_void,
    Arc<AtomicUsize>,
    impl FnOnce() + Send + 'static,
) {
    let mut memory = std::ptr::null_mut();
    // SAFETY: `memory` is a place for one pointer.
    assert_eq!(unsafe { cuda_sys::cudaMalloc(&mut memory, bytes) }.0, 0);
    let freed = Arc::new(AtomicUsize::new(0));
    let (address, count) = (memory.expose_provenance(), freed.clone());
    let free = move || {
        count.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the memory was allocated above, and the guard that had it is gone.
        let code = unsafe { cuda_sys::cudaFree(std::ptr::with_exposed_provenance_mut(address)) };
        assert_eq!(code.0, 0);
    };
    (memory, freed, free)
}

/// Whether memory is page-locked, asked of CUDA itself.
fn is_pinned(at: *const c_void) -> bool {
    // SAFETY: the structure is plain numbers and pointers, and any address may be asked about.
    unsafe {
        let mut attributes: cuda_sys::cudaPointerAttributes = std::mem::zeroed();
        assert_eq!(cuda_sys::cudaPointerGetAttributes(&mut attributes, at).0, 0);
        attributes.type_ == cuda_sys::cudaMemoryType::cudaMemoryTypeHost
    }
}

#[test]
fn a_vector_that_was_adopted_works_as_a_pinned_buffer_and_comes_back_as_it_is() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let mut vec: Vec<u32> = Vec::with_capacity(MIB);
    vec.extend(0..MIB as u32 / 4);
    let (at, capacity) = (vec.as_ptr(), vec.capacity());
    let mut host = mm.adopt(vec).unwrap();
    assert!(is_pinned(host.as_ptr()));
    assert_eq!(host.as_ptr().cast_const().cast(), at, "it was moved");
    assert_eq!(host.len(), MIB / 4);
    let device = mm.device::<u32>(MIB / 4, &s).unwrap();
    let _ = s.copy_to_device(&host, &device).unwrap();
    host.as_mut_slice().unwrap().fill(0);
    let (front, back) = host.split_at(10).unwrap();
    // A part is no vector.
    let refused = front.into_vec().unwrap_err();
    assert!(
        matches!(refused.error(), Error::Unsupported { .. }),
        "{refused}"
    );
    let mut host = refused.into_inner().join(back).unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    let _ = s
        .copy_to_host(
            &device.slice(5..).unwrap(),
            &mut host.slice_mut(5..).unwrap(),
        )
        .unwrap();
    let opener = gate.open_after(Duration::from_millis(50));
    let vec = host.into_vec().unwrap();
    opener.join().unwrap();
    assert_eq!((vec.as_ptr(), vec.capacity()), (at, capacity));
    assert_eq!(vec[..7], [0, 0, 0, 0, 0, 5, 6]);
    assert!(vec.iter().skip(5).copied().eq(5..MIB as u32 / 4));
    assert!(!is_pinned(at.cast()));
    // And again, as a boxed slice.
    let boxed = vec![7u8; 100_000].into_boxed_slice();
    let at = boxed.as_ptr();
    let again = mm.adopt(boxed).unwrap();
    assert_eq!(again.as_slice().unwrap()[99_999], 7);
    let vec = again.into_vec().unwrap();
    assert_eq!(vec.as_ptr(), at);
    drop(device);
    assert_sound(&mm);
    assert_eq!(mm.stats().in_use(), 0);
    mm.shutdown().unwrap();
}

#[test]
fn only_whole_adopted_buffers_become_vectors() {
    let mm = manager();
    let pooled = mm.pinned::<u8>(KIB).unwrap();
    let refused = pooled.into_vec().unwrap_err();
    assert!(
        matches!(refused.error(), Error::Unsupported { .. }),
        "{refused}"
    );
    assert_eq!(refused.into_inner().len(), KIB);
    // Without bytes there is nothing to give back, nor any call to make.
    let ((), calls) = rig::calls_of(|| {
        let empty = mm.adopt(Vec::<u64>::with_capacity(5)).unwrap();
        assert_eq!(empty.as_slice().unwrap(), []);
        assert_eq!(empty.into_vec().unwrap(), []);
        let units = mm.adopt(vec![(); 1000]).unwrap();
        assert_eq!(units.into_vec().unwrap().len(), 1000);
        drop(mm.adopt(Vec::<u8>::new()).unwrap());
    });
    assert_eq!(calls, 0);
    mm.shutdown().unwrap();
}

/// `cudaHostUnregister` waits for everybody; a drop must not.
#[test]
fn a_dropped_vector_is_unregistered_by_a_later_call_and_never_under_a_copy() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let device = mm.device_zeroed::<u8>(MIB, &s).unwrap();
    let host = mm.adopt(vec![0x5Au8; MIB]).unwrap();
    let at = host.as_ptr();
    let (front, back) = host.split_at(KIB).unwrap();
    s.synchronize().unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    let _ = s
        .copy_to_device(&back, &device.slice(KIB..).unwrap())
        .unwrap();
    let ((), calls) = rig::calls_of(|| {
        drop(back);
        drop(front);
    });
    assert_eq!(calls, 0, "a drop made CUDA calls");
    assert!(is_pinned(at), "it is gone while a copy reads it");
    let opener = gate.open_after(Duration::from_millis(50));
    mm.trim().unwrap();
    opener.join().unwrap();
    assert!(s.query().unwrap());
    assert!(!is_pinned(at));
    let mut seen = mm.pinned_zeroed::<u8>(MIB).unwrap();
    let _ = s.copy_to_host(&device, &mut seen).unwrap();
    rig::assert_all(&seen.as_slice().unwrap()[KIB..], 0x5A, "what was copied");
    // In a host function, and with the manager gone first.
    let host = mm.adopt(vec![1u8; MIB]).unwrap();
    let at = host.as_ptr();
    drop((seen, device));
    assert_eq!(mm.stats().in_use(), 0);
    drop(mm);
    s.launch_host(move || drop(host)).unwrap();
    s.synchronize().unwrap();
    assert!(rig::eventually(|| {
        manager().trim().unwrap();
        !is_pinned(at)
    }));
}

#[test]
fn memory_that_cannot_be_registered_comes_back() {
    let mm = manager();
    let mut vec = vec![3u8; MIB];
    let at = vec.as_mut_ptr();
    // SAFETY: the vector has these bytes, and they are unregistered before it goes.
    unsafe {
        assert_eq!(cuda_sys::cudaHostRegister(at.cast(), MIB, 0).0, 0);
        let refused = mm.adopt(vec).unwrap_err();
        assert_eq!(refused.error().cuda_code(), Some(712), "{refused}");
        assert_eq!(last_error(), 0);
        vec = refused.into_inner();
        assert_eq!(cuda_sys::cudaHostUnregister(at.cast()).0, 0);
    }
    assert_eq!((vec.as_mut_ptr(), vec.len()), (at, MIB));
    // Nothing is left of the attempt.
    let vec = mm.adopt(vec).unwrap().into_vec().unwrap();
    rig::assert_all(&vec, 3, "the vector");
    mm.shutdown().unwrap();
}

#[test]
fn refusals_of_the_runtime_lose_no_memory_and_free_none_that_is_registered() {
    sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let mm = manager();
        let s = Stream::new().unwrap();
        let fault = cudart_sim::fail("cudaHostRegister", cuda_sys::cudaError(2));
        let refused = mm.adopt(vec![4u8; MIB]).unwrap_err();
        assert_eq!(refused.error().cuda_code(), Some(2), "{refused}");
        drop(fault);
        let host = mm.adopt(refused.into_inner()).unwrap();
        // No proof, and no unregistering: the buffer stays what it was.
        let device = mm.device::<u8>(MIB, &s).unwrap();
        let _ = s.copy_to_device(&host, &device).unwrap();
        let fault = cudart_sim::fail("cudaEventSynchronize", cuda_sys::cudaError(999));
        let refused = host.into_vec().unwrap_err();
        assert_eq!((fault.fired(), refused.error().cuda_code()), (1, Some(999)));
        drop(fault);
        let fault = cudart_sim::fail("cudaHostUnregister", cuda_sys::cudaError(999));
        let refused = refused.into_inner().into_vec().unwrap_err();
        assert_eq!((fault.fired(), refused.error().cuda_code()), (1, Some(999)));
        drop(fault);
        let host = refused.into_inner();
        assert!(is_pinned(host.as_ptr()));
        // Dropped, and refused at the later call: the memory is never freed.
        let at = host.as_ptr();
        let _ = s.copy_to_device(&host, &device).unwrap();
        drop(host);
        let fault = cudart_sim::fail("cudaEventSynchronize", cuda_sys::cudaError(999));
        mm.trim().unwrap();
        assert_eq!(fault.fired(), 1);
        drop(fault);
        assert!(is_pinned(at), "it went without a proof");
        mm.trim().unwrap();
        assert!(!is_pinned(at));
        let host = mm.adopt(vec![6u8; MIB]).unwrap();
        let at = host.as_ptr();
        drop(host);
        let fault = cudart_sim::fail("cudaHostUnregister", cuda_sys::cudaError(999));
        mm.trim().unwrap();
        assert_eq!(fault.fired(), 1);
        drop(fault);
        mm.trim().unwrap();
        assert!(is_pinned(at));
        // SAFETY: the vector was leaked, and is still what it was.
        rig::assert_all(
            unsafe { crate::common::bytes(at, MIB) },
            6,
            "the leaked vector",
        );
        drop(device);
        mm.shutdown().unwrap();
    }
}

#[test]
fn device_memory_that_was_adopted_is_freed_once_when_nothing_uses_it_and_never_in_the_drop() {
    let mm = manager();
    let (s, other) = (Stream::new().unwrap(), Stream::new().unwrap());
    let (memory, freed, free) = malloc(MIB);
    // SAFETY: the memory has these bytes, and is freed by `free` alone.
    let device = unsafe { mm.adopt_device::<u32>(memory, MIB / 4, &s, free) }.unwrap();
    assert_eq!(
        (device.as_ptr(), device.len(), device.device()),
        (memory, MIB / 4, s.device())
    );
    let mut host = mm.pinned_zeroed::<u32>(MIB / 4).unwrap();
    s.synchronize().unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    // Work of its stream that the manager does not see, and a copy on another, which follows it.
    // SAFETY: the memory is adopted and live.
    unsafe { rig::kernel_fill(memory, 0x21, MIB, &s) };
    let copied = other.copy_to_host(&device, &mut host).unwrap();
    assert!(!copied.is_done().unwrap());
    let (front, back) = device.split_at(100).unwrap();
    let ((), calls) = rig::calls_of(|| {
        drop(front);
        drop(back);
    });
    assert_eq!(calls, 0);
    assert_eq!(freed.load(Ordering::SeqCst), 0);
    let opener = gate.open_after(Duration::from_millis(50));
    mm.trim().unwrap();
    assert_eq!(freed.load(Ordering::SeqCst), 1);
    assert!(copied.is_done().unwrap() && s.query().unwrap());
    opener.join().unwrap();
    assert!(host.as_slice().unwrap().iter().all(|n| *n == 0x2121_2121));
    mm.trim().unwrap();
    assert_eq!(freed.load(Ordering::SeqCst), 1);
    drop(host);
    mm.shutdown().unwrap();
}

/// Kernels are not seen; what is freed comes behind those on the stream that the memory was adopted for.
#[test]
fn device_memory_that_was_adopted_is_freed_behind_all_work_of_its_stream() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let (memory, freed, free) = malloc(MIB);
    let watched = s.clone();
    let free = move || {
        assert!(watched.query().unwrap(), "its stream works");
        free();
    };
    // SAFETY: the memory has these bytes, and is freed by `free` alone.
    let device = unsafe { mm.adopt_device::<u8>(memory, MIB, &s, free) }.unwrap();
    let gate = Gate::new();
    stall(&s, &gate);
    // SAFETY: the memory is adopted and live.
    unsafe { rig::kernel_fill(device.as_ptr(), 1, MIB, &s) };
    drop(device);
    let opener = gate.open_after(Duration::from_millis(50));
    mm.trim().unwrap();
    opener.join().unwrap();
    assert_eq!(freed.load(Ordering::SeqCst), 1);
    mm.shutdown().unwrap();
}

#[test]
fn device_memory_is_not_adopted_twice_nor_from_the_manager_itself() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let adopt = |mm: &MemoryManager, at: *mut c_void, len: usize| {
        // SAFETY: each is refused, or has no bytes, and there is nothing to free.
        unsafe { mm.adopt_device::<u8>(at, len, &s, || panic!("it was refused")) }
    };
    let own = mm.device::<u8>(KIB, &s).unwrap();
    let pinned = mm.pinned::<u8>(KIB).unwrap();
    let (memory, freed, free) = malloc(KIB);
    // SAFETY: the memory has these bytes, and is freed by `free` alone.
    let device = unsafe { mm.adopt_device::<u8>(memory, KIB, &s, free) }.unwrap();
    let inside = memory.wrapping_byte_add(KIB - 1);
    let before = memory.wrapping_byte_sub(1);
    for (at, len) in [
        (std::ptr::null_mut(), 1),
        (own.as_ptr(), 1),
        (pinned.as_ptr(), 1),
        (memory, KIB),
        (inside, 1),
        (before, 2),
        (memory, usize::MAX),
    ] {
        let error = adopt(&mm, at, len).unwrap_err();
        assert!(
            matches!(error, Error::UnknownPointer { .. }),
            "{at:?}, {len}: {error:?}"
        );
    }
    drop(adopt(&mm, std::ptr::null_mut(), 0).unwrap());
    // Raw pointers find it too: a copy that leaves it is refused, and one that does not keeps it.
    let host = mm.allocate_pinned(2 * KIB).unwrap();
    let gate = Gate::new();
    // SAFETY: the blocks are live and have these bytes, or the copy is refused.
    unsafe {
        let refused = mm.copy_to_host_async(host, inside, 2, &s);
        assert!(
            matches!(refused, Err(Error::InvalidRange { .. })),
            "{refused:?}"
        );
        mm.memset(memory, 0x44, KIB, &s).unwrap();
        stall(&s, &gate);
        mm.copy_to_host_async(host, memory, KIB, &s).unwrap();
        drop(device);
        assert_eq!(freed.load(Ordering::SeqCst), 0);
        gate.open();
        mm.trim().unwrap();
        assert_eq!(freed.load(Ordering::SeqCst), 1);
        rig::assert_all(crate::common::bytes(host, KIB), 0x44, "the copy");
        mm.free_pinned(host).unwrap();
    }
    drop((own, pinned));
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

#[test]
fn a_panic_in_what_frees_adopted_memory_is_caught() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let (memory, freed, free) = malloc(KIB);
    let free = || {
        free();
        panic!("on purpose");
    };
    // SAFETY: the memory has these bytes, and is freed by `free` alone.
    drop(unsafe { mm.adopt_device::<u8>(memory, KIB, &s, free) }.unwrap());
    mm.trim().unwrap();
    assert_eq!(freed.load(Ordering::SeqCst), 1);
    mm.shutdown().unwrap();
}
