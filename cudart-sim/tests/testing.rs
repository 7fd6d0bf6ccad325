//! The machine that a test takes: what it is by default, and that a test with findings fails.

mod common;
#[path = "common/programs.rs"]
mod programs;
use cudart_sim::testing::Machine;
use programs::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output};

fn race() {
    let (a, b) = two();
    let d = malloc(K);
    fill(d, K, a);
    fill(d, K, b);
}

/// Whether work waits for somebody who asks. (Eagerly, a small fill of an idle stream is done at once.)
fn is_lazy() -> bool {
    let d = malloc(K);
    cuda!(cudaMemset(d, 0, K));
    cuda!(cudaDeviceSynchronize());
    fill(d, K, stream());
    cudart_sim::read_device(d, 1) == [0]
}

fn message(caught: std::thread::Result<()>) -> String {
    let payload = caught.expect_err("it must fail");
    payload
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_default()
}

#[test]
fn a_test_with_a_finding_fails_at_its_end_and_the_next_begins_anew() {
    let text = message(catch_unwind(|| {
        let _machine = Machine::new();
        race();
    }));
    assert!(text.contains("1 ordering findings"), "{text}");
    assert!(text.contains("no order between two accesses"), "{text}");
    let _machine = Machine::new();
    assert!(cudart_sim::report().is_empty());
    assert_eq!(cudart_sim::checker_size(), Default::default());
}

#[test]
fn a_test_that_takes_its_findings_passes() {
    let _machine = Machine::new();
    race();
    assert_eq!(cudart_sim::report().len(), 1);
}

#[test]
fn a_test_that_fails_for_another_reason_fails_for_that() {
    let caught = catch_unwind(|| {
        let _machine = Machine::new();
        race();
        std::panic::panic_any("something else".to_owned());
    });
    assert_eq!(message(caught), "something else");
}

#[test]
fn what_a_test_asks_for_holds() {
    let machine = Machine::new().eager().devices(3, 64 << 20).without_check();
    let mut n = 0;
    assert_eq!((cuda!(cudaGetDeviceCount(&mut n)), n), (0, 3));
    assert!(!is_lazy());
    race();
    drop(machine);
    let machine = Machine::new().random(3).with(|c| c.fresh = Some(9));
    assert_eq!(cudart_sim::read_device(malloc(K), 2), [9, 9]);
    drop(machine);
    let again = catch_unwind(AssertUnwindSafe(|| {
        let _machine = Machine::new().devices(2, 64 << 20);
        race();
    }));
    assert!(again.is_err(), "the check is on when nothing is said of it");
}

#[test]
fn the_end_of_a_test_waits_for_its_work() {
    let machine = Machine::new();
    let (send, receive) = std::sync::mpsc::channel();
    let code = cudart_sim::launch_host(stream(), &[], &[], move || {
        let _ = send.send(7);
    });
    assert_eq!(code.0, 0);
    drop(machine);
    assert_eq!(receive.try_recv(), Ok(7));
}

#[test]
#[ignore = "run by the next one, in a process of its own"]
fn child_that_races_on_an_unnamed_machine() {
    let _machine = Machine::new();
    println!("lazy: {}", is_lazy());
    race();
}

#[test]
#[ignore = "run by the next one, in a process of its own"]
fn child_that_asked_for_eager_and_no_check() {
    let _machine = Machine::new().eager().without_check();
    println!("lazy: {}", is_lazy());
    race();
}

fn child(name: &str, variables: &[(&str, &str)]) -> (Output, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env_remove("CUDART_SIM_CHECK")
        .env_remove("CUDART_SIM_SCHEDULE")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn variables_change_what_a_test_does_not_ask_for_by_name() {
    let eager = ("CUDART_SIM_SCHEDULE", "eager");
    let lazy = ("CUDART_SIM_SCHEDULE", "lazy");
    let (off, report) = (("CUDART_SIM_CHECK", "off"), ("CUDART_SIM_CHECK", "report"));
    let unnamed = "child_that_races_on_an_unnamed_machine";
    let named = "child_that_asked_for_eager_and_no_check";
    for (name, variables, passes, late) in [
        (unnamed, &[][..], false, true),
        (unnamed, &[eager], false, false),
        (unnamed, &[off], true, true),
        (unnamed, &[eager, report], false, false),
        (named, &[lazy, report], true, false),
    ] {
        let (output, text) = child(name, variables);
        assert_eq!(
            output.status.success(),
            passes,
            "{name} {variables:?}: {text}"
        );
        assert!(
            text.contains(&format!("lazy: {late}")),
            "{name} {variables:?}: {text}"
        );
    }
}
