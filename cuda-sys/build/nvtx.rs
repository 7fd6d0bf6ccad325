//! Compiles what speaks to tools through NVTX (feature `nvtx`): headers of NVIDIA's, and no library.

use std::path::{Path, PathBuf};

/// The variable that names the folder in which `nvtx3` is.
pub const VARIABLE: &str = "MEMMGR_NVTX_INCLUDE";

/// The header that old toolkits lack.
const HEADER: &str = "nvtx3/nvToolsExtMem.h";

/// Compiles `source`. The headers are those that the variable names, those of the toolkit, or those that the checkout has fetched.
pub fn compile(
    source: &Path,
    named: Option<PathBuf>,
    toolkit: &[PathBuf],
    own_tools: &Path,
) -> Result<(), String> {
    let fetched = own_tools.join("nvtx/nvidia/cu13/include");
    let folders: Vec<PathBuf> = match named {
        Some(named) => vec![named],
        None => toolkit.iter().cloned().chain([fetched]).collect(),
    };
    let Some(include) = folders.iter().find(|folder| folder.join(HEADER).is_file()) else {
        let looked: Vec<String> = (folders.iter())
            .map(|folder| format!("  {}", folder.join(HEADER).display()))
            .collect();
        return Err(format!(
            "the feature `nvtx` needs the headers of NVTX, which are not there:\n{}\n\
             Set {VARIABLE} to the folder in which nvtx3 is: a toolkit's include folder (CUDA 13), or what\n\
             `pip download --no-deps nvidia-nvtx` brings. In a checkout of the project: cargo xtask setup --only nvtx",
            looked.join("\n")
        ));
    };
    println!("cargo::rerun-if-changed={}", source.display());
    cc::Build::new()
        .file(source)
        .include(include)
        .define("_GNU_SOURCE", None)
        .warnings(false)
        .flag_if_supported("-w")
        .try_compile("memmgr_nvtx")
        .map_err(|error| {
            format!(
                "the C compiler failed on {}: {error}\nInstall gcc or clang, or set CC.",
                source.display()
            )
        })?;
    // NVTX loads tools.
    println!("cargo::rustc-link-lib=dl");
    println!("cargo::rustc-link-lib=pthread");
    Ok(())
}
