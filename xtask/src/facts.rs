//! `cargo xtask facts`: C++ programs that print what a CUDA runtime does, on the simulator, against what an H200 printed.

use crate::{
    expected::{self, Difference},
    shell::{Result, has, root, run_quietly, say, shown, static_library},
    toolchain,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Compare what C++ programs print on the simulator with what an H200 printed
///
/// The programs (facts.cpp, and those in probes/) are not part of this repository: --programs names their folder, else
/// MEMMGR_FACTS, else ../shared/peers. What they have to print is in xtask/facts.
#[derive(clap::Args)]
pub struct Arguments {
    /// The folder with facts.cpp and probes/
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Succeed, and say so, if the programs are not there
    #[arg(long)]
    if_present: bool,
    /// Print what the programs print
    #[arg(long)]
    show: bool,
    /// Run nothing: compare the recorded output of a program (for example from a GPU) with its expectation
    #[arg(long, num_args = 2, value_names = ["FILE", "NAME"], conflicts_with_all = ["programs", "if_present", "show"])]
    output_of: Vec<PathBuf>,
}

/// One run of one program, and what it has to print.
struct Program {
    name: &'static str,
    /// In the folder of the programs.
    source: &'static str,
    argument: Option<&'static str>,
    expected: &'static str,
    /// Not those that end in a crash there.
    on_a_gpu: bool,
}

macro_rules! program {
    ($name:literal, $source:literal, $argument:expr, $on_a_gpu:literal) => {
        Program {
            name: $name,
            source: $source,
            argument: $argument,
            expected: include_str!(concat!("../facts/", $name, ".txt")),
            on_a_gpu: $on_a_gpu,
        }
    };
}

const PROGRAMS: [Program; 9] = [
    program!("facts", "facts.cpp", None, true),
    program!("capture", "probes/capture.cpp", None, true),
    program!("full_queue", "probes/full_queue.cpp", None, true),
    program!("legacy_and_vmm", "probes/legacy_and_vmm.cpp", None, true),
    program!("dead_handles", "probes/dead_handles.cpp", None, false),
    program!(
        "dead_handles-1",
        "probes/dead_handles.cpp",
        Some("1"),
        false
    ),
    program!(
        "dead_handles-2",
        "probes/dead_handles.cpp",
        Some("2"),
        false
    ),
    program!(
        "dead_handles-3",
        "probes/dead_handles.cpp",
        Some("3"),
        false
    ),
    program!(
        "dead_handles-4",
        "probes/dead_handles.cpp",
        Some("4"),
        false
    ),
];

/// How long a program may run: the longest takes nine seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// How often a program is tried whose times, and nothing else, are out of bounds: other work on the machine does that.
const TRIES: u32 = 3;

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    if let [file, name] = arguments.output_of.as_slice() {
        return compare_file(file, &name.to_string_lossy());
    }
    let Some(folder) = folder(arguments.programs.as_deref())? else {
        let absent = format!(
            "there is no facts.cpp in {} (--programs or MEMMGR_FACTS names another folder)",
            default_folder().display()
        );
        if arguments.if_present {
            say(format!("facts: SKIPPED, nothing was compared: {absent}"));
            return Ok(());
        }
        return Err(absent);
    };
    let cuda = &toolchain::CUDA[0];
    toolchain::ensure_headers(cuda)?;
    say("facts: building the simulator as a C library");
    let archive = static_library(&["--release"])?;
    let into = archive.with_file_name("facts");
    let compiled = compile(&folder, &into, |_| true, &archive, &["-lm"])?;
    let mut failed = 0;
    for program in &PROGRAMS {
        let Some((_, file)) = compiled
            .iter()
            .find(|(source, _)| *source == program.source)
        else {
            continue;
        };
        if !check(program, file, arguments.show)? {
            failed += 1;
        }
    }
    if failed > 0 {
        return Err(format!("{failed} programs do not print what an H200 does"));
    }
    say(format!(
        "facts: {} programs print what an H200 does",
        PROGRAMS.len()
    ));
    Ok(())
}

/// Whether the programs are where they are looked for unasked.
pub fn present() -> bool {
    default_folder().join("facts.cpp").is_file()
}

fn default_folder() -> PathBuf {
    match env::var_os("MEMMGR_FACTS").filter(|v| !v.is_empty()) {
        Some(folder) => folder.into(),
        None => root().join("../shared/peers"),
    }
}

/// Where the programs are; none if they are not where they are looked for unasked.
fn folder(named: Option<&Path>) -> Result<Option<PathBuf>> {
    let folder = named.map_or_else(default_folder, Path::to_path_buf);
    let there = folder.join("facts.cpp").is_file();
    match named {
        Some(_) if !there => Err(format!("there is no facts.cpp in {}", shown(&folder))),
        _ => Ok(there.then_some(folder)),
    }
}

