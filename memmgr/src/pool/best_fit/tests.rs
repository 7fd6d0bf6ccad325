//! Tests of the allocator: what it promises, case by case. `properties` drives it together with the naive
//! model in `oracle`.

mod bookkeeping;
mod index;
mod lists;
mod oracle;
mod promises;
mod properties;

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
