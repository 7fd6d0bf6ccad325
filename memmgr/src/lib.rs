//! Placeholder root of the crate on this branch.
#![allow(dead_code, unused_imports)]
mod pool;
