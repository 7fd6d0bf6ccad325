//! Machines without a driver or a device, and machines described by the environment.

mod common;
use common::*;
use cudart_sim::{Config, TimeModel};
use std::ptr::null_mut;

#[test]
fn without_a_driver_every_call_answers_35_and_the_driver_version_is_0() {
    let _turn = machine();
    let config = Config {
        driver: false,
        ..Config::default()
    };
    cudart_sim::configure(config).unwrap();
    assert_eq!(cuda!(cudaGetLastError()), 35);
    assert_eq!(cuda!(cudaPeekAtLastError()), 35);
    let mut n = 9;
    assert_eq!(cuda!(cudaMalloc(&mut null_mut(), 0)), 35);
    assert_eq!(cuda!(cudaFree(null_mut())), 35);
    assert_eq!(cuda!(cudaGetDeviceCount(&mut n)), 35);
    assert_eq!((cuda!(cudaDriverGetVersion(&mut n)), n), (0, 0));
    assert_eq!((cuda!(cudaRuntimeGetVersion(&mut n)), n), (0, 13000));
    assert_eq!(cuda!(cudaGetLastError()), 35);
    cudart_sim::reset();
}

#[test]
fn without_a_device_calls_answer_100() {
    let _turn = machine().devices(0, 0);
    let mut n = 9;
    assert_eq!(cuda!(cudaGetDeviceCount(&mut n)), 100);
    assert_eq!(cuda!(cudaMalloc(&mut null_mut(), 16)), 100);
    assert_eq!(cuda!(cudaSetDevice(0)), 100);
    assert_eq!(cuda!(cudaGetLastError()), 100);
    assert_eq!(cuda!(cudaGetLastError()), 0);
    cudart_sim::reset();
}

#[test]
fn a_machine_in_use_cannot_be_described_any_more() {
    let _turn = machine();
    malloc(16);
    assert!(cudart_sim::configure(Config::default()).is_err());
    cudart_sim::reset();
    assert!(cudart_sim::configure(Config::devices(3, 1 << 30)).is_ok());
    let mut n = 0;
    assert_eq!((cuda!(cudaGetDeviceCount(&mut n)), n), (0, 3));
}

#[test]
fn a_reset_forgets_memory_errors_and_handles() {
    let _turn = machine();
    let (p, s) = (malloc(1 << 20), stream());
    cuda!(cudaSetDevice(77));
    cudart_sim::reset();
    assert_eq!(cuda!(cudaGetLastError()), 0);
    assert_eq!(cuda!(cudaFree(p)), 1);
    assert_eq!(cuda!(cudaStreamQuery(s)), 400);
    let info = cudart_sim::memory_info(0).unwrap();
    assert_eq!(info.free, info.total);
}

#[test]
fn modelled_copies_take_modelled_time_and_overlap_in_two_directions() {
    let _turn = machine();
    let config = Config {
        time: Some(TimeModel {
            pinned_gb_s: 0.05,
            ..TimeModel::default()
        }),
        ..Config::default()
    };
    cudart_sim::configure(config).unwrap();
    let (a, b) = (stream(), stream());
    let n = 8 << 20;
    let (d, e, h, i) = (malloc(n), malloc(n), pinned(n), pinned(n));
    let both = |first: &dyn Fn(), second: &dyn Fn()| {
        first();
        second();
        cuda!(cudaDeviceSynchronize());
        milliseconds(|| {
            first();
            second();
            cuda!(cudaDeviceSynchronize());
        })
    };
    let up = || _ = cuda!(cudaMemcpyAsync(d, h, n, H2D, a));
    let also_up = || _ = cuda!(cudaMemcpyAsync(e, i, n, H2D, b));
    let down = || _ = cuda!(cudaMemcpyAsync(i, e, n, D2H, b));
    let same = both(&up, &also_up);
    let opposite = both(&up, &down);
    assert!(same >= 320, "one bus: {same} ms");
    assert!(
        opposite >= 160 && opposite < same,
        "two directions: {opposite} ms"
    );
}
