//! The search of the build script for a toolkit and for libclang, on made-up trees.

// The build script uses all of these modules; a test uses parts.
#[allow(dead_code)]
#[path = "../build/discover.rs"]
mod discover;
#[allow(dead_code)]
#[path = "../build/libclang.rs"]
mod libclang;

use discover::{Environment, Library, NotFound, Target, Toolkit, find_library, find_toolkit};
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// A folder that stands for `/`, removed at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(files: &[&str]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("cuda-sys-tree-{}-{number}", std::process::id());
        let tree = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        fs::create_dir_all(&tree.0).unwrap();
        for file in files {
            tree.write(file, "");
        }
        tree
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Complete headers of one version in a folder.
    fn headers(&self, include: &str, version: u32) {
        for name in ["cuda_runtime.h", "cuda.h", "crt/host_defines.h"] {
            self.write(&format!("{include}/{name}"), "");
        }
        let text = format!("#define CUDART_VERSION  {version}\n");
        self.write(&format!("{include}/cuda_runtime_api.h"), &text);
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn find(&self, variables: &[(&str, &str)]) -> Result<Toolkit, NotFound> {
        self.find_for(&x86_64(), variables)
    }

    /// Values are paths in the tree.
    fn find_for(&self, target: &Target, variables: &[(&str, &str)]) -> Result<Toolkit, NotFound> {
        let environment: Environment = variables
            .iter()
            .map(|(name, value)| (name.to_string(), self.path(value).into_os_string()))
            .collect();
        find_toolkit(&self.0, &environment, target)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn x86_64() -> Target {
    Target {
        arch: "x86_64".to_string(),
        native: true,
    }
}

fn aarch64(native: bool) -> Target {
    Target {
        arch: "aarch64".to_string(),
        native,
    }
}

#[test]
fn variables_are_asked_in_their_order() {
    let tree = Tree::new(&[]);
    let names = discover::ROOT_VARIABLES;
    let mut variables = Vec::new();
    for name in names.into_iter().rev() {
        let folder: &str = Box::leak(name.to_lowercase().into_boxed_str());
        tree.headers(&format!("{folder}/include"), 12090);
        variables.push((name, folder));
        let found = tree.find(&variables).unwrap();
        assert_eq!(found.found_by, name);
        assert_eq!(found.root, tree.path(folder));
    }
    // An empty variable is as good as none.
    let mut environment: Environment = [("CUDA_PATH".to_string(), OsString::new())].into();
    environment.insert("CUDA_HOME".to_string(), tree.path("cuda_home").into());
    let found = find_toolkit(&tree.0, &environment, &x86_64()).unwrap();
    assert_eq!(found.found_by, "CUDA_HOME");
}

#[test]
fn a_variable_that_names_a_wrong_folder_ends_the_search_and_is_named() {
    let tree = Tree::new(&["empty/readme.txt"]);
    tree.headers("usr/local/cuda/include", 13000);
    for (folder, lacks) in [
        ("empty", "no include/cuda_runtime.h"),
        ("nowhere", "no such folder"),
    ] {
        let error = tree.find(&[("CUDA_HOME", folder)]).unwrap_err();
        assert_eq!(error.wrong_variable, Some("CUDA_HOME"));
        let text = error.to_string();
        let value = tree.path(folder).display().to_string();
        for part in [
            "CUDA_HOME names no usable",
            &value,
            lacks,
            "unset it",
            "features = [\"sim\"] of memmgr in\nCargo.toml",
            "--features sim",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }
}

#[test]
fn where_the_machine_has_none_the_one_that_was_fetched_is_taken() {
    let tree = Tree::new(&["usr/include/stdio.h"]);
    let own = tree.path("checkout/target/toolchain/cuda-13.0");
    let find = |variables: &[(&str, &str)]| {
        let environment = variables
            .iter()
            .map(|(name, folder)| (name.to_string(), tree.path(folder).into()))
            .collect();
        discover::find_toolkit_or_own(&tree.0, &environment, &x86_64(), &own)
    };
    let text = find(&[]).unwrap_err().to_string();
    assert!(!text.contains("target/toolchain"), "{text}");
    tree.write("checkout/target/toolchain/cuda-13.0/readme.txt", "");
    let text = find(&[]).unwrap_err().to_string();
    assert!(text.contains("cuda-13.0: no include/"), "{text}");
    tree.headers(
        "checkout/target/toolchain/cuda-13.0/nvidia/cu13/include",
        13000,
    );
    let found = find(&[]).unwrap();
    assert_eq!((&found.root, found.version), (&own, 13000));
    assert_eq!(found.found_by, "cargo xtask setup");
    // A variable is an order, and the machine's own comes first.
    let error = find(&[("CUDA_PATH", "nowhere")]).unwrap_err();
    assert_eq!(error.wrong_variable, Some("CUDA_PATH"));
    tree.headers("usr/local/cuda/include", 13000);
    assert_eq!(find(&[]).unwrap().root, tree.path("usr/local/cuda"));
}

#[test]
fn without_a_toolkit_the_message_lists_every_place_and_what_to_do() {
    let tree = Tree::new(&["usr/include/stdio.h"]);
    let text = tree.find(&[]).unwrap_err().to_string();
    for name in discover::ROOT_VARIABLES {
        assert!(text.contains(name), "{name} is not in:\n{text}");
    }
    for part in [
        "no nvcc",
        "usr/local/cuda: no such",
        "opt/cuda: no such",
        "Set CUDA_PATH",
        "features = [\"sim\"] of memmgr in\nCargo.toml",
        "--features sim",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

#[test]
fn the_folder_of_the_architecture_is_named_by_a_table() {
    let tree = Tree::new(&[]);
    for name in [
        "aarch64-linux",
        "sbsa-linux",
        "x86_64-linux",
        "armv7-linux-gnueabihf",
    ] {
        tree.headers(&format!("cuda/targets/{name}/include"), 13000);
        tree.write(&format!("cuda/targets/{name}/lib/libcudart_static.a"), "");
    }
    let variables = [("CUDA_PATH", "cuda")];
    let lib = |target: &Target| tree.find_for(target, &variables).unwrap().lib;
    assert_eq!(lib(&x86_64()), [tree.path("cuda/targets/x86_64-linux/lib")]);
    assert_eq!(
        lib(&aarch64(true)),
        [tree.path("cuda/targets/sbsa-linux/lib")]
    );
    fs::remove_dir_all(tree.path("cuda/targets/sbsa-linux")).unwrap();
    assert_eq!(
        lib(&aarch64(false)),
        [tree.path("cuda/targets/aarch64-linux/lib")]
    );
    // Only a foreign architecture is left: its libraries must not be linked.
    fs::remove_dir_all(tree.path("cuda/targets/aarch64-linux")).unwrap();
    assert!(tree.find_for(&aarch64(true), &variables).is_err());
}

#[test]
fn lib64_belongs_to_the_machine_that_builds() {
    let tree = Tree::new(&["cuda/lib64/libcudart.so"]);
    tree.headers("cuda/include", 12090);
    let variables = [("CUDA_PATH", "cuda")];
    assert_eq!(
        tree.find(&variables).unwrap().lib,
        [tree.path("cuda/lib64")]
    );
    assert!(
        tree.find_for(&aarch64(false), &variables)
            .unwrap()
            .lib
            .is_empty()
    );
}

#[test]
fn nvcc_on_the_path_leads_to_its_toolkit_through_links() {
    let tree = Tree::new(&["opt/nvidia/13.0/bin/nvcc"]);
    tree.headers("opt/nvidia/13.0/include", 13000);
    fs::create_dir_all(tree.path("tools/bin")).unwrap();
    symlink(
        tree.path("opt/nvidia/13.0/bin/nvcc"),
        tree.path("tools/bin/nvcc"),
    )
    .unwrap();
    let found = tree.find(&[("PATH", "tools/bin")]).unwrap();
    assert_eq!(found.found_by, "nvcc on PATH");
    assert!(
        found.root.ends_with("opt/nvidia/13.0"),
        "{}",
        found.root.display()
    );
}

#[test]
fn usual_places_and_distributions_are_searched() {
    for (include, root, lib) in [
        (
            "usr/local/cuda/include",
            "usr/local/cuda",
            "usr/local/cuda/lib64",
        ),
        ("opt/cuda/include", "opt/cuda", "opt/cuda/lib64"),
        (
            "usr/lib/cuda/include",
            "usr/lib/cuda",
            "usr/lib/x86_64-linux-gnu",
        ),
        ("usr/include", "usr", "usr/lib/x86_64-linux-gnu"),
        ("usr/include", "usr", "usr/lib64"),
    ] {
        let tree = Tree::new(&[]);
        tree.headers(include, 12040);
        tree.write(&format!("{lib}/libcudart_static.a"), "");
        let found = tree.find(&[]).unwrap();
        assert_eq!(found.root, tree.path(root));
        assert_eq!(found.include, [tree.path(include)]);
        assert_eq!(found.version, 12040);
        let library = find_library(&found.lib, found.version, false);
        assert_eq!(library, Some(Library::Static(tree.path(lib))));
    }
}

#[test]
fn python_packages_are_found_by_any_of_their_folders() {
    let tree = Tree::new(&["site/nvidia/cu13/lib/libcudart.so.13"]);
    tree.headers("site/nvidia/cu13/include", 13000);
    for root in ["site", "site/nvidia", "site/nvidia/cu13"] {
        let found = tree.find(&[("CUDA_PATH", root)]).unwrap();
        assert_eq!(found.include, [tree.path("site/nvidia/cu13/include")]);
        assert_eq!(found.lib, [tree.path("site/nvidia/cu13/lib")]);
    }

    // CUDA 12: two packages, the compiler's half of the headers in the second one.
    let tree = Tree::new(&["site/nvidia/cuda_runtime/lib/libcudart.so.12"]);
    tree.headers("site/nvidia/cuda_runtime/include", 12090);
    fs::remove_dir_all(tree.path("site/nvidia/cuda_runtime/include/crt")).unwrap();
    tree.write("site/nvidia/cuda_nvcc/include/crt/host_defines.h", "");
    for root in ["site", "site/nvidia", "site/nvidia/cuda_runtime"] {
        let found = tree.find(&[("CUDA_PATH", root)]).unwrap();
        let include =
            ["cuda_runtime", "cuda_nvcc"].map(|p| tree.path(&format!("site/nvidia/{p}/include")));
        assert_eq!(found.include.len(), 2);
        for (found, expected) in found.include.iter().zip(&include) {
            assert_eq!(
                found.canonicalize().unwrap(),
                expected.canonicalize().unwrap()
            );
        }
        assert_eq!(found.lib, [tree.path("site/nvidia/cuda_runtime/lib")]);
    }
}

#[test]
fn missing_compiler_headers_are_named_with_their_package() {
    for (include, version, packages) in [
        (
            "site/nvidia/cu13/include",
            13000,
            ["nvidia-cuda-crt", "cuda-crt-13-0"],
        ),
        (
            "site/nvidia/cuda_runtime/include",
            12090,
            ["nvidia-cuda-nvcc-cu12", "cuda-nvcc-12-9"],
        ),
    ] {
        let tree = Tree::new(&[]);
        tree.headers(include, version);
        fs::remove_dir_all(tree.path(include).join("crt")).unwrap();
        let text = tree.find(&[("CUDA_PATH", "site")]).unwrap_err().to_string();
        for part in ["crt/host_defines.h"].iter().chain(&packages) {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }
}

#[test]
fn headers_that_are_too_old_or_have_no_version_are_refused() {
    let tree = Tree::new(&[]);
    tree.headers("cuda/include", 11080);
    let text = tree.find(&[("CUDA_PATH", "cuda")]).unwrap_err().to_string();
    assert!(
        text.contains("CUDA 11.8 headers; 12.0 or newer is needed"),
        "{text}"
    );
    tree.write("cuda/include/cuda_runtime_api.h", "");
    let text = tree.find(&[("CUDA_PATH", "cuda")]).unwrap_err().to_string();
    assert!(text.contains("does not define CUDART_VERSION"), "{text}");
}

#[test]
fn the_other_kind_of_library_is_taken_where_one_is_missing() {
    let tree = Tree::new(&[
        "a/libcudart.so.13",
        "b/libcudart_static.a",
        "c/libcudart.so.12",
    ]);
    let folders = |names: &[&str]| names.iter().map(|n| tree.path(n)).collect::<Vec<_>>();
    let shared = Some(Library::Dynamic(tree.path("a/libcudart.so.13")));
    let archive = Some(Library::Static(tree.path("b")));
    assert_eq!(find_library(&folders(&["a", "b"]), 13000, false), archive);
    assert_eq!(find_library(&folders(&["a", "b"]), 13000, true), shared);
    assert_eq!(find_library(&folders(&["a"]), 13000, false), shared);
    assert_eq!(find_library(&folders(&["b"]), 13000, true), archive);
    // A library of another major version has other signatures.
    assert_eq!(find_library(&folders(&["c"]), 13000, true), None);
}

/// Where the compiler's own headers are, in a tree: B51 (a) to (d).
fn builtin(tree: &Tree) -> Result<PathBuf, String> {
    libclang::builtin_include(&tree.0, &x86_64(), &tree.path("tools/libclang.so"), None)
}

#[test]
fn gccs_headers_serve_a_libclang_without_its_own() {
    let tree = Tree::new(&[
        "usr/lib/gcc/x86_64-linux-gnu/9/include/stddef.h",
        "usr/lib/gcc/x86_64-linux-gnu/12/include/stddef.h",
        "usr/lib/gcc/aarch64-linux-gnu/13/include/stddef.h",
    ]);
    assert_eq!(
        builtin(&tree),
        Ok(tree.path("usr/lib/gcc/x86_64-linux-gnu/12/include"))
    );
}

#[test]
fn clangs_own_headers_are_found_alone_and_beside_the_library() {
    let tree = Tree::new(&[
        "usr/lib/clang/9/include/stddef.h",
        "usr/lib/clang/18/include/stddef.h",
    ]);
    assert_eq!(builtin(&tree), Ok(tree.path("usr/lib/clang/18/include")));
    // Those of the very library come before gcc's.
    let tree = Tree::new(&[
        "usr/lib/gcc/x86_64-linux-gnu/12/include/stddef.h",
        "tools/libclang.so",
        "tools/clang/17/include/stddef.h",
    ]);
    let found = builtin(&tree).unwrap();
    assert!(
        found.ends_with("tools/clang/17/include"),
        "{}",
        found.display()
    );
}

#[test]
fn the_shims_of_cpp_are_never_taken() {
    let tree = Tree::new(&[
        "usr/include/c++/12/tr1/stdbool.h",
        "usr/include/c++/12/tr1/stddef.h",
        "usr/lib/gcc/x86_64-linux-gnu/12/include/stddef.h",
        "usr/lib/clang/14/include/stddef.h",
    ]);
    let shims = tree.path("usr/include/c++/12/tr1");
    let file = tree.path("tools/libclang.so");
    let found = libclang::builtin_include(&tree.0, &x86_64(), &file, Some(&shims)).unwrap();
    assert_eq!(found, tree.path("usr/lib/gcc/x86_64-linux-gnu/12/include"));
}

#[test]
fn without_any_the_message_says_what_to_install() {
    let text = builtin(&Tree::new(&["usr/include/c++/12/tr1/stddef.h"])).unwrap_err();
    for part in ["stddef.h", "gcc", "BINDGEN_EXTRA_CLANG_ARGS"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

fn library(tree: &Tree, variables: &[(&str, &str)]) -> Result<PathBuf, String> {
    let environment = variables
        .iter()
        .map(|(n, v)| (n.to_string(), tree.path(v).into_os_string()))
        .collect();
    let config = tree.path("from-llvm-config");
    let own = tree.path("own");
    libclang::find_libclang(&tree.0, &environment, &x86_64(), Some(&config), &own)
        .map_err(|e| e.to_string())
}

#[test]
fn libclang_is_searched_from_the_variable_to_the_checkout() {
    let tree = Tree::new(&["own/libclang.so", "usr/lib/llvm-9/lib/libclang.so.1"]);
    fs::remove_file(tree.path("usr/lib/llvm-9/lib/libclang.so.1")).unwrap();
    assert_eq!(library(&tree, &[]), Ok(tree.path("own/libclang.so")));
    tree.write("usr/lib/x86_64-linux-gnu/libclang-14.so.14.0.6", "");
    tree.write("usr/lib/x86_64-linux-gnu/libclang-9.so.1", "");
    assert_eq!(
        library(&tree, &[]),
        Ok(tree.path("usr/lib/x86_64-linux-gnu/libclang-14.so.14.0.6"))
    );
    tree.write("usr/lib/llvm-9/lib/libclang.so.1", "");
    tree.write("usr/lib/llvm-14/lib/libclang.so.1", "");
    assert_eq!(
        library(&tree, &[]),
        Ok(tree.path("usr/lib/llvm-14/lib/libclang.so.1"))
    );
    tree.write("from-llvm-config/libclang.so", "");
    assert_eq!(
        library(&tree, &[]),
        Ok(tree.path("from-llvm-config/libclang.so"))
    );
    tree.write("mine/libclang.so.18", "");
    for value in ["mine", "mine/libclang.so.18"] {
        assert_eq!(
            library(&tree, &[("LIBCLANG_PATH", value)]),
            Ok(tree.path("mine/libclang.so.18"))
        );
    }
}

#[test]
fn the_cpp_library_of_clang_is_not_libclang() {
    let tree = Tree::new(&[
        "usr/lib/llvm-14/lib/libclang-cpp.so.14",
        "usr/lib/llvm-14/lib/libclang.a",
    ]);
    let text = library(&tree, &[]).unwrap_err();
    for part in [
        "usr/lib/llvm-14/lib: no libclang.so",
        "libclang-dev",
        "LIBCLANG_PATH",
        "features = [\"sim\"] of memmgr in\nCargo.toml",
        "--features sim",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

#[test]
fn a_wrong_libclang_path_is_named() {
    let tree = Tree::new(&["usr/lib/llvm-14/lib/libclang.so", "empty/readme.txt"]);
    let text = library(&tree, &[("LIBCLANG_PATH", "empty")]).unwrap_err();
    assert!(
        text.contains("LIBCLANG_PATH names no libclang") && text.contains("empty"),
        "{text}"
    );
}
