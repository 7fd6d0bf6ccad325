//! Runs bindgen, and looks at its output for what differs between versions of CUDA.

use bindgen::callbacks::{ItemInfo, ParseCallbacks};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Functions that the headers of some versions rename by macro, each with the symbol that the library really has.
///
/// Not every `_v2` is here: `cudaMemPrefetchAsync_v2` and others are declared beside the plain name, which is another function.
pub const RENAMED_BY_MACRO: [(&str, &str); 2] = [
    ("cudaGetDeviceProperties_v2", "cudaGetDeviceProperties"),
    ("cudaStreamGetCaptureInfo_v2", "cudaStreamGetCaptureInfo"),
];

/// What to run bindgen on.
pub struct Request<'a> {
    /// The header, as an absolute path: the wrappers of static functions include it by this name.
    pub header: &'a Path,
    /// The text of `allow.txt`.
    pub allow: &'a str,
    /// Cargo's target triple, which clang gets too: the layout of a struct depends on it.
    pub target: &'a str,
    /// The folders for `-I`.
    pub include: &'a [PathBuf],
    /// The folder with the compiler's own headers.
    pub builtin_include: Option<&'a Path>,
    /// Where temporary files and the C file with the wrappers go.
    pub out: &'a Path,
}

/// One line of `allow.txt`: the kind (`fn`, `type`, `var`) and an anchored regular expression.
pub fn allow_list(text: &str) -> Vec<(&str, &str)> {
    text.lines()
        .filter_map(|line| line.trim().split_once(' '))
        .filter(|(kind, _)| matches!(*kind, "fn" | "type" | "var"))
        .map(|(kind, pattern)| (kind, pattern.trim()))
        .collect()
}

/// Settles bindgen for a request. The text it makes depends on the headers and on bindgen's version alone.
pub fn builder(request: &Request<'_>) -> Result<bindgen::Builder, String> {
    let rust_target = bindgen::RustTarget::stable(85, 0).map_err(|e| format!("bindgen: {e}"))?;
    let mut builder = bindgen::Builder::default()
        .header(request.header.display().to_string())
        .rust_target(rust_target)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease)
        .disable_header_comment()
        .generate_comments(false)
        // A C library may return a value that an old header does not list: for a Rust enum that would be undefined behaviour.
        .default_enum_style(bindgen::EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .prepend_enum_name(false)
        .size_t_is_usize(true)
        .derive_default(true)
        .layout_tests(true)
        .merge_extern_blocks(true)
        .wrap_unsafe_ops(true)
        // cudaCpuDeviceId is a cast macro, which needs clang to evaluate it.
        .clang_macro_fallback()
        .clang_macro_fallback_build_dir(request.out)
        .wrap_static_fns(true)
        .wrap_static_fns_path(wrappers(request.out))
        .parse_callbacks(Box::new(StableNames))
        .clang_arg(format!("--target={}", request.target));
    if let Some(dir) = request.builtin_include {
        builder = builder
            .clang_arg("-isystem")
            .clang_arg(dir.display().to_string());
    }
    // `/usr/include` is searched anyway, and naming it would put it before the compiler's own headers.
    for dir in request
        .include
        .iter()
        .filter(|dir| *dir != Path::new("/usr/include"))
    {
        builder = builder.clang_arg(format!("-I{}", dir.display()));
    }
    for (kind, pattern) in allow_list(request.allow) {
        builder = match kind {
            "fn" => builder.allowlist_function(pattern),
            "type" => builder.allowlist_type(pattern),
            _ => builder.allowlist_var(pattern),
        };
    }
    Ok(builder)
}

/// Runs bindgen. A panic inside it (a libclang that does not load) comes back as an error too.
pub fn generate(builder: bindgen::Builder) -> Result<String, String> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()));
    std::panic::set_hook(hook);
    match result {
        Ok(Ok(bindings)) => Ok(bindings.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
            .unwrap_or_else(|| "bindgen panicked".to_string())),
    }
}

/// The C file (without its extension) into which bindgen writes the wrappers of the header's static inline functions.
pub fn wrappers(out: &Path) -> PathBuf {
    out.join("static_wrappers")
}

/// Gives functions that a header renames by macro one Rust name on every version; bindgen then sets the `link_name`.
#[derive(Debug)]
pub struct StableNames;

impl ParseCallbacks for StableNames {
    fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
        RENAMED_BY_MACRO
            .iter()
            .find(|(real, _)| *real == item.name)
            .map(|(_, plain)| plain.to_string())
    }
}

/// The names of the foreign functions in generated text, in their order.
pub fn functions(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.trim_start().strip_prefix("pub fn "))
        .filter_map(|rest| rest.split('(').next())
        .filter(|name| name.starts_with("cuda") || name.starts_with("make_cuda"))
        .collect()
}

/// What differs between versions of CUDA, read from the generated text: each becomes a `cfg`.
pub const SHAPES: [&str; 5] = [
    "cuda_has_stream_get_device",
    "cuda_has_entry_point_by_version",
    "cuda_has_mem_pool_max_size",
    "cuda_has_mem_location_union",
    "cuda_has_capture_edges",
];

/// Those of [`SHAPES`] that hold for generated text.
pub fn shapes(text: &str) -> Vec<&'static str> {
    let functions = functions(text);
    let structure = |name: &str| {
        let start = text.find(&format!("pub struct {name} {{"))?;
        text[start..].split("\n}").next()
    };
    let field = |name: &str, field: &str| {
        structure(name).is_some_and(|body| body.contains(&format!("pub {field}:")))
    };
    let holds = [
        functions.contains(&"cudaStreamGetDevice"),
        functions.contains(&"cudaGetDriverEntryPointByVersion"),
        field("cudaMemPoolProps", "maxSize"),
        structure("cudaMemLocation").is_some() && !field("cudaMemLocation", "id"),
        text.split("pub fn cudaStreamGetCaptureInfo(")
            .nth(1)
            .and_then(|rest| rest.split(';').next())
            .is_some_and(|parameters| parameters.contains("edgeData_out")),
    ];
    SHAPES
        .into_iter()
        .zip(holds)
        .filter(|(_, holds)| *holds)
        .map(|(name, _)| name)
        .collect()
}

/// The value of `CUDART_VERSION` in generated text.
pub fn version(text: &str) -> Option<u32> {
    let rest = text.split("pub const CUDART_VERSION: u32 = ").nth(1)?;
    rest.split(';').next()?.parse().ok()
}

/// Writes a file only when its text changes.
pub fn write_if_changed(path: &Path, text: &str) -> Result<(), String> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::write(path, text).map_err(|e| format!("{} cannot be written: {e}", path.display()))
}
