//! Tests of the allocator: what it promises, case by case. `properties` drives it together with the naive
//! model in `oracle`.

mod bookkeeping;
mod index;
mod lists;
mod oracle;
mod promises;
mod properties;

use super::{Datum, OwnerId};

/// A small generator, so that the tests need nothing else and do the same in each run.
pub(in crate::pool) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

impl Datum for u64 {
    fn of_span(owner: OwnerId, node: u32) -> Self {
        u64::from(owner.0) << 32 | u64::from(node)
    }

    fn owner(&self) -> OwnerId {
        OwnerId((self >> 32) as u32)
    }

    fn node(&self) -> u32 {
        *self as u32
    }
}
