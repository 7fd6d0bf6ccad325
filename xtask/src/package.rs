//! The packages as `cargo package` makes and builds them: a step of `cargo xtask ci`.

use crate::{
    model::all_builds,
    shell::{self, Result, cargo, root, run_quietly, say},
    toolchain,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The crates that `cargo package` builds.
const PUBLISHED: [&str; 4] = ["cuda-sys", "cudart-sim", "memmgr", "memmgr-cli"];

/// Runs the step.
pub fn check() -> Result {
    forget_unpacked_crates()?;
    let mut command = cargo(["package", "--workspace", "--quiet"]);
    // In a clean checkout, as on the machine that checks, the packages must be exactly what is committed.
    let changes = run_quietly(
        Command::new("git")
            .args(["status", "--porcelain"])
            .current_dir(root()),
    );
    if changes.is_ok_and(|changes| !changes.trim().is_empty()) {
        say("package: there are changes that are not committed; packaging them too");
        command.arg("--allow-dirty");
    }
    // Otherwise each package would be built in a folder of its own, with all that it needs.
    command.env("CARGO_TARGET_DIR", all_builds());
    let cuda = &toolchain::CUDA[0];
    toolchain::ensure(cuda)?;
    command.env("CUDA_PATH", cuda.folder());
    shell::run(command.env("LIBCLANG_PATH", toolchain::find_libclang()?))
}

/// Removes what an earlier run left of our crates in cargo's home.
///
/// `cargo package --workspace` verifies against a registry of its own in `target/package`. Cargo unpacks what comes from
/// there under its home, keyed by that folder's path and the version, and never unpacks it again: without this, a checkout at
/// a path that has been checked before is verified against the crates of then.
fn forget_unpacked_crates() -> Result {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let Some(home) = home else { return Ok(()) };
    for kind in ["src", "cache"] {
        // A registry in a folder has no host, and its name begins with the dash that would follow the host.
        for registry in entries(&home.join("registry").join(kind), |name| {
            name.starts_with('-')
        }) {
            for unpacked in entries(&registry, |name| {
                PUBLISHED.iter().any(|ours| {
                    name.strip_prefix(ours)
                        .and_then(|rest| rest.strip_prefix('-'))
                        .is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
                })
            }) {
                let removed = if unpacked.is_dir() {
                    fs::remove_dir_all(&unpacked)
                } else {
                    fs::remove_file(&unpacked)
                };
                removed.map_err(|error| format!("{}: {error}", unpacked.display()))?;
            }
        }
    }
    Ok(())
}

/// The entries of `folder` whose name is `wanted`; none where there is no such folder.
fn entries(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(read) = fs::read_dir(folder) else {
        return Vec::new();
    };
    read.flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(&wanted))
        .map(|entry| entry.path())
        .collect()
}
