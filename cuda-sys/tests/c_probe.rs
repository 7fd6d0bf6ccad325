//! Sizes, offsets and constants in Rust against what the C compiler says of the same headers.
//!
//! Needs the headers, so it is not compiled on the simulator, whose bindings are those of CUDA 13.0.
#![cfg(not(feature = "sim"))]

use cuda_sys::*;
use std::{fs, mem::offset_of, path::Path, process::Command};

/// Compiles and runs a C program that prints one number a line for each expression.
fn in_c(expressions: &[String]) -> Vec<u64> {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-probe-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("probe.c"), folder.join("probe"));
    let prints: String = expressions
        .iter()
        .map(|e| format!("  printf(\"%llu\\n\", (unsigned long long)({e}));\n"))
        .collect();
    let text = format!(
        "#include <cuda_runtime.h>\n#include <cuda.h>\n#include <stdio.h>\n#include <stddef.h>\n\
         int main(void) {{\n{prints}  return 0;\n}}\n"
    );
    fs::write(&source, text).unwrap();
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut compile = Command::new(cc);
    for folder in std::env::split_paths(env!("CUDA_SYS_INCLUDE")) {
        if folder != Path::new("/usr/include") {
            compile.arg("-I").arg(folder);
        }
    }
    let output = compile
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let output = Command::new(&program).output().unwrap();
    let _ = fs::remove_dir_all(&folder);
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect()
}

#[test]
fn sizes_offsets_and_constants_are_those_of_c() {
    let mut expected: Vec<(String, u64)> = Vec::new();
    macro_rules! size {
        ($($c:literal $rust:ty),* $(,)?) => { $( expected.push((format!("sizeof({})", $c), size_of::<$rust>() as u64)); )* };
    }
    macro_rules! offset {
        ($($c:literal $rust:ty: $field:ident),* $(,)?) => { $( expected.push((
            format!("offsetof({}, {})", $c, stringify!($field)), offset_of!($rust, $field) as u64)); )* };
    }
    size!(
        "struct cudaDeviceProp" cudaDeviceProp,
        "struct cudaPointerAttributes" cudaPointerAttributes,
        "struct cudaMemPoolProps" cudaMemPoolProps,
        "struct cudaMemLocation" cudaMemLocation,
        "struct cudaMemAccessDesc" cudaMemAccessDesc,
        "struct cudaExtent" cudaExtent,
        "CUmemAllocationProp" CUmemAllocationProp,
        "CUmemAccessDesc" CUmemAccessDesc,
        "CUmemLocation" CUmemLocation,
        "cudaError_t" cudaError_t,
        "cudaStream_t" cudaStream_t,
    );
    offset!(
        "struct cudaDeviceProp" cudaDeviceProp: totalGlobalMem,
        "struct cudaDeviceProp" cudaDeviceProp: major,
        "struct cudaPointerAttributes" cudaPointerAttributes: devicePointer,
        "struct cudaMemPoolProps" cudaMemPoolProps: win32SecurityAttributes,
        "CUmemAllocationProp" CUmemAllocationProp: location,
    );
    expected.extend([
        ("offsetof(struct cudaMemLocation, id)".to_string(), 4),
        (
            "cudaStreamLegacy".to_string(),
            cudaStreamLegacy.addr() as u64,
        ),
        (
            "cudaStreamPerThread".to_string(),
            cudaStreamPerThread.addr() as u64,
        ),
        ("CUDART_VERSION".to_string(), u64::from(CUDART_VERSION)),
        (
            "cudaErrorMemoryAllocation".to_string(),
            u64::from(cudaError::cudaErrorMemoryAllocation.0),
        ),
        (
            "cudaHostAllocPortable".to_string(),
            u64::from(cudaHostAllocPortable),
        ),
        ("cudaEnableDefault".to_string(), 0),
    ]);
    let (expressions, values): (Vec<String>, Vec<u64>) = expected.into_iter().unzip();
    let found = in_c(&expressions);
    assert_eq!(found.len(), expressions.len());
    for ((expression, in_rust), in_c) in expressions.iter().zip(values).zip(found) {
        assert_eq!(in_rust, in_c, "{expression}");
    }
}
