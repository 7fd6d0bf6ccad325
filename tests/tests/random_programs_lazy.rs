//! Random programs over several streams never see each other's memory, on a device that runs nothing before it is asked for.
#![cfg(feature = "sim")]

mod common;
#[path = "common/programs.rs"]
mod programs;
#[path = "common/rig.rs"]
mod rig;

#[test]
fn random_programs_never_write_into_each_other() {
    cudart_sim::set_schedule(cudart_sim::Schedule::Lazy);
    // Every access that CUDA sees must be ordered, whoever had the memory before.
    cudart_sim::check(cudart_sim::Check::Report);
    programs::run_all();
    cudart_sim::expect_clean();
}
