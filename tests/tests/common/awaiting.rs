//! What is awaited arrives, with its bytes: the same programs under every schedule.

use super::{
    common::{KIB, MODES, assert_sound, manager, manager_in, stall},
    executors,
};
use memmgr::{DeviceBuffer, PinnedBuffer, Stream};
use memmgr_tests::Gate;
use std::{future::IntoFuture, time::Duration};

/// All of it.
pub fn run_all() {
    every_kind_of_transfer();
    events_and_submitted_operations();
    late_ones();
    polled_in_any_order();
    thousands();
}

fn filled(mm: &memmgr::MemoryManager, len: usize, value: u64) -> PinnedBuffer<u64> {
    let mut host = mm.pinned::<u64>(len).unwrap();
    host.as_mut_slice().unwrap().fill(value);
    host
}

/// There and back, by way of another device buffer, in every mode and by every executor.
fn every_kind_of_transfer() {
    for mode in MODES {
        let mm = manager_in(mode);
        let s = Stream::new().unwrap();
        for (at, executor) in executors::ALL.iter().enumerate() {
            let value = at as u64 + 7;
            let host = filled(&mm, KIB, value);
            let [one, two] = [(); 2].map(|()| mm.device::<u64>(KIB, &s).unwrap());
            let target = mm.pinned::<u64>(KIB).unwrap();
            let s = s.clone();
            executor(Box::pin(async move {
                let (host, one) = s.transfer_to_device(host, one)?.await?;
                let (_, two) = s.transfer_device_to_device(one, two)?.await?;
                let (_, target) = s.transfer_to_host(two, target)?.await?;
                assert!(target.as_slice()?.iter().all(|got| *got == value));
                assert_eq!(host.as_slice()?, target.as_slice()?);
                Ok(())
            }))
            .unwrap();
        }
        assert_sound(&mm);
    }
}

fn events_and_submitted_operations() {
    let mm = manager();
    let s = Stream::new().unwrap();
    for executor in executors::ALL {
        let device = mm.device::<u8>(KIB, &s).unwrap();
        let mut host = mm.pinned::<u8>(KIB).unwrap();
        let s = s.clone();
        executor(Box::pin(async move {
            s.memset(&device, 9)?.await?;
            let copied = s.copy_to_host(&device, &mut host)?;
            (&copied).await?;
            assert!(copied.is_done()?);
            let event = s.record()?;
            (&event).await?;
            assert!(event.is_done()?);
            event.await?;
            assert!(host.as_slice()?.iter().all(|got| *got == 9));
            Ok(())
        }))
        .unwrap();
    }
}

/// Awaited before they can be done.
fn late_ones() {
    let mm = manager();
    let s = Stream::new().unwrap();
    for executor in executors::ALL {
        let gate = Gate::new();
        stall(&s, &gate);
        let transfer = s
            .transfer_to_device(filled(&mm, KIB, 3), mm.device(KIB, &s).unwrap())
            .unwrap();
        assert!(!transfer.is_done().unwrap());
        let opener = gate.open_after(Duration::from_millis(5));
        executor(Box::pin(async move {
            let (host, _) = transfer.await?;
            assert_eq!(host.as_slice()?.first(), Some(&3));
            Ok(())
        }))
        .unwrap();
        opener.join().unwrap();
    }
}

/// The younger point of a stream is asked for first, and the older one opens what holds the younger up.
fn polled_in_any_order() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let gate = Gate::new();
    let device = mm.device::<u8>(KIB, &s).unwrap();
    let older = s.memset(&device, 1).unwrap();
    stall(&s, &gate);
    let younger = s.memset(&device, 2).unwrap();
    executors::tokio(Box::pin(async move {
        let younger = tokio::spawn(younger.into_future());
        tokio::task::yield_now().await;
        older.await?;
        gate.open();
        younger.await.expect("the task has ended")
    }))
    .unwrap();
}

/// More than there are bells, and more than a queue holds.
fn thousands() {
    const STREAMS: usize = 24;
    const EACH: usize = 150;
    let mm = manager();
    let streams: Vec<Stream> = (0..STREAMS).map(|_| Stream::new().unwrap()).collect();
    let mut transfers = Vec::new();
    for number in 0..EACH {
        for (at, s) in streams.iter().enumerate() {
            let value = (number * STREAMS + at) as u64;
            let device: DeviceBuffer<u64> = mm.device(32, s).unwrap();
            let there = s.transfer_to_device(filled(&mm, 32, value), device);
            transfers.push((value, s.clone(), there.unwrap(), mm.pinned(32).unwrap()));
        }
    }
    executors::tokio(Box::pin(async move {
        let tasks: Vec<_> = transfers
            .into_iter()
            .map(|(value, s, there, target)| {
                tokio::spawn(async move {
                    let (_, device) = there.await?;
                    let (_, target) = s.transfer_to_host(device, target)?.await?;
                    assert!(target.as_slice()?.iter().all(|got| *got == value));
                    Ok::<(), memmgr::Error>(())
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("the task has ended")?;
        }
        Ok(())
    }))
    .unwrap();
    assert_sound(&mm);
    assert_eq!(mm.stats().drop_failures, 0);
}
