//! Where the CUDA toolkit is: its headers, its libraries and its version.
//!
//! Plain functions over a directory root and a map of the environment, so that the tests can run them on made-up trees
//! (`tests/discovery.rs`). Nothing here prints and nothing here reads the process's own environment.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
};

/// The variables that may name a toolkit, the first one that is set wins.
pub const ROOT_VARIABLES: [&str; 5] = [
    "CUDA_PATH",
    "CUDA_HOME",
    "CUDA_ROOT",
    "CUDA_TOOLKIT_ROOT_DIR",
    "CUDA_TOOLKIT_PATH",
];

/// The oldest headers that are supported: stream ids exist from 12.0 on.
pub const OLDEST_VERSION: u32 = 12000;

/// How one asks for the simulated runtime: the crate that is built may be one that has no such feature itself.
pub const SIMULATED: &str =
    "features = [\"sim\"] of memmgr in\nCargo.toml, or --features sim in the checkout of memmgr.";

/// The environment of a build, as a map.
pub type Environment = BTreeMap<String, OsString>;

/// What is being built for, as far as the folders of a toolkit depend on it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Cargo's name of the architecture: `x86_64` or `aarch64`.
    pub arch: String,
    /// Whether the machine that builds is also the machine that runs: only then do `lib64` and `lib` hold its libraries.
    pub native: bool,
}

impl Target {
    /// The names of this architecture under a toolkit's `targets` folder, best first.
    fn toolkit_names(&self) -> &'static [&'static str] {
        match self.arch.as_str() {
            "x86_64" => &["x86_64-linux"],
            "aarch64" => &["sbsa-linux", "aarch64-linux"],
            _ => &[],
        }
    }

    /// The name of this architecture in the library folders of Debian and its relatives.
    pub fn multiarch(&self) -> String {
        format!("{}-linux-gnu", self.arch)
    }
}

/// A toolkit that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolkit {
    /// The folder that the search started from, for example the value of `CUDA_PATH`.
    pub root: PathBuf,
    /// How it was found, in words: a variable's name, `nvcc on PATH`, or the place.
    pub found_by: String,
    /// The folders for the compiler's `-I`; the first one holds `cuda_runtime.h`.
    pub include: Vec<PathBuf>,
    /// The folders that may hold `libcudart`, best first.
    pub lib: Vec<PathBuf>,
    /// `CUDART_VERSION` of the headers, for example 13000.
    pub version: u32,
}

/// Why there is no toolkit: what was looked at, and what was wrong with it.
#[derive(Clone, Debug, Default)]
pub struct NotFound {
    /// One line each: the place, and what it lacks.
    pub probed: Vec<String>,
    /// The variable that names an unusable folder, if that is what ended the search.
    pub wrong_variable: Option<&'static str>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wrong_variable {
            Some(name) => writeln!(f, "{name} names no usable CUDA toolkit.")?,
            None => writeln!(f, "no CUDA toolkit was found.")?,
        }
        writeln!(f, "Looked at:")?;
        for line in &self.probed {
            writeln!(f, "  - {line}")?;
        }
        match self.wrong_variable {
            Some(name) => writeln!(
                f,
                "Let {name} name the folder that holds include/cuda_runtime.h, or unset it."
            )?,
            None => writeln!(
                f,
                "Set CUDA_PATH to the folder that holds include/cuda_runtime.h."
            )?,
        }
        write!(
            f,
            "Without a toolkit, use the simulated runtime: {SIMULATED}"
        )
    }
}

