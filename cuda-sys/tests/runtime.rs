//! Calls into the runtime that is linked: the simulator with the feature `sim`, else the real one, where the tests that need
//! a GPU skip on a machine without a driver and say so.

use cuda_sys::*;
use std::mem::MaybeUninit;

/// Whether a device can be used. The simulator always has one.
fn device_or_skip() -> bool {
    let mut driver = 0;
    // SAFETY: the call writes one int.
    let error = unsafe { cudaDriverGetVersion(&mut driver) };
    let mut devices = 0;
    // SAFETY: the call writes one int.
    let counted = unsafe { cudaGetDeviceCount(&mut devices) };
    let there = error == cudaError::cudaSuccess
        && driver > 0
        && counted == cudaError::cudaSuccess
        && devices > 0;
    if there {
        return true;
    }
    assert!(BACKEND != "simulator", "the simulator has a device");
    assert!(
        std::env::var_os("MEMMGR_REQUIRE_GPU").is_none(),
        "no GPU was found, and this run requires one"
    );
    eprintln!("skipped: no GPU (driver version {driver}, {devices} devices)");
    false
}

#[test]
fn the_runtime_is_of_the_version_of_the_bindings() {
    let runtime = check_runtime().unwrap();
    assert_eq!(runtime / 1000, compiled_version() / 1000);
}

#[test]
fn device_properties_fit_the_struct_and_agree_with_the_memory_that_is_there() {
    if !device_or_skip() {
        return;
    }
    const MORE: usize = 64;
    const CANARY: u8 = 0x5A;
    #[repr(C)]
    struct Guarded {
        before: [u8; MORE],
        properties: MaybeUninit<cudaDeviceProp>,
        after: [u8; MORE],
    }
    let mut guarded = Guarded {
        before: [CANARY; MORE],
        properties: MaybeUninit::zeroed(),
        after: [CANARY; MORE],
    };
    // SAFETY: the call fills one struct of its own version; that it writes no more is what is tested, and there is room for it.
    let error = unsafe { cudaGetDeviceProperties(guarded.properties.as_mut_ptr(), 0) };
    assert_eq!(error, cudaError::cudaSuccess);
    assert_eq!(guarded.before, [CANARY; MORE]);
    assert_eq!(guarded.after, [CANARY; MORE]);
    // SAFETY: zeroed and then filled; every field is a number, a byte array or a union of such.
    let properties = unsafe { guarded.properties.assume_init() };
    assert_ne!(properties.name[0], 0);
    let (mut free, mut total) = (0, 0);
    // SAFETY: the calls take a device number and write two sizes.
    unsafe {
        assert_eq!(cudaSetDevice(0), cudaError::cudaSuccess);
        assert_eq!(
            cudaMemGetInfo(&mut free, &mut total),
            cudaError::cudaSuccess
        );
    }
    assert!(free <= total);
    // They differ by what the driver keeps for itself, at most.
    assert!(
        properties.totalGlobalMem.abs_diff(total) <= total / 50,
        "{} {total}",
        properties.totalGlobalMem
    );
}

#[test]
fn the_driver_names_its_functions() {
    if !device_or_skip() {
        return;
    }
    // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, which the runtime has no name for.
    let mut mapped = 0;
    // SAFETY: `mapped` is a place for one int.
    let asked = unsafe { cudaDeviceGetAttribute(&mut mapped, cudaDeviceAttr(102), 0) };
    assert_eq!(asked, cudaError::cudaSuccess);
    assert_eq!(
        driver_entry_point(c"cuMemAddressReserve", 10020).is_ok(),
        mapped != 0
    );
    assert_eq!(
        driver_entry_point(c"cuNoSuchFunction", 12000),
        Err(cudaError::cudaErrorSymbolNotFound)
    );
}

#[test]
fn static_inline_functions_can_be_called() {
    // SAFETY: the function adds its three arguments to a struct.
    let extent = unsafe { make_cudaExtent(1, 2, 3) };
    assert_eq!((extent.width, extent.height, extent.depth), (1, 2, 3));
}

#[test]
fn a_stream_knows_its_device() {
    if !device_or_skip() {
        return;
    }
    let mut stream = std::ptr::null_mut();
    // SAFETY: the device exists; the stream is made here, asked, and destroyed once.
    unsafe {
        assert_eq!(cudaSetDevice(0), cudaError::cudaSuccess);
        assert_eq!(
            cudaStreamCreateWithFlags(&mut stream, cudaStreamNonBlocking),
            cudaError::cudaSuccess
        );
        assert_eq!(stream_get_device(stream), Ok(0));
        assert_eq!(cudaStreamDestroy(stream), cudaError::cudaSuccess);
    }
}
