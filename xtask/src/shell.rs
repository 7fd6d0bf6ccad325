//! Running other programs, and saying what is done.

use std::{
    env,
    ffi::OsString,
    fmt::Display,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What every command returns: the error is a message for the user, with the fix in it.
pub type Result<T = ()> = std::result::Result<T, String>;

/// What the tests and the demonstration run on.
pub const BACKEND: &str = "simulated CUDA runtime";

/// The folder of the workspace, whatever the caller's own folder is.
pub fn root() -> PathBuf {
    let own = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    own.parent().map(Path::to_path_buf).unwrap_or(own)
}

/// A path below the workspace, as the user sees it.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}

/// One line about what is done.
pub fn say(line: impl Display) {
    eprintln!("{line}");
}

/// What a command that works on the simulated runtime says first.
pub fn announce(command: &str, compilers: &str) {
    say(format!("{command}: backend: {BACKEND}; {compilers}"));
    say(format!(
        "{command}: building: this takes a few minutes the first time"
    ));
}

/// Cargo, in the workspace's folder, by the toolchain that runs this.
pub fn cargo<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(root())
        .args(arguments.into_iter().map(Into::into));
    command
}

/// The command as one would type it.
pub fn typed(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![
        program
            .file_name()
            .unwrap_or(program.as_os_str())
            .to_string_lossy()
            .into_owned(),
    ];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Runs a command whose output goes to the user.
pub fn run(command: &mut Command) -> Result {
    let status = command.status().map_err(|e| cannot_start(command, &e))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{}` failed ({status})", typed(command)))
    }
}

/// Runs a command silently; what it printed is shown only if it fails.
pub fn run_quietly(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| cannot_start(command, &e))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let printed = text(&output.stdout) + &text(&output.stderr);
    Err(format!(
        "`{}` failed ({}):\n{}",
        typed(command),
        output.status,
        printed.trim_end()
    ))
}

/// Runs a command, hands each line of its standard output to `line`, and passes its errors on to the user.
pub fn run_lines(command: &mut Command, mut line: impl FnMut(&str)) -> Result {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| cannot_start(command, &e))?;
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout)
            .lines()
            .map_while(std::result::Result::ok)
        {
            line(&text);
        }
    }
    let status = child
        .wait()
        .map_err(|e| format!("`{}`: {e}", typed(command)))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{}` failed ({status})", typed(command)))
    }
}

/// Whether a program can be run at all.
pub fn has(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|o| o.status.success())
}

/// Runs cargo with `--message-format=json` and returns its messages.
pub fn cargo_messages(command: &mut Command) -> Result<Vec<serde_json::Value>> {
    command.arg("--message-format=json-render-diagnostics");
    let mut messages = Vec::new();
    run_lines(command, |line| {
        messages.extend(serde_json::from_str(line).ok())
    })?;
    Ok(messages)
}

/// Builds the simulator as a C library; the file.
pub fn static_library(more: &[&str]) -> Result<PathBuf> {
    let mut build = cargo(["rustc", "--quiet", "-p", "cudart-sim", "--lib"]);
    build.args(["--crate-type", "staticlib"]).args(more);
    archive(&mut build)
}

/// Runs a cargo that builds the simulator's C library; the file.
pub fn archive(build: &mut Command) -> Result<PathBuf> {
    library(build, "cudart_sim", ".a")
}

/// Runs a cargo that builds a library; its file with this ending.
pub fn library(build: &mut Command, name: &str, ending: &str) -> Result<PathBuf> {
    cargo_messages(build)?
        .iter()
        .filter(|m| m["target"]["name"] == name)
        .flat_map(|m| m["filenames"].as_array().cloned().unwrap_or_default())
        .find_map(|file| {
            file.as_str()
                .filter(|f| f.ends_with(ending))
                .map(PathBuf::from)
        })
        .ok_or_else(|| format!("cargo made no lib{name}{ending}"))
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!(
        "`{}` cannot be started: {error}",
        command.get_program().to_string_lossy()
    )
}
