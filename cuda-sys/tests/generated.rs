//! The set-up of bindgen: on a small header for two architectures, and what it made of the real one.

#[allow(dead_code)]
#[path = "../build/discover.rs"]
mod discover;
#[allow(dead_code)]
#[path = "../build/generate.rs"]
mod generate;
#[allow(dead_code)]
#[path = "../build/libclang.rs"]
mod libclang;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What the real headers do: a function renamed by macro beside a function whose `_v2` is another one, and a struct whose
/// layout depends on the architecture's pointers.
const HEADER: &str = "
#include <stddef.h>
enum cudaError { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
typedef enum cudaError cudaError_t;
struct cudaDeviceProp { char name[3]; size_t totalGlobalMem; void *next; cudaError_t last; };
#define cudaGetDeviceProperties cudaGetDeviceProperties_v2
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaMemAdvise(void *p, int device);
cudaError_t cudaMemAdvise_v2(void *p, long device);
cudaError_t cudaNotListed(void);
static inline size_t make_cudaSize(size_t n) { return n + 1; }
";

const ALLOW: &str = "
# a comment
fn cudaGetDeviceProperties
fn cudaGetDeviceProperties_v2
fn cudaMemAdvise
fn make_cudaSize
";

/// A libclang to test with, and its C headers; or why there is none.
fn libclang() -> Result<PathBuf, String> {
    let environment = env::vars_os()
        .filter_map(|(n, v)| Some((n.into_string().ok()?, v)))
        .collect();
    let arch = env::consts::ARCH.to_string();
    let target = discover::Target { arch, native: true };
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/toolchain/libclang");
    let file = libclang::find_libclang(Path::new("/"), &environment, &target, None, &own)
        .map_err(|e| e.probed.join("; "))?;
    // SAFETY: the tests that read or write the environment run one after the other, under the lock of `generated`.
    unsafe { env::set_var("LIBCLANG_PATH", &file) };
    libclang::builtin_include(Path::new("/"), &target, &file, None)
}

/// The bindings of the small header for a target; `None` without a libclang.
fn generated(target: &str) -> Option<(String, PathBuf)> {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _lock = LOCK.lock().unwrap_or_else(|e| e.into_inner());
    let builtin = match libclang() {
        Ok(folder) => folder,
        Err(why) => {
            eprintln!("skipped: no libclang to test with ({why}); `cargo xtask setup` gets one");
            return None;
        }
    };
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mini-{target}"));
    fs::create_dir_all(&out).unwrap();
    let header = out.join("mini.h");
    fs::write(&header, HEADER).unwrap();
    let builder = generate::builder(&generate::Request {
        header: &header,
        allow: ALLOW,
        target,
        include: &[],
        builtin_include: Some(&builtin),
        out: &out,
    });
    let text = generate::generate(builder.unwrap()).unwrap();
    Some((text, out))
}

#[test]
fn the_layout_is_that_of_the_target() {
    for target in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        let Some((text, out)) = generated(target) else {
            return;
        };
        for part in [
            "[::std::mem::size_of::<cudaDeviceProp>() - 32usize]",
            "[::std::mem::offset_of!(cudaDeviceProp, next) - 16usize]",
            "pub totalGlobalMem: usize",
            "#[repr(transparent)]",
            "pub struct cudaError(pub ::std::os::raw::c_uint)",
        ] {
            let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let part_flat = part.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains(&part_flat), "{part} is not in:\n{text}");
        }
        assert!(
            !text.contains("cudaNotListed") && !text.contains("cudaMemAdvise_v2"),
            "{text}"
        );
        assert!(!text.contains("///"), "comments of the header are left out");
        // The assertions are `const`, so compiling is checking; for the other architecture layouts are the same (LP64).
        let source = out.join("mini.rs");
        fs::write(&source, format!("#![allow(warnings)]\n{text}")).unwrap();
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(rustc)
            .args([
                "--edition=2024",
                "--crate-type=lib",
                "--emit=metadata",
                "--out-dir",
            ])
            .arg(&out)
            .arg(&source)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn a_function_renamed_by_macro_keeps_its_name_and_links_to_the_real_symbol() {
    let Some((text, _)) = generated("x86_64-unknown-linux-gnu") else {
        return;
    };
    assert_eq!(
        generate::functions(&text)
            .iter()
            .filter(|f| **f == "cudaGetDeviceProperties")
            .count(),
        1
    );
    assert!(text.contains("cudaGetDeviceProperties_v2\"]"), "{text}");
    assert!(
        !text.contains("pub fn cudaGetDeviceProperties_v2"),
        "{text}"
    );
}

#[test]
fn static_inline_functions_get_a_wrapper_in_c() {
    let Some((text, out)) = generated("x86_64-unknown-linux-gnu") else {
        return;
    };
    assert!(text.contains("make_cudaSize__extern"), "{text}");
    let wrapper = fs::read_to_string(generate::wrappers(&out).with_extension("c")).unwrap();
    assert!(wrapper.contains("make_cudaSize__extern"), "{wrapper}");
}

/// Whether an allow-list pattern (plain text with groups of alternatives) matches a name.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('(') {
        None => pattern == name,
        Some((before, rest)) => {
            let Some((group, after)) = rest.split_once(')') else {
                return false;
            };
            name.strip_prefix(before).is_some_and(|rest| {
                group.split('|').any(|option| {
                    rest.strip_prefix(option)
                        .is_some_and(|rest| matches(after, rest))
                })
            })
        }
    }
}

