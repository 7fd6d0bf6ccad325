//! Says how to link: the archive by default, the shared library with the feature `dynamic`, nothing with `sim`.

use super::discover::{self, Library, Toolkit};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Prints the link instructions and returns the kind that was chosen: `static` or `dynamic`.
pub fn link(toolkit: &Toolkit, prefer_dynamic: bool, out: &Path) -> Result<&'static str, String> {
    let found = discover::find_library(&toolkit.lib, toolkit.version, prefer_dynamic)
        .ok_or_else(|| no_library(toolkit))?;
    match &found {
        Library::Static(dir) => {
            if prefer_dynamic {
                println!(
                    "cargo::warning=cuda-sys: no libcudart.so beside the headers; linking libcudart_static.a instead"
                );
            }
            println!("cargo::rustc-link-search=native={}", dir.display());
            println!("cargo::rustc-link-lib=static=cudart_static");
            for name in ["dl", "rt", "pthread"] {
                println!("cargo::rustc-link-lib=dylib={name}");
            }
            Ok("static")
        }
        Library::Dynamic(file) => {
            if !prefer_dynamic {
                println!(
                    "cargo::warning=cuda-sys: no libcudart_static.a in this toolkit (CUDA {}); linking {} instead",
                    discover::dotted(toolkit.version),
                    file.display()
                );
            }
            // Packages from PyPI have `libcudart.so.13` but no `libcudart.so`. Links in OUT_DIR give the linker its name, and
            // cargo puts search paths below its target folder on LD_LIBRARY_PATH, so that `cargo run` and `cargo test` start.
            let dir = out.join("lib");
            let major = toolkit.version / 1000;
            fs::create_dir_all(&dir)
                .map_err(|e| format!("{} cannot be made: {e}", dir.display()))?;
            for name in ["libcudart.so".to_string(), format!("libcudart.so.{major}")] {
                replace_link(file, &dir.join(name))?;
            }
            println!("cargo::rustc-link-search=native={}", dir.display());
            println!("cargo::rustc-link-lib=dylib=cudart");
            Ok("dynamic")
        }
    }
}

fn replace_link(to: &Path, at: &PathBuf) -> Result<(), String> {
    if fs::symlink_metadata(at).is_ok() {
        fs::remove_file(at).map_err(|e| format!("{} cannot be replaced: {e}", at.display()))?;
    }
    symlink(to, at).map_err(|e| format!("{} cannot be linked: {e}", at.display()))
}

fn no_library(toolkit: &Toolkit) -> String {
    let folders: String = toolkit
        .lib
        .iter()
        .map(|dir| format!("  - {}\n", dir.display()))
        .collect();
    let folders = if folders.is_empty() {
        "  (none of its library folders is there)\n".to_string()
    } else {
        folders
    };
    format!(
        "the toolkit at {} (found by {}) has headers but no libcudart.\nLooked for libcudart_static.a and libcudart.so in:\n\
         {folders}Install its runtime development package (cuda-cudart-dev), or set CUDA_PATH to another toolkit.\n\
         Without one, use the simulated runtime: {}",
        toolkit.root.display(),
        toolkit.found_by,
        discover::SIMULATED
    )
}
