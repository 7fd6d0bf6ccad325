//! Raw bindings to `cuda_runtime.h`.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, missing_docs)]

#[cfg(feature = "sim")]
pub use cudart_sim::sys::*;
#[cfg(all(not(feature = "sim"), docsrs))]
include!("bindings.rs");
#[cfg(not(any(feature = "sim", docsrs)))]
include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
