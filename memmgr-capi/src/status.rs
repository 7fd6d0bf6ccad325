//! Status codes, the text of the calling thread's last failure, and the fence that no panic passes.

use std::{
    any::Any,
    cell::RefCell,
    ffi::{CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
};

use manager::{Error, MemoryManager};

/// How a call ended. Where it is not `MEMMGR_OK`, `memmgr_last_error` says more.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum memmgr_status {
    /// It did what was asked.
    MEMMGR_OK = 0,
    /// A CUDA call failed; `memmgr_last_cuda_error` is its code.
    MEMMGR_CUDA_ERROR = 1,
    /// Neither the pool nor CUDA had the memory.
    MEMMGR_OUT_OF_MEMORY = 2,
    /// The request can never be met within the limit that was set.
    MEMMGR_LIMIT_EXCEEDED = 3,
    /// A size that cannot be served: it overflows when it is rounded up.
    MEMMGR_INVALID_SIZE = 4,
    /// An argument that cannot be used: a null pointer for a result, an unknown mode, a stream handle that is none.
    MEMMGR_INVALID_ARGUMENT = 5,
    /// A pointer that the manager does not know as the start of a live block, or whose block is not freed by pointer.
    MEMMGR_UNKNOWN_POINTER = 6,
    /// A pointer into memory that is free: its block was freed before, or no block ever started there.
    MEMMGR_DOUBLE_FREE = 7,
    /// A range that leaves its block.
    MEMMGR_INVALID_RANGE = 8,
    /// A size was configured after the pool had been made.
    MEMMGR_ALREADY_INITIALIZED = 9,
    /// The device, the toolkit or the present situation cannot do this.
    MEMMGR_UNSUPPORTED = 10,
    /// There is no CUDA to talk to: no driver, no device, or the process is exiting.
    MEMMGR_UNAVAILABLE = 11,
    /// The process was forked from one that had used CUDA.
    MEMMGR_FORKED_CHILD = 12,
    /// A block or stream of one device was used with another.
    MEMMGR_WRONG_DEVICE = 13,
    /// The library contradicts itself; please report it.
    MEMMGR_INTERNAL_ERROR = 14,
}

use memmgr_status::*;

/// Names of the codes, in their order.
const NAMES: [&std::ffi::CStr; 15] = [
    c"MEMMGR_OK",
    c"MEMMGR_CUDA_ERROR",
    c"MEMMGR_OUT_OF_MEMORY",
    c"MEMMGR_LIMIT_EXCEEDED",
    c"MEMMGR_INVALID_SIZE",
    c"MEMMGR_INVALID_ARGUMENT",
    c"MEMMGR_UNKNOWN_POINTER",
    c"MEMMGR_DOUBLE_FREE",
    c"MEMMGR_INVALID_RANGE",
    c"MEMMGR_ALREADY_INITIALIZED",
    c"MEMMGR_UNSUPPORTED",
    c"MEMMGR_UNAVAILABLE",
    c"MEMMGR_FORKED_CHILD",
    c"MEMMGR_WRONG_DEVICE",
    c"MEMMGR_INTERNAL_ERROR",
];

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The manager said so.
    Manager(Error),
    /// An argument cannot be used.
    Argument(String),
    /// The library contradicts itself.
    Internal(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Manager(error)
    }
}

impl Failure {
    /// An argument cannot be used, for this reason.
    pub fn argument(reason: impl Into<String>) -> Self {
        Failure::Argument(reason.into())
    }

    fn status(&self) -> memmgr_status {
        let error = match self {
            Failure::Argument(_) => return MEMMGR_INVALID_ARGUMENT,
            Failure::Internal(_) => return MEMMGR_INTERNAL_ERROR,
            Failure::Manager(error) => error,
        };
        match error {
            Error::Cuda { .. } => MEMMGR_CUDA_ERROR,
            Error::OutOfMemory(_) => MEMMGR_OUT_OF_MEMORY,
            Error::LimitExceeded { .. } => MEMMGR_LIMIT_EXCEEDED,
            Error::InvalidSize { .. } => MEMMGR_INVALID_SIZE,
            Error::InvalidAlignment { .. } | Error::InvalidSetting { .. } => {
                MEMMGR_INVALID_ARGUMENT
            }
            Error::UnknownPointer { .. } => MEMMGR_UNKNOWN_POINTER,
            Error::DoubleFree { .. } => MEMMGR_DOUBLE_FREE,
            Error::InvalidRange { .. } => MEMMGR_INVALID_RANGE,
            Error::AlreadyInitialized { .. } => MEMMGR_ALREADY_INITIALIZED,
            Error::Unavailable { .. } => MEMMGR_UNAVAILABLE,
            Error::ForkedChild => MEMMGR_FORKED_CHILD,
            Error::WrongDevice { .. } => MEMMGR_WRONG_DEVICE,
            // What a later version of the manager adds is described by its text.
            _ => MEMMGR_UNSUPPORTED,
        }
    }

