//! The C functions, by subject. Each is checked against the header's declaration when it is compiled.
//!
//! A body answers a code or nothing; `entry.rs` does what they all have in common. Pointer arguments are null or valid:
//! that is the contract of every C function here, as it is of the real ones.
#![allow(non_snake_case)]

mod capture;
mod copy;
mod device;
mod driver;
mod error;
mod event;
mod host;
mod ipc;
mod memory;
mod pool;
mod stream;

use crate::error::{Answer, INVALID_VALUE};

/// Defines exported functions: name, arguments, what is needed, body.
macro_rules! api {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) needs $needs:ident $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> crate::sys::cudaError_t {
                #[allow(unused_imports)]
                use crate::entry::NoStream as _;
                // The first stream among the arguments.
                let stream = None$(.or_else(|| crate::entry::Argument($arg).stream()))*;
                crate::entry::enter(
                    crate::calls::Call::$name,
                    stream,
                    crate::entry::Needs::$needs,
                    || -> crate::error::Answer { $body },
                )
            }
        )*
        crate::calls::same_signatures!($($name),*);
    };
}
use api;

/// Writes a result where the caller wants it; a null pointer is an invalid value.
fn put<T>(place: *mut T, value: T) -> Answer {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the arguments of exported functions are null or valid for writing, by their contract.
    unsafe { place.write(value) };
    Ok(())
}

/// Reads what an argument points at; a null pointer is an invalid value.
fn get<T: Copy>(place: *const T) -> Answer<T> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the arguments of exported functions are null or valid for reading, by their contract.
    Ok(unsafe { place.read() })
}

/// Refuses a null place for a result before anything is done.
fn need<T>(place: *mut T) -> Answer {
    if place.is_null() {
        Err(INVALID_VALUE)
    } else {
        Ok(())
    }
}
