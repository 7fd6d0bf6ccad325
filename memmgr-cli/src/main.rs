//! `memmgr`: shows devices, demonstrates the memory manager, and replays allocation traces.
//!
//! The first line on standard output names the backend. Failures are one line on standard error that
//! begins with `memmgr:`, with exit code 1; a command line that is not understood gives exit code 2.

mod cuda;
mod demo;
mod device;
mod error;
mod info;
mod json;
mod options;
mod progress;
mod replay;
mod rng;
mod table;
mod trace;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use options::{Command, Options};

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // Where standard error is closed nobody can be told.
            let _ = writeln!(io::stderr(), "memmgr: {}", failure.line());
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options, out: &mut impl Write) -> error::Result<()> {
    writeln!(out, "{}", device::backend_line())?;
    match &options.command {
        Command::Info => info::run(out),
        Command::Demo(options) => demo::run(options, out),
        Command::Replay(options) => replay::run(options, out),
    }
}
