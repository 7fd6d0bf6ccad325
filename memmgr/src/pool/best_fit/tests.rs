//! Tests of the allocator: what it promises, case by case. `properties` drives it together with the naive
//! model in `oracle`.

mod bookkeeping;
mod oracle;
mod promises;
mod properties;
