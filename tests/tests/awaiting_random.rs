//! What is awaited arrives, on a device whose work comes after random delays.
#![cfg(feature = "sim")]

#[path = "common/awaiting.rs"]
mod awaiting;
mod common;
#[path = "common/executors.rs"]
mod executors;

#[test]
fn whatever_is_awaited_arrives_with_its_bytes() {
    cudart_sim::set_schedule(cudart_sim::Schedule::Random(11));
    awaiting::run_all();
}
