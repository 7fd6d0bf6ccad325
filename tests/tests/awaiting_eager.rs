//! What is awaited arrives, on a device whose work runs as soon as it may.
#![cfg(feature = "sim")]

#[path = "common/awaiting.rs"]
mod awaiting;
mod common;
#[path = "common/executors.rs"]
mod executors;

#[test]
fn whatever_is_awaited_arrives_with_its_bytes() {
    cudart_sim::set_schedule(cudart_sim::Schedule::Eager);
    awaiting::run_all();
}
