//! Virtual memory: what an H200 answered, asserted with the same calls. Calls CUDA functions only.

mod cuda;
use cuda::*;
use std::ffi::c_void;
use std::ptr::null_mut;

const ILLEGAL_ADDRESS: u32 = 700;

fn free_memory() -> usize {
    let (mut free, mut total) = (0, 0);
    assert_eq!(cuda!(cudaMemGetInfo(&mut free, &mut total)), 0);
    free
}

#[test]
fn the_granularity_is_2_mib_and_64_tib_can_be_reserved() {
    let _turn = turn();
    let mut supported = 0;
    let attribute = sys::cudaDeviceAttr(102);
    assert_eq!(
        cuda!(cudaDeviceGetAttribute(&mut supported, attribute, 0)),
        0
    );
    assert_eq!(supported, 1);
    for option in [0, 1] {
        let mut bytes = 0;
        let option = sys::CUmemAllocationGranularity_flags(option);
        let code = driver!(cuMemGetAllocationGranularity: PFN_cuMemGetAllocationGranularity_v10020(
            &mut bytes,
            &on_device_0(),
            option,
        ));
        assert_eq!((code, bytes), (0, CHUNK));
    }
    for len in [256 << 30, 64 << 40] {
        let at = reserve(len);
        assert_eq!(at % CHUNK as u64, 0);
        assert_eq!(free(at, len), 0);
    }
}

#[test]
fn functions_of_the_driver_are_found_by_name() {
    let _turn = turn();
    let (at, status) = symbol_and_status("cuMemCreate", 12000);
    assert!(!at.is_null() && status == 0);
    let mut device = 7;
    assert_eq!(
        driver!(cuCtxGetDevice: PFN_cuCtxGetDevice_v2000(&mut device)),
        0
    );
    assert_eq!(device, 0);
    let mut name = std::ptr::null();
    let code = sys::CUresult(2);
    assert_eq!(
        driver!(cuGetErrorName: PFN_cuGetErrorName_v6000(code, &mut name)),
        0
    );
    // SAFETY: the name of an error is a C string that stays.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    assert_eq!(name, c"CUDA_ERROR_OUT_OF_MEMORY");
}

#[test]
fn a_handle_maps_whole_or_not_at_all() {
    let _turn = turn();
    let at = reserve(2 * CHUNK);
    let handle = create(2 * CHUNK);
    assert_eq!(map(at, CHUNK, 0, handle), 801);
    assert_eq!(map(at, 2 * CHUNK, 0, handle), 0);
    assert_eq!(unmap(at, CHUNK), 1);
    assert_eq!(unmap(at + CHUNK as u64, CHUNK), 1);
    assert_eq!(cuda!(cudaGetLastError()), 0, "the driver leaves none");
    assert_eq!(unmap(at, 2 * CHUNK), 0);
    assert_eq!(release(handle), 0);
    assert_eq!(free(at, 2 * CHUNK), 0);
}

#[test]
fn physical_memory_counts_when_it_is_created_and_until_it_is_unmapped_and_released() {
    let _turn = turn();
    const LEN: usize = 64 << 20;
    let before = free_memory();
    let handle = create(LEN);
    assert_eq!(before - free_memory(), LEN);
    let at = reserve(LEN);
    assert_eq!(map(at, LEN, 0, handle), 0);
    assert_eq!(access(at, LEN, 3), 0);
    assert_eq!(release(handle), 0);
    assert_eq!(before - free_memory(), LEN);
    // Mapped memory stays usable without its handle, and gives another one.
    let p = at as *mut c_void;
    assert_eq!(cuda!(cudaMemset(p, 5, LEN)), 0);
    assert_eq!(read(p, 3), [5; 3]);
    let mut again = 0;
    let code = driver!(cuMemRetainAllocationHandle: PFN_cuMemRetainAllocationHandle_v11000(
        &mut again,
        p.wrapping_byte_add(77),
    ));
    assert_eq!(code, 0);
    assert_eq!(unmap(at, LEN), 0);
    assert_eq!(before - free_memory(), LEN);
    assert_eq!(release(again), 0);
    assert_eq!(free_memory(), before);
    assert_eq!(free(at, LEN), 0);
}

#[test]
fn more_than_there_is_cannot_be_created() {
    let _turn = turn();
    let (mut free, mut total) = (0, 0);
    assert_eq!(cuda!(cudaMemGetInfo(&mut free, &mut total)), 0);
    let mut handle = 0;
    let len = total.next_multiple_of(CHUNK) + CHUNK;
    let prop = on_device_0();
    let code = driver!(cuMemCreate: PFN_cuMemCreate_v10020(&mut handle, len, &prop, 0));
    assert_eq!(code, 2);
}

