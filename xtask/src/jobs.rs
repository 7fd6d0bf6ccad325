//! Steps of `cargo xtask ci`, several at once: each is a process of its own, so that what one prints stays together.

use crate::{
    model::build_folder,
    shell::{Result, say, shown},
    steps::Step,
};
use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// What came of a step.
pub struct Outcome {
    pub step: &'static Step,
    pub time: Duration,
    pub result: Result,
}

/// Who waits, and which folders of cargo's are in use: two steps that build in one folder would wait for each other.
struct Board {
    waiting: Vec<&'static Step>,
    busy: Vec<&'static str>,
    outcomes: Vec<Outcome>,
}

impl Board {
    /// The first step that has its folder for itself.
    fn take(&mut self) -> Option<&'static Step> {
        let free = |step: &&Step| !self.busy.contains(&step.folder);
        let at = self.waiting.iter().position(free)?;
        let step = self.waiting.remove(at);
        self.busy.push(step.folder);
        Some(step)
    }

    fn end(&mut self, outcome: Outcome) {
        self.busy.retain(|folder| *folder != outcome.step.folder);
        self.outcomes.push(outcome);
    }
}

/// Runs steps, so many at once: what came of each, in the order in which they ended.
pub fn run(
    steps: Vec<&'static Step>,
    at_once: usize,
    run_one: impl Fn(&Step) -> Result + Sync,
) -> Vec<Outcome> {
    let board = Mutex::new(Board {
        waiting: steps,
        busy: Vec::new(),
        outcomes: Vec::new(),
    });
    let ended = Condvar::new();
    let lock = || -> MutexGuard<Board> { board.lock().unwrap_or_else(PoisonError::into_inner) };
    let work = || {
        let mut guard = lock();
        while !guard.waiting.is_empty() {
            let Some(step) = guard.take() else {
                guard = ended.wait(guard).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(guard);
            let start = Instant::now();
            let result = run_one(step);
            let outcome = Outcome {
                step,
                time: start.elapsed(),
                result,
            };
            guard = lock();
            guard.end(outcome);
            ended.notify_all();
        }
    };
    thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(work);
        }
    });
    board
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .outcomes
}

/// Runs a step in a process of its own and prints, when it has ended, all that it has said.
pub fn apart(program: &Path, step: &Step) -> Result {
    say(format!("-- {} begins: {}", step.name, step.about));
    let log = log_of(step)?;
    let failed = |e: io::Error| format!("{}: {e}", shown(&log));
    let out = fs::File::create(&log).map_err(failed)?;
    let status = Command::new(program)
        .args(["ci", "--step", step.name])
        .stdin(Stdio::null())
        // One file for both, so that lines stay in order.
        .stderr(out.try_clone().map_err(failed)?)
        .stdout(out)
        .status()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let said = fs::read(&log).map_err(failed)?;
    let said = String::from_utf8_lossy(&said);
    say(format!(
        "\n== {}: {}\n{}",
        step.name,
        step.about,
        said.trim_end()
    ));
    match status.success() {
        true => Ok(()),
        false => Err(format!("{} failed; {} says more", step.name, shown(&log))),
    }
}

/// Where a step's output is kept.
fn log_of(step: &Step) -> Result<PathBuf> {
    let folder = build_folder("ci");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", shown(&folder)))?;
    Ok(folder.join(format!("{}.log", step.name)))
}

/// This program, for steps to be started from: a copy, since a step may build it anew.
pub fn copy_of_this() -> Result<PathBuf> {
    let folder = build_folder("ci");
    let copy = folder.join("xtask");
    let failed = |e: io::Error| format!("{}: {e}", shown(&copy));
    fs::create_dir_all(&folder).map_err(failed)?;
    let own = env::current_exe().map_err(failed)?;
    // Not over the file of one that still runs.
    let _ = fs::remove_file(&copy);
    fs::copy(own, &copy).map_err(failed)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::steps::Step;
    use std::{
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        thread::sleep,
        time::Duration,
    };

    const fn step(name: &'static str, folder: &'static str) -> Step {
        Step {
            name,
            about: "",
            folder,
            run: || Ok(()),
        }
    }

    static STEPS: [Step; 4] = [
        step("a1", "a"),
        step("a2", "a"),
        step("b1", "b"),
        step("b2", "b"),
    ];

    #[test]
    fn steps_that_build_in_one_folder_never_run_at_once_and_others_do() {
        let (in_a, in_b, most) = (
            AtomicUsize::new(0),
            AtomicUsize::new(0),
            AtomicUsize::new(0),
        );
        let outcomes = run(STEPS.iter().collect(), 3, |step| {
            let own = if step.folder == "a" { &in_a } else { &in_b };
            assert_eq!(own.fetch_add(1, SeqCst), 0, "{}", step.name);
            most.fetch_max(in_a.load(SeqCst) + in_b.load(SeqCst), SeqCst);
            sleep(Duration::from_millis(100));
            most.fetch_max(in_a.load(SeqCst) + in_b.load(SeqCst), SeqCst);
            own.fetch_sub(1, SeqCst);
            if step.name == "a1" {
                return Err("no".to_string());
            }
            Ok(())
        });
        assert_eq!(most.into_inner(), 2);
        assert_eq!(outcomes.len(), 4, "also after one that fails");
        let failed = outcomes.iter().filter(|outcome| outcome.result.is_err());
        assert_eq!(
            failed.map(|outcome| outcome.step.name).collect::<Vec<_>>(),
            ["a1"]
        );
    }

    #[test]
    fn one_at_a_time_they_keep_their_order() {
        let outcomes = run(STEPS.iter().collect(), 1, |_| Ok(()));
        let names: Vec<_> = outcomes.iter().map(|outcome| outcome.step.name).collect();
        assert_eq!(names, ["a1", "a2", "b1", "b2"]);
    }
}
