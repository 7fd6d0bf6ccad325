//! `cargo xtask asan`: the simulator's C interface under AddressSanitizer, from Rust and from C++.

use crate::{
    model::build_folder,
    shell::{self, Result, root, run_quietly, say},
    test, toolchain,
};
use clap::Args;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Run the simulator under AddressSanitizer
///
/// Needs nightly Rust (`rustup toolchain install nightly`) and g++ with its libasan. First the simulator's own tests, built
/// with the sanitizer; then a C++ program that calls every function with the real headers, on a static library built so;
/// then the same program with mistakes in it, each of which must be found.
#[derive(Args)]
pub struct Arguments {
    /// Leave out the tests written in Rust
    #[arg(long)]
    only_cpp: bool,
}

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Mistakes of the C++ program, and what the sanitizer says of each.
const MISTAKES: [(&str, &str); 7] = [
    ("small-place", "AddressSanitizer: heap-buffer-overflow"),
    ("small-structure", "AddressSanitizer: heap-buffer-overflow"),
    ("short-source", "AddressSanitizer: heap-buffer-overflow"),
    ("short-target", "AddressSanitizer: heap-buffer-overflow"),
    ("freed-too-early", "AddressSanitizer: heap-use-after-free"),
    ("device-pointer", "AddressSanitizer: SEGV"),
    ("leak", "LeakSanitizer: detected memory leaks"),
];

/// Whether nightly Rust is there, for this kind of machine.
pub fn has_nightly() -> bool {
    cfg!(all(target_arch = "x86_64", target_os = "linux"))
        && Command::new("rustup")
            .args(["run", "nightly", "rustc", "--version"])
            .output()
            .is_ok_and(|o| o.status.success())
}

/// Nightly cargo that builds with the sanitizer. The flags are a setting, not a variable, which would reach the cargo that
/// some tests call.
fn nightly(package: &str, words: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command
        .current_dir(root())
        .args(["run", "nightly", "cargo"])
        .args(words)
        .args(["-p", package, "--target", TARGET, "--config"])
        .arg(format!(
            "target.{TARGET}.rustflags=['-Zsanitizer=address','-Cforce-frame-pointers=yes']"
        ))
        .arg("--target-dir")
        .arg(build_folder("asan"))
        // Those of the cargo that runs this one.
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC");
    command
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    if !has_nightly() {
        return Err(
            "AddressSanitizer needs nightly Rust on x86-64 Linux: `rustup toolchain install nightly`"
                .to_string(),
        );
    }
    if !arguments.only_cpp {
        say("asan: the simulator's tests");
        let mut tests = nightly("cudart-sim", &["test", "--quiet", "--lib"]);
        for name in test_programs()? {
            tests.args(["--test", &name]);
        }
        // Blocks that tests leave behind on purpose are no finding; and one test maps 65,536 chunks.
        tests
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .args(["--", "--skip", "65_536"]);
        shell::run(&mut tests)?;
    }
    say("asan: a C++ program that calls every function");
    let source = root().join("cudart-sim/tests/asan/every_call.cpp");
    calls_everything(&source)?;
    let program = build(&source)?;
    for schedule in ["eager", "lazy", "random:7"] {
        run_quietly(machine(&program).env("CUDART_SIM_SCHEDULE", schedule))
            .map_err(|e| format!("schedule {schedule}: {e}"))?;
    }
    for (mistake, finding) in MISTAKES {
        let mut command = machine(&program);
        command.arg(mistake).env("CUDART_SIM_SCHEDULE", "lazy");
        match run_quietly(&mut command) {
            Ok(_) => return Err(format!("the mistake `{mistake}` was not found")),
            Err(printed) if !printed.contains(finding) => {
                return Err(format!(
                    "the mistake `{mistake}` gave something else: {printed}"
                ));
            }
            Err(_) => say(format!("asan: {mistake}: {finding}")),
        }
    }
    Ok(())
}

/// The tests written in Rust, but for those that measure, that are large, or that are about code without `unsafe`.
fn test_programs() -> Result<Vec<String>> {
    let left_out = ["ordering", "c_program", "load", "leftovers"];
    let mut names = test::programs_of("cudart-sim")?;
    names.retain(|name| !left_out.iter().any(|start| name.starts_with(start)));
    Ok(names)
}

/// The program, to be run on a machine of two devices.
fn machine(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("CUDART_SIM_DEVICES", "2");
    command
}

/// Refuses a program that leaves out an exported function.
fn calls_everything(source: &Path) -> Result {
    let read =
        |path: &Path| fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
    let text = read(source)?;
    let table = read(&root().join("cudart-sim/src/calls.rs"))?;
    let names = table
        .split("table! {")
        .nth(1)
        .and_then(|rest| rest.split('}').next())
        .ok_or("calls.rs has no table of functions")?;
    let missing: Vec<&str> = names
        .split_whitespace()
        .filter(|name| name.starts_with("cu") && !text.contains(&format!("{name}(")))
        .filter(|name| {
            !text.contains(&format!("({name})")) && !text.contains(&format!("\"{name}\""))
        })
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{} does not call {}",
            source.display(),
            missing.join(", ")
        )),
    }
}

/// Builds a static library with the sanitizer; the file.
pub fn archive(package: &str, name: &str, more: &[&str]) -> Result<PathBuf> {
    let words = ["rustc", "--quiet", "--lib", "--crate-type", "staticlib"];
    let mut library = nightly(package, &words);
    shell::library(library.args(more), name, ".a")
}

/// Builds the static library with the sanitizer and links the program with it. The runtime is that of g++: both speak
/// version 8 of the sanitizer's interface, and a mismatch does not link.
fn build(source: &Path) -> Result<PathBuf> {
    let archive = archive("cudart-sim", "cudart_sim", &[])?;
    let cuda = &toolchain::CUDA[0];
    toolchain::ensure(cuda)?;
    let program = archive.with_file_name("every_call");
    run_quietly(
        Command::new("g++")
            .args([
                "-std=c++17",
                "-g",
                "-fsanitize=address",
                "-Wall",
                "-Wextra",
                "-Werror",
            ])
            // One of the functions to be called is deprecated.
            .arg("-Wno-deprecated-declarations")
            .arg("-I")
            .arg(cuda.folder().join("nvidia/cu13/include"))
            .arg(source)
            .arg(&archive)
            .args(["-lpthread", "-ldl", "-lm", "-o"])
            .arg(&program),
    )?;
    Ok(program)
}