#[test]
fn copies_and_fills_go_across_the_borders_of_chunks() {
    let _turn = turn();
    let v = Mapped::new(CHUNK, 8);
    let (s, n) = (stream(), v.len());
    let host = pattern(n);
    let source = host.as_ptr().wrapping_add(100).cast();
    let d = v.pointer(0);
    assert_eq!(
        cuda!(cudaMemcpyAsync(v.pointer(100), source, n - 200, H2D, s)),
        0
    );
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
    assert!(read(v.pointer(100), n - 200) == host[100..n - 100]);

    let plain = malloc(n);
    assert_eq!(cuda!(cudaMemcpyAsync(plain, d, n, D2D, s)), 0);
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
    assert!(read(plain.wrapping_byte_add(100), n - 200) == host[100..n - 100]);

    let code = cuda!(cudaMemcpy2DAsync(plain, 5000, d, 6000, 4000, 2000, D2D, s));
    assert_eq!(code, 0);
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
    let bytes = read(plain, 5000 * 1999 + 4000);
    for row in 1..2000 {
        assert!(bytes[row * 5000..][..4000] == host[row * 6000..][..4000]);
    }

    let middle = v.pointer(MIB);
    assert_eq!(cuda!(cudaMemsetAsync(middle, 3, 4 * MIB, s)), 0);
    assert_eq!(cuda!(cudaMemset2DAsync(d, 6000, 4, 4000, 2000, s)), 0);
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
    let mut want = read(d, 100);
    want.extend_from_slice(&host[100..]);
    want[MIB..5 * MIB].fill(3);
    for row in 0..2000 {
        want[row * 6000..][..4000].fill(4);
    }
    assert!(read(d, n - 100) == want[..n - 100]);
    assert_eq!(cuda!(cudaFree(plain)), 0);
    v.end();
}

#[test]
fn what_physical_memory_holds_moves_with_it() {
    let _turn = turn();
    let bytes = pattern(CHUNK);
    let (at, elsewhere) = (reserve(CHUNK), reserve(4 * CHUNK));
    let handle = create(CHUNK);
    assert_eq!(map(at, CHUNK, 0, handle), 0);
    assert_eq!(access(at, CHUNK, 3), 0);
    let p = at as *mut c_void;
    assert_eq!(cuda!(cudaMemcpy(p, bytes.as_ptr().cast(), CHUNK, H2D)), 0);
    // A copy of pageable memory may return before its last bytes are on the device.
    assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
    assert_eq!(unmap(at, CHUNK), 0);
    let to = elsewhere + 2 * CHUNK as u64;
    assert_eq!(map(to, CHUNK, 0, handle), 0);
    assert_eq!(access(to, CHUNK, 3), 0);
    assert!(read(to as *const c_void, CHUNK) == bytes);
    assert_eq!(unmap(to, CHUNK), 0);
    assert_eq!(release(handle), 0);
    assert_eq!(free(at, CHUNK), 0);
    assert_eq!(free(elsewhere, 4 * CHUNK), 0);
}

#[test]
fn mapping_and_unmapping_do_not_wait_for_work() {
    let _turn = turn();
    let s = stream();
    let idle = Mapped::new(CHUNK, 1);
    stall(s, 200);
    let took = milliseconds(|| {
        idle.end();
        Mapped::new(CHUNK, 2).end();
    });
    assert!(took < 150, "{took} ms");
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
}

#[test]
fn a_full_stream_does_not_hold_up_mapping() {
    let _turn = turn();
    let full = stream() as usize;
    let p = malloc(256) as usize;
    stall(full as sys::cudaStream_t, 400);
    let stuck = std::thread::spawn(move || {
        let (s, p) = (full as sys::cudaStream_t, p as *mut c_void);
        (0..3000).all(|_| cuda!(cudaMemsetAsync(p, 0, 256, s)) == 0)
    });
    std::thread::sleep(std::time::Duration::from_millis(100));
    let took = milliseconds(|| Mapped::new(CHUNK, 1).end());
    assert!(took < 200, "{took} ms");
    assert!(stuck.join().unwrap());
    assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
    assert_eq!(cuda!(cudaFree(p as *mut c_void)), 0);
}

#[test]
fn a_pointer_to_mapped_memory_is_a_device_pointer_and_its_range_is_its_chunk_or_all_that_is_reserved()
 {
    let _turn = turn();
    let v = Mapped::new(CHUNK, 4);
    let inside = v.pointer(3 * MIB);
    let mut found = sys::cudaPointerAttributes::default();
    assert_eq!(cuda!(cudaPointerGetAttributes(&mut found, inside)), 0);
    assert_eq!((found.type_.0, found.device), (2, 0));
    assert_eq!(found.devicePointer, inside);
    let (mut base, mut size) = (0, 0);
    let code = driver!(cuMemGetAddressRange: PFN_cuMemGetAddressRange_v3020(
        &mut base,
        &mut size,
        inside as u64,
    ));
    assert_eq!(
        (code, base, size),
        (0, v.at + CHUNK as u64, CHUNK),
        "the chunk that holds it"
    );
    let attribute = |number| {
        let mut value = 0u64;
        let at = symbol("cuPointerGetAttribute", 13000);
        // SAFETY: the driver's function of that name has this type, and writes eight bytes for these two.
        let code = unsafe {
            let ask: extern "C" fn(*mut u64, u32, u64) -> u32 = std::mem::transmute(at);
            ask(&mut value, number, inside as u64)
        };
        (code, value)
    };
    let (start, len) = (attribute(11), attribute(12));
    assert_eq!(start, (0, v.at), "of the reservation");
    assert_eq!(len, (0, 4 * CHUNK as u64));
    v.end();
}

