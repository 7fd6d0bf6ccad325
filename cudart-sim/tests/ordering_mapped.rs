//! The ordering checker, where memory is mapped and where work is captured.

mod common;
mod cuda;
#[path = "common/programs.rs"]
mod programs;
use cuda::{CHUNK, Mapped, access, create, map, release, reserve, unmap};
use cudart_sim::{FindingKind, host_write, sys};
use programs::*;
use std::ptr::null_mut;

/// Moves the first chunk to another address; another chunk takes its place. Returns its new address.
fn moved(chunks: &Mapped) -> Pointer {
    let (there, other) = (reserve(CHUNK), create(CHUNK));
    assert_eq!(unmap(chunks.at, CHUNK), 0);
    assert_eq!(map(chunks.at, CHUNK, 0, other), 0);
    assert_eq!(access(chunks.at, CHUNK, 3), 0);
    let handle = chunks.handles.first().expect("there is one");
    assert_eq!(map(there, CHUNK, 0, *handle), 0);
    assert_eq!(access(there, CHUNK, 3), 0);
    there as Pointer
}

#[test]
fn a_chunk_that_is_moved_while_work_may_still_touch_it() {
    let found = findings(|| {
        let (a, b) = two();
        let chunks = Mapped::new(CHUNK, 2);
        // The work runs when both places are mapped again, so that nothing breaks.
        let gate = Gate::on(a);
        fill(chunks.pointer(K), K, a);
        let there = moved(&chunks);
        gate.open();
        // The same bytes, at another address.
        fill(at(there, 2 * K - 1), K, b);
        // Other bytes, at the same address.
        fill(chunks.pointer(K), K, b);
        sync(a);
        sync(b);
    });
    let kinds: Vec<_> = found.iter().map(|f| (f.kind, f.len)).collect();
    let expected = [(FindingKind::FreedInUse, K as u64), (FindingKind::Race, 1)];
    assert_eq!(kinds, expected);
    let calls: Vec<_> = found.iter().map(|f| &*f.second.call).collect();
    assert_eq!(calls, ["cuMemUnmap", "cudaMemsetAsync"]);
}

programs! { FreedInUse:
    fn a_chunk_that_is_moved_while_another_stream_than_the_one_waited_for_uses_it() {
        let (a, b) = two();
        let chunks = Mapped::new(CHUNK, 2);
        fill(chunks.pointer(0), K, b);
        sync(b);
        let gate = Gate::on(a);
        fill(chunks.pointer(K), K, a);
        sync(b);
        moved(&chunks);
        gate.open();
        sync(a);
    }
}

programs! { Race:
    fn a_moved_chunk_used_on_two_streams() {
        let (a, b) = two();
        let chunks = Mapped::new(CHUNK, 2);
        fill(chunks.pointer(K), K, a);
        sync(a);
        let there = moved(&chunks);
        fill(at(there, K), K, a);
        fill(at(there, K), K, b);
        sync(a);
        sync(b);
    }
    fn one_chunk_at_two_addresses() {
        let (a, b) = two();
        let (chunks, again) = (Mapped::new(CHUNK, 1), reserve(CHUNK));
        assert_eq!(map(again, CHUNK, 0, chunks.handles[0]), 0);
        assert_eq!(access(again, CHUNK, 3), 0);
        fill(chunks.pointer(0), K, a);
        fill(again as Pointer, K, b);
    }
    fn a_copy_across_the_border_of_two_chunks() {
        let (a, b) = two();
        let chunks = Mapped::new(CHUNK, 2);
        let d = malloc(2 * K);
        copy(d, chunks.pointer(CHUNK - K), 2 * K, a);
        fill(chunks.pointer(CHUNK), 1, b);
    }
    fn a_pageable_copy_to_mapped_memory_is_not_on_the_device_for_others() {
        let (a, b) = two();
        let (chunks, host) = (Mapped::new(CHUNK, 1), [1u8; K]);
        copy(chunks.pointer(0), host.as_ptr() as Pointer, K, a);
        fill(chunks.pointer(0), K, b);
    }
    fn a_graph_and_other_work() {
        let (a, b) = two();
        let (d, x) = (malloc(K), malloc(K));
        launch_graph(captured(a, || { fill(x, K, a); fill(d, K, a); }), a);
        fill(d, K, b);
    }
    fn two_executable_graphs_of_one_graph() {
        let (a, b) = two();
        let d = malloc(K);
        let graph = graph(a, || fill(d, K, a));
        launch_graph(executable(graph), a);
        launch_graph(executable(graph), b);
    }
    fn an_order_that_was_only_captured() {
        let (a, b) = two();
        let d = malloc(K);
        graph(a, || { behind(b, a); fill(d, K, b); behind(a, b); });
        fill(d, K, a);
        fill(d, K, b);
    }
    fn a_pageable_source_that_a_graph_reads() {
        let a = stream();
        let (d, host) = (malloc(K), vec![1u8; K]);
        let p = host.as_ptr() as Pointer;
        launch_graph(captured(a, || copy(d, p, K, a)), a);
        host_write(p, K);
        sync(a);
    }
}