/// Finds the toolkit. `fs_root` is `/` but in tests; `env` is the environment.
///
/// A variable that is set is an order: when its folder is no toolkit the search ends there, since building silently against
/// another version would be worse than to stop.
pub fn find_toolkit(
    fs_root: &Path,
    env: &Environment,
    target: &Target,
) -> Result<Toolkit, NotFound> {
    let mut failed = NotFound::default();
    let mut unset = Vec::new();
    for name in ROOT_VARIABLES {
        let Some(value) = env.get(name).filter(|v| !v.is_empty()) else {
            unset.push(name);
            continue;
        };
        match examine(Path::new(value), target) {
            Ok(layout) => return Ok(layout.into_toolkit(PathBuf::from(value), name.to_string())),
            Err(problem) => {
                let path = Path::new(value);
                // Cargo runs a build script in its package's folder, not where the user is.
                let relative = if path.is_relative() {
                    " (a relative path: write it from / on)"
                } else {
                    ""
                };
                let line = format!("{name}={}: {problem}{relative}", path.display());
                failed.probed.push(line);
                failed.wrong_variable = Some(name);
                return Err(failed);
            }
        }
    }
    failed.probed.push(format!("{}: not set", unset.join(", ")));

    let nvcc = nvcc_roots(env);
    if nvcc.is_empty() {
        failed.probed.push("PATH: no nvcc".to_string());
    }
    let fixed = [
        "usr/local/cuda",
        "opt/cuda",
        "usr/lib/cuda",
        "usr/lib/nvidia-cuda-toolkit",
        "usr",
    ];
    let fixed = fixed.iter().map(|p| (fs_root.join(p), None));
    for (root, found_by) in nvcc
        .into_iter()
        .map(|root| (root, Some("nvcc on PATH")))
        .chain(fixed)
    {
        match examine(&root, target) {
            Ok(layout) => {
                let found_by = found_by.map_or_else(|| root.display().to_string(), str::to_string);
                return Ok(layout.into_toolkit(root, found_by));
            }
            Err(problem) => {
                let how = found_by.map(|by| format!(" ({by})")).unwrap_or_default();
                failed
                    .probed
                    .push(format!("{}{how}: {problem}", root.display()));
            }
        }
    }
    Err(failed)
}

/// As [`find_toolkit`]. Where the machine has none and no variable names one, it is the one in `own`, into which
/// `cargo xtask setup` may have put it.
pub fn find_toolkit_or_own(
    fs_root: &Path,
    env: &Environment,
    target: &Target,
    own: &Path,
) -> Result<Toolkit, NotFound> {
    let mut failed = match find_toolkit(fs_root, env, target) {
        Err(failed) if failed.wrong_variable.is_none() && own.is_dir() => failed,
        result => return result,
    };
    match examine(own, target) {
        Ok(layout) => Ok(layout.into_toolkit(own.to_path_buf(), "cargo xtask setup".to_string())),
        Err(problem) => {
            (failed.probed).push(format!("{}: {problem}", own.display()));
            Err(failed)
        }
    }
}

/// The folders above each `bin/nvcc` on PATH: as written there, and with links followed.
fn nvcc_roots(env: &Environment) -> Vec<PathBuf> {
    let mut roots = Vec::new();
    for dir in env.get("PATH").into_iter().flat_map(std::env::split_paths) {
        let nvcc = dir.join("nvcc");
        if !nvcc.is_file() {
            continue;
        }
        for path in [Some(nvcc.clone()), fs::canonicalize(&nvcc).ok()]
            .into_iter()
            .flatten()
        {
            if let Some(root) = path.parent().and_then(Path::parent)
                && !roots.iter().any(|r| r == root)
            {
                roots.push(root.to_path_buf());
            }
        }
    }
    roots
}

/// What a folder holds: a toolkit whose headers are complete.
#[derive(Debug)]
struct Layout {
    include: Vec<PathBuf>,
    lib: Vec<PathBuf>,
    version: u32,
}

impl Layout {
    fn into_toolkit(self, root: PathBuf, found_by: String) -> Toolkit {
        Toolkit {
            root,
            found_by,
            include: self.include,
            lib: self.lib,
            version: self.version,
        }
    }
}

/// Looks at one folder. The error says, in a few words, what it lacks.
fn examine(root: &Path, target: &Target) -> Result<Layout, String> {
    if !root.is_dir() {
        return Err("no such folder".to_string());
    }
    let candidates = header_folders(root, target);
    let Some(main) = candidates
        .iter()
        .find(|c| c.include.join("cuda_runtime.h").is_file())
    else {
        return Err("no include/cuda_runtime.h".to_string());
    };
    let mut include = vec![main.include.clone()];
    let version = header_version(&main.include)?;
    if version < OLDEST_VERSION {
        return Err(format!(
            "CUDA {} headers; 12.0 or newer is needed",
            dotted(version)
        ));
    }
    // The compiler's half of the headers: a package of its own on PyPI and in the distributions.
    let crt = |dir: &Path| dir.join("crt/host_defines.h").is_file();
    if !crt(&main.include) {
        match main.compiler_include.iter().find(|dir| crt(dir)) {
            Some(dir) => include.push(dir.clone()),
            None => return Err(missing_crt(&main.include, version)),
        }
    }
    if !include.iter().any(|dir| dir.join("cuda.h").is_file()) {
        return Err(format!(
            "{} has cuda_runtime.h but no cuda.h",
            main.include.display()
        ));
    }
    let lib = main
        .lib
        .iter()
        .filter(|dir| dir.is_dir())
        .cloned()
        .collect();
    Ok(Layout {
        include,
        lib,
        version,
    })
}

