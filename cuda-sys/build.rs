//! Finds the CUDA toolkit, generates the bindings with bindgen, and says how to link.
use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=wrapper.h");
    println!("cargo::rerun-if-changed=allow.txt");
    println!("cargo::rustc-check-cfg=cfg(cudart_static)");
    if env::var_os("CARGO_FEATURE_SIM").is_some() || env::var_os("DOCS_RS").is_some() {
        return;
    }
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let root = PathBuf::from(env::var_os("CUDA_PATH").expect("CUDA_PATH"));
    let mut b = bindgen::Builder::default()
        .header(manifest.join("wrapper.h").to_str().unwrap())
        .rust_target(bindgen::RustTarget::stable(85, 0).ok().unwrap())
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease)
        .disable_header_comment()
        .generate_comments(false)
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .prepend_enum_name(false)
        .size_t_is_usize(true)
        .derive_default(true)
        .layout_tests(true)
        .merge_extern_blocks(true)
        .wrap_unsafe_ops(true)
        .clang_macro_fallback()
        .clang_macro_fallback_build_dir(&out)
        .wrap_static_fns(true)
        .wrap_static_fns_path(out.join("static_wrappers"));
    for inc in ["include", "nvidia/cu13/include", "nvidia/cuda_runtime/include", "nvidia/cuda_nvcc/include"] {
        let p = root.join(inc);
        if p.is_dir() {
            b = b.clang_arg(format!("-I{}", p.display()));
        }
    }
    for line in fs::read_to_string(manifest.join("allow.txt")).unwrap().lines() {
        let line = line.trim();
        match line.split_once(' ') {
            Some(("fn", p)) => b = b.allowlist_function(p),
            Some(("type", p)) => b = b.allowlist_type(p),
            Some(("var", p)) => b = b.allowlist_var(p),
            _ => {}
        }
    }
    b.generate().unwrap().write_to_file(out.join("bindings.rs")).unwrap();
}