#[test]
fn holes_are_unmapped_freely_and_refused_to_copies_and_fills() {
    let _turn = turn();
    let at = reserve(2 * CHUNK);
    let (p, s) = (at as *mut c_void, stream());
    let about = || {
        let mut found = sys::cudaPointerAttributes::default();
        assert_eq!(cuda!(cudaPointerGetAttributes(&mut found, p)), 0);
        (found.type_.0, found.devicePointer, found.hostPointer)
    };
    assert_eq!(about().0, 0);
    assert_eq!(unmap(at, CHUNK), 0);
    assert_eq!(cuda!(cudaMemsetAsync(p, 1, 4096, s)), 1);
    assert_eq!(cuda!(cudaMemcpyAsync(p, p, 4096, D2D, s)), 1);
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0, "the context is fine");
    let handle = create(CHUNK);
    assert_eq!(map(at, CHUNK, 0, handle), 0);
    assert_eq!(about(), (2, null_mut(), null_mut()), "no access yet");
    assert_eq!(access(at, CHUNK, 3), 0);
    assert_eq!(about(), (2, p, null_mut()));
    let past = cuda!(cudaMemsetAsync(p, 1, CHUNK + 1, s));
    assert_eq!(past, 1, "into the hole behind it");
    assert_eq!(cuda!(cudaGetLastError()), 1);
    assert_eq!((unmap(at, CHUNK), unmap(at, CHUNK)), (0, 0));
    assert_eq!((release(handle), release(handle)), (0, 1));
    assert_eq!(free(at, 2 * CHUNK), 0);
}

#[test]
fn cuda_free_refuses_mapped_memory() {
    let _turn = turn();
    let v = Mapped::new(CHUNK, 1);
    assert_eq!(cuda!(cudaFree(v.pointer(0))), 1);
    assert_eq!(cuda!(cudaFreeAsync(v.pointer(0), null_mut())), 1);
    assert_eq!(cuda!(cudaGetLastError()), 1);
    v.end();
}

/// The error that stays after `work` on one mapped chunk.
fn breaks(name: &str, work: fn(&Mapped, sys::cudaStream_t)) {
    in_a_process_of_its_own(name, &[], || {
        let v = Mapped::new(CHUNK, 2);
        let s = stream();
        work(&v, s);
        assert_eq!(cuda!(cudaStreamSynchronize(s)), ILLEGAL_ADDRESS);
        assert_eq!(cuda!(cudaMalloc(&mut null_mut(), 256)), ILLEGAL_ADDRESS);
        assert_eq!(cuda!(cudaGetLastError()), ILLEGAL_ADDRESS);
    });
}

#[test]
fn work_that_reaches_what_was_unmapped_breaks_the_context() {
    breaks(
        "work_that_reaches_what_was_unmapped_breaks_the_context",
        |v, s| {
            stall(s, 50);
            assert_eq!(cuda!(cudaMemsetAsync(v.pointer(0), 1, 2 * CHUNK, s)), 0);
            assert_eq!(unmap(v.at + CHUNK as u64, CHUNK), 0);
        },
    );
}

#[test]
fn work_that_reaches_memory_without_access_breaks_the_context() {
    breaks(
        "work_that_reaches_memory_without_access_breaks_the_context",
        |v, s| {
            assert_eq!(access(v.at, 2 * CHUNK, 0), 0);
            assert_eq!(cuda!(cudaMemsetAsync(v.pointer(0), 1, 4096, s)), 0);
        },
    );
}

#[test]
fn a_large_device_can_be_mapped_in_65_536_chunks() {
    let name = "a_large_device_can_be_mapped_in_65_536_chunks";
    in_a_process_of_its_own(name, &[("CUDART_SIM_MEMORY", "140G")], || {
        let count = (free_memory() / CHUNK).saturating_sub(512).min(65_536);
        let v = Mapped::new(CHUNK, count);
        assert_eq!(cuda!(cudaMemset(v.pointer(0), 9, v.len())), 0);
        for at in [0, v.len() / 2, v.len() - CHUNK] {
            let bytes = pattern(64);
            let p = v.pointer(at + CHUNK - 64);
            assert_eq!(cuda!(cudaMemcpy(p, bytes.as_ptr().cast(), 64, H2D)), 0);
            assert_eq!(read(p, 64), bytes);
            assert_eq!(read(v.pointer(at), 64), [9; 64]);
        }
        v.end();
    });
}
