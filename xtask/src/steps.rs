//! The steps of `cargo xtask ci`.

use crate::{
    asan, bindings, capi, conformance, facts,
    headers::{self, REAL},
    instructions, model, package,
    shell::{self, Result, cargo, root, run_quietly, say, shown},
    test, toolchain,
};
use clap::Parser;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// One step: its name, what it shows, the folder of cargo's that it builds in, and the function.
pub struct Step {
    pub name: &'static str,
    pub about: &'static str,
    /// Below the folder of all builds. Steps that build in one folder take turns.
    pub folder: &'static str,
    pub run: fn() -> Result,
}

/// A step that runs before the others, beside none.
pub const ALONE: &str = "";

/// All of them. Each begins as soon as its folder is free: those of the folder with most steps come first, since they take turns,
/// then long ones before short ones.
pub static STEPS: [Step; 22] = [
    Step {
        name: "links",
        about: "the links in the tree are links",
        folder: ALONE,
        run: links,
    },
    Step {
        name: "doc-links",
        about: "links in the documents lead to files",
        folder: ALONE,
        run: crate::links::check,
    },
    Step {
        name: "format",
        about: "cargo fmt changes nothing",
        folder: ALONE,
        run: format,
    },
    Step {
        name: "test",
        about: "all tests, on the simulator",
        folder: ALONE,
        run: tests,
    },
    Step {
        name: "test-malloc",
        about: "the suite, device memory by cudaMalloc",
        folder: "debug",
        run: suite_on_segments,
    },
    Step {
        name: "clippy-sim",
        about: "no lint, simulator",
        folder: "debug",
        run: clippy_sim,
    },
    Step {
        name: "doc",
        about: "documentation without a warning",
        folder: "debug",
        run: documentation,
    },
    Step {
        name: "staticlib",
        about: "a C program on the simulator",
        folder: "debug",
        run: static_library,
    },
    Step {
        name: "torch-viewer",
        about: "PyTorch's viewer opens snapshots",
        folder: "debug",
        run: torch_viewer,
    },
    Step {
        name: "tools",
        about: "what tools are told: NVTX, tracing",
        folder: "debug",
        run: tools,
    },
    Step {
        name: "conformance",
        about: "the tables of facts are current",
        folder: "debug",
        run: check_tables,
    },
    Step {
        name: "bindings",
        about: "the checked-in bindings are current",
        folder: "debug",
        run: check_bindings,
    },
    Step {
        name: "clippy-static",
        about: "no lint, CUDA 13.0, static",
        folder: "debug",
        run: clippy_static,
    },
    Step {
        name: "clippy-dynamic",
        about: "no lint, CUDA 13.0, shared",
        folder: "debug",
        run: clippy_dynamic,
    },
    Step {
        name: "real-headers",
        about: "builds and links on 12.9 and 13.0",
        folder: "debug",
        run: real_headers,
    },
    Step {
        name: "dynamic",
        about: "starts with libcudart.so",
        folder: "debug",
        run: dynamic,
    },
    Step {
        name: "package",
        about: "cargo package builds every crate",
        folder: "debug",
        run: package::check,
    },
    Step {
        name: "model",
        about: "what threads share, model checked",
        folder: "model",
        run: model_check,
    },
    Step {
        name: "c-interface",
        about: "libmemmgr from C and C++",
        folder: "asan",
        run: capi::check,
    },
    Step {
        name: "instructions",
        about: "an operation is within its budget",
        folder: "release",
        run: count_instructions,
    },
    Step {
        name: "asan",
        about: "the simulator, AddressSanitizer",
        folder: "asan",
        run: sanitize,
    },
    Step {
        name: "facts",
        about: "C++ programs print what an H200 printed",
        folder: "release",
        run: facts,
    },
];

/// The files that are links, and where they lead. A checkout without links (or a careless copy) makes two files of one.
const LINKS: [(&str, &str); 5] = [
    ("build.rs", "cuda-sys/build.rs"),
    ("wrapper.h", "cuda-sys/wrapper.h"),
    (
        "cudart-sim/src/bindings.rs",
        "../../cuda-sys/src/bindings.rs",
    ),
    ("xtask/src/discover.rs", "../../cuda-sys/build/discover.rs"),
    ("xtask/src/libclang.rs", "../../cuda-sys/build/libclang.rs"),
];

fn links() -> Result {
    for (link, to) in LINKS {
        let found = fs::read_link(root().join(link))
            .map_err(|e| format!("{link} is not a link to {to}: {e}"))?;
        if found != Path::new(to) || !root().join(link).is_file() {
            return Err(format!("{link} leads to {}, not to {to}", found.display()));
        }
    }
    Ok(())
}

fn format() -> Result {
    shell::run(&mut cargo(["fmt", "--all", "--check"]))
}

/// A command line of this program, to run as a step.
#[derive(Parser)]
struct Line<T: clap::Args> {
    #[command(flatten)]
    arguments: T,
}

/// The arguments of a command, from words.
fn parse<T: clap::Args>(words: &[&str]) -> Result<T> {
    Line::try_parse_from(std::iter::once("xtask").chain(words.iter().copied()))
        .map(|line| line.arguments)
        .map_err(|e| e.to_string())
}

