//! `cargo xtask install-c`: the C library with its headers, for pkg-config and CMake. And its checks in `ci`: the tests, an
//! installation that programs are built with, the exported names, valgrind, AddressSanitizer.

use crate::{
    asan, consumer,
    headers::REAL,
    model::build_folder,
    shell::{self, Result, cargo, root, run_quietly, say, shown},
    test, toolchain,
};
use clap::Args;
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

/// Build and install libmemmgr, for C, C++ and Python
///
/// Writes include/memmgr.h and memmgr.hpp, lib/libmemmgr.so and libmemmgr.a, and what pkg-config and CMake read, below the
/// prefix. It needs the CUDA toolkit (CUDA_PATH, or where it usually is), or --sim.
#[derive(Args)]
pub struct Arguments {
    /// Where to install, for example /usr/local
    #[arg(long, value_name = "FOLDER")]
    prefix: PathBuf,
    /// A library that runs on the simulated CUDA runtime: no GPU, no toolkit
    #[arg(long)]
    sim: bool,
    /// Leave libmemmgr.a out, which is large
    #[arg(long)]
    shared_only: bool,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    let backend = if arguments.sim {
        "simulated CUDA runtime"
    } else {
        "GPU"
    };
    say(format!(
        "install-c: backend: {backend}; building: this takes a few minutes the first time"
    ));
    fs::create_dir_all(&arguments.prefix).map_err(|e| {
        format!(
            "{}: {e}; choose another --prefix",
            arguments.prefix.display()
        )
    })?;
    let prefix = fs::canonicalize(&arguments.prefix)
        .map_err(|e| format!("{}: {e}", arguments.prefix.display()))?;
    let folder = build_folder(if arguments.sim {
        "c-simulated"
    } else {
        "c-gpu"
    });
    let kind = Kind {
        sim: arguments.sim,
        release: true,
        folder: &folder,
    };
    install(&prefix, kind, !arguments.shared_only)?;
    say(format!(
        "install-c: installed memmgr {VERSION} below {}",
        prefix.display()
    ));
    say(format!("compile and link: {}", linked(&prefix)));
    if !arguments.shared_only {
        say(format!("or statically:    {}", linked_statically(&prefix)));
    }
    Ok(())
}

/// The command that makes a program which finds the library where it lies.
fn linked(prefix: &Path) -> String {
    let lib = prefix.join("lib");
    format!(
        "cc program.c $(PKG_CONFIG_PATH={0}/pkgconfig pkg-config --cflags --libs memmgr) -Wl,-rpath,{0} -o program",
        lib.display()
    )
}

/// The command that makes a program which holds the library.
fn linked_statically(prefix: &Path) -> String {
    format!(
        "cc program.c -I{0}/include {0}/lib/libmemmgr.a {NEEDED} -o program",
        prefix.display()
    )
}

/// What the archive needs beside it, as memmgr.pc says too.
const NEEDED: &str = "-lstdc++ -lpthread -ldl -lrt -lm";

/// Which library is built.
#[derive(Clone, Copy)]
struct Kind<'a> {
    sim: bool,
    release: bool,
    /// Cargo's folder: one for each, since all have the same name.
    folder: &'a Path,
}

/// Builds the library in one form; the file.
fn build(form: &str, kind: Kind) -> Result<PathBuf> {
    let mut build = cargo(["rustc", "-p", "memmgr-capi", "--lib"]);
    build
        .args(["--crate-type", form, "--target-dir"])
        .arg(kind.folder);
    // What the user waits for says what it compiles; a check does not.
    build.arg(if kind.release { "--release" } else { "--quiet" });
    if kind.sim {
        build.args(["--features", "sim"]);
    }
    let ending = if form == "cdylib" { ".so" } else { ".a" };
    shell::library(&mut build, "memmgr", ending)
}

fn write(path: &Path, text: &str) -> Result {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result {
    fs::copy(from, to)
        .map(drop)
        .map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))
}

