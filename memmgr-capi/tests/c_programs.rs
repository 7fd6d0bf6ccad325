//! Programs in C and C++ on `libmemmgr.so`, compiled with the system's compiler and run on the simulator.
#![cfg(feature = "sim")]

use std::{
    env,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library, built for the simulator in a folder of its own: what lies beside the tests may be one for a GPU, since cargo gives
/// both the same name and does not notice.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let built = env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| folder().join("../target"), PathBuf::from);
        let built = built.join("c-programs");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "rustc",
            "-p",
            "memmgr-capi",
            "--lib",
            "--crate-type",
            "cdylib",
        ]);
        cargo
            .args(["--features", "sim", "--target-dir"])
            .arg(&built);
        run(cargo.current_dir(folder()));
        let library = built.join("debug/libmemmgr.so");
        assert!(library.is_file(), "{} is not there", library.display());
        library
    })
}

/// Runs a command to its end; what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let text = text.concat();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}",
        output.status
    );
    text
}

/// Compiles a program of `tests/programs` and links it with the library; the program, in a folder of its own.
fn compiled(source: &str, more: &[&str]) -> (tempfile::TempDir, Command) {
    let room = tempfile::tempdir().unwrap();
    // Under the name that programs look for.
    symlink(library(), room.path().join("libmemmgr.so.0")).unwrap();
    symlink(library(), room.path().join("libmemmgr.so")).unwrap();
    let program = room.path().join("program");
    let compiler = if source.ends_with(".c") {
        vec!["cc", "-std=c11"]
    } else {
        vec!["c++", "-std=c++17"]
    };
    run(Command::new(compiler[0])
        .arg(compiler[1])
        .args([
            "-g",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-I",
        ])
        .arg(folder().join("include"))
        .args(more)
        .arg(folder().join("tests/programs").join(source))
        .arg("-L")
        .arg(room.path())
        .args(["-lmemmgr", "-pthread", "-o"])
        .arg(&program));
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", room.path());
    (room, command)
}

#[test]
fn a_c_program_gets_what_it_asks_for_and_every_mistake_is_refused() {
    let (room, mut program) = compiled("calls.c", &[]);
    let printed = run(program.current_dir(room.path()));
    print!("{printed}");
    assert!(printed.contains("backend: simulated"), "{printed}");
    assert!(
        printed.contains("1000 random sequences, nothing lost"),
        "{printed}"
    );
    for status in [
        "MEMMGR_DOUBLE_FREE",
        "MEMMGR_UNKNOWN_POINTER",
        "MEMMGR_INVALID_SIZE",
    ] {
        assert!(
            printed.contains(status),
            "no call ended with {status}:\n{printed}"
        );
    }
}

/// Private pools, graphs, recorded streams, two devices, a fork.
#[test]
fn torch_is_served_as_it_expects() {
    let (_room, mut program) = compiled("torch.cpp", &[]);
    let printed = run(program.env("CUDART_SIM_DEVICES", "2"));
    print!("{printed}");
    assert!(printed.contains("torch's pools hold"), "{printed}");
}

#[test]
fn streams_are_those_that_raw_handles_mean_and_a_hook_ends_when_it_is_unset() {
    let (_room, mut program) = compiled("streams.cpp", &[]);
    let printed = run(program.env("CUDART_SIM_DEVICES", "2"));
    print!("{printed}");
    assert!(
        printed.contains("every stream was the one that was meant"),
        "{printed}"
    );
}

/// Where CUDA's headers are: `MEMMGR_CUDA_INCLUDE`, or what `cargo xtask setup` has fetched.
fn cuda_headers() -> Option<PathBuf> {
    if let Some(include) = env::var_os("MEMMGR_CUDA_INCLUDE") {
        let include = PathBuf::from(include);
        assert!(
            include.join("cuda_runtime.h").is_file(),
            "{}",
            include.display()
        );
        return Some(include);
    }
    let fetched = folder().join("../target/toolchain/cuda-13.0/nvidia/cu13/include");
    fetched.join("cuda_runtime.h").is_file().then_some(fetched)
}

#[test]
fn the_samples_of_the_reference_compile_and_run_as_they_are_written() {
    let Some(include) = cuda_headers() else {
        println!("skipped: no CUDA headers (`cargo xtask setup` fetches them)");
        return;
    };
    let system = format!("-isystem{}", include.display());
    for (source, said) in [
        ("reference.cpp", "every sample did what it says"),
        ("per_thread.cpp", "null was the thread's own stream"),
    ] {
        let (_room, mut program) = compiled(source, &[&system]);
        let printed = run(program.env("CUDART_SIM_DEVICES", "2"));
        print!("{printed}");
        assert!(printed.contains(said), "{printed}");
    }
}

#[test]
fn the_headers_compile_alone_in_every_language() {
    for (compiler, language, standard) in [
        ("cc", "c", "-std=c99"),
        ("cc", "c", "-std=c17"),
        ("c++", "c++", "-std=c++11"),
        ("c++", "c++", "-std=c++20"),
    ] {
        run(Command::new(compiler)
            .args([
                "-x",
                language,
                standard,
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-fsyntax-only",
            ])
            .arg(folder().join("include/memmgr.h")));
    }
}

/// What the Python package reads is what the library writes.
#[test]
fn the_python_package_reads_the_figures_of_the_library() {
    let program = "
import ctypes, sys
import memmgr_torch as memmgr
library = memmgr.library()
block = ctypes.c_void_p()
assert library.memmgr_allocate_device_at(0, ctypes.c_size_t(1000), ctypes.byref(block)) == 0
figures = memmgr.stats()
assert (figures.in_use, figures.live_blocks, figures.internal_waste) == (1024, 1, 24), figures
assert figures.allocations == 1 and figures.reserved >= figures.peak_in_use == 1024, figures
lines = memmgr.prometheus().splitlines()
labels = 'pool=\"device\",device=\"0\",mode=\"pool\",backend=\"simulated\"'
assert 'memmgr_in_use_bytes{%s} 1024' % labels in lines, lines
assert 'memmgr_allocations_total{%s} 1' % labels in lines, lines
needed, short = ctypes.c_size_t(), ctypes.create_string_buffer(8)
assert library.memmgr_stats_prometheus(short, ctypes.c_size_t(8), ctypes.byref(needed)) != 0
assert needed.value > 1000 and short.raw == bytes(8), needed
waste = ctypes.c_size_t(7)
assert library.memmgr_external_waste(0, ctypes.byref(waste)) == 0 and waste.value == 0
assert library.memmgr_free_device(block) == 0
assert memmgr.trim() > 0 and memmgr.stats().reserved == 0
try:
    memmgr.stats(0) and memmgr._check(library.memmgr_free_device(ctypes.c_void_p(77)))
    sys.exit('an unknown pointer was freed')
except memmgr.Error as error:
    assert 'unknown pointer' in str(error), error
print(library.memmgr_backend().decode(), figures)
";
    let python = folder().join("../python");
    let printed = run(Command::new("python3")
        .args(["-B", "-c", program])
        .env("PYTHONPATH", python)
        .env("MEMMGR_LIBRARY", library()));
    assert!(printed.starts_with("simulated PoolStats("), "{printed}");
}
