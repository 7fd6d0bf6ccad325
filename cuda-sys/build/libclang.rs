//! Where libclang is, which bindgen loads while the build runs, and the C headers that every compiler brings itself
//! (`stddef.h`, `limits.h`), which packages of libclang alone lack.
//!
//! bindgen panics when it finds no libclang; this looks first, so that there is a message instead. Like `discover.rs`,
//! plain functions over a directory root and a map of the environment.

use super::discover::{Environment, SIMULATED, Target};
use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
};

/// Why there is no libclang: the places that were looked at, and what was wrong.
#[derive(Clone, Debug)]
pub struct NoLibclang {
    pub probed: Vec<String>,
    /// Whether LIBCLANG_PATH is set, to something that is not there.
    pub wrong_variable: bool,
}

impl fmt::Display for NoLibclang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.wrong_variable {
            "LIBCLANG_PATH names no libclang."
        } else {
            "libclang was not found."
        };
        writeln!(f, "{what} bindgen needs it to read the CUDA headers.")?;
        writeln!(f, "Looked at:")?;
        for line in &self.probed {
            writeln!(f, "  - {line}")?;
        }
        writeln!(
            f,
            "Install it (Debian, Ubuntu: libclang-dev; Fedora: clang-libs; Arch: clang),"
        )?;
        writeln!(
            f,
            "or set LIBCLANG_PATH to the folder that holds libclang.so."
        )?;
        write!(f, "Without it, use the simulated runtime: {SIMULATED}")
    }
}

/// Finds the libclang library file.
///
/// `llvm_config_libdir` is what `llvm-config --libdir` answers, if it does; `own` is a folder of the checkout into which
/// `cargo xtask setup` may have put the library.
pub fn find_libclang(
    fs_root: &Path,
    env: &Environment,
    target: &Target,
    llvm_config_libdir: Option<&Path>,
    own: &Path,
) -> Result<PathBuf, NoLibclang> {
    let mut probed = Vec::new();
    if let Some(value) = env.get("LIBCLANG_PATH").filter(|v| !v.is_empty()) {
        let path = Path::new(value);
        if path.is_file() {
            return Ok(path.to_path_buf());
        }
        return library_in(path).ok_or_else(|| NoLibclang {
            probed: vec![format!(
                "LIBCLANG_PATH={}: no libclang.so there",
                path.display()
            )],
            wrong_variable: true,
        });
    }
    probed.push("LIBCLANG_PATH: not set".to_string());
    let mut folders: Vec<PathBuf> = llvm_config_libdir
        .map(Path::to_path_buf)
        .into_iter()
        .collect();
    let llvm = subfolders(&fs_root.join("usr/lib"))
        .into_iter()
        .filter(|(name, _)| name.starts_with("llvm"));
    folders.extend(llvm.map(|(_, dir)| dir.join("lib")));
    folders.push(fs_root.join("usr/lib").join(target.multiarch()));
    folders.extend(["usr/lib64", "usr/lib", "usr/local/lib"].map(|p| fs_root.join(p)));
    folders.push(own.to_path_buf());
    let mut seen = BTreeSet::new();
    for folder in folders {
        if !seen.insert(folder.clone()) {
            continue;
        }
        match library_in(&folder) {
            Some(file) => return Ok(file),
            None => probed.push(format!("{}: no libclang.so", folder.display())),
        }
    }
    Err(NoLibclang {
        probed,
        wrong_variable: false,
    })
}

/// `libclang.so`, `libclang.so.14`, `libclang-14.so.14.0.6` in a folder: the plain name, else the highest version. `libclang-cpp` is
/// another library.
fn library_in(folder: &Path) -> Option<PathBuf> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| {
            let rest = name.strip_prefix("libclang");
            rest.is_some_and(|rest| {
                !rest.starts_with("-cpp") && (rest.starts_with('.') || rest.starts_with('-'))
            }) && (name.ends_with(".so") || name.contains(".so."))
        })
        .collect();
    names.sort_by_key(|name| (name == "libclang.so", numbers(name)));
    names
        .into_iter()
        .rev()
        .map(|name| folder.join(name))
        .find(|file| file.is_file())
}

/// The folder with the compiler's own C headers to pass with `-isystem`, or `None` when libclang finds its own.
///
/// `cc_include` is what `cc -print-file-name=include` answers. C++'s shims of the same name (`include/c++/…/tr1`) are never taken.
pub fn builtin_include(
    fs_root: &Path,
    target: &Target,
    libclang: &Path,
    cc_include: Option<&Path>,
) -> Result<PathBuf, String> {
    let usable = |dir: &PathBuf| {
        dir.join("stddef.h").is_file() && !dir.components().any(|c| c.as_os_str() == "c++")
    };
    let mut candidates = Vec::new();
    let libclang = fs::canonicalize(libclang).unwrap_or_else(|_| libclang.to_path_buf());
    if let Some(dir) = libclang.parent() {
        candidates.extend(clang_resource_folders(dir));
    }
    candidates.extend(cc_include.map(Path::to_path_buf));
    for base in ["usr/lib/gcc", "usr/lib64/gcc", "usr/local/lib/gcc"] {
        for (triple, dir) in subfolders(&fs_root.join(base)) {
            if triple.starts_with(&target.arch) {
                candidates.extend(
                    subfolders(&dir)
                        .into_iter()
                        .map(|(_, version)| version.join("include")),
                );
            }
        }
    }
    for base in ["usr/lib", "usr/lib64", "usr/local/lib"] {
        candidates.extend(clang_resource_folders(&fs_root.join(base)));
    }
    for (name, dir) in subfolders(&fs_root.join("usr/lib")) {
        if name.starts_with("llvm") {
            candidates.extend(clang_resource_folders(&dir.join("lib")));
        }
    }
    candidates.into_iter().find(usable).ok_or_else(|| {
        "the C compiler's own headers (stddef.h, limits.h) were not found.\n\
         Looked at: the folders beside libclang, cc -print-file-name=include, /usr/lib/gcc, /usr/lib/clang.\n\
         Install a C compiler (gcc or clang), or set\n\
         BINDGEN_EXTRA_CLANG_ARGS=\"-isystem <folder of stddef.h>\"."
            .to_string()
    })
}

/// `clang/<version>/include` below a library folder, highest version first.
fn clang_resource_folders(lib: &Path) -> Vec<PathBuf> {
    subfolders(&lib.join("clang"))
        .into_iter()
        .map(|(_, dir)| dir.join("include"))
        .collect()
}

/// The folders in a folder, highest version first.
fn subfolders(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            path.is_dir()
                .then(|| Some((path.file_name()?.to_str()?.to_string(), path.clone())))?
        })
        .collect();
    found.sort_by_key(|(name, _)| numbers(name));
    found.reverse();
    found
}

/// The numbers in a name, so that 14 sorts after 9.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}
