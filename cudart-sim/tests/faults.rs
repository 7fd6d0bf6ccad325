//! The switches that make a machine fail, one test for each; byte limits are in limits.rs.

mod common;
use common::machine;
mod cuda;
use cuda::*;
#[path = "common/every.rs"]
mod every;
use cudart_sim::{Config, DeviceConfig, fail};
use every::{QUESTIONS, every};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock};

const UNKNOWN: sys::cudaError = sys::cudaError::cudaErrorUnknown;

fn driver_version() -> i32 {
    let mut version = -1;
    assert_eq!(cuda!(cudaDriverGetVersion(&mut version)), 0);
    version
}

fn try_malloc(size: usize) -> u32 {
    let mut p = null_mut();
    let code = cuda!(cudaMalloc(&mut p, size));
    assert_eq!(p.is_null(), code != 0 || size == 0);
    code
}

#[test]
fn every_function_can_be_made_to_fail_at_its_nth_call() {
    let _turn = machine();
    for entry in every() {
        let fault = fail(entry.name, UNKNOWN).after(2).times(1);
        let answers: Vec<bool> = (0..4).map(|_| (entry.call)() == 999).collect();
        assert_eq!(answers, [false, false, true, false], "{}", entry.name);
        assert_eq!(fault.fired(), 1, "{}", entry.name);
        drop(fault);
        cuda!(cudaGetLastError());
    }
    for name in every::NO_CODE {
        let refused = std::panic::catch_unwind(|| fail(name, UNKNOWN));
        assert!(refused.is_err(), "{name}");
    }
}

#[test]
fn a_fault_may_be_for_one_device_and_the_stream_tells_which() {
    let _turn = machine();
    cudart_sim::configure(Config::devices(2, 1 << 30)).unwrap();
    let on = |device| assert_eq!(cuda!(cudaSetDevice(device)), 0);
    on(1);
    let (s1, e1) = (stream(), event());
    on(0);
    let (s0, e0) = (stream(), event());
    let malloc = fail("cudaMalloc", UNKNOWN).on_device(1).times(2);
    let record = fail("cudaEventRecord", UNKNOWN)
        .on_device(1)
        .after(1)
        .times(9);
    let own = 2 as sys::cudaStream_t;
    assert_eq!(try_malloc(16), 0, "the current device is 0");
    assert_eq!(cuda!(cudaEventRecord(e1, s1)), 0, "the first one passes");
    assert_eq!(
        cuda!(cudaEventRecord(e1, s1)),
        999,
        "the stream's device is 1"
    );
    assert_eq!(cuda!(cudaEventRecord(e0, s0)), 0);
    assert_eq!(cuda!(cudaEventRecord(e0, own)), 0);
    on(1);
    assert_eq!(try_malloc(16), 999);
    assert_eq!(
        cuda!(cudaEventRecord(e0, s0)),
        0,
        "the stream's device is 0"
    );
    assert_eq!(
        cuda!(cudaEventRecord(e1, own)),
        999,
        "the thread's own stream is on the current device"
    );
    // A destroyed stream has no device.
    assert_eq!(cuda!(cudaStreamDestroy(s0)), 0);
    assert_eq!(cuda!(cudaEventRecord(e0, s0)), 999);
    assert_eq!((malloc.fired(), record.fired()), (1, 3));
    // Both conditions hold together with the thread's.
    std::thread::spawn(move || {
        on(1);
        assert_eq!(try_malloc(16), 0, "another thread");
    })
    .join()
    .unwrap();
    assert_eq!(try_malloc(16), 999);
}

#[test]
fn a_fault_is_for_the_thread_that_set_it_unless_it_is_for_any() {
    let _turn = machine();
    let other = |f: fn() -> u32| std::thread::spawn(f).join().unwrap();
    let mine = fail("cudaMalloc", UNKNOWN);
    assert_eq!(other(|| try_malloc(16)), 0);
    assert_eq!(try_malloc(16), 999);
    assert_eq!(try_malloc(16), 0, "once");
    drop(mine);
    let any = fail("cudaMalloc", UNKNOWN).any_thread().times(2);
    assert_eq!(
        (other(|| try_malloc(16)), try_malloc(16), try_malloc(16)),
        (999, 999, 0)
    );
    assert_eq!(any.fired(), 2);
}

