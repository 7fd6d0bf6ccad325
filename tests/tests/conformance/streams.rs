//! Streams and events: handles, ids, order.

use crate::{cuda::*, facts, is};
use std::ptr::null_mut;

fn handles_and_ids() {
    let a = blocking_stream();
    let first = id(a);
    destroy([a]);
    let b = blocking_stream();
    is("the next stream's handle", b, a);
    is("the ids are equal", id(b) == first, false);
    destroy([b]);
}

fn ids_of_default_streams() {
    let s = stream();
    let (null, legacy, mine) = (id(null_mut()), id(LEGACY), id(PER_THREAD));
    is("null and legacy", null, legacy);
    is("per-thread, asked twice", id(PER_THREAD), mine);
    let theirs = std::thread::spawn(|| id(PER_THREAD)).join();
    let theirs = theirs.expect("it answers");
    let mut all = [legacy, mine, theirs, id(s)];
    all.sort_unstable();
    let distinct = all.windows(2).all(|pair| pair[0] != pair[1]);
    is(format!("{all:?} are distinct"), distinct, true);
    destroy([s]);
}

fn ids_are_never_reused() {
    let mut ids: Vec<u64> = (0..300)
        .map(|_| {
            let s = stream();
            let own = id(s);
            destroy([s]);
            own
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    is("ids of 300 streams, one after another", ids.len(), 300);
}

fn never_recorded() {
    let e = event();
    is("cudaEventQuery", cuda!(cudaEventQuery(e)), 0);
    ok!(cudaEventDestroy(e));
}

fn pending() {
    let (s, e) = (stream(), event());
    let stall = Stall::on(s);
    ok!(cudaEventRecord(e, s));
    is("cudaEventQuery", cuda!(cudaEventQuery(e)), 600);
    is("last error", cuda!(cudaGetLastError()), 0);
    is("cudaStreamQuery", cuda!(cudaStreamQuery(s)), 600);
    is("last error", cuda!(cudaGetLastError()), 0);
    stall.end();
    ok!(cudaStreamSynchronize(s));
    is("cudaEventQuery afterwards", cuda!(cudaEventQuery(e)), 0);
    is("cudaStreamQuery afterwards", cuda!(cudaStreamQuery(s)), 0);
    ok!(cudaEventDestroy(e));
    destroy([s]);
}

/// What a fill on one blocking stream does while another is stalled, and something happens in between.
fn between(what: &str, expected: Shape, happens: impl FnOnce()) {
    let (b1, b2, d) = (blocking_stream(), blocking_stream(), malloc(256));
    ok!(cudaMemsetAsync(d, 0, 256, b2));
    ok!(cudaDeviceSynchronize());
    timed(what, b1, expected, || {
        happens();
        ok!(cudaMemsetAsync(d, 0, 256, b2));
        cuda!(cudaStreamSynchronize(b2))
    });
    ok!(cudaFree(d));
    destroy([b1, b2]);
}

fn barrier() {
    let (e, done) = (event(), done_event());
    between("nothing", Returns, || {});
    between("a record on legacy", Waits, || {
        ok!(cudaEventRecord(e, LEGACY))
    });
    between("a record on null", Waits, || {
        ok!(cudaEventRecord(e, null_mut()))
    });
    between("a wait on legacy", Waits, || {
        ok!(cudaStreamWaitEvent(LEGACY, done, 0))
    });
    between("a wait on null", Waits, || {
        ok!(cudaStreamWaitEvent(null_mut(), done, 0))
    });
    ok!(cudaEventDestroy(e));
    ok!(cudaEventDestroy(done));
}

fn no_barrier() {
    let e = event();
    between("a record on per-thread", Returns, || {
        ok!(cudaEventRecord(e, PER_THREAD))
    });
    between("a query of legacy", Returns, || {
        cuda!(cudaStreamQuery(LEGACY));
    });
    ok!(cudaEventDestroy(e));
}

fn questions_are_no_barrier() {
    let mut status = sys::cudaStreamCaptureStatus(9);
    between("the id of legacy", Returns, || {
        ok!(cudaStreamGetId(LEGACY, &mut 0))
    });
    between("the capture of legacy", Returns, || {
        ok!(cudaStreamIsCapturing(LEGACY, &mut status));
    });
    between("the flags of legacy", Returns, || {
        ok!(cudaStreamGetFlags(LEGACY, &mut 0));
    });
    between("the device of legacy", Returns, || {
        // SAFETY: a default stream.
        is("device", unsafe { sys::stream_get_device(LEGACY) }, Ok(0));
    });
}

facts! {
    handles_and_ids, Gpu: "A stream's handle is reused by the next stream, its id is not";
    ids_are_never_reused, Gpu: "300 streams, one after another, have 300 ids";
    ids_of_default_streams, Gpu: "Null and legacy are one stream by their id; the per-thread streams of two threads are two";
    never_recorded, Gpu: "An event that was never recorded is done";
    pending, Gpu: "\"Not ready\" (600) leaves no error";
    barrier, Gpu: "A mere record or wait on the legacy stream is a barrier between blocking streams";
    no_barrier, Gpu: "A record on the per-thread stream, or a query of the legacy stream, is none";
    questions_are_no_barrier, Assumed: "To ask the legacy stream for its id, flags, device or capture is no barrier";
}
