//! Functions of the driver that were looked up by name.

use crate::cudaError;
use std::sync::OnceLock;

/// What was found, or that the driver lacks it.
pub(crate) struct Found<T>(OnceLock<Option<T>>);

impl<T> Found<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// What `find` finds, now or before. What the driver lacks is not looked for again; where it may not be asked (in a host
    /// function, for example), that holds for this time only. Leaves no error behind in `cudaGetLastError`.
    #[inline]
    pub(crate) fn get(&self, find: impl FnOnce() -> Result<T, cudaError>) -> Result<&T, cudaError> {
        match self.0.get() {
            Some(known) => known.as_ref(),
            None => self.look(find)?,
        }
        .ok_or(cudaError::cudaErrorSymbolNotFound)
    }

    #[cold]
    fn look(&self, find: impl FnOnce() -> Result<T, cudaError>) -> Result<Option<&T>, cudaError> {
        let known = match quietly(find) {
            Ok(found) => Some(found),
            Err(cudaError::cudaErrorSymbolNotFound) => None,
            Err(error) => return Err(error),
        };
        Ok(self.0.get_or_init(|| known).as_ref())
    }
}

/// Takes an error that `f` has left out of `cudaGetLastError`, if there was none before.
fn quietly<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the functions have no preconditions.
    let before = unsafe { crate::cudaPeekAtLastError() };
    let value = f();
    if before == cudaError::cudaSuccess {
        // SAFETY: as above.
        unsafe { crate::cudaGetLastError() };
    }
    value
}

#[cfg(test)]
mod tests {
    use super::{Found, cudaError};

    #[test]
    fn only_what_the_driver_lacks_is_not_looked_for_again() {
        let found = Found::new();
        let refused = cudaError::cudaErrorNotPermitted;
        assert_eq!(found.get(|| Err(refused)), Err(refused));
        assert_eq!(found.get(|| Ok(1)), Ok(&1));
        assert_eq!(found.get(|| Err(refused)), Ok(&1));

        let lacking = Found::new();
        let lacks = cudaError::cudaErrorSymbolNotFound;
        assert_eq!(lacking.get(|| Err(lacks)), Err(lacks));
        assert_eq!(lacking.get(|| Ok(2)), Err(lacks));
    }
}
