//! What the codes of `memmgr_status` stand for.

#[path = "../src/status.rs"]
#[allow(dead_code, missing_docs, non_camel_case_types)]
mod status;

use status::{Failure, call, memmgr_status::*};

fn text() -> String {
    // SAFETY: the text stays where it is until the next failure of this thread.
    let text = unsafe { std::ffi::CStr::from_ptr(status::memmgr_last_error()) };
    text.to_string_lossy().into_owned()
}

#[test]
fn damaged_books_and_panics_are_no_mistake_of_the_caller() {
    let damaged = call(|| Err(Failure::Internal("a span has no owner".into())));
    assert_eq!(damaged, MEMMGR_INTERNAL_ERROR);
    assert!(text().contains("a span has no owner"), "{}", text());
    assert_eq!(status::memmgr_last_cuda_error(), 999);
    assert_eq!(call(|| panic!("lost")), MEMMGR_INTERNAL_ERROR);
    assert!(text().contains("lost"), "{}", text());
    assert_eq!(
        call(|| Err(manager::Error::ForkedChild.into())),
        MEMMGR_FORKED_CHILD
    );
    assert!(matches!(
        status::last_failure(),
        Some(manager::Error::ForkedChild)
    ));
    assert_eq!(
        call(|| Err(Failure::argument("null"))),
        MEMMGR_INVALID_ARGUMENT
    );
    assert!(status::last_failure().is_none());
}
