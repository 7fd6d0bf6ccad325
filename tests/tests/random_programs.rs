//! Random programs over several streams never see each other's memory.

mod common;
#[path = "common/programs.rs"]
mod programs;
#[path = "common/rig.rs"]
mod rig;

#[test]
fn random_programs_never_write_into_each_other() {
    programs::run_all();
}
