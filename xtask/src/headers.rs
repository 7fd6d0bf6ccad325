//! `cargo xtask real-headers`: builds and links against each supported version of CUDA, on a machine without a GPU.

use crate::{
    shell::{self, Result, cargo, say},
    toolchain::{self, CUDA, Cuda},
};

/// Build and link against the real CUDA 13.0 and 12.9, and run what needs no GPU
///
/// The tests of cuda-sys, and `no_driver`: without a driver every entry point of memmgr reports that.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only this version, for example 12.9
    #[arg(long)]
    cuda: Option<String>,
}

/// The crates that exist in a form without the simulator. They are built together: chosen alone, each would have other features
/// in the crates that it needs, which would be built anew.
pub const REAL: [&str; 6] = ["-p", "cuda-sys", "-p", "memmgr", "-p", "memmgr-cli"];

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    let wanted: Vec<&Cuda> = CUDA
        .iter()
        .filter(|cuda| {
            arguments
                .cuda
                .as_deref()
                .is_none_or(|name| name == cuda.name)
        })
        .collect();
    if wanted.is_empty() {
        return Err(format!(
            "there is only {}",
            CUDA.map(|cuda| cuda.name).join(" and ")
        ));
    }
    // The version of the checked-in bindings comes first: other checks build against it, and it is there already.
    for cuda in wanted {
        toolchain::ensure(cuda)?;
        say(format!("real-headers: CUDA {}", cuda.name));
        let with = |words: &[&str]| {
            shell::run(cargo(words.iter().copied()).env("CUDA_PATH", cuda.folder()))
        };
        with(&[&["build", "--quiet"], &REAL[..]].concat())?;
        with(&["test", "--quiet", "-p", "cuda-sys"])?;
        with(&[
            "test",
            "--quiet",
            "-p",
            "memmgr-tests",
            "--no-default-features",
            "--test",
            "no_driver",
        ])?;
    }
    Ok(())
}
