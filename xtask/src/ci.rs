//! `cargo xtask ci`: every check of the project, step by step, with times.

use crate::{
    facts, instructions,
    jobs::{self, Outcome},
    shell::{Result, say},
    steps::{ALONE, STEPS, Step},
    toolchain,
};
use std::time::{Duration, Instant};

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

/// Two steps at once keep two cores busy: many of them wait, or build one large crate.
const JOBS: usize = 2;

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
        // What several of them need is fetched once. If that fails, so do they, and say why.
        let _ = toolchain::ensure(&toolchain::CUDA[0]);
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
