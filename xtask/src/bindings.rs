//! `cargo xtask bindings`: makes the checked-in bindings, checks them, and shows those of a build.

use crate::{
    discover,
    shell::{Result, cargo, cargo_messages, root, say, shown},
    toolchain,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Regenerate the checked-in bindings, check them, or show those of your toolkit
///
/// cuda-sys/src/bindings.rs is generated from the headers of CUDA 13.0 by the build script of cuda-sys; it serves the
/// simulator, the documentation and readers. A build with a toolkit generates its own; `--show` tells where.
#[derive(clap::Args)]
pub struct Arguments {
    /// Change nothing; fail with the difference if there is one
    #[arg(long)]
    check: bool,
    /// Print where the bindings of the present toolkit are and, with a pattern, the items that contain it
    #[arg(long, value_name = "PATTERN", num_args = 0..=1, default_missing_value = "", conflicts_with = "check")]
    show: Option<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result {
    if let Some(pattern) = &arguments.show {
        return show(pattern);
    }
    let cuda = &toolchain::CUDA[0];
    toolchain::ensure(cuda)?;
    let made = generated(Some(&cuda.folder()))?;
    let checked_in = root().join("cuda-sys/src/bindings.rs");
    let read = |file: &Path| fs::read_to_string(file).map_err(|e| format!("{}: {e}", shown(file)));
    if read(&made)? == read(&checked_in).unwrap_or_default() {
        say(format!(
            "bindings: {} is what CUDA {} gives",
            shown(&checked_in),
            cuda.name
        ));
        return Ok(());
    }
    if arguments.check {
        // The difference goes to the user; its exit status only repeats that there is one.
        let _ = Command::new("diff")
            .arg("-u")
            .arg(&checked_in)
            .arg(&made)
            .status();
        return Err(format!(
            "{} is out of date: run `cargo xtask bindings`",
            shown(&checked_in)
        ));
    }
    fs::copy(&made, &checked_in).map_err(|e| format!("{}: {e}", shown(&checked_in)))?;
    say(format!("bindings: wrote {}", shown(&checked_in)));
    Ok(())
}

/// Builds cuda-sys and returns the file that its build script made. Without a toolkit's folder, the environment decides.
fn generated(toolkit: Option<&Path>) -> Result<PathBuf> {
    let mut build = cargo(["build", "--quiet", "-p", "cuda-sys"]);
    if let Some(folder) = toolkit {
        build.env("CUDA_PATH", folder);
    }
    let messages = cargo_messages(&mut build)?;
    messages
        .iter()
        .filter(|m| m["reason"] == "build-script-executed")
        .filter(|m| {
            m["package_id"]
                .as_str()
                .is_some_and(|id| id.contains("cuda-sys"))
        })
        .find_map(|m| Some(Path::new(m["out_dir"].as_str()?).join("bindings.rs")))
        .filter(|file| file.is_file())
        .ok_or_else(|| "the build script of cuda-sys left no bindings.rs".to_string())
}

fn show(pattern: &str) -> Result {
    let environment = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .collect();
    let target = discover::Target {
        arch: env::consts::ARCH.to_string(),
        native: true,
    };
    let fetched = &toolchain::CUDA[0];
    let file = match discover::find_toolkit(Path::new("/"), &environment, &target) {
        Ok(toolkit) => {
            let version = discover::dotted(toolkit.version);
            say(format!(
                "CUDA {version} at {} ({})",
                toolkit.root.display(),
                toolkit.found_by
            ));
            generated(None)?
        }
        Err(error) if error.wrong_variable.is_some() => return Err(error.to_string()),
        Err(_) if fetched.folder().is_dir() => {
            say(format!(
                "CUDA {} at {} (no other toolkit is here)",
                fetched.name,
                shown(&fetched.folder())
            ));
            generated(Some(&fetched.folder()))?
        }
        Err(_) => {
            say(format!(
                "no toolkit is here; these are the checked-in bindings of CUDA {}",
                fetched.name
            ));
            root().join("cuda-sys/src/bindings.rs")
        }
    };
    println!("{}", file.display());
    if pattern.is_empty() {
        return Ok(());
    }
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let found = items(&text, pattern);
    if found.is_empty() {
        return Err(format!("nothing there contains `{pattern}`"));
    }
    for (number, item) in found {
        println!("{number}: {item}");
    }
    Ok(())
}

/// The items that contain a pattern in their first line, with the line's number: a function up to its semicolon, a struct up
/// to its brace. Case does not matter; the checks of layouts are left out.
fn items(text: &str, pattern: &str) -> Vec<(usize, String)> {
    let pattern = pattern.to_lowercase();
    let mut lines = text.lines().enumerate();
    let mut found = Vec::new();
    while let Some((number, line)) = lines.next() {
        let layout_check = line.trim_start().starts_with(['"', '[', ']']);
        if layout_check || !line.to_lowercase().contains(&pattern) {
            continue;
        }
        let mut item = line.trim_start().to_string();
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = if item.starts_with("pub fn") || item.ends_with('(') {
            ";"
        } else if item.starts_with("pub struct") || item.starts_with("pub union") {
            "}"
        } else {
            ""
        };
        if !end.is_empty() && !item.ends_with(';') && !item.ends_with('}') {
            for (_, more) in lines.by_ref() {
                item.push('\n');
                item.push_str(more.strip_prefix(indent).unwrap_or(more));
                let closes = more
                    .strip_prefix(indent)
                    .is_some_and(|m| !m.starts_with(' '));
                if closes && more.ends_with(end) {
                    break;
                }
            }
        }
        found.push((number + 1, item));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::items;

    #[test]
    fn an_item_is_shown_whole() {
        let text = "unsafe extern \"C\" {\n    pub fn cudaMalloc(\n        p: *mut *mut c_void,\n    ) -> cudaError_t;\n    pub fn cudaFree(p: *mut c_void) -> cudaError_t;\n}\npub struct dim3 {\n    pub x: u32,\n}\n";
        assert_eq!(
            items(text, "cudamalloc"),
            [(
                2,
                "pub fn cudaMalloc(\n    p: *mut *mut c_void,\n) -> cudaError_t;".to_string()
            )]
        );
        assert_eq!(items(text, "cudaFree").len(), 1);
        assert_eq!(
            items(text, "dim3"),
            [(7, "pub struct dim3 {\n    pub x: u32,\n}".to_string())]
        );
    }
}
