//! What the allocator promises, one test a promise.
