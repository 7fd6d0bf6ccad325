//! What the ordering checker cannot see: mistakes about which it is silent. `docs/simulator.md` lists them.

mod common;
mod cuda;
#[path = "common/programs.rs"]
mod programs;
use cuda::{CHUNK, Mapped, access, map, reserve, unmap};
use cudart_sim::{By, FindingKind, host_read, launch_host, moment, ordered};
use programs::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

#[test]
fn an_order_of_two_threads_that_only_happened_to_be() {
    // One thread waits for the copy and tells nobody; another one overwrites the source, luckily later.
    is_clean(|| {
        let a = stream();
        let (d, p) = (malloc(K), pinned(K));
        let (d, p, s) = (d as usize, p as usize, a as usize);
        std::thread::spawn(move || {
            copy(d as Pointer, p as Pointer, K, s as _);
            sync(s as _);
        })
        .join()
        .unwrap();
        std::thread::spawn(move || cudart_sim::host_write(p as Pointer, K))
            .join()
            .unwrap();
    });
}

#[test]
fn what_a_host_function_asks_of_an_event_counts_for_the_host() {
    is_clean(|| {
        extern "C" fn ask(e: Pointer) {
            while cuda!(cudaEventQuery(e.cast())) == 600 {
                std::thread::yield_now();
            }
        }
        let ((a, b), e) = (two(), event());
        let (d, p) = (malloc(K), pinned(K));
        copy(d, p, K, a);
        record(e, a);
        cuda!(cudaLaunchHostFunc(b, Some(ask), e.cast()));
        sync(b);
        cudart_sim::host_write(p, K);
    });
}

#[test]
fn host_code_that_touches_memory_and_does_not_say_so() {
    is_clean(|| {
        let a = stream();
        let (d, p) = (malloc(K), pinned(K));
        copy(d, p, K, a);
        // SAFETY: pinned memory of that size; the copy that may still read it is what this test is about.
        unsafe { p.cast::<u8>().write_volatile(1) };
    });
    is_clean(|| {
        extern "C" fn touch(p: Pointer) {
            // SAFETY: pinned memory, which lives until the machine is reset.
            unsafe { p.cast::<u8>().write_volatile(1) };
        }
        let (a, b) = two();
        let (d, p) = (malloc(K), pinned(K));
        cuda!(cudaLaunchHostFunc(a, Some(touch), p));
        copy(d, p, K, b);
    });
}

#[test]
fn what_a_kernel_touches_beside_its_declared_ranges() {
    is_clean(|| {
        let (a, b) = two();
        let d = malloc(K);
        cudart_sim::launch(a, &[], &[(d, 16)], |_| {});
        // A real kernel might have written all of it.
        fill(at(d, 16), K - 16, b);
    });
}

#[test]
fn memory_that_is_mapped_after_the_work_was_submitted() {
    is_clean(|| {
        let (a, b) = two();
        let (chunks, there) = (Mapped::new(CHUNK, 2), reserve(CHUNK));
        let mode = cudart_sim::sys::cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed;
        let (mut graph, mut exec) = (null_mut(), null_mut());
        assert_eq!(map(there, CHUNK, 0, chunks.handles[1]), 0);
        assert_eq!(access(there, CHUNK, 3), 0);
        assert_eq!(cuda!(cudaStreamBeginCapture(a, mode)), 0);
        fill(there as Pointer, K, a);
        assert_eq!(cuda!(cudaStreamEndCapture(a, &mut graph)), 0);
        assert_eq!(cuda!(cudaGraphInstantiate(&mut exec, graph, 0)), 0);
        assert_eq!(unmap(there, CHUNK), 0);
        let gate = Gate::on(a);
        // Nothing is mapped there when the graph is launched.
        assert_eq!(cuda!(cudaGraphLaunch(exec, a)), 0);
        assert_eq!(map(there, CHUNK, 0, chunks.handles[0]), 0);
        assert_eq!(access(there, CHUNK, 3), 0);
        gate.open();
        fill(chunks.pointer(0), K, b);
    });
}

#[test]
fn nodes_of_one_graph_with_no_order_between_them() {
    is_clean(|| {
        let (a, b) = two();
        let d = malloc(K);
        let mode = cudart_sim::sys::cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed;
        let (mut graph, mut exec) = (null_mut(), null_mut());
        assert_eq!(cuda!(cudaStreamBeginCapture(a, mode)), 0);
        behind(b, a);
        fill(d, K, a);
        fill(d, K, b);
        behind(a, b);
        assert_eq!(cuda!(cudaStreamEndCapture(a, &mut graph)), 0);
        assert_eq!(cuda!(cudaGraphInstantiate(&mut exec, graph, 0)), 0);
        assert_eq!(cuda!(cudaGraphLaunch(exec, a)), 0);
    });
}

