//! A project that uses an installed libmemmgr, built with CMake and with pkg-config: part of `cargo xtask ci c-interface`.

use crate::{
    shell::{self, Result, root, run_quietly, say, shown},
    toolchain,
};
use std::{fs, path::Path, process::Command};

/// Builds and runs the project in `memmgr-capi/tests/consumer` with what is installed below `prefix`.
pub fn check(prefix: &Path, version: &str) -> Result {
    let sources = root().join("memmgr-capi/tests/consumer");
    let build = prefix.join("consumer");
    let _ = fs::remove_dir_all(&build);
    fs::create_dir_all(&build).map_err(|e| format!("{}: {e}", shown(&build)))?;
    let cmake = toolchain::cmake()?;
    say("c-interface: a project of its own, with CMake");
    run_quietly(
        Command::new(&cmake)
            .arg("-S")
            .arg(&sources)
            .arg("-B")
            .arg(&build)
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()))
            .arg(format!("-DMEMMGR_VERSION={version}")),
    )?;
    run_quietly(Command::new(&cmake).arg("--build").arg(&build))?;
    for program in ["shared", "static"] {
        runs(&mut Command::new(build.join(program)), version)?;
    }
    if !shell::has("pkg-config") {
        say("c-interface: without pkg-config: not there");
        return Ok(());
    }
    say("c-interface: the same with pkg-config");
    let ask = |what: &[&str]| {
        run_quietly(
            Command::new("pkg-config")
                .args(what)
                .arg("memmgr")
                .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")),
        )
    };
    let said = ask(&["--modversion"])?;
    if said.trim() != version {
        return Err(format!("memmgr.pc is of version {said}, not {version}"));
    }
    let program = build.join("by-pkg-config");
    run_quietly(
        Command::new("cc")
            .arg(sources.join("consumer.c"))
            .args(ask(&["--cflags", "--libs"])?.split_whitespace())
            .arg("-o")
            .arg(&program),
    )?;
    runs(
        Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")),
        version,
    )?;
    // The archive in place of the library, with everything that it needs.
    let needed = ask(&["--cflags", "--libs", "--static"])?;
    let (archive, program) = (
        prefix.join("lib/libmemmgr.a"),
        build.join("static-by-pkg-config"),
    );
    let needed = needed.split_whitespace().map(|word| match word {
        "-lmemmgr" => archive.as_os_str(),
        other => other.as_ref(),
    });
    run_quietly(
        Command::new("cc")
            .arg(sources.join("consumer.c"))
            .args(needed)
            .arg("-o")
            .arg(&program),
    )?;
    runs(&mut Command::new(&program), version)
}

/// Runs the program, which says what it was built with.
fn runs(program: &mut Command, version: &str) -> Result {
    let said = run_quietly(program)?;
    let wanted = format!("memmgr {version}, backend: simulated");
    if said.trim() == wanted {
        return Ok(());
    }
    Err(format!(
        "the program says `{}`, not `{wanted}`",
        said.trim()
    ))
}