fn link(folder: &Path, name: &str, to: &str) -> Result {
    let path = folder.join(name);
    // What an earlier installation has left.
    let _ = fs::remove_file(&path);
    symlink(to, &path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Builds everything and puts it below the prefix.
fn install(prefix: &Path, kind: Kind, with_static: bool) -> Result {
    let here = root().join("memmgr-capi");
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    let (pkgconfig, cmake) = (lib.join("pkgconfig"), lib.join("cmake/memmgr"));
    for folder in [&include, &pkgconfig, &cmake] {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let full = format!("libmemmgr.so.{VERSION}");
    copy(&build("cdylib", kind)?, &lib.join(&full))?;
    link(&lib, "libmemmgr.so.0", &full)?;
    link(&lib, "libmemmgr.so", "libmemmgr.so.0")?;
    if with_static {
        copy(&build("staticlib", kind)?, &lib.join("libmemmgr.a"))?;
    }
    for header in ["memmgr.h", "memmgr.hpp"] {
        copy(&here.join("include").join(header), &include.join(header))?;
    }
    let filled = |name: &str| {
        let path = here.join(name);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok::<String, String>(
            text.replace("@PREFIX@", &prefix.display().to_string())
                .replace("@VERSION@", VERSION),
        )
    };
    write(&pkgconfig.join("memmgr.pc"), &filled("memmgr.pc.in")?)?;
    write(
        &cmake.join("memmgrConfigVersion.cmake"),
        &filled("cmake/memmgrConfigVersion.cmake.in")?,
    )?;
    copy(
        &here.join("cmake/memmgrConfig.cmake"),
        &cmake.join("memmgrConfig.cmake"),
    )
}

/// The test program that needs no header of CUDA's.
fn calls() -> PathBuf {
    root().join("memmgr-capi/tests/programs/calls.c")
}

/// Runs every check.
pub fn check() -> Result {
    let cuda = &toolchain::CUDA[0];
    toolchain::ensure(cuda)?;
    say("c-interface: the tests, with CUDA's headers");
    // With the features of the whole workspace, so that what it needs is there already.
    let mut tests = cargo(["test", "--quiet", "--workspace", test::SIMULATED_PROGRAM]);
    tests.args(["--features", "memmgr-capi/sim"]);
    for name in test::programs_of("memmgr-capi")? {
        tests.args(["--test", &name]);
    }
    let include = cuda.folder().join("nvidia/cu13/include");
    shell::run(tests.env("MEMMGR_CUDA_INCLUDE", include))?;
    say("c-interface: an installation, and programs that are linked with it");
    let prefix = build_folder("c-interface");
    let _ = fs::remove_dir_all(&prefix);
    fs::create_dir_all(&prefix).map_err(|e| format!("{}: {e}", shown(&prefix)))?;
    // What the tests have built.
    let kind = Kind {
        sim: true,
        release: false,
        folder: &build_folder("c-programs"),
    };
    install(&prefix, kind, true)?;
    let shared = program(&prefix, false)?;
    run_quietly(Command::new(&shared).env("LD_LIBRARY_PATH", prefix.join("lib")))?;
    run_quietly(&mut Command::new(program(&prefix, true)?))?;
    as_documented(&prefix)?;
    from_python(&prefix)?;
    consumer::check(&prefix, VERSION)?;
    // valgrind takes longest: beside the rest.
    let has_valgrind = toolchain::ensure_valgrind().is_ok();
    if !has_valgrind {
        say("c-interface: without valgrind: not there");
    }
    std::thread::scope(|scope| {
        let valgrind = has_valgrind.then(|| scope.spawn(|| under_valgrind(&shared, &prefix)));
        let rest = under_asan(&prefix).and_then(|()| exported_names(&cuda.folder()));
        let valgrind = valgrind.map_or(Ok(()), |thread| {
            (thread.join()).unwrap_or_else(|_| Err("valgrind's thread panicked".to_string()))
        });
        rest.and(valgrind)
    })
}

/// Loads the library from the Python packages, which need no other package for that.
fn from_python(prefix: &Path) -> Result {
    if !shell::has("python3") {
        say("c-interface: without Python: not there");
        return Ok(());
    }
    say("c-interface: the Python packages find the library, or say what to set");
    let packages = root().join("python");
    run_quietly(
        Command::new("python3")
            .arg(packages.join("tests/loading.py"))
            .env("MEMMGR_LIBRARY", prefix.join("lib/libmemmgr.so"))
            .env("PYTHONPATH", &packages)
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    )
    .map(drop)
}

/// Builds the C program of docs/interop.md by the commands that the installation names, and runs it as it is.
fn as_documented(prefix: &Path) -> Result {
    say("c-interface: the program of docs/interop.md, by the commands that install-c prints");
    let document = root().join("docs/interop.md");
    let text = fs::read_to_string(&document).map_err(|e| format!("{}: {e}", shown(&document)))?;
    let program = (text.split("```c\n").nth(1))
        .and_then(|rest| rest.split("```").next())
        .ok_or("docs/interop.md has no program in C")?;
    let folder = prefix.join("documented");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", shown(&folder)))?;
    write(&folder.join("program.c"), program)?;
    let mut commands = vec![linked_statically(prefix)];
    if shell::has("pkg-config") {
        commands.push(linked(prefix));
    }
    for command in commands {
        let script = format!("{command} && ./program");
        let said = run_quietly(
            Command::new("sh")
                .args(["-c", &script])
                .current_dir(&folder)
                .env_remove("LD_LIBRARY_PATH"),
        )?;
        if !said.starts_with("double free of 0x") {
            return Err(format!(
                "the program of docs/interop.md says `{}`",
                said.trim()
            ));
        }
    }
    Ok(())
}

/// Runs the program that calls everything under valgrind.
fn under_valgrind(program: &Path, prefix: &Path) -> Result {
    say("c-interface: the same under valgrind");
    run_quietly(
        Command::new("valgrind")
            .args(["-q", "--error-exitcode=9", "--leak-check=no"])
            .arg(program)
            .env("LD_LIBRARY_PATH", prefix.join("lib"))
            // More addresses than this valgrind does not have.
            .env("CUDART_SIM_MEMORY", "24G"),
    )
    .map(drop)
}

/// Builds the test programs with the sanitizer and runs them.
fn under_asan(prefix: &Path) -> Result {
    if asan::has_nightly() {
        say("c-interface: the same under AddressSanitizer");
        let archive = asan::archive("memmgr-capi", "memmgr", &["--features", "sim"])?;
        for source in ["calls.c", "streams.cpp", "torch.cpp"] {
            sanitized(prefix, &archive, source)?;
        }
    } else {
        say("c-interface: without AddressSanitizer: no nightly Rust");
    }
    Ok(())
}

/// Builds a test program with the sanitizer and runs it.
fn sanitized(prefix: &Path, archive: &Path, source: &str) -> Result {
    let program = prefix.join("sanitized");
    let compiler = if source.ends_with(".c") {
        ["cc", "-std=c11"]
    } else {
        ["c++", "-std=c++17"]
    };
    run_quietly(
        Command::new(compiler[0])
            .args([compiler[1], "-g", "-fsanitize=address", "-I"])
            .arg(prefix.join("include"))
            .arg(root().join("memmgr-capi/tests/programs").join(source))
            .arg(archive)
            .args(NEEDED.split_whitespace())
            .arg("-o")
            .arg(&program),
    )?;
    // The manager is never taken down: what it holds at the end is no finding.
    run_quietly(
        Command::new(&program)
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .env("CUDART_SIM_DEVICES", "2"),
    )
    .map(drop)
}

/// For the bundle: the library for GPUs, and the test programs, which hold a CUDA runtime of their own. What holds CUDA.
pub fn for_a_gpu(out: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let cuda = &toolchain::CUDA[0];
    let toolkit = cuda.folder().join("nvidia/cu13");
    fs::create_dir_all(out).map_err(|e| format!("{}: {e}", shown(out)))?;
    let mut build = cargo([
        "rustc",
        "--quiet",
        "--release",
        "-p",
        "memmgr-capi",
        "--lib",
    ]);
    build
        .args(["--crate-type", "cdylib", "--target-dir"])
        .arg(folder);
    let built = shell::library(build.env("CUDA_PATH", cuda.folder()), "memmgr", ".so")?;
    let library = out.join("libmemmgr.so.0");
    copy(&built, &library)?;
    if shell::has("strip") {
        run_quietly(Command::new("strip").arg(&library))?;
    }
    let sources = root().join("memmgr-capi");
    let mut made = vec![library.clone()];
    for (source, compiler, standard) in [
        ("calls.c", "cc", "-std=c11"),
        ("hot.c", "cc", "-std=c11"),
        ("reference.cpp", "c++", "-std=c++17"),
    ] {
        let program = out.join(source.split('.').next().unwrap_or(source));
        run_quietly(
            Command::new(compiler)
                .args([standard, "-O2", "-I"])
                .arg(sources.join("include"))
                .arg(format!("-isystem{}", toolkit.join("include").display()))
                .arg(sources.join("tests/programs").join(source))
                .arg(&library)
                .arg(toolkit.join("lib/libcudart_static.a"))
                .args(["-Wl,-rpath,$ORIGIN", "-s", "-pthread", "-ldl", "-lrt", "-o"])
                .arg(&program),
        )?;
        made.push(program);
    }
    Ok(made)
}

/// Compiles and links the test program as pkg-config says; the program.
fn program(prefix: &Path, statically: bool) -> Result<PathBuf> {
    let program = prefix.join(if statically { "static" } else { "shared" });
    let mut compile = Command::new("cc");
    compile
        .args(["-std=c11", "-g", "-o"])
        .arg(&program)
        .arg(calls());
    if statically {
        compile
            .arg("-I")
            .arg(prefix.join("include"))
            .arg(prefix.join("lib/libmemmgr.a"))
            .args(NEEDED.split_whitespace());
    } else if shell::has("pkg-config") {
        let flags = run_quietly(
            Command::new("pkg-config")
                .args(["--cflags", "--libs", "memmgr"])
                .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
        )?;
        compile.args(flags.split_whitespace());
    } else {
        compile
            .arg("-I")
            .arg(prefix.join("include"))
            .arg("-L")
            .arg(prefix.join("lib"))
            .arg("-lmemmgr");
    }
    run_quietly(&mut compile)?;
    Ok(program)
}

/// The library for GPUs exports names of its own alone, and says its name.
fn exported_names(cuda: &Path) -> Result {
    say("c-interface: the names that the library for GPUs exports");
    // Beside the other crates for GPUs, with which it shares all that it needs.
    let mut build = cargo([&["build", "--quiet", "-p", "memmgr-capi"], &REAL[..]].concat());
    build.env("CUDA_PATH", cuda);
    // The simulated one has the same name there, and cargo does not notice: neither is left behind.
    forget_libraries();
    let library = shell::library(&mut build, "memmgr", ".so")?;
    let names = exported(&library);
    forget_libraries();
    names
}

/// Removes what cargo has built of `libmemmgr.so` in the folder of all builds, whatever it is for.
fn forget_libraries() {
    for folder in ["debug", "debug/deps"] {
        let _ = fs::remove_file(build_folder(folder).join("libmemmgr.so"));
    }
}

/// Checks the names that a library exports.
fn exported(library: &Path) -> Result {
    let names = run_quietly(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library),
    )?;
    let names: Vec<&str> = names
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    if let Some(foreign) = names.iter().find(|name| !name.starts_with("memmgr_")) {
        return Err(format!(
            "libmemmgr.so exports `{foreign}`, which is not its own"
        ));
    }
    if names.len() < 40 {
        return Err(format!("libmemmgr.so exports {} names only", names.len()));
    }
    let dynamic = run_quietly(Command::new("readelf").arg("-d").arg(library))?;
    if !dynamic.contains("Library soname: [libmemmgr.so.0]") {
        return Err("libmemmgr.so has no soname".to_string());
    }
    Ok(())
}
