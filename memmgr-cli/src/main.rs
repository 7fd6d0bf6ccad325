//! `memmgr`: shows devices, demonstrates and measures the memory manager, replays allocation traces, and
//! makes a page of them.
//!
//! The first line that it prints names the backend (`report` uses none). Failures are one line on standard error that
//! begins with `memmgr:`, with exit code 1; a command line that is not understood gives exit code 2.

mod bench;
mod bench_options;
mod cuda;
mod demo;
mod device;
mod error;
mod gzip;
mod info;
mod json;
mod options;
mod progress;
mod replay;
mod report;
mod rng;
mod settings;
mod table;
mod trace;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use options::{Command, Options};

fn main() -> ExitCode {
    let options = Options::parse();
    let result = if json_on_stdout(&options.command) {
        run(&options, &mut io::stderr())
    } else {
        run(&options, &mut io::stdout().lock())
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // Where standard error is closed nobody can be told.
            let _ = writeln!(io::stderr(), "memmgr: {}", failure.line());
            ExitCode::FAILURE
        }
    }
}

/// Whether standard output is for JSON or a page alone; everything else goes to standard error then.
fn json_on_stdout(command: &Command) -> bool {
    let json = match command {
        Command::Replay(replay) => {
            let texts = [&replay.json, &replay.prometheus].into_iter().flatten();
            return texts.map(PathBuf::as_path).any(json::is_stdout);
        }
        Command::Bench(bench) => &bench.json,
        Command::Report(report) => return json::is_stdout(&report.output),
        Command::Info | Command::Demo(_) => return false,
    };
    json.as_deref().is_some_and(json::is_stdout)
}

fn run(options: &Options, out: &mut impl Write) -> error::Result<()> {
    match &options.command {
        Command::Info => info::run(machine(out)?, out),
        Command::Demo(options) => demo::run(options, machine(out)?, out),
        Command::Replay(options) => replay::run(options, machine(out)?, out),
        Command::Bench(options) => bench::run(options, machine(out)?, out),
        Command::Report(options) => report::run(options, out),
    }
}

/// The machine, and the line that names its backend.
fn machine(out: &mut impl Write) -> error::Result<device::Machine> {
    let machine = device::Machine::read();
    writeln!(out, "{}", machine.backend_line())?;
    Ok(machine)
}