/// The driver's function refuses, and the runtime's says why: so who asks the driver first meets every fault.
#[test]
fn a_fault_of_the_runtime_is_met_at_the_driver_and_used_up_at_the_runtime() {
    let _turn = machine();
    let (s, e, mut h, mut d) = (stream(), event(), null_mut(), null_mut());
    assert_eq!(cuda!(cudaHostAlloc(&mut h, 4096, 0)), 0);
    assert_eq!(cuda!(cudaMalloc(&mut d, 4096)), 0);
    let mut status = sys::cudaStreamCaptureStatus(9);
    let copies = fail("cudaMemcpyAsync", UNKNOWN).after(2);
    let record = fail("cudaEventRecord", UNKNOWN).on_device(0);
    let asked = fail("cudaStreamIsCapturing", UNKNOWN);
    let here = || driver!(cuMemcpyHtoDAsync: own MemcpyHtoDAsync(d as u64, h, 16, s));
    let back = || driver!(cuMemcpyDtoHAsync: own MemcpyDtoHAsync(h, d as u64, 16, s));
    assert_eq!((here(), back()), (0, 0), "two pass");
    assert_eq!((here(), back(), here()), (999, 999, 999));
    assert_eq!(driver!(cuEventRecord: own EventRecord(e, s)), 999);
    let mut ask = || driver!(cuStreamIsCapturing: own StreamIsCapturing(s, &mut status));
    assert_eq!(ask(), 999);
    assert_eq!(cuda!(cudaPeekAtLastError()), 0, "the driver leaves none");
    let fired = || [copies.fired(), record.fired(), asked.fired()];
    assert_eq!(fired(), [0; 3]);
    let kind = sys::cudaMemcpyKind::cudaMemcpyHostToDevice;
    assert_eq!(cuda!(cudaMemcpyAsync(d, h, 16, kind, s)), 999);
    assert_eq!(cuda!(cudaEventRecord(e, s)), 999);
    let mut of_runtime = sys::cudaStreamCaptureStatus(9);
    assert_eq!(cuda!(cudaStreamIsCapturing(s, &mut of_runtime)), 999);
    assert_eq!(fired(), [1; 3]);
    assert_eq!((here(), back(), ask()), (0, 0, 0));
    assert_eq!(driver!(cuEventRecord: own EventRecord(e, s)), 0);
    assert_eq!(cuda!(cudaGetLastError()), 999);
}

#[test]
fn a_broken_context_answers_its_error_from_every_call_of_that_device() {
    let _turn = machine();
    cudart_sim::configure(Config::devices(2, 1 << 30)).unwrap();
    let entries = every();
    cudart_sim::break_context(1, sys::cudaError::cudaErrorIllegalAddress);
    // What needs no context goes on: which devices there are, what they can do, pools of a device, versions.
    let without_context = [
        "cudaDeviceReset",
        "cudaGetDeviceCount",
        "cudaGetDeviceProperties",
        "cudaDeviceGetAttribute",
        "cudaDeviceGetDefaultMemPool",
        "cudaDeviceSetMemPool",
        "cudaDeviceGetMemPool",
        "cudaInitDevice",
        "cudaSetDevice",
        "cudaGetDevice",
        "cudaDeviceCanAccessPeer",
        "cudaThreadExchangeStreamCaptureMode",
        "cudaDriverGetVersion",
        "cudaRuntimeGetVersion",
        "cudaGetDriverEntryPoint",
        "cudaGetDriverEntryPointByVersion",
        "cuGetErrorName",
        "cudaUserObjectCreate",
        "cudaUserObjectRelease",
        "cudaGraphRetainUserObject",
        "cuCtxGetCurrent",
        "cuCtxGetId",
        "cuCtxGetDevice",
        "cuDeviceGetAttribute",
    ];
    for device in [0, 1] {
        for entry in &entries {
            // One of the entries makes device 0 the current one.
            assert_eq!(cuda!(cudaSetDevice(device)), 0);
            let broken = device == 1 && !without_context.contains(&entry.name);
            if entry.name == "cudaDeviceReset" {
                continue;
            }
            assert_eq!(
                (entry.call)() == 700,
                broken,
                "{} on device {device}",
                entry.name
            );
        }
    }
    assert_eq!(cuda!(cudaGetLastError()), 700, "it sticks");
    assert_eq!(cuda!(cudaGetLastError()), 700);
    assert_eq!(cuda!(cudaDeviceReset()), 0);
    cuda!(cudaGetLastError());
    assert_eq!(cuda!(cudaGetLastError()), 0);
    assert_eq!(try_malloc(16), 0);
}

