//! Placeholder root of the crate on this branch.
#![allow(dead_code)]
mod pool;
