//! `cargo xtask gpu-bundle`: the tests and programs for a machine with a GPU and without Rust.

use crate::{
    capi, facts,
    shell::{Result, cargo, cargo_messages, has, root, run_quietly, say, shown},
    toolchain,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// Build the tests and programs against the real CUDA runtime, for a GPU machine
///
/// Makes one folder with the test programs, `memmgr`, the traces and a `run.sh` that runs them all: copy it to a machine with a
/// GPU and a driver (no Rust, no toolkit) and start `run.sh`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Where to put it
    #[arg(long, default_value = "gpu-bundle")]
    out: PathBuf,
}

/// What the folder may weigh, so that it travels easily.
const LARGEST: u64 = 64 << 20;

/// Text and symbols that only the simulator has.
const MARKERS: [&str; 2] = ["Simulated CUDA device", "CUDART_SIM_MARKER"];

/// The script of the bundle.
const SCRIPT: &str = include_str!("run.sh");

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    let cuda = &toolchain::CUDA[0];
    toolchain::ensure(cuda)?;
    let out = root().join(&arguments.out);
    let build = |words: &[&str]| {
        let mut command = cargo(words.iter().copied());
        command
            .args(["--release", "--target-dir"])
            .arg(root().join("target/gpu"))
            .env("CUDA_PATH", cuda.folder());
        executables(&mut command)
    };
    say(format!(
        "gpu-bundle: building the tests against CUDA {}",
        cuda.name
    ));
    let mut tests = build(&[
        "test",
        "-p",
        "memmgr-tests",
        "--no-default-features",
        "--features",
        "cudarc",
        "--no-run",
    ])?;
    // The one test of cuda-sys that asks a device: whether its structs are as large as the runtime believes.
    for (name, file) in build(&["test", "-p", "cuda-sys", "--test", "runtime", "--no-run"])? {
        tests.push((format!("cuda-sys-{name}"), file));
    }
    // Programs for the simulated runtime alone are empty here.
    tests.retain(|(_, file)| has_tests(file));
    // A mistake that compute-sanitizer finds with the feature `nvtx` alone.
    toolchain::ensure_nvtx()?;
    let mut planted = Vec::new();
    for (name, features) in [("overrun", "cudarc,nvtx"), ("overrun-untold", "cudarc")] {
        let made = build(&[
            "build",
            "-p",
            "memmgr-tests",
            "--example",
            "overrun",
            "--no-default-features",
            "--features",
            features,
        ])?;
        let kept = root().join("target/gpu").join(name);
        for (_, file) in made {
            fs::copy(&file, &kept).map_err(|e| format!("{}: {e}", shown(&kept)))?;
        }
        planted.push((name.to_string(), kept));
    }
    say("gpu-bundle: building memmgr");
    let programs = build(&["build", "-p", "memmgr-cli"])?;
    if programs.is_empty() {
        return Err("memmgr-cli has no program".to_string());
    }

    let failed = |path: &Path, e: std::io::Error| format!("{}: {e}", shown(path));
    if out.exists() {
        if !out.join("run.sh").is_file() && out.read_dir().is_ok_and(|mut dir| dir.next().is_some())
        {
            return Err(format!(
                "{} exists and is no bundle: name another folder",
                shown(&out)
            ));
        }
        fs::remove_dir_all(&out).map_err(|e| failed(&out, e))?;
    }
    for (folder, files) in [
        ("tests", &tests),
        ("bin", &programs),
        ("sanitizer", &planted),
    ] {
        let folder = out.join(folder);
        fs::create_dir_all(&folder).map_err(|e| failed(&folder, e))?;
        for (name, file) in files {
            refuse_simulator(name, file)?;
            let to = folder.join(name);
            fs::copy(file, &to).map_err(|e| failed(&to, e))?;
            if has("strip") {
                run_quietly(Command::new("strip").arg(&to))?;
            }
            // Most of each is the same runtime.
            if !folder.ends_with("bin") && has("gzip") {
                run_quietly(Command::new("gzip").arg("-9").arg(&to))?;
            }
        }
    }
    // Their output is compared later, by `cargo xtask facts --output-of`.
    let facts = facts::for_a_gpu(&out.join("facts"))?;
    for file in &facts {
        refuse_simulator("a program of the facts", file)?;
    }
    if facts.is_empty() {
        say("gpu-bundle: the programs of `cargo xtask facts` are not there: left out");
    }
    say("gpu-bundle: building libmemmgr and its programs");
    for file in capi::for_a_gpu(&out.join("clients"), &root().join("target/gpu"))? {
        refuse_simulator("libmemmgr", &file)?;
    }
    copy_folder(&root().join("python"), &out.join("clients/python"))?;
    let traces = root().join("tests/data/traces");
    if traces.is_dir() {
        copy_folder(&traces, &out.join("traces"))?;
    }
    let script = out.join("run.sh");
    fs::write(&script, SCRIPT).map_err(|e| failed(&script, e))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
        .map_err(|e| failed(&script, e))?;

    let size = folder_size(&out);
    let mib = size as f64 / f64::from(1 << 20);
    if size > LARGEST {
        return Err(format!(
            "the bundle is {mib:.0} MiB, more than {} MiB",
            LARGEST >> 20
        ));
    }
    say(format!(
        "gpu-bundle: {} test programs and {} in {}, {mib:.1} MiB",
        tests.len(),
        programs
            .iter()
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>()
            .join(", "),
        shown(&out)
    ));
    say("gpu-bundle: copy it to a machine with a GPU and run run.sh there");
    Ok(())
}