mod clean {
    use super::*;

    programs! { clean:
        fn a_chunk_that_is_moved_after_a_synchronisation() {
            let (a, b) = two();
            let chunks = Mapped::new(CHUNK, 2);
            fill(chunks.pointer(K), K, a);
            sync(a);
            let there = moved(&chunks);
            fill(at(there, K), K, b);
            fill(chunks.pointer(K), K, a);
            sync(a);
            sync(b);
        }
        fn one_chunk_at_two_addresses_in_order() {
            let (a, b) = two();
            let (chunks, again) = (Mapped::new(CHUNK, 1), reserve(CHUNK));
            assert_eq!(map(again, CHUNK, 0, chunks.handles[0]), 0);
            assert_eq!(access(again, CHUNK, 3), 0);
            fill(chunks.pointer(0), K, a);
            behind(b, a);
            fill(again as Pointer, K, b);
        }
        fn neighbouring_chunks() {
            let (a, b) = two();
            let chunks = Mapped::new(CHUNK, 2);
            fill(chunks.pointer(0), CHUNK, a);
            fill(chunks.pointer(CHUNK), CHUNK, b);
        }
        fn new_physical_memory_at_an_old_address() {
            let (a, b) = two();
            let at = reserve(CHUNK);
            for s in [a, b, a] {
                let handle = create(CHUNK);
                assert_eq!((map(at, CHUNK, 0, handle), access(at, CHUNK, 3)), (0, 0));
                fill(at as Pointer, K, s);
                sync(s);
                assert_eq!((unmap(at, CHUNK), release(handle)), (0, 0));
            }
        }
        fn work_that_was_only_captured() {
            let (a, b) = two();
            let (d, host) = (malloc(K), [1u8; K]);
            let p = host.as_ptr() as Pointer;
            fill(d, K, b);
            graph(a, || { copy(d, p, K, a); fill(d, K, a); });
            host_write(p, K);
            fill(d, K, b);
        }
        fn launches_of_one_executable_graph() {
            let (a, b) = two();
            let (d, x) = (malloc(K), malloc(K));
            let exec = captured(a, || fill(d, K, a));
            fill(x, K, a);
            launch_graph(exec, a);
            launch_graph(exec, b);
            // What came before a launch comes before what follows the next one.
            fill(x, K, b);
            launch_graph(exec, a);
        }
        fn a_graph_whose_steps_touch_the_same_bytes() {
            let (a, b) = two();
            let (d, x) = (malloc(K), malloc(K));
            let exec = captured(a, || { fill(d, K, a); copy(x, d, K, a); fill(d, K, a); });
            launch_graph(exec, a);
            behind(b, a);
            fill(x, K, b);
        }
        fn memory_that_a_graph_allocates() {
            let a = stream();
            let mut d = null_mut();
            let exec = captured(a, || {
                d = malloc_async(K, a);
                fill(d, K, a);
                assert_eq!(cuda!(cudaFreeAsync(d, a)), 0);
            });
            launch_graph(exec, a);
            launch_graph(exec, a);
        }
    }
}

/// What `work` gives to a stream while that captures.
fn graph(s: sys::cudaStream_t, work: impl FnOnce()) -> sys::cudaGraph_t {
    let mode = sys::cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed;
    let mut graph = null_mut();
    assert_eq!(cuda!(cudaStreamBeginCapture(s, mode)), 0);
    work();
    assert_eq!(cuda!(cudaStreamEndCapture(s, &mut graph)), 0);
    graph
}

fn executable(graph: sys::cudaGraph_t) -> sys::cudaGraphExec_t {
    let mut exec = null_mut();
    assert_eq!(cuda!(cudaGraphInstantiate(&mut exec, graph, 0)), 0);
    exec
}

fn captured(s: sys::cudaStream_t, work: impl FnOnce()) -> sys::cudaGraphExec_t {
    executable(graph(s, work))
}

fn launch_graph(exec: sys::cudaGraphExec_t, s: sys::cudaStream_t) {
    assert_eq!(cuda!(cudaGraphLaunch(exec, s)), 0);
}
