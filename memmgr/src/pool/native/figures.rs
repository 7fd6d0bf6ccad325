//! Figures of the two families, and their peaks.

use super::{Family, Native, State};
use crate::{pool::peaks::High, stats::PoolStats, sync::lock};

fn watermark(stats: &PoolStats) -> High {
    High {
        in_use: stats.peak_in_use,
        reserved: 0,
    }
}

impl Native {
    /// The figures of one family.
    pub fn stats(&self, family: Family) -> PoolStats {
        let state = lock(&self.state);
        let family = family as usize;
        let stats = state.stats[family];
        PoolStats {
            peak_in_use: state.peaks[family].since_reset(watermark(&stats)).in_use,
            ..stats
        }
    }

    /// As [`crate::pool::Pool::begin_peak`]; nothing is known of what the driver holds.
    pub fn begin_peak(&self, family: Family, scope: u64) -> High {
        let mut state = lock(&self.state);
        let State { stats, peaks, .. } = &mut *state;
        let stats = &mut stats[family as usize];
        peaks[family as usize].begin(scope, watermark(stats));
        stats.peak_in_use = stats.in_use;
        watermark(stats)
    }

    /// As [`crate::pool::Pool::peak_since`].
    pub fn peak_since(&self, family: Family, scope: u64) -> High {
        let state = lock(&self.state);
        let family = family as usize;
        state.peaks[family].since(scope, watermark(&state.stats[family]))
    }

    /// As [`crate::pool::Pool::end_peak`].
    pub fn end_peak(&self, family: Family, scope: u64) {
        let mut state = lock(&self.state);
        let State { stats, peaks, .. } = &mut *state;
        peaks[family as usize].end(scope, watermark(&stats[family as usize]));
    }

    /// Sets the peaks to what is the case now, also in the driver's pool if `family` owns one.
    pub fn reset_peak(&self) {
        let mut state = lock(&self.state);
        let State { stats, peaks, .. } = &mut *state;
        for (stats, peaks) in stats.iter_mut().zip(peaks) {
            peaks.reset(watermark(stats));
            stats.peak_in_use = stats.in_use;
        }
    }
}
