//! Compiles the entry points that throw C++ exceptions, and says how the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=cpp");
    println!("cargo::rerun-if-changed=include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include("include")
        .file("cpp/torch.cpp")
        .warnings(true)
        .compile("memmgr_torch");
    // What the library defines is what it uses, also in a process that holds another CUDA runtime already.
    for argument in ["-Wl,-soname,libmemmgr.so.0", "-Wl,-Bsymbolic-functions"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
