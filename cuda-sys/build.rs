//! Finds the CUDA toolkit, generates the bindings with bindgen, and says how to link.
//!
//! The steps are in `build/`: `discover.rs` finds the toolkit, `libclang.rs` what bindgen needs, `generate.rs` runs bindgen,
//! `link.rs` chooses the library. With the feature `sim`, and on docs.rs, the checked-in `src/bindings.rs` is used instead
//! and nothing is looked for. A failure is one message that says what to do.

#[path = "build/discover.rs"]
mod discover;
#[path = "build/generate.rs"]
mod generate;
#[path = "build/libclang.rs"]
mod libclang;
#[path = "build/link.rs"]
mod link;
#[path = "build/nvtx.rs"]
mod nvtx;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Every variable that the search reads, beside those that the crates `cc` and `bindgen` report themselves.
const OTHER_VARIABLES: [&str; 4] = [
    "PATH",
    "LIBCLANG_PATH",
    "LLVM_CONFIG_PATH",
    "BINDGEN_EXTRA_CLANG_ARGS",
];

fn main() {
    // `cargo::error` fails the build. Ending with a failure as well would make cargo repeat everything printed here.
    if let Err(message) = run() {
        for line in message.lines() {
            println!("cargo::error={line}");
        }
    }
}

fn run() -> Result<(), String> {
    let manifest = folder("CARGO_MANIFEST_DIR")?;
    for file in ["build.rs", "build", "wrapper.h", "allow.txt"] {
        println!("cargo::rerun-if-changed={}", manifest.join(file).display());
    }
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    for name in generate::SHAPES {
        println!("cargo::rustc-check-cfg=cfg({name})");
    }
    let feature = |name: &str| env::var_os(format!("CARGO_FEATURE_{name}")).is_some();
    // `src/lib.rs` refuses other systems by `compile_error!`; a toolkit that is not there must not hide that.
    let supported = variable("CARGO_CFG_TARGET_OS") == "linux";
    let checkout = manifest.parent().unwrap_or(&manifest);
    let own_tools = checkout.join("target/toolchain");
    println!("cargo::rerun-if-env-changed={}", nvtx::VARIABLE);
    let with_nvtx = |toolkit: &[PathBuf]| {
        if !feature("NVTX") || env::var_os("DOCS_RS").is_some() || !supported {
            return Ok(());
        }
        let named = env::var_os(nvtx::VARIABLE).map(PathBuf::from);
        nvtx::compile(&manifest.join("src/nvtx.c"), named, toolkit, &own_tools)
    };
    if feature("SIM") || env::var_os("DOCS_RS").is_some() || !supported {
        let file = manifest.join("src/bindings.rs");
        println!("cargo::rerun-if-changed={}", file.display());
        announce(&file, &read(&file)?, "sim");
        return with_nvtx(&[]);
    }

    for name in discover::ROOT_VARIABLES.iter().chain(&OTHER_VARIABLES) {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let environment: discover::Environment = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .collect();
    let target = discover::Target {
        arch: variable("CARGO_CFG_TARGET_ARCH"),
        native: variable("HOST").split('-').next() == variable("TARGET").split('-').next(),
    };
    // Not below cargo's own folder, which may be elsewhere (CARGO_TARGET_DIR).
    let own = own_tools.join("cuda-13.0");
    let toolkit = discover::find_toolkit_or_own(Path::new("/"), &environment, &target, &own)
        .map_err(|e| format!("{e}{}", checkout_hint(checkout)))?;

    let out = folder("OUT_DIR")?;
    let builtin_include = prepare_libclang(&environment, &target, &own_tools.join("libclang"))?;
    let allow = read(&manifest.join("allow.txt"))?;
    let builder = generate::builder(&generate::Request {
        header: &manifest.join("wrapper.h"),
        allow: &allow,
        target: &variable("TARGET"),
        include: &toolkit.include,
        builtin_include: builtin_include.as_deref(),
        out: &out,
    })?
    .parse_callbacks(Box::new(
        bindgen::CargoCallbacks::new().rerun_on_header_files(true),
    ));
    let text = generate::generate(builder).map_err(|e| {
        format!(
            "bindgen could not read the headers of {}: {e}",
            toolkit.root.display()
        )
    })?;
    let file = out.join("bindings.rs");
    generate::write_if_changed(&file, &text)?;
    compile_wrappers(&out, &toolkit.include)?;
    with_nvtx(&toolkit.include)?;

    let kind = link::link(&toolkit, feature("DYNAMIC"), &out)?;
    announce(&file, &text, kind);
    println!("cargo::metadata=root={}", toolkit.root.display());
    let include = env::join_paths(&toolkit.include)
        .map_err(|e| format!("an include folder cannot be passed on: {e}"))?;
    println!("cargo::metadata=include={}", include.to_string_lossy());
    println!(
        "cargo::rustc-env=CUDA_SYS_INCLUDE={}",
        include.to_string_lossy()
    );
    Ok(())
}

/// Tells the crate which bindings it has, and dependents (as `DEP_CUDART_VERSION`, `DEP_CUDART_LINK`) what they are.
fn announce(file: &Path, text: &str, link: &str) {
    for shape in generate::shapes(text) {
        println!("cargo::rustc-cfg={shape}");
    }
    println!("cargo::rustc-env=CUDA_SYS_BINDINGS={}", file.display());
    println!(
        "cargo::metadata=version={}",
        generate::version(text).unwrap_or(0)
    );
    println!("cargo::metadata=link={link}");
}

/// Points bindgen at a libclang that is there, and returns the folder of the compiler's own headers.
fn prepare_libclang(
    environment: &discover::Environment,
    target: &discover::Target,
    own: &Path,
) -> Result<Option<PathBuf>, String> {
    let llvm_config = environment
        .get("LLVM_CONFIG_PATH")
        .cloned()
        .unwrap_or_else(|| "llvm-config".into());
    let libdir = answer(Command::new(llvm_config).arg("--libdir"));
    let library =
        libclang::find_libclang(Path::new("/"), environment, target, libdir.as_deref(), own)
            .map_err(|e| e.to_string())?;
    // SAFETY: a build script has one thread here, so nothing reads the environment at the same time.
    unsafe { env::set_var("LIBCLANG_PATH", &library) };
    let cc_include = cc::Build::new()
        .cargo_warnings(false)
        .try_get_compiler()
        .ok()
        .and_then(|cc| answer(cc.to_command().arg("-print-file-name=include")));
    match libclang::builtin_include(Path::new("/"), target, &library, cc_include.as_deref()) {
        Ok(dir) => Ok(Some(dir)),
        Err(_) if environment.contains_key("BINDGEN_EXTRA_CLANG_ARGS") => Ok(None),
        Err(message) => Err(message),
    }
}

/// Compiles the wrappers of the header's static inline functions (`make_cudaExtent` …), if there are any.
fn compile_wrappers(out: &Path, include: &[PathBuf]) -> Result<(), String> {
    let source = generate::wrappers(out).with_extension("c");
    if !source.is_file() {
        return Ok(());
    }
    cc::Build::new()
        .file(&source)
        .includes(
            include
                .iter()
                .filter(|dir| *dir != Path::new("/usr/include")),
        )
        .warnings(false)
        .flag_if_supported("-w")
        .try_compile("cuda_sys_wrappers")
        .map_err(|e| {
            format!(
                "the C compiler failed on {}: {e}\nInstall gcc or clang, or set CC.",
                source.display()
            )
        })
}

/// In a checkout of the project: how to get a toolkit without installing one.
fn checkout_hint(checkout: &Path) -> String {
    if checkout.join("xtask").is_dir() {
        "\nIn this checkout, `cargo xtask setup` fetches the headers and the runtime library."
            .to_string()
    } else {
        String::new()
    }
}

/// The one-line answer of a program, as a path.
fn answer(command: &mut Command) -> Option<PathBuf> {
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(PathBuf::from(text.trim())).filter(|path| path.is_absolute())
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

fn folder(name: &str) -> Result<PathBuf, String> {
    env::var_os(name)
        .map(PathBuf::from)
        .ok_or_else(|| format!("{name} is not set: run this through cargo"))
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|e| format!("{} cannot be read: {e}", file.display()))
}
