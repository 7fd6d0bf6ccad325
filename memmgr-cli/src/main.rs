mod error;
mod json;
mod rng;
mod table;
mod trace;
mod demo {
    pub mod frames;
    pub mod pipeline;
    pub mod plain;
}
fn main() {}
