//! Once a context is broken nothing completes any more, and no host function is called: all the same, every await ends.
#![cfg(feature = "sim")]

mod common;
#[path = "common/executors.rs"]
mod executors;

use common::{KIB, manager, stall};
use memmgr::{Error, Stream};
use memmgr_tests::Gate;
use std::{
    future::IntoFuture,
    sync::mpsc,
    time::{Duration, Instant},
};

/// The one test of its process, whose only device is of no use afterwards.
#[test]
fn every_await_ends_with_the_error_when_the_context_breaks() {
    let mm = manager();
    let streams: Vec<Stream> = (0..4).map(|_| Stream::new().unwrap()).collect();
    let gate = Gate::new();
    let (sender, receiver) = mpsc::channel();
    let mut waiting = 0;
    for s in &streams {
        stall(s, &gate);
        for executor in executors::ALL {
            let (host, device) = (
                mm.pinned::<u8>(KIB).unwrap(),
                mm.device::<u8>(KIB, s).unwrap(),
            );
            let transfer = s.transfer_to_device(host, device).unwrap();
            let (event, sender) = (s.record().unwrap(), sender.clone());
            waiting += 1;
            std::thread::spawn(move || {
                let ended = executor(Box::pin(async move {
                    let failed = transfer.await.expect_err("the copy has not run");
                    assert!(event.await.is_err(), "nor has anything else");
                    // The buffers are still there, and show nothing that is not settled.
                    let (error, host, device) = failed.into_parts();
                    assert!(host.as_slice().is_ok(), "a source can be read at any time");
                    drop((host, device));
                    Err(error)
                }));
                sender.send(ended).unwrap();
            });
        }
    }
    // All of them wait by now, most with a bell.
    std::thread::sleep(Duration::from_millis(100));
    let broken = cuda_sys::cudaError::cudaErrorIllegalAddress;
    cudart_sim::break_context(0, broken);
    let begun = Instant::now();
    for _ in 0..waiting {
        let ended = receiver.recv_timeout(Duration::from_secs(60));
        let error = ended.expect("every await ends").unwrap_err();
        assert_eq!(error.cuda_code(), Some(broken.0 as i32), "{error}");
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "it took {took:?}");
    // Those that come later hear of it at once, and get their buffers back.
    let event = streams[0].record().expect_err("the context is broken");
    assert!(matches!(event, Error::Cuda { .. }));
    gate.open();
}

/// (Compiled here, so that it is known to be possible.) What is awaited may be sent to other threads.
fn _futures_can_be_sent(s: &Stream) {
    fn sent<T: Send + Sync + 'static>(_: T) {}
    sent(s.record().unwrap().into_future());
}
