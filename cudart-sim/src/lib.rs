//! A simulated CUDA runtime: the same C symbols, no GPU.

/// The types and signatures of the CUDA runtime that is simulated.
pub mod sys {
    #![allow(
        non_camel_case_types,
        non_snake_case,
        non_upper_case_globals,
        missing_docs
    )]
    include!("bindings.rs");
}