#[test]
fn while_unloading_every_function_answers_4() {
    let _turn = machine();
    let entries = every();
    cudart_sim::unload();
    for entry in &entries {
        assert_eq!((entry.call)(), 4, "{}", entry.name);
    }
    cudart_sim::reset();
    assert_eq!(try_malloc(16), 0);
}

/// What a host function finds and leaves: the table, and the answers.
static TABLE: OnceLock<Vec<every::Entry>> = OnceLock::new();
static ANSWERS: Mutex<Vec<(&str, u32)>> = Mutex::new(Vec::new());

extern "C" fn call_all(_: *mut c_void) {
    let table = TABLE.get().expect("it is filled");
    *ANSWERS.lock().unwrap() = table.iter().map(|e| (e.name, (e.call)())).collect();
}

#[test]
fn a_host_function_gets_800_from_every_function_but_the_questions() {
    let _turn = machine();
    TABLE.get_or_init(every);
    let s = stream();
    assert_eq!(cuda!(cudaLaunchHostFunc(s, Some(call_all), null_mut())), 0);
    assert_eq!(cuda!(cudaStreamSynchronize(s)), 0);
    let answers = ANSWERS.lock().unwrap();
    assert!(answers.len() > 80);
    for &(name, code) in answers.iter() {
        let expected = match name {
            // What was refused before it; then it is fetched.
            "cudaGetLastError" => 800,
            "cudaPeekAtLastError" => 0,
            // Answered, but without a place for the answer, or an event.
            "cudaGetDeviceCount" => 1,
            "cudaEventQuery" | "cuEventRecord" => 400,
            "cuStreamIsCapturing" => 1,
            _ if QUESTIONS.contains(&name) => 1,
            _ => 800,
        };
        assert_eq!(code, expected, "{name}");
    }
    assert_eq!(cuda!(cudaGetLastError()), 0, "it left no error");
}

fn try_create(len: usize) -> (u32, u64) {
    let (mut handle, prop) = (0, on_device_0());
    let code = driver!(cuMemCreate: PFN_cuMemCreate_v10020(&mut handle, len, &prop, 0));
    (code, handle)
}

fn one_device(device: DeviceConfig) -> cudart_sim::testing::Machine {
    let turn = machine();
    let config = Config {
        devices: vec![device],
        ..Config::default()
    };
    cudart_sim::configure(config).unwrap();
    turn
}

fn attribute(attribute: sys::cudaDeviceAttr) -> (u32, i32) {
    let mut value = -1;
    let code = cuda!(cudaDeviceGetAttribute(&mut value, attribute, 0));
    (code, value)
}

const POOLS: sys::cudaDeviceAttr = sys::cudaDeviceAttr::cudaDevAttrMemoryPoolsSupported;
const VIRTUAL_MEMORY: sys::cudaDeviceAttr = sys::cudaDeviceAttr(102);

/// What the functions of pools answer.
fn pool_answers() -> [u32; 4] {
    let (mut p, mut pool) = (null_mut(), null_mut());
    let mut props = sys::cudaMemPoolProps {
        allocType: sys::cudaMemAllocationType::cudaMemAllocationTypePinned,
        ..Default::default()
    };
    props.location.type_ = sys::cudaMemLocationType::cudaMemLocationTypeDevice;
    [
        cuda!(cudaMallocAsync(&mut p, 16, null_mut())),
        cuda!(cudaDeviceGetDefaultMemPool(&mut pool, 0)),
        cuda!(cudaDeviceGetMemPool(&mut pool, 0)),
        cuda!(cudaMemPoolCreate(&mut pool, &props)),
    ]
}

