//! `cargo xtask ci`: every check of the project, step by step, with times.

use crate::{
    asan, bindings, capi, conformance, facts, headers, instructions,
    jobs::{self, Outcome},
    model, package,
    shell::{self, Result, cargo, root, run_quietly, say, shown},
    test, toolchain,
};
use clap::Parser;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Run every check: links, format, lints, documentation, tests, bindings, real headers, packages
///
/// Goes on after a step that fails and ends with a table.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only these steps
    #[arg(long, value_name = "STEP", conflicts_with = "skip")]
    only: Vec<String>,
    /// All but these steps
    #[arg(long, value_name = "STEP")]
    skip: Vec<String>,
    /// How many steps run at once
    #[arg(long, value_name = "N", default_value_t = JOBS)]
    jobs: usize,
    /// Run this step alone, without a table: how several are run at once
    #[arg(long, value_name = "STEP", hide = true)]
    step: Option<String>,
    /// Print the names of the steps
    #[arg(long)]
    list: bool,
}

/// One step: its name, what it shows, the folder of cargo's that it builds in, and the function.
pub struct Step {
    pub name: &'static str,
    pub about: &'static str,
    /// Below the folder of all builds. Steps that build in one folder take turns.
    pub folder: &'static str,
    pub run: fn() -> Result,
}

/// A step that runs before the others, beside none.
const ALONE: &str = "";

/// Two steps at once keep two cores busy: many of them wait, or build one large crate.
const JOBS: usize = 2;

static STEPS: [Step; 22] = [
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
        name: "model",
        about: "what threads share, model checked",
        folder: "model",
        run: model_check,
    },
    Step {
        name: "asan",
        about: "the simulator, AddressSanitizer",
        folder: "asan",
        run: sanitize,
    },
    Step {
        name: "instructions",
        about: "an operation is within its budget",
        folder: "release",
        run: count_instructions,
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
        name: "c-interface",
        about: "libmemmgr from C and C++",
        folder: "asan",
        run: capi::check,
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
        name: "facts",
        about: "C++ programs print what an H200 printed",
        folder: "release",
        run: facts,
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
        folder: "package",
        run: package::check,
    },
];

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    if arguments.list {
        for step in &STEPS {
            println!("{:<15} {}", step.name, step.about);
        }
        return Ok(());
    }
    if let Some(name) = &arguments.step {
        return (named(name)?.run)();
    }
    for name in arguments.only.iter().chain(&arguments.skip) {
        named(name)?;
    }
    let wanted = |step: &&Step| {
        let named = |names: &[String]| names.iter().any(|name| name == step.name);
        if arguments.only.is_empty() {
            !named(&arguments.skip)
        } else {
            named(&arguments.only)
        }
    };
    let start = Instant::now();
    let (mut first, mut others): (Vec<&Step>, Vec<&Step>) = STEPS
        .iter()
        .filter(wanted)
        .partition(|step| step.folder == ALONE);
    if arguments.jobs == 1 || others.len() == 1 {
        first.append(&mut others);
    }
    let mut outcomes = jobs::run(first, 1, |step| {
        say(format!("\n== {}: {}", step.name, step.about));
        (step.run)().inspect_err(|error| say(format!("error: {error}")))
    });
    if !others.is_empty() {
        // What several of them need is fetched once.
        toolchain::ensure(&toolchain::CUDA[0])?;
        let program = jobs::copy_of_this()?;
        outcomes.extend(jobs::run(others, arguments.jobs, |step| {
            jobs::apart(&program, step)
        }));
    }
    report(&outcomes, start.elapsed())
}

/// The step of this name.
fn named(name: &str) -> Result<&'static Step> {
    STEPS
        .iter()
        .find(|step| step.name == name)
        .ok_or_else(|| format!("there is no step `{name}`; `cargo xtask ci --list` names them"))
}

/// Prints a table of what came of the steps; an error if one has failed.
fn report(outcomes: &[Outcome], total: Duration) -> Result {
    say("");
    for outcome in outcomes {
        let Outcome { step, result, .. } = outcome;
        let verdict = match result {
            Ok(()) if step.name == "facts" && !facts::present() => "skipped",
            Ok(()) if step.name == "instructions" && instructions::impossible().is_some() => {
                "skipped"
            }
            Ok(()) => "ok",
            Err(_) => "FAILED",
        };
        say(format!(
            "{verdict:<7} {:>6.1} s  {:<15} {}",
            outcome.time.as_secs_f64(),
            step.name,
            step.about
        ));
    }
    let failed = outcomes
        .iter()
        .filter(|outcome| outcome.result.is_err())
        .count();
    say(format!(
        "{} steps, {failed} failed, {:.0} s",
        outcomes.len(),
        total.as_secs_f64()
    ));
    if failed == 0 {
        Ok(())
    } else {
        Err("the checks did not pass".to_string())
    }
}

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

/// The crates that exist in a form without the simulator.
const REAL: [&str; 6] = ["-p", "cuda-sys", "-p", "memmgr", "-p", "memmgr-cli"];

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
    let of_tests = ["--features", FOR_TOOLS];
    let words = ["test", "-p", "memmgr-tests", "--test", "nvtx", "--test"];
    run_quietly(cargo(words).arg("trace_events").args(of_tests))?;
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
