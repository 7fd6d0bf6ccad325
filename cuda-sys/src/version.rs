//! Which CUDA the bindings are from, and whether the runtime that is loaded fits them.

use crate::{CUDART_VERSION, cudaError, cudaRuntimeGetVersion};
use std::{error, ffi::c_int, fmt};

/// What these bindings were built for: `"simulator"` or `"cuda"`.
pub const BACKEND: &str = if cfg!(feature = "sim") {
    "simulator"
} else {
    "cuda"
};

/// `CUDART_VERSION` of the headers that these bindings are from: 13000 for 13.0.
pub const fn compiled_version() -> c_int {
    CUDART_VERSION as c_int
}

/// A version number in the usual form: 12090 is `12.9`.
pub fn dotted_version(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Why the runtime cannot be used with these bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeMismatch {
    /// Its major version is another one: the same symbols have other signatures and structs have other sizes.
    Major {
        /// Version of the headers.
        compiled: c_int,
        /// Version of the library.
        runtime: c_int,
    },
    /// It did not tell its version.
    Unknown(cudaError),
}

impl fmt::Display for RuntimeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Major { compiled, runtime } => write!(
                f,
                "built with the headers of CUDA {}, but the runtime library is {}: build again with headers of CUDA {}",
                dotted_version(*compiled),
                dotted_version(*runtime),
                runtime / 1000,
            ),
            Self::Unknown(error) => write!(
                f,
                "the CUDA runtime did not tell its version (error {})",
                error.0
            ),
        }
    }
}

impl error::Error for RuntimeMismatch {}

/// Whether a runtime of version `runtime` may be called through bindings of version `compiled`: the major versions are equal.
///
/// # Errors
///
/// [`RuntimeMismatch::Major`] when they are not.
pub const fn check_versions(compiled: c_int, runtime: c_int) -> Result<(), RuntimeMismatch> {
    if compiled / 1000 == runtime / 1000 {
        Ok(())
    } else {
        Err(RuntimeMismatch::Major { compiled, runtime })
    }
}

/// Asks the runtime that is linked for its version and compares it with the headers. Needs no driver and no GPU, and is meant
/// to be called before the first call that takes a struct. Returns the runtime's version.
///
/// # Errors
///
/// [`RuntimeMismatch`] when another major version is loaded, which happens with the feature `dynamic`.
pub fn check_runtime() -> Result<c_int, RuntimeMismatch> {
    let mut version = 0;
    // SAFETY: the call writes one int through a pointer to one int; its signature is the same in every version.
    let error = unsafe { cudaRuntimeGetVersion(&mut version) };
    if error != cudaError::cudaSuccess {
        return Err(RuntimeMismatch::Unknown(error));
    }
    check_versions(compiled_version(), version).map(|()| version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_major_version_is_refused() {
        assert_eq!(check_versions(13000, 13050), Ok(()));
        assert_eq!(check_versions(12000, 12090), Ok(()));
        let error = check_versions(13000, 12090).unwrap_err();
        assert_eq!(
            error,
            RuntimeMismatch::Major {
                compiled: 13000,
                runtime: 12090
            }
        );
        let text = error.to_string();
        assert!(text.contains("13.0") && text.contains("12.9"), "{text}");
    }

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(dotted_version(12090), "12.9");
        assert_eq!(dotted_version(13000), "13.0");
    }
}
