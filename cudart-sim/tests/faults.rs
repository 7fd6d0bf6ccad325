//! The switches that make a machine fail: one test for each.

mod common;
use common::machine;
mod cuda;
use cuda::*;
#[path = "common/every.rs"]
mod every;
use cudart_sim::{Config, DeviceConfig, Limited, fail, limit};
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

/// The most that can be had in steps of `step`, and what the call after that answers.
fn steps(most: usize, mut more: impl FnMut() -> u32) -> (usize, u32) {
    for n in 0..=most {
        let code = more();
        if code != 0 {
            return (n, code);
        }
    }
    (most + 1, 0)
}

#[test]
fn cuda_malloc_is_out_of_memory_at_its_limit() {
    let _turn = machine();
    limit(Limited::Malloc(0), Some(10 << 20));
    assert_eq!(steps(9, || try_malloc(4 << 20)), (2, 2));
    assert_eq!((try_malloc(2 << 20), try_malloc(1)), (0, 2), "to the byte");
    // Other memory has limits of its own.
    let mut q = null_mut();
    assert_eq!(cuda!(cudaMallocAsync(&mut q, 64 << 20, null_mut())), 0);
    assert_eq!(release(create(64 << 20)), 0);
    limit(Limited::Malloc(0), Some(11 << 20));
    let p = malloc(1 << 20);
    assert_eq!(try_malloc(1), 2);
    assert_eq!(cuda!(cudaFree(p)), 0);
    assert_eq!(try_malloc(1), 0, "a free makes room");
    limit(Limited::Malloc(0), Some(0));
    assert_eq!(
        (try_malloc(1), try_malloc(0)),
        (2, 0),
        "nothing takes no room"
    );
    limit(Limited::Malloc(0), None);
    assert_eq!(try_malloc(64 << 20), 0);
    cuda!(cudaGetLastError());
}

#[test]
fn pools_are_out_of_memory_at_their_limit_and_hand_out_what_they_have() {
    let _turn = machine();
    let more = || {
        let mut q = null_mut();
        cuda!(cudaMallocAsync(&mut q, 10 << 20, null_mut()))
    };
    limit(Limited::Pools(0), Some(64 << 20));
    let mut first = null_mut();
    assert_eq!(cuda!(cudaMallocAsync(&mut first, 10 << 20, null_mut())), 0);
    // Two pieces of 32 MiB, three blocks in each.
    assert_eq!(steps(20, more), (5, 2));
    assert_eq!(try_malloc(64 << 20), 0, "cudaMalloc is not a pool");
    limit(Limited::Pools(0), Some(0));
    assert_eq!(cuda!(cudaFreeAsync(first, null_mut())), 0);
    assert_eq!(more(), 0, "from what it holds");
    assert_eq!(more(), 2);
    // A pool of the program's own is a pool of the device as well.
    let mut props = sys::cudaMemPoolProps {
        allocType: sys::cudaMemAllocationType::cudaMemAllocationTypePinned,
        ..Default::default()
    };
    props.location.type_ = sys::cudaMemLocationType::cudaMemLocationTypeDevice;
    let (mut pool, mut q) = (null_mut(), null_mut());
    assert_eq!(cuda!(cudaMemPoolCreate(&mut pool, &props)), 0);
    assert_eq!(
        cuda!(cudaMallocFromPoolAsync(&mut q, 16, pool, null_mut())),
        2
    );
    limit(Limited::Pools(0), None);
    assert_eq!(
        cuda!(cudaMallocFromPoolAsync(&mut q, 16, pool, null_mut())),
        0
    );
}

fn try_create(len: usize) -> (u32, u64) {
    let (mut handle, prop) = (0, on_device_0());
    let code = driver!(cuMemCreate: PFN_cuMemCreate_v10020(&mut handle, len, &prop, 0));
    (code, handle)
}

#[test]
fn physical_memory_is_out_of_memory_at_its_limit() {
    let _turn = machine();
    limit(Limited::Physical(0), Some(5 * CHUNK as u64));
    let (code, first) = try_create(2 * CHUNK);
    assert_eq!(code, 0);
    assert_eq!(steps(9, || try_create(2 * CHUNK).0), (1, 2));
    assert_eq!((try_create(CHUNK).0, try_create(CHUNK).0), (0, 2));
    assert_eq!(try_malloc(64 << 20), 0);
    assert_eq!(release(first), 0);
    assert_eq!(try_create(2 * CHUNK).0, 0, "a release makes room");
    limit(Limited::Physical(0), None);
    assert_eq!(try_create(64 << 20).0, 0);
}

