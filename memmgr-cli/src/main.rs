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
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) if error.use_stderr() => error.exit(),
        // Help, or the version.
        Err(asked) => {
            let said = asked.print().and_then(|()| io::stdout().flush());
            return ended(said.map_err(Into::into));
        }
    };
    let mut out: Box<dyn Write> = if json_on_stdout(&options.command) {
        Box::new(io::stderr())
    } else if writes_files(&options.command) {
        // Those are wanted, whoever reads the rest.
        Box::new(Patient::new(io::stdout().lock()))
    } else {
        Box::new(io::stdout().lock())
    };
    let result = run(&options, &mut out);
    ended(result)
}

/// What the program ends with.
fn ended(result: error::Result<()>) -> ExitCode {
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

/// Whether there are files to be written beside standard output.
fn writes_files(command: &Command) -> bool {
    match command {
        Command::Replay(replay) => {
            replay.json.is_some() || replay.prometheus.is_some() || replay.snapshot.is_some()
        }
        Command::Bench(bench) => bench.json.is_some(),
        Command::Report(_) => true,
        Command::Info | Command::Demo(_) => false,
    }
}

/// Goes on when the reader has gone away, as `memmgr replay … | head -1` does.
struct Patient<W> {
    out: W,
    is_gone: bool,
}

impl<W: Write> Patient<W> {
    fn new(out: W) -> Self {
        let is_gone = false;
        Self { out, is_gone }
    }

    /// What was done, unless the reader has gone away.
    fn unless_gone<T>(
        &mut self,
        gone: T,
        done: impl FnOnce(&mut W) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.is_gone {
            return Ok(gone);
        }
        match done(&mut self.out) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_gone = true;
                Ok(gone)
            }
            other => other,
        }
    }
}

impl<W: Write> Write for Patient<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.unless_gone(text.len(), |out| out.write(text))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_gone((), |out| out.flush())
    }
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