fn tests() -> Result {
    test::run(&parse(&[])?)
}

/// What tests use by default is virtual memory.
fn suite_on_segments() -> Result {
    let mut suite = test::of_one("suite");
    run_quietly(suite.env("MEMMGR_DEVICE_SOURCE", "malloc")).map(drop)
}

fn model_check() -> Result {
    model::run(&parse(&[])?)
}

fn sanitize() -> Result {
    if !asan::has_nightly() {
        say("SKIPPED asan: there is no nightly Rust");
        return Ok(());
    }
    asan::run(&parse(&[])?)
}

fn count_instructions() -> Result {
    if let Some(reason) = instructions::impossible() {
        say(format!("SKIPPED instructions: {reason}"));
        return Ok(());
    }
    instructions::run(&parse(&[])?)
}

fn check_bindings() -> Result {
    bindings::run(&parse(&["--check"])?)
}

fn real_headers() -> Result {
    headers::run(&parse(&[])?)
}

fn clippy(words: &[&str], toolkit: Option<&Path>) -> Result {
    let mut command = cargo(["clippy", "--quiet", "--all-targets"]);
    command.args(words);
    if let Some(toolkit) = toolkit {
        command.env("CUDA_PATH", toolkit);
    }
    shell::run(command.args(["--", "-D", "warnings"]))
}

fn toolkit() -> Result<PathBuf> {
    let cuda = &toolchain::CUDA[0];
    toolchain::ensure(cuda)?;
    Ok(cuda.folder())
}

fn clippy_sim() -> Result {
    clippy(&["--workspace", "--features", "memmgr-cli/sim"], None)?;
    // The tests turn `async` on; without it there is another crate.
    clippy(&["-p", "memmgr", "--features", "sim"], None)
}

fn clippy_static() -> Result {
    let toolkit = toolkit()?;
    clippy(&REAL, Some(&toolkit))?;
    clippy(
        &[
            "-p",
            "memmgr-tests",
            "--no-default-features",
            "--features",
            "cudarc",
        ],
        Some(&toolkit),
    )
}

fn clippy_dynamic() -> Result {
    clippy(
        &[
            &REAL[..],
            &["--features", "cuda-sys/dynamic,memmgr/dynamic,memmgr/async"],
        ]
        .concat(),
        Some(&toolkit()?),
    )
}

fn documentation() -> Result {
    let words = [
        "doc",
        "--quiet",
        "--workspace",
        "--no-deps",
        "--features",
        "memmgr/sim,memmgr/async",
    ];
    shell::run(cargo(words).env("RUSTDOCFLAGS", "-D warnings"))
}

/// With the shared library a program must start under cargo, although the Python packages lack `libcudart.so`.
fn dynamic() -> Result {
    let words = ["test", "--quiet", "-p", "cuda-sys", "--features", "dynamic"];
    shell::run(cargo(words).env("CUDA_PATH", toolkit()?))
}

/// The viewer is PyTorch's own.
fn torch_viewer() -> Result {
    let script = toolchain::ensure_torch_viewer()?;
    let mut viewer = test::of_one("snapshot");
    run_quietly(viewer.env("MEMMGR_TORCH_VIZ", script)).map(drop)
}

/// Features that most builds are without, on the simulator.
const FOR_TOOLS: &str = "nvtx,trace-events";

fn tools() -> Result {
    toolchain::ensure_nvtx()?;
    // Those of the whole workspace, so that the crates of others need not be built anew.
    let features = "memmgr-cli/sim,memmgr-tests/nvtx,memmgr-tests/trace-events";
    let words = ["test", "--workspace", "--features", features];
    run_quietly(cargo(words).args(["--test", "nvtx", "--test", "trace_events"]))?;
    let features = format!("sim,{FOR_TOOLS}");
    let words = ["test", "-p", "memmgr", "--lib", "events", "--features"];
    run_quietly(cargo(words).arg(&features))?;
    for one in ["sim,nvtx", "sim,trace-events", &features] {
        clippy(&["-p", "memmgr", "--features", one], None)?;
    }
    clippy(&["-p", "memmgr-tests", "--features", FOR_TOOLS], None)
}

/// Builds the simulator as a C library and runs the C example with it.
fn static_library() -> Result {
    let source = root().join("cudart-sim/examples/hello.c");
    let archive = shell::static_library(&[])?;
    if !source.is_file() {
        say(format!(
            "{} is not there: only the library was built",
            shown(&source)
        ));
        return Ok(());
    }
    let program = archive.with_file_name("hello");
    run_quietly(
        Command::new("cc")
            .arg(&source)
            .arg("-I")
            .arg(toolkit()?.join("nvidia/cu13/include"))
            .arg(&archive)
            .args(["-lpthread", "-ldl", "-lm", "-o"])
            .arg(&program),
    )?;
    shell::run(&mut Command::new(&program))
}

fn check_tables() -> Result {
    conformance::run(&parse(&["--check"])?)
}

/// Where the programs lie beside the checkout; skipped elsewhere.
fn facts() -> Result {
    facts::run(&parse(&["--if-present"])?)
}