#[test]
fn host_memory_is_out_of_memory_at_its_limit() {
    let _turn = machine();
    let more = |size: usize| {
        let mut h = null_mut();
        let code = cuda!(cudaHostAlloc(&mut h, size, 0));
        assert_eq!(h.is_null(), code != 0);
        (code, h)
    };
    limit(Limited::Host, Some(10 << 20));
    let (code, first) = more(4 << 20);
    assert_eq!(code, 0);
    assert_eq!(steps(9, || more(4 << 20).0), (1, 2));
    let mut h = null_mut();
    assert_eq!(cuda!(cudaMallocHost(&mut h, 4 << 20)), 2);
    assert_eq!(
        try_malloc(64 << 20),
        0,
        "device memory has limits of its own"
    );
    assert_eq!(cuda!(cudaFreeHost(first)), 0);
    assert_eq!(more(4 << 20).0, 0);
    let mut mine = vec![0u8; 64 << 10];
    assert_eq!(
        cuda!(cudaHostRegister(mine.as_mut_ptr().cast(), mine.len(), 0)),
        0,
        "registering allocates nothing"
    );
    assert_eq!(cuda!(cudaHostUnregister(mine.as_mut_ptr().cast())), 0);
    // A pool of host memory takes page-locked memory.
    let mut props = sys::cudaMemPoolProps {
        allocType: sys::cudaMemAllocationType::cudaMemAllocationTypePinned,
        ..Default::default()
    };
    props.location.type_ = sys::cudaMemLocationType::cudaMemLocationTypeHost;
    let (mut pool, mut q) = (null_mut(), null_mut());
    assert_eq!(cuda!(cudaMemPoolCreate(&mut pool, &props)), 0);
    assert_eq!(
        cuda!(cudaMallocFromPoolAsync(&mut q, 4 << 20, pool, null_mut())),
        2
    );
    limit(Limited::Host, None);
    assert_eq!(
        cuda!(cudaMallocFromPoolAsync(&mut q, 4 << 20, pool, null_mut())),
        0
    );
    assert_eq!(more(64 << 20).0, 0);
    // A reset lifts it, too.
    limit(Limited::Host, Some(0));
    assert_eq!(more(1).0, 2);
    cudart_sim::reset();
    assert_eq!(more(1).0, 0);
}

#[test]
fn a_device_is_out_of_memory_at_its_limit_and_tells_what_is_free_below_it() {
    let _turn = machine();
    cudart_sim::configure(Config::devices(2, 1 << 30)).unwrap();
    let free = || {
        let (mut free, mut total) = (0, 0);
        assert_eq!(cuda!(cudaMemGetInfo(&mut free, &mut total)), 0);
        assert_eq!(total, 1 << 30);
        free
    };
    assert_eq!(try_malloc(100 << 20), 0);
    limit(Limited::Device(0), Some(110 << 20));
    assert_eq!(free(), 10 << 20);
    assert_eq!((try_malloc(12 << 20), try_create(12 << 20).0), (2, 2));
    let mut q = null_mut();
    assert_eq!(cuda!(cudaMallocAsync(&mut q, 12 << 20, null_mut())), 2);
    // All of them share what is left.
    assert_eq!((try_create(4 << 20).0, try_malloc(4 << 20)), (0, 0));
    assert_eq!(cuda!(cudaMallocAsync(&mut q, 2 << 20, null_mut())), 0);
    assert_eq!((free(), try_malloc(16)), (0, 2));
    // Below what is held: nothing is taken away.
    limit(Limited::Device(0), Some(1 << 20));
    assert_eq!((free(), try_malloc(16)), (0, 2));
    assert_eq!(cuda!(cudaSetDevice(1)), 0);
    assert_eq!(try_malloc(500 << 20), 0, "another device has room");
    assert_eq!(cuda!(cudaSetDevice(0)), 0);
    // A reset of the device frees its memory and leaves its limit.
    assert_eq!(cuda!(cudaDeviceReset()), 0);
    assert_eq!(try_malloc(2 << 20), 2);
    limit(Limited::Device(0), None);
    assert_eq!(
        (try_malloc(500 << 20), free()),
        (0, (1 << 30) - (500 << 20))
    );
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
        "cuCtxGetCurrent",
        "cuCtxGetDevice",
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
            // Questions about the state of the thread itself; the versions want a place for the answer.
            "cudaGetLastError" | "cudaPeekAtLastError" => 0,
            _ if QUESTIONS.contains(&name) => 1,
            _ => 800,
        };
        assert_eq!(code, expected, "{name}");
    }
    assert_eq!(cuda!(cudaGetLastError()), 0, "it left no error");
}

fn one_device(device: DeviceConfig) -> std::sync::MutexGuard<'static, ()> {
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

fn old_driver(driver_version: i32, runtime_version: i32) -> std::sync::MutexGuard<'static, ()> {
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
