//! Placeholder of the pool layer on this branch.
pub mod best_fit;