/// Names the package to install where `crt/host_defines.h` is missing.
fn missing_crt(include: &Path, version: u32) -> String {
    let (major, dotted) = (version / 1000, dotted(version));
    let dashed = dotted.replace('.', "-");
    let python = if major >= 13 {
        "nvidia-cuda-crt".to_string()
    } else {
        format!("nvidia-cuda-nvcc-cu{major}")
    };
    let system = if major >= 13 {
        format!("cuda-crt-{dashed}")
    } else {
        format!("cuda-nvcc-{dashed}")
    };
    format!(
        "{} has cuda_runtime.h but not crt/host_defines.h; install the package {python} (pip) or {system} (apt, dnf) \
         of CUDA {dotted}",
        include.display()
    )
}

/// One place where the headers may be, with the folders that belong to it.
struct HeaderFolder {
    include: PathBuf,
    /// Where `crt/` may be, if not there.
    compiler_include: Vec<PathBuf>,
    lib: Vec<PathBuf>,
}

/// The places below `root` that may hold the headers, best first.
fn header_folders(root: &Path, target: &Target) -> Vec<HeaderFolder> {
    let mut found = Vec::new();
    // A toolkit: targets/<arch>/, of which include/ and lib64/ are links for the machine's own architecture.
    for name in target.toolkit_names() {
        let base = root.join("targets").join(name);
        found.push(HeaderFolder {
            include: base.join("include"),
            compiler_include: vec![],
            lib: vec![base.join("lib")],
        });
    }
    // A toolkit without targets/, a distribution's /usr, or a PyPI package folder named directly (nvidia/cu13, nvidia/cuda_runtime).
    let mut lib = Vec::new();
    if target.native {
        lib.push(root.join("lib64"));
    }
    lib.push(root.join("lib").join(target.multiarch()));
    if target.native {
        lib.push(root.join("lib"));
    }
    if let Some(beside) = root
        .parent()
        .filter(|_| root.ends_with("lib/cuda") || root.ends_with("lib/nvidia-cuda-toolkit"))
    {
        // Debian: /usr/lib/cuda links to the headers, the libraries stay in /usr/lib/<arch>-linux-gnu.
        lib.push(beside.join(target.multiarch()));
    }
    let beside = root.parent().map(|p| p.join("cuda_nvcc/include"));
    found.push(HeaderFolder {
        include: root.join("include"),
        compiler_include: beside.into_iter().collect(),
        lib,
    });
    // PyPI: the variable names the site-packages folder, or the folder `nvidia` in it.
    for base in [root.join("nvidia"), root.to_path_buf()] {
        for (runtime, compiler) in [("cu13", "cu13"), ("cuda_runtime", "cuda_nvcc")] {
            found.push(HeaderFolder {
                include: base.join(runtime).join("include"),
                compiler_include: vec![base.join(compiler).join("include")],
                lib: vec![base.join(runtime).join("lib")],
            });
        }
    }
    found
}

/// Reads `CUDART_VERSION` out of the headers.
fn header_version(include: &Path) -> Result<u32, String> {
    let header = include.join("cuda_runtime_api.h");
    let text =
        fs::read(&header).map_err(|e| format!("{} cannot be read: {e}", header.display()))?;
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .filter_map(|line| line.strip_prefix("#define CUDART_VERSION"))
        .find_map(|rest| rest.trim().parse().ok())
        .ok_or_else(|| format!("{} does not define CUDART_VERSION", header.display()))
}

/// 13000 as `13.0`.
pub fn dotted(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// The file that the link needs, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Library {
    /// `libcudart_static.a` in this folder.
    Static(PathBuf),
    /// This `libcudart.so` or `libcudart.so.<major>`.
    Dynamic(PathBuf),
}

/// Finds the library in the folders of a toolkit. Where the preferred kind is missing the other one is returned: packages
/// from PyPI before CUDA 12.9 have no archive.
pub fn find_library(lib: &[PathBuf], version: u32, prefer_dynamic: bool) -> Option<Library> {
    let archive = lib
        .iter()
        .find(|dir| dir.join("libcudart_static.a").is_file())
        .cloned()
        .map(Library::Static);
    let names = [
        "libcudart.so".to_string(),
        format!("libcudart.so.{}", version / 1000),
    ];
    let shared = lib
        .iter()
        .flat_map(|dir| names.iter().map(move |name| dir.join(name)))
        .find(|file| file.is_file())
        .map(Library::Dynamic);
    if prefer_dynamic {
        shared.or(archive)
    } else {
        archive.or(shared)
    }
}
