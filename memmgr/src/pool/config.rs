//! The settings of a pool, and how they change.

use super::Pool;
use crate::{
    config::Reuse,
    error::{Error, Result},
};

/// Settings of one pool, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolConfig {
    pub initial: usize,
    pub limit: Option<usize>,
    /// A limit that is a share of all memory of the place, until that is known.
    pub limit_share: Option<f64>,
    pub growth: usize,
    pub reuse: Reuse,
}

impl Pool {
    /// Sets the size that is reserved at the first allocation.
    pub fn set_initial(&self, bytes: usize, what: &'static str) -> Result<()> {
        let mut state = self.state.lock();
        if state.prepared {
            return Err(Error::AlreadyInitialized {
                what,
                in_force: state.config.initial,
            });
        }
        if let Some(limit) = state.config.limit.filter(|limit| bytes > *limit) {
            return Err(Error::LimitExceeded {
                place: self.place(),
                requested: bytes,
                limit,
            });
        }
        state.config.initial = bytes;
        Ok(())
    }

    /// Sets the most that the pool may hold; what it holds beyond stays.
    pub fn set_limit(&self, bytes: Option<usize>) {
        let config = &mut self.state.lock().config;
        (config.limit, config.limit_share) = (bytes, None);
    }

    /// As [`Pool::set_limit`], as a share of the place's memory, which the next request that misses turns into bytes.
    pub fn set_limit_share(&self, share: f64) {
        let config = &mut self.state.lock().config;
        (config.limit, config.limit_share) = (None, Some(share));
    }
}
