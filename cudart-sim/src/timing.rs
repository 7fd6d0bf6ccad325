//! The host's share of modelled time: calls that take long on the modelled machine take long here.

use crate::config::TimeModel;
use crate::runtime::Guard;
use std::time::{Duration, Instant};

/// Lets the calling thread spend what the model says, without the lock. No model: no time.
pub(crate) fn spend(rt: Guard, cost: impl FnOnce(&TimeModel) -> Duration) {
    let Some(cost) = rt.engine.time.as_ref().map(cost) else {
        return;
    };
    drop(rt);
    let start = Instant::now();
    if cost > Duration::from_millis(1) {
        std::thread::sleep(cost - Duration::from_millis(1));
    }
    while start.elapsed() < cost {
        std::hint::spin_loop();
    }
}

/// A cost per MiB for that many bytes.
pub(crate) fn per_mib(cost: Duration, bytes: usize) -> Duration {
    let mib = bytes as f64 / f64::from(1 << 20);
    Duration::try_from_secs_f64(cost.as_secs_f64() * mib).unwrap_or(Duration::ZERO)
}
