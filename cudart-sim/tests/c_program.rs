//! A C program links the static library and runs, with the environment saying what the machine looks like.

use std::path::{Path, PathBuf};
use std::process::Command;

fn build() -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_program");
    if Command::new("cc").arg("--version").output().is_err() {
        eprintln!("skipped: there is no C compiler");
        return None;
    }
    let built = Command::new(env!("CARGO"))
        .args(["rustc", "--offline", "--quiet", "--crate-type", "staticlib"])
        .arg("--manifest-path")
        .arg(here.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&scratch)
        .status();
    assert!(
        built.is_ok_and(|s| s.success()),
        "the static library builds"
    );
    let program = scratch.join("hello");
    let linked = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror"])
        .arg(here.join("examples/hello.c"))
        .arg(scratch.join("debug/libcudart_sim.a"))
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .status();
    assert!(linked.is_ok_and(|s| s.success()), "the C program links");
    Some(program)
}

#[test]
fn a_c_program_links_and_runs_on_the_machine_that_the_environment_describes() {
    let Some(program) = build() else { return };
    let run = |variables: &[(&str, &str)]| {
        let output = Command::new(&program)
            .envs(variables.iter().copied())
            .output()
            .expect("it starts");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let good = "1 device(s), 24576 MiB\nHello, device\n".to_string();
    assert_eq!(run(&[]), (Some(0), good.clone()));
    assert_eq!(
        run(&[("CUDART_SIM_SCHEDULE", "lazy")]),
        (Some(0), good.clone())
    );
    assert_eq!(run(&[("CUDART_SIM_SCHEDULE", "random:5")]), (Some(0), good));
    let (code, text) = run(&[("CUDART_SIM_DEVICES", "2"), ("CUDART_SIM_MEMORY", "512M")]);
    assert_eq!(code, Some(0));
    assert!(text.starts_with("2 device(s), 512 MiB"), "{text}");
    let (code, text) = run(&[("CUDART_SIM_DEVICES", "0")]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("no CUDA-capable device is detected"),
        "{text}"
    );
    let (code, text) = run(&[("CUDART_SIM_DRIVER", "none")]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("CUDA driver version is insufficient"),
        "{text}"
    );
}
