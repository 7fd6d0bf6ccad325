//! Peaks of one pool: since it was made, since they were reset, and since any number of other moments that overlap as they
//! like.
//!
//! The hot path compares with one watermark. Whenever a moment begins, the watermark is folded into what went before, and
//! starts again at what is the case then. So each moment has the highest between itself and the next one that is still wanted,
//! and its peak is the highest of that, of those behind it, and of the watermark. What is not wanted any more is folded into
//! its predecessor.

/// Bytes of live blocks, and bytes held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct High {
    pub in_use: usize,
    pub reserved: usize,
}

impl High {
    /// The higher of both, each on its own.
    pub fn max(self, other: Self) -> Self {
        Self {
            in_use: self.in_use.max(other.in_use),
            reserved: self.reserved.max(other.reserved),
        }
    }
}

/// Since the pool was made.
const MADE: u64 = 0;
/// Since the peaks were reset.
const RESET: u64 = 1;
/// The ids of other moments are at least this.
pub(crate) const FIRST_SCOPE: u64 = 2;

#[derive(Debug)]
pub(super) struct Peaks {
    /// The moments in their order, and the highest between each and the next; the last has the watermark beside that.
    moments: Vec<(u64, High)>,
}

impl Default for Peaks {
    fn default() -> Self {
        Self {
            moments: vec![(MADE, High::default()), (RESET, High::default())],
        }
    }
}

impl Peaks {
    /// A moment begins. The watermark starts again at what is the case now.
    pub fn begin(&mut self, id: u64, watermark: High) {
        if let Some((_, last)) = self.moments.last_mut() {
            *last = last.max(watermark);
        }
        self.moments.push((id, High::default()));
    }

    /// The peak since a moment; since the pool was made, if the moment was before that.
    pub fn since(&self, id: u64, watermark: High) -> High {
        let place = self.place(id).unwrap_or(0);
        let behind = self.moments.iter().skip(place);
        behind.fold(watermark, |high, (_, own)| high.max(*own))
    }

    /// The peak since a moment that is not wanted any more. The watermark stays.
    pub fn end(&mut self, id: u64, watermark: High) -> High {
        let peak = self.since(id, watermark);
        if let Some(place) = self.place(id).filter(|place| *place > 0) {
            let (_, own) = self.moments.remove(place);
            if let Some((_, before)) = self.moments.get_mut(place - 1) {
                *before = before.max(own);
            }
        }
        peak
    }

    /// The peak since the last reset.
    pub fn since_reset(&self, watermark: High) -> High {
        self.since(RESET, watermark)
    }

    /// Resets. The watermark starts again at what is the case now.
    pub fn reset(&mut self, watermark: High) {
        self.end(RESET, watermark);
        self.begin(RESET, watermark);
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.moments.iter().rposition(|(known, _)| *known == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        /// So much is the case from now on.
        Be(High),
        Begin,
        /// One of the open moments, by number.
        End(usize),
        Reset,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..50usize, 0..50usize)
                .prop_map(|(in_use, reserved)| Step::Be(High { in_use, reserved })),
            2 => Just(Step::Begin),
            2 => any::<usize>().prop_map(Step::End),
            1 => Just(Step::Reset),
        ];
        prop::collection::vec(step, 0..60)
    }

    fn highest(levels: &[High]) -> High {
        levels.iter().copied().fold(High::default(), High::max)
    }

    proptest! {
        /// Against a list of everything that was ever the case.
        #[test]
        fn each_moment_has_the_peak_that_a_full_record_has(steps in steps()) {
            let mut peaks = Peaks::default();
            let mut record = vec![High::default()];
            let (mut now, mut watermark) = (High::default(), High::default());
            // Open moments: id, and where in the record they began.
            let mut open: Vec<(u64, usize)> = Vec::new();
            let (mut next, mut reset) = (FIRST_SCOPE, 0);
            for step in steps {
                match step {
                    Step::Be(level) => {
                        now = level;
                        watermark = watermark.max(now);
                        record.push(now);
                    }
                    Step::Begin => {
                        peaks.begin(next, watermark);
                        watermark = now;
                        open.push((next, record.len() - 1));
                        next += 1;
                    }
                    Step::End(which) if !open.is_empty() => {
                        let (id, from) = open.remove(which % open.len());
                        prop_assert_eq!(peaks.end(id, watermark), highest(&record[from..]));
                    }
                    Step::End(_) => {}
                    Step::Reset => {
                        peaks.reset(watermark);
                        watermark = now;
                        reset = record.len() - 1;
                    }
                }
                for (id, from) in &open {
                    prop_assert_eq!(peaks.since(*id, watermark), highest(&record[*from..]));
                }
                prop_assert_eq!(peaks.since_reset(watermark), highest(&record[reset..]));
                // A moment before the pool was made.
                prop_assert_eq!(peaks.since(u64::MAX, watermark), highest(&record));
                prop_assert_eq!(peaks.moments.len(), open.len() + 2);
            }
        }
    }
}
