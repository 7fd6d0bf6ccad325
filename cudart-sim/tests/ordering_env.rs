//! How the ordering checker is turned on from outside: `CUDART_SIM_CHECK`, `CUDART_SIM_BACKTRACE`. Each case runs in a
//! process of its own.

mod common;
#[path = "common/programs.rs"]
mod programs;
use programs::*;
use std::process::{Command, Output};

#[test]
#[ignore = "run by the others, in a process of its own"]
fn fifty_races() {
    let (a, b) = two();
    for _ in 0..50 {
        let d = malloc(K);
        fill(d, K, a);
        fill(d, K, b);
    }
    cuda!(cudaDeviceSynchronize());
    println!("{} findings", cudart_sim::report().len());
}

fn child(variables: &[(&str, &str)]) -> Output {
    let program = std::env::current_exe().unwrap();
    Command::new(program)
        .args(["--exact", "fifty_races", "--ignored", "--nocapture"])
        .env_remove("CUDART_SIM_CHECK")
        .env_remove("CUDART_SIM_BACKTRACE")
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn texts(output: &Output) -> (String, usize) {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let count = errors.matches("no order between two accesses").count();
    (errors + &String::from_utf8_lossy(&output.stdout), count)
}

#[test]
fn it_is_off_by_default_and_nonsense_leaves_it_off() {
    for variables in [
        &[][..],
        &[("CUDART_SIM_CHECK", "off")],
        &[("CUDART_SIM_CHECK", "yes")],
    ] {
        let output = child(variables);
        let (text, count) = texts(&output);
        assert!(output.status.success());
        assert_eq!(count, 0);
        assert!(text.contains("0 findings"), "{text}");
        assert_eq!(
            text.contains("CUDART_SIM_CHECK=yes is ignored: it must be report, abort or off"),
            variables == [("CUDART_SIM_CHECK", "yes")]
        );
    }
}

#[test]
fn report_prints_twenty_and_keeps_all() {
    let output = child(&[("CUDART_SIM_CHECK", "report")]);
    let (text, count) = texts(&output);
    assert!(output.status.success());
    assert_eq!(count, 20);
    assert!(text.contains("50 findings"), "{text}");
}

#[test]
fn abort_ends_the_process_at_the_first() {
    let output = child(&[("CUDART_SIM_CHECK", "abort")]);
    let (text, count) = texts(&output);
    assert!(!output.status.success());
    assert_eq!(count, 1);
    assert!(!text.contains("50 findings"));
}

#[test]
fn a_backtrace_names_the_function_that_called() {
    let variables = [
        ("CUDART_SIM_CHECK", "report"),
        ("CUDART_SIM_BACKTRACE", "1"),
    ];
    let (text, _) = texts(&child(&variables));
    assert!(text.contains("ordering_env::fifty_races"), "{text}");
}