#[test]
fn a_device_without_pools_says_so_and_answers_801() {
    let _turn = one_device(DeviceConfig {
        memory_pools: false,
        ..DeviceConfig::default()
    });
    assert_eq!(attribute(POOLS), (0, 0));
    assert_eq!(pool_answers(), [801; 4]);
    assert_eq!((try_malloc(16), try_create(CHUNK).0), (0, 0));
}

#[test]
fn a_device_without_virtual_memory_says_so_and_answers_801() {
    let _turn = one_device(DeviceConfig {
        virtual_memory: false,
        ..DeviceConfig::default()
    });
    assert_eq!(attribute(VIRTUAL_MEMORY), (0, 0));
    assert_eq!(try_create(CHUNK).0, 801);
    let mut at = 0;
    let code =
        driver!(cuMemAddressReserve: PFN_cuMemAddressReserve_v10020(&mut at, CHUNK, 0, 0, 0));
    assert_eq!((code, at), (801, 0));
    assert_eq!((try_malloc(16), pool_answers()), (0, [0; 4]));
}

fn old_driver(driver_version: i32, runtime_version: i32) -> cudart_sim::testing::Machine {
    let turn = machine();
    let config = Config {
        driver_version,
        runtime_version,
        ..Config::default()
    };
    cudart_sim::configure(config).unwrap();
    turn
}

#[test]
fn a_driver_older_than_the_runtime_needs_answers_35_and_tells_its_version() {
    for (driver, runtime, works) in [
        (12_090, 13_000, false),
        (13_000, 13_000, true),
        (13_000, 13_010, true),
        (13_010, 13_000, true),
        (12_000, 11_080, true),
        (10_020, 11_000, false),
    ] {
        let _turn = old_driver(driver, runtime);
        let mut told = 0;
        assert_eq!(
            (cuda!(cudaRuntimeGetVersion(&mut told)), told),
            (0, runtime)
        );
        assert_eq!(driver_version(), driver);
        if works {
            assert_eq!(try_malloc(16), 0, "{driver} under {runtime}");
            continue;
        }
        // The functions of the driver cannot even be looked for.
        let mut p = null_mut();
        assert_eq!(cuda!(cudaMalloc(&mut p, 16)), 35);
        assert_eq!(cuda!(cudaFree(null_mut())), 35);
        assert_eq!(cuda!(cudaGetDeviceCount(&mut told)), 35);
        assert_eq!(
            cuda!(cudaGetDriverEntryPoint(
                c"cuMemCreate".as_ptr(),
                &mut p,
                0,
                null_mut()
            )),
            35
        );
        assert_eq!(
            (cuda!(cudaGetLastError()), cuda!(cudaGetLastError())),
            (35, 35)
        );
    }
    cudart_sim::reset();
}

#[test]
fn a_driver_from_before_pools_answers_36_and_does_not_know_the_attribute() {
    {
        let _turn = old_driver(11_010, 11_040);
        assert_eq!(pool_answers(), [36; 4]);
        assert_eq!(attribute(POOLS).0, 1);
        assert_eq!(attribute(VIRTUAL_MEMORY), (0, 1));
        let mut properties = sys::cudaDeviceProp::default();
        assert_eq!(cuda!(cudaGetDeviceProperties(&mut properties, 0)), 0);
        assert_eq!(properties.memoryPoolsSupported, 0);
        assert_eq!(try_malloc(16), 0);
        // Found if the driver has it, whatever version is asked for.
        assert!(!symbol("cuMemRetainAllocationHandle", 11_000).is_null());
    }
    {
        let _turn = old_driver(11_020, 11_040);
        assert_eq!((attribute(POOLS), pool_answers()), ((0, 1), [0; 4]));
    }
    {
        let _turn = old_driver(10_010, 10_020);
        assert!(symbol("cuMemCreate", 10_020).is_null(), "it came with 10.2");
    }
    {
        let _turn = old_driver(12_070, 12_090);
        let mut device = 0;
        assert_eq!(cuda!(cudaStreamGetDevice(null_mut(), &mut device)), 36);
    }
    cudart_sim::reset();
}
