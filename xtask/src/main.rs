//! The project's own commands: `cargo xtask <command>`. Each module is one command; `shell.rs` runs other programs.

mod asan;
mod bindings;
mod bundle;
mod capi;
mod ci;
mod conformance;
mod consumer;
mod demo;
// The search of the build script of `cuda-sys`, through links, so that both find the same things.
#[allow(dead_code)]
mod discover;
mod expected;
mod facts;
mod headers;
mod instructions;
mod jobs;
#[allow(dead_code)]
mod libclang;
mod links;
mod model;
mod package;
mod programs;
mod shell;
mod steps;
mod test;
mod toolchain;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Commands of the memmgr workspace.
///
/// `demo` and `test` need Rust and a C compiler, nothing else: they run on the simulated CUDA runtime. The others fetch what
/// they need into target/toolchain.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 80)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Setup(toolchain::Arguments),
    Demo(demo::Arguments),
    Test(test::Arguments),
    Model(model::Arguments),
    Asan(asan::Arguments),
    Bindings(bindings::Arguments),
    RealHeaders(headers::Arguments),
    GpuBundle(bundle::Arguments),
    Facts(facts::Arguments),
    Conformance(conformance::Arguments),
    Instructions(instructions::Arguments),
    InstallC(capi::Arguments),
    Ci(ci::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Setup(arguments) => toolchain::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::Model(arguments) => model::run(&arguments),
        Command::Asan(arguments) => asan::run(&arguments),
        Command::Bindings(arguments) => bindings::run(&arguments),
        Command::RealHeaders(arguments) => headers::run(&arguments),
        Command::GpuBundle(arguments) => bundle::run(&arguments),
        Command::Facts(arguments) => facts::run(&arguments),
        Command::Conformance(arguments) => conformance::run(&arguments),
        Command::Instructions(arguments) => instructions::run(&arguments),
        Command::InstallC(arguments) => capi::run(&arguments),
        Command::Ci(arguments) => ci::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