    /// The `cudaError_t` that says the same, for callers who know only those.
    fn cuda_code(&self) -> i32 {
        const INVALID_VALUE: i32 = 1;
        const MEMORY_ALLOCATION: i32 = 2;
        const NOT_SUPPORTED: i32 = 801;
        const UNKNOWN: i32 = 999;
        match self {
            Failure::Argument(_) => INVALID_VALUE,
            Failure::Internal(_) => UNKNOWN,
            Failure::Manager(error) => match error {
                error if error.cuda_code().is_some() => error.cuda_code().unwrap_or(UNKNOWN),
                Error::OutOfMemory(_) | Error::LimitExceeded { .. } => MEMORY_ALLOCATION,
                Error::Unsupported { .. } => NOT_SUPPORTED,
                Error::Unavailable { .. } | Error::ForkedChild => UNKNOWN,
                _ => INVALID_VALUE,
            },
        }
    }

    fn text(&self) -> String {
        match self {
            Failure::Manager(error) => error.to_string(),
            Failure::Argument(reason) => format!("invalid argument: {reason}"),
            Failure::Internal(what) => format!("internal error, please report it: {what}"),
        }
    }
}

/// The last failure of a thread.
struct Last {
    text: Option<CString>,
    cuda: i32,
    error: Option<Error>,
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { text: None, cuda: 0, error: None }) };
}

fn remember(text: String, cuda: i32, error: Option<Error>) {
    // A text with a zero byte inside would end there.
    let text = CString::new(text.replace('\0', " ")).ok();
    // At the very end of a thread there is nobody to tell.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Last { text, cuda, error });
}

/// Runs what a function of the interface does. No panic passes.
pub(crate) fn call(f: impl FnOnce() -> Result<(), Failure>) -> memmgr_status {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => MEMMGR_OK,
        Ok(Err(failure)) => refused(&failure),
        Err(panic) => broken(panic.as_ref()),
    }
}

#[cold]
fn refused(failure: &Failure) -> memmgr_status {
    let error = match failure {
        Failure::Manager(error) => Some(error.clone()),
        Failure::Argument(_) | Failure::Internal(_) => None,
    };
    remember(failure.text(), failure.cuda_code(), error);
    failure.status()
}

#[cold]
fn broken(panic: &(dyn Any + Send)) -> memmgr_status {
    let what = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic");
    const UNKNOWN: i32 = 999;
    let text = format!("internal error, please report it: {what}");
    remember(text, UNKNOWN, None);
    MEMMGR_INTERNAL_ERROR
}

/// The manager's error behind the last failed call of this thread.
pub(crate) fn last_failure() -> Option<Error> {
    LAST.try_with(|last| last.borrow().error.clone())
        .ok()
        .flatten()
}

/// Refuses in a forked child, whose manager knows nothing of what there is.
pub(crate) fn refuse_in_child(mm: &MemoryManager) -> Result<(), Failure> {
    match mm.usable() {
        Err(error @ Error::ForkedChild) => Err(error.into()),
        // Figures can be had at the end of a process too.
        _ => Ok(()),
    }
}

/// Where a result goes.
///
/// # Safety
/// `out` is null, or may be written.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::argument("the pointer for the result is null"));
    }
    // SAFETY: it is not null and may be written, says the caller.
    unsafe { out.write(value) };
    Ok(())
}

/// What the last failed call of this thread had to say: one sentence or several, "" if none has failed. The text stays where it
/// is until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ref().map(|text| text.as_ptr()))
        .ok()
        .flatten()
        .unwrap_or(c"".as_ptr())
}

/// The `cudaError_t` of the last failed call of this thread: that of the CUDA call that failed, or the one that says the same
/// (`cudaErrorMemoryAllocation`, `cudaErrorInvalidValue`, `cudaErrorNotSupported`); 0 if none has failed.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_last_cuda_error() -> i32 {
    LAST.try_with(|last| last.borrow().cuda).unwrap_or(0)
}

/// Forgets the last failure of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_clear_last_error() {
    let nothing = Last {
        text: None,
        cuda: 0,
        error: None,
    };
    let _ = LAST.try_with(|last| *last.borrow_mut() = nothing);
}

/// The name of a status, for example "MEMMGR_OUT_OF_MEMORY"; "unknown status" for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn memmgr_status_name(status: i32) -> *const c_char {
    usize::try_from(status)
        .ok()
        .and_then(|place| NAMES.get(place))
        .map_or(c"unknown status".as_ptr(), |name| name.as_ptr())
}