/// The bindings that this build of the crate uses.
fn used() -> String {
    fs::read_to_string(env!("CUDA_SYS_BINDINGS")).unwrap()
}

fn allow() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("allow.txt")).unwrap()
}

#[test]
fn every_function_is_on_the_allow_list_and_every_entry_of_it_is_there() {
    let (text, allow) = (used(), allow());
    let patterns: Vec<&str> = generate::allow_list(&allow)
        .into_iter()
        .filter(|(kind, _)| *kind == "fn")
        .map(|(_, p)| p)
        .collect();
    let functions = generate::functions(&text);
    assert!(functions.len() > 70, "{functions:?}");
    for name in &functions {
        assert!(
            patterns.iter().any(|p| matches(p, name)),
            "{name} is not in allow.txt"
        );
    }
    // A misspelt entry would be silent: everything but what some versions lack must be there.
    for pattern in patterns.iter().filter(|p| !p.contains('(')) {
        let optional = pattern.ends_with("_v2")
            || [
                "cudaStreamGetDevice",
                "cudaGetDriverEntryPointByVersion",
                "cudaGetDriverEntryPoint",
            ]
            .contains(pattern);
        assert!(
            optional || functions.contains(pattern),
            "{pattern} matches nothing"
        );
    }
}

#[test]
fn the_version_of_the_text_is_that_of_the_crate() {
    assert_eq!(generate::version(&used()), Some(cuda_sys::CUDART_VERSION));
    assert_eq!(
        cuda_sys::compiled_version() as u32,
        cuda_sys::CUDART_VERSION
    );
}

#[test]
fn what_differs_between_versions_is_read_from_the_text() {
    assert_eq!(generate::shapes(""), [""; 0]);
    let newest = "unsafe extern \"C\" {\n    pub fn cudaStreamGetDevice(a: x) -> y;\n    pub fn cudaGetDriverEntryPointByVersion(\n    pub fn cudaStreamGetCaptureInfo(edgeData_out: x);\n}
pub struct cudaMemLocation {\n    pub type_: t,\n    pub __bindgen_anon_1: u,\n}
pub struct cudaMemPoolProps {\n    pub maxSize: usize,\n}\n";
    assert_eq!(generate::shapes(newest), generate::SHAPES);
    let plain = "pub struct cudaMemLocation {\n    pub type_: t,\n    pub id: i,\n}\n";
    assert_eq!(generate::shapes(plain), [""; 0]);
    let here = generate::shapes(&used());
    assert_eq!(
        here.contains(&"cuda_has_stream_get_device"),
        cuda_sys::HAS_STREAM_GET_DEVICE
    );
    assert_eq!(
        here.contains(&"cuda_has_mem_pool_max_size"),
        cuda_sys::HAS_MEM_POOL_MAX_SIZE
    );
}
