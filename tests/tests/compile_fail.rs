//! What the safe layer forbids does not compile: each file of `tests/compile_fail` holds misuse, and beside it what the
//! compiler says, a line an error; what counts of it is where and which, since words change with the compiler.
//! `COMPILE_FAIL=overwrite` writes that anew, or for a new file.
//!
//! The compiler is called with the libraries that this test was built with, so that nothing is built once more.
#![cfg(feature = "sim")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

/// Compiles a file of the folder up to its metadata: the errors, and whether there were none.
fn compile(file: &Path, library: &Path, name: &str) -> (String, bool) {
    let libraries = library.parent().unwrap();
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .current_dir(file.parent().unwrap())
        .args(["--edition=2024", "--emit=metadata", "--error-format=short"])
        .arg("--cap-lints=allow")
        .arg(file.file_name().unwrap())
        .arg("-o")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.rmeta")))
        .arg("--extern")
        .arg(format!("memmgr={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", libraries.display()))
        .output()
        .expect("the compiler starts");
    let errors = String::from_utf8_lossy(&output.stderr)
        .lines()
        .filter(|line| line.contains(": error"))
        .map(|line| format!("{line}\n"))
        .collect();
    (errors, output.status.success())
}

/// File, line and code of each error.
fn essence(errors: &str) -> BTreeSet<(&str, &str)> {
    errors
        .lines()
        .filter_map(|line| {
            let (place, error) = line.split_once(": error")?;
            let (line, _column) = place.rsplit_once(':')?;
            Some((line, error.split(':').next()?))
        })
        .collect()
}

/// The library that this test was built with: the newest of those that compile what must compile.
fn library(good: &Path) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let mut candidates: Vec<(SystemTime, PathBuf)> = fs::read_dir(test.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("libmemmgr-") && name.ends_with(".rlib")
        })
        .map(|path| (fs::metadata(&path).unwrap().modified().unwrap(), path))
        .collect();
    candidates.sort();
    candidates
        .into_iter()
        .rev()
        .map(|(_, path)| path)
        .find(|path| compile(good, path, "good").1)
        .expect("what must compile does not")
}

#[test]
fn what_would_dangle_or_race_does_not_compile() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let library = library(&folder.join("good.rs"));
    let overwrite = std::env::var_os("COMPILE_FAIL").is_some_and(|value| value == "overwrite");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension().is_some_and(|end| end == "rs") && !path.ends_with("good.rs")
        })
        .collect();
    files.sort();
    assert!(files.len() >= 8, "{files:?}");
    let mut wrong = String::new();
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let (errors, compiled) = compile(&file, &library, &name);
        let beside = file.with_extension("stderr");
        if overwrite && !compiled {
            fs::write(&beside, &errors).unwrap();
        }
        let wanted = fs::read_to_string(&beside).unwrap_or_default();
        if compiled {
            wrong += &format!("{name} compiles\n");
        } else if essence(&errors) != essence(&wanted) || errors.is_empty() {
            wrong += &format!("{name} says\n{errors}instead of\n{wanted}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