/// The programs that a cargo command makes: name and file.
fn executables(command: &mut Command) -> Result<Vec<(String, PathBuf)>> {
    let messages = cargo_messages(command)?;
    let mut found = Vec::new();
    for message in messages
        .iter()
        .filter(|m| m["reason"] == "compiler-artifact")
    {
        let Some(file) = message["executable"].as_str() else {
            continue;
        };
        let name = message["target"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_string();
        found.push((name, PathBuf::from(file)));
    }
    Ok(found)
}

/// Whether a test program holds any test; one that cannot say so is kept.
fn has_tests(program: &Path) -> bool {
    let listed = Command::new(program)
        .args(["--list", "--include-ignored"])
        .output();
    listed.map_or(true, |listed| {
        !listed.status.success() || String::from_utf8_lossy(&listed.stdout).contains(": test")
    })
}

/// A bundle with the simulator in it would test nothing on the GPU and still pass.
fn refuse_simulator(name: &str, file: &Path) -> Result {
    let bytes = fs::read(file).map_err(|e| format!("{}: {e}", shown(file)))?;
    match MARKERS
        .into_iter()
        .find(|marker| contains(&bytes, marker.as_bytes()))
    {
        Some(marker) => Err(format!(
            "{name} contains the simulated runtime (found `{marker}`); the bundle must not"
        )),
        None => Ok(()),
    }
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

fn copy_folder(from: &Path, to: &Path) -> Result {
    let failed = |path: &Path, e: std::io::Error| format!("{}: {e}", shown(path));
    fs::create_dir_all(to).map_err(|e| failed(to, e))?;
    for entry in fs::read_dir(from).map_err(|e| failed(from, e))? {
        let from = entry.map_err(|e| failed(from, e))?.path();
        let to = to.join(from.file_name().unwrap_or_default());
        if from.is_dir() {
            copy_folder(&from, &to)?;
        } else {
            fs::copy(&from, &to).map_err(|e| failed(&to, e))?;
        }
    }
    Ok(())
}

fn folder_size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => folder_size(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::{MARKERS, contains};

    #[test]
    fn the_simulator_is_recognised_in_a_program() {
        assert!(
            MARKERS
                .iter()
                .all(|m| contains(format!("\0..{m}\0").as_bytes(), m.as_bytes()))
        );
        assert!(!contains(b"an ordinary program", MARKERS[0].as_bytes()));
    }
}