/// Compiles the wanted programs; source and file of each.
fn compile(
    folder: &Path,
    into: &Path,
    wanted: impl Fn(&Program) -> bool,
    library: &Path,
    more: &[&str],
) -> Result<Vec<(&'static str, PathBuf)>> {
    if !has("g++") {
        return Err("g++ was not found, and the programs are C++".to_string());
    }
    fs::create_dir_all(into).map_err(|e| format!("{}: {e}", shown(into)))?;
    let include = toolchain::CUDA[0].folder().join("nvidia/cu13/include");
    let mut made: Vec<(&'static str, PathBuf)> = Vec::new();
    for program in PROGRAMS.iter().filter(|program| wanted(program)) {
        if made.iter().any(|(source, _)| *source == program.source) {
            continue;
        }
        let to = into.join(program.name);
        run_quietly(
            Command::new("g++")
                .args(["-std=c++17", "-O2", "-w", "-I"])
                .arg(&include)
                .arg(folder.join(program.source))
                .arg(library)
                .args(["-lpthread", "-ldl", "-lrt"])
                .args(more)
                .arg("-o")
                .arg(&to),
        )?;
        made.push((program.source, to));
    }
    for entry in fs::read_dir(folder.join("probes")).into_iter().flatten() {
        let name = entry.map_err(|e| e.to_string())?.file_name();
        let source = format!("probes/{}", name.to_string_lossy());
        if source.ends_with(".cpp") && !PROGRAMS.iter().any(|program| program.source == source) {
            say(format!("facts: {source} has no expectation: left out"));
        }
    }
    Ok(made)
}

/// The programs for a machine with a GPU, linked to the real runtime; none if the sources are not there.
pub fn for_a_gpu(into: &Path) -> Result<Vec<PathBuf>> {
    let Some(folder) = folder(None)? else {
        return Ok(Vec::new());
    };
    let library = toolchain::CUDA[0]
        .folder()
        .join("nvidia/cu13/lib/libcudart_static.a");
    let made = compile(&folder, into, |program| program.on_a_gpu, &library, &[])?;
    Ok(made.into_iter().map(|(_, file)| file).collect())
}

/// Runs a program and compares; false if there are differences.
fn check(program: &Program, file: &Path, show: bool) -> Result<bool> {
    let output = file.with_file_name(format!("{}.txt", program.name));
    let mut tries = 0;
    loop {
        tries += 1;
        let start = Instant::now();
        let ended = run_limited(file, program.argument, &output)?;
        let time = start.elapsed().as_secs_f64();
        let printed =
            fs::read_to_string(&output).map_err(|e| format!("{}: {e}", shown(&output)))?;
        if show {
            say(format!("-- {}\n{}", program.name, printed.trim_end()));
        }
        let differences = expected::compare(program.expected, &printed);
        let success = ended.is_some_and(|status| status.success());
        if success && differences.is_empty() {
            let lines = expected::lines(program.expected).count();
            let name = program.name;
            say(format!("facts: ok: {name}, {lines} lines, {time:.1} s"));
            return Ok(true);
        }
        let only_time = success && differences.iter().all(|difference| difference.only_time);
        report(program.name, &differences);
        match ended {
            Some(status) if !success => say(format!("facts: {} ended with {status}", program.name)),
            None => say(format!("facts: {} was ended after {LIMIT:?}", program.name)),
            _ => {}
        }
        if !only_time || tries == TRIES {
            return Ok(false);
        }
        say("facts: only times differ: once more");
    }
}

fn report(name: &str, differences: &[Difference]) {
    for difference in differences {
        say(format!("facts: {name}, {difference}"));
    }
}

/// Runs a program with all its output into a file; none if it had to be ended.
fn run_limited(
    program: &Path,
    argument: Option<&str>,
    output: &Path,
) -> Result<Option<ExitStatus>> {
    let failed = |e: std::io::Error| format!("{}: {e}", shown(program));
    let out = fs::File::create(output).map_err(failed)?;
    let mut command = Command::new(program);
    // One file for both, so that reports and lines stay in order.
    command
        .args(argument)
        .stdin(Stdio::null())
        .stderr(out.try_clone().map_err(failed)?)
        .stdout(out);
    // The machine is the one that the expectations are for; a schedule must make no difference.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CUDART_SIM_") && text != "CUDART_SIM_SCHEDULE" {
            command.env_remove(&name);
        }
    }
    let mut child = command.spawn().map_err(failed)?;
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    Ok(None)
}

fn compare_file(file: &Path, name: &str) -> Result {
    let Some(program) = PROGRAMS.iter().find(|program| program.name == name) else {
        let names: Vec<_> = PROGRAMS.iter().map(|program| program.name).collect();
        return Err(format!(
            "there is no program `{name}`, only {}",
            names.join(", ")
        ));
    };
    let printed = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let differences = expected::compare(program.expected, &printed);
    report(name, &differences);
    if differences.is_empty() {
        let lines = expected::lines(program.expected).count();
        say(format!("facts: ok: {name}, {lines} lines"));
        return Ok(());
    }
    Err(format!("{} lines differ", differences.len()))
}
