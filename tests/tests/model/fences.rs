//! Fences and the handles of streams: nobody is left behind, nobody goes on before the work, no handle is used after its end.

use crate::explore::{all, drawn};
use crate::show::*;
use memmgr::{Stream, model::OpenFence};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Two streams, and a fence behind work of the first.
fn begun() -> (Stream, Stream, OpenFence, Flag) {
    let (a, b, work) = (
        Stream::new().unwrap(),
        Stream::new().unwrap(),
        Flag::default(),
    );
    work.set_by(&a);
    let fence = OpenFence::new(&a);
    (a, b, fence, work)
}

fn waits_on_host(fence: &OpenFence, work: &Flag) -> impl FnOnce() + Send + 'static {
    let (fence, work) = (fence.clone(), work.clone());
    move || {
        fence.wait_on_host().unwrap();
        assert!(work.is_set(), "the host went on before the work");
    }
}

fn waits_on_stream(fence: &OpenFence, work: &Flag, on: &Stream) -> impl FnOnce() + Send + 'static {
    let (fence, work, on) = (fence.clone(), work.clone(), on.clone());
    move || {
        fence.wait_on_stream(&on).unwrap();
        let ran = work.needed_by(&on);
        on.synchronize().unwrap();
        assert!(ran.is_set(), "a stream went on before the work");
    }
}

fn closes(fence: &OpenFence) -> impl FnOnce() + Send + 'static {
    let fence = fence.clone();
    move || fence.close().unwrap()
}

fn finds_idle(fence: &OpenFence, work: &Flag) -> impl FnOnce() + Send + 'static {
    let (fence, work) = (fence.clone(), work.clone());
    move || {
        if fence.find_idle() || fence.query().unwrap() {
            assert!(work.is_set(), "a stream with work was found idle");
        }
    }
}

fn close_and_wait() {
    let (_a, _b, fence, work) = begun();
    join([start(closes(&fence)), start(waits_on_host(&fence, &work))]);
}

fn two_wait() {
    let (_a, b, fence, work) = begun();
    join([
        start(waits_on_stream(&fence, &work, &b)),
        start(waits_on_host(&fence, &work)),
    ]);
}

fn found_idle_while_one_waits() {
    let (_a, _b, fence, work) = begun();
    join([
        start(finds_idle(&fence, &work)),
        start(waits_on_host(&fence, &work)),
    ]);
}

fn all_at_once() {
    let (_a, b, fence, work) = begun();
    join([
        start(closes(&fence)),
        start(waits_on_host(&fence, &work)),
        start(waits_on_stream(&fence, &work, &b)),
        start(finds_idle(&fence, &work)),
    ]);
}

#[test]
fn whoever_waits_for_a_fence_goes_on_after_the_work_and_is_not_left_behind() {
    all("close and wait", 3, EAGER, close_and_wait);
    all("two wait", 3, EAGER, two_wait);
    all(
        "found idle while one waits",
        3,
        EAGER,
        found_idle_while_one_waits,
    );
    everywhere("all at once", 2, all_at_once);
}

/// The last user of the first stream goes while its fence is waited for.
fn last_user_goes() {
    let (a, b, fence, work) = begun();
    join([
        start(move || drop(a)),
        start(waits_on_host(&fence, &work)),
        start(waits_on_stream(&fence, &work, &b)),
    ]);
}

#[test]
fn the_last_user_of_a_stream_may_go_while_its_fence_is_waited_for() {
    everywhere("last user goes", 2, last_user_goes);
}

/// A stream of other code, which destroys it as soon as the last handle made from it is gone.
fn borrowed() {
    let mut raw = null_mut();
    // SAFETY: a place for a handle.
    let made =
        unsafe { cuda_sys::cudaStreamCreateWithFlags(&mut raw, cuda_sys::cudaStreamNonBlocking) };
    assert_eq!(made.0, 0);
    let raw: *mut c_void = raw.cast();
    // SAFETY: alive until the handle below is gone.
    let a = unsafe { Stream::borrow_raw(raw) }.unwrap();
    let (b, work) = (Stream::new().unwrap(), Flag::default());
    work.set_by(&a);
    let fence = OpenFence::new(&a);
    let owner = start(move || {
        let raw = a.as_raw();
        drop(a);
        // SAFETY: no handle is left.
        assert_eq!(unsafe { cuda_sys::cudaStreamDestroy(raw.cast()) }.0, 0);
    });
    join([
        owner,
        start(waits_on_host(&fence, &work)),
        start(waits_on_stream(&fence, &work, &b)),
    ]);
}

#[test]
fn a_borrowed_stream_may_be_destroyed_as_soon_as_its_last_handle_is_gone() {
    everywhere("borrowed", 2, borrowed);
}

/// The last user goes in a host function, where no call may be made.
fn deferred() {
    let (a, b, fence, work) = begun();
    let c = Stream::new().unwrap();
    c.launch_host(move || drop(a)).unwrap();
    join([
        start(waits_on_host(&fence, &work)),
        start(waits_on_stream(&fence, &work, &b)),
        // What makes a stream ends those whose end was left to a later call.
        start(|| drop(Stream::new().unwrap())),
    ]);
    c.synchronize().unwrap();
}

#[test]
fn the_end_of_a_stream_that_is_left_to_a_later_call_is_recorded_once_and_found_by_all() {
    everywhere("deferred", 2, deferred);
}

/// The same stream is made known by two threads, one of which forgets it meanwhile.
fn registered_twice() {
    let mut raw = null_mut();
    // SAFETY: a place for a handle.
    let made =
        unsafe { cuda_sys::cudaStreamCreateWithFlags(&mut raw, cuda_sys::cudaStreamNonBlocking) };
    assert_eq!(made.0, 0);
    let at = raw as usize;
    let uses = move || {
        // SAFETY: alive until both threads have ended.
        let stream = unsafe { Stream::borrow_raw(at as *mut c_void) }.unwrap();
        let work = Flag::default();
        work.set_by(&stream);
        let fence = OpenFence::new(&stream);
        drop(stream);
        fence.wait_on_host().unwrap();
        assert!(work.is_set());
    };
    join([start(uses), start(uses)]);
    // SAFETY: no handle is left.
    assert_eq!(unsafe { cuda_sys::cudaStreamDestroy(raw) }.0, 0);
}

#[test]
fn a_stream_that_is_forgotten_may_be_made_known_again_meanwhile() {
    all("registered twice", 2, EAGER, registered_twice);
    drawn("registered twice", EAGER, registered_twice);
    drawn("registered twice, lazy", LAZY, registered_twice);
}
