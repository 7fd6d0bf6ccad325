//! The test programs that cargo has built, run several at once: most of them wait more than they compute.

use crate::shell::{Result, cargo_messages, run_lines, say};
use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

/// A test program.
pub struct Program {
    /// As in `memmgr-tests suite`.
    name: String,
    executable: PathBuf,
    /// Where cargo runs it.
    folder: PathBuf,
}

/// The test programs that a `cargo test --no-run` builds.
pub fn built(command: &mut Command) -> Result<Vec<Program>> {
    let messages = cargo_messages(command)?;
    let programs = messages
        .iter()
        .filter(|message| message["profile"]["test"] == true);
    Ok(programs
        .filter_map(|message| {
            let executable = PathBuf::from(message["executable"].as_str()?);
            let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
            let target = message["target"]["name"].as_str()?;
            Some(Program {
                name: format!("{} {target}", folder.file_name()?.to_string_lossy()),
                executable,
                folder: folder.to_path_buf(),
            })
        })
        .collect())
}

impl Program {
    /// The program as cargo runs it.
    pub fn command(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }

    /// Its name, for what is said of it.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Runs commands, so many at once, in this order. When one has ended, its name and what it has printed go to `read`. With
/// `named`, each is said when it begins.
///
/// All are run, also after one that fails. The names of those that failed.
pub fn run(
    commands: Vec<(String, Command)>,
    at_once: usize,
    named: bool,
    mut read: impl FnMut(&str, &[String]),
) -> Vec<String> {
    let waiting = Mutex::new(VecDeque::from(commands));
    let next = || {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.pop_front()
    };
    let next = &next;
    let (ended, all) = mpsc::channel();
    let mut failed = Vec::new();
    thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            let ended = ended.clone();
            scope.spawn(move || {
                while let Some((name, mut command)) = next() {
                    if named {
                        say(format!("     Running {name}"));
                    }
                    let mut lines = vec![String::new(), format!("{name}:")];
                    let result = run_lines(&mut command, |line| lines.push(line.to_string()));
                    // The receiver is there until every thread has ended.
                    let _ = ended.send((name, lines, result));
                }
            });
        }
        drop(ended);
        for (name, lines, result) in all {
            read(&name, &lines);
            if let Err(error) = result {
                say(format!("error: {error}"));
                failed.push(name);
            }
        }
    });
    failed
}

#[cfg(test)]
mod tests {
    use super::run;
    use std::process::Command;

    fn shell(name: &str, script: &str) -> (String, Command) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        (name.to_string(), command)
    }

    #[test]
    fn what_a_program_prints_stays_together_and_each_that_fails_is_named() {
        let slow = "echo 1; sleep 0.2; echo 2; exit 3";
        let commands = vec![
            shell("slow", slow),
            shell("quick", "echo 3"),
            shell("killed", "kill -9 $$"),
        ];
        let mut printed = Vec::new();
        let mut failed = run(commands, 2, true, |_, lines| printed.push(lines.join(" ")));
        failed.sort();
        printed.sort();
        assert_eq!(failed, ["killed", "slow"]);
        assert_eq!(printed, [" killed:", " quick: 3", " slow: 1 2"]);
    }

    #[test]
    fn as_many_run_at_once_as_are_allowed() {
        let room = std::env::temp_dir().join(format!("memmgr-xtask-{}", std::process::id()));
        let met = |own: &str, other: &str| {
            let room = room.display();
            // Ends well only if the other one runs at the same time.
            format!(
                "mkdir -p {room}; : > {room}/{own}; for i in $(seq 100); do [ -e {room}/{other} ] && exit 0; sleep 0.1; done; exit 1"
            )
        };
        let commands = vec![shell("a", &met("a", "b")), shell("b", &met("b", "a"))];
        let failed = run(commands, 2, false, |_, _| {});
        let _ = std::fs::remove_dir_all(&room);
        assert!(failed.is_empty(), "{failed:?}");
    }
}
