//! Giving idle segments back until a pool holds no more than it should, at once or when they have been idle for a while.

use super::{Pool, State, segment};
use crate::{error::Result, pool::mapped::Mapped, spans};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What the looks at a pool have found.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// How often each segment was idle in a row, by its base.
    segments: BTreeMap<usize, u32>,
    /// With mapped memory: how many bytes were idle at the last looks.
    idle: VecDeque<usize>,
}

impl Pool {
    /// Gives idle segments back to CUDA until at most `target` bytes are held; the bytes. Of the ways to get there, one
    /// that keeps much. Work that is still running keeps its memory.
    pub fn trim_to(&self, target: usize) -> Result<usize> {
        let _span = spans::trim(self.place(), target);
        self.flush_front();
        self.poll(true);
        self.end_epochs(None);
        segment::release_orphans();
        if let Some(mapped) = self.source.mapped() {
            let reserved = self.state.lock().space.reserved();
            let excess = reserved.saturating_sub(target);
            if excess == 0 && reserved > 0 {
                // What sleeps goes on sleeping.
                return Ok(0);
            }
            return self.release_chunks(mapped, excess, |_, _| true);
        }
        self.release_surplus(target, |_| true)
    }

    fn release_surplus(&self, target: usize, may_go: impl Fn(usize) -> bool) -> Result<usize> {
        let mut chosen: Option<BTreeSet<usize>> = None;
        self.release_segments(|state, base| {
            chosen
                .get_or_insert_with(|| state.surplus(target, &may_go))
                .contains(&base)
        })
    }

    /// One look of whoever gives memory back after a while: gives back segments that were found idle `looks` times in a
    /// row, until at most `target` bytes are held, unless CUDA would wait for running work. Whether another look is worth
    /// it: the pool holds more.
    pub fn decay_to(&self, target: usize, looks: u32, seen: &mut Seen) -> Result<bool> {
        // The configured size is what somebody wants to be there.
        let target = {
            let state = self.state.lock();
            let target = target.max(state.config.initial);
            if state.space.reserved() <= target {
                *seen = Seen::default();
                return Ok(false);
            }
            target
        };
        self.flush_front();
        self.poll(true);
        self.end_epochs(None);
        if let Some(mapped) = self.source.mapped() {
            return self.decay_chunks(mapped, target, looks, &mut seen.idle);
        }
        let idle: BTreeSet<usize> = {
            let state = self.state.lock();
            state.idle_segments().map(|(_, base)| base).collect()
        };
        let seen = &mut seen.segments;
        seen.retain(|base, _| idle.contains(base));
        for base in idle {
            let times = seen.entry(base).or_default();
            *times = times.saturating_add(1);
        }
        let is_due = |base: usize| seen.get(&base).is_some_and(|times| *times > looks);
        if seen.keys().any(|base| is_due(*base)) && crate::stream::all_idle() {
            self.release_surplus(target, is_due)?;
        }
        Ok(self.state.lock().space.reserved() > target)
    }

    /// The same with mapped memory, of which as much goes as was idle at every look: nothing of it waits for running work.
    fn decay_chunks(
        &self,
        mapped: &Mapped,
        target: usize,
        looks: u32,
        seen: &mut VecDeque<usize>,
    ) -> Result<bool> {
        let (idle, excess) = {
            let state = self.state.lock();
            let excess = state.space.reserved().saturating_sub(target);
            (state.space.stats().idle, excess)
        };
        seen.push_back(idle);
        if seen.len() <= looks as usize {
            return Ok(true);
        }
        let most = seen.iter().copied().min().unwrap_or(0).min(excess);
        seen.clear();
        // What sleeps goes on sleeping where nothing is to go.
        if most > 0 {
            self.release_chunks(mapped, most, |_, _| true)?;
        }
        Ok(self.state.lock().space.reserved() > target)
    }
}

impl State {
    /// Lengths and bases of the segments that one idle span fills.
    fn idle_segments(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (self.space.segments())
            .filter(|segment| segment.wholly_idle)
            .map(|segment| (segment.len, segment.base))
    }

    /// The idle segments that go, so that at most `target` bytes stay: the shortest that does, or the longest and more.
    fn surplus(&self, target: usize, may_go: &impl Fn(usize) -> bool) -> BTreeSet<usize> {
        let idle = self.idle_segments().filter(|(_, base)| may_go(*base));
        surplus(idle.collect(), self.space.reserved().saturating_sub(target))
    }
}

fn surplus(mut idle: Vec<(usize, usize)>, mut excess: usize) -> BTreeSet<usize> {
    idle.sort_unstable();
    let mut chosen = BTreeSet::new();
    while excess > 0 && !idle.is_empty() {
        let enough = idle.partition_point(|(len, _)| *len < excess);
        let (len, base) = idle.remove(enough.min(idle.len() - 1));
        chosen.insert(base);
        excess = excess.saturating_sub(len);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_stays_as_the_target_allows() {
        let idle = || vec![(8, 1), (2, 2), (4, 3), (2, 4)];
        let bases = |excess| surplus(idle(), excess).into_iter().collect::<Vec<_>>();
        assert!(bases(0).is_empty());
        assert_eq!(bases(1), [2]);
        assert_eq!(bases(3), [3]);
        assert_eq!(bases(8), [1]);
        assert_eq!(bases(10), [1, 2]);
        assert_eq!(bases(usize::MAX), [1, 2, 3, 4]);
    }
}