#[test]
fn a_moment_inside_a_graph_stands_for_all_of_it() {
    // The first node tells its moment; the fill after it has not run by then, and is thought to have.
    is_clean(|| {
        extern "C" fn tell(send: Pointer) {
            // SAFETY: the sender is leaked and lives for ever.
            let send = unsafe { &*(send as *const mpsc::Sender<cudart_sim::Moment>) };
            let _ = send.send(moment());
        }
        let (a, b) = two();
        let d = malloc(K);
        let (send, receive) = mpsc::channel();
        let send: Pointer = std::ptr::from_ref(Box::leak(Box::new(send)))
            .cast_mut()
            .cast();
        let mode = cudart_sim::sys::cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed;
        let (mut graph, mut exec) = (null_mut(), null_mut());
        assert_eq!(cuda!(cudaStreamBeginCapture(a, mode)), 0);
        assert_eq!(cuda!(cudaLaunchHostFunc(a, Some(tell), send)), 0);
        fill(d, K, a);
        assert_eq!(cuda!(cudaStreamEndCapture(a, &mut graph)), 0);
        assert_eq!(cuda!(cudaGraphInstantiate(&mut exec, graph, 0)), 0);
        assert_eq!(cuda!(cudaGraphLaunch(exec, a)), 0);
        cuda!(cudaStreamQuery(a));
        ordered(&receive.recv().unwrap(), By::Stream(b));
        fill(d, K, b);
    });
}

#[test]
fn a_free_in_the_name_of_a_stream_that_is_long_gone() {
    // The free comes too early for the other stream; the next allocation, which is the harm, is found.
    let program = |again: bool| {
        let (gone, other) = two();
        let d = malloc(K);
        let id = id(gone);
        cuda!(cudaStreamDestroy(gone));
        fill(d, K, other);
        cudart_sim::on_free(d, K, By::StreamId(id));
        if again {
            cudart_sim::on_allocate(d, K, By::Stream(stream()));
        }
    };
    is_clean(|| program(false));
    is_found(FindingKind::ReusedInUse, || program(true));
}

/// The list of `docs/simulator.md` names each test here, and no other.
#[test]
fn the_documentation_lists_what_is_shown_here() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/simulator.md");
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("skipped: this is not the whole repository");
        return;
    };
    let (_, list) = text.split_once("What it cannot see").expect("the list");
    let listed: Vec<&str> = list
        .lines()
        .skip_while(|l| !l.starts_with("- "))
        .take_while(|l| !l.is_empty())
        .flat_map(|l| l.split('`'))
        .filter_map(|word| word.strip_prefix("blind::"))
        .collect();
    let shown: Vec<&str> = include_str!("ordering_blind.rs")
        .split("#[test]\nfn ")
        .skip(1)
        .filter_map(|t| t.split_once('(').map(|(name, _)| name))
        .filter(|name| !name.starts_with("the_documentation"))
        .collect();
    assert_eq!(listed, shown);
}

/// The other way round: an order that exists and that it does not see, unless it is told.
#[test]
fn an_order_made_by_a_flag_is_seen_when_it_is_told() {
    let program = |tell: bool| {
        let a = stream();
        let p = pinned(K);
        let flag = Arc::new(AtomicBool::new(false));
        let (send, receive) = mpsc::channel();
        let set = flag.clone();
        launch_host(a, &[], &[(p, K)], move || {
            let _ = send.send(moment());
            set.store(true, Ordering::Release);
        });
        while !flag.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        if tell {
            ordered(&receive.recv().unwrap(), By::Host);
        }
        host_read(p, K);
    };
    is_clean(|| program(true));
    is_found(FindingKind::Race, || program(false));
}

#[test]
fn an_order_told_of_between_two_streams() {
    let program = |tell: bool| {
        let (a, b) = two();
        let d = malloc(K);
        fill(d, K, a);
        let (send, receive) = mpsc::channel();
        launch_host(a, &[], &[], move || {
            let _ = send.send(moment());
        });
        cuda!(cudaStreamQuery(a));
        let then = receive.recv().unwrap();
        if tell {
            ordered(&then, By::Stream(b));
        }
        fill(d, K, b);
    };
    is_clean(|| program(true));
    // Whether the query was answered with yes depends on the schedule, so the other half is not asked for here.
}
