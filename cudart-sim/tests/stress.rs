//! Many threads, streams and events at once: the order that was asked for holds, and everything completes.

mod common;
use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn random(seed: &mut u64, bound: usize) -> usize {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (*seed % bound as u64) as usize
}

/// A token that visits streams in a random order, each visit ordered behind the last by an event: every kernel must
/// find the number that the one before it left.
#[test]
fn a_token_that_is_passed_by_events_is_never_seen_out_of_order() {
    under_every_schedule(|| {
        let threads: Vec<_> = (1..=4u64)
            .map(|n| {
                std::thread::spawn(move || {
                    let mut seed = n * 0x9E37_79B9;
                    let streams: Vec<_> = (0..6)
                        .map(|i| {
                            if i % 3 == 0 {
                                blocking_stream()
                            } else {
                                stream()
                            }
                        })
                        .collect();
                    let events: Vec<_> = (0..4).map(|_| event()).collect();
                    let token = malloc(8);
                    let wrong = Arc::new(AtomicU64::new(0));
                    cuda!(cudaMemsetAsync(token, 0, 8, streams[0]));
                    let mut at = 0;
                    for step in 0..400u64 {
                        let wrong = wrong.clone();
                        let kernel = move |k: &mut cudart_sim::KernelView| {
                            let bytes: [u8; 8] = k.writes[0].as_slice().try_into().unwrap();
                            if u64::from_le_bytes(bytes) != step {
                                wrong.fetch_add(1, Ordering::Relaxed);
                            }
                            k.writes[0].copy_from_slice(&(step + 1).to_le_bytes());
                        };
                        assert_eq!(
                            cudart_sim::launch(streams[at], &[], &[(token, 8)], kernel).0,
                            0
                        );
                        let next = random(&mut seed, streams.len());
                        let event = events[random(&mut seed, events.len())];
                        assert_eq!(cuda!(cudaEventRecord(event, streams[at])), 0);
                        assert_eq!(cuda!(cudaStreamWaitEvent(streams[next], event, 0)), 0);
                        at = next;
                        match random(&mut seed, 60) {
                            0 => _ = cuda!(cudaStreamSynchronize(streams[at])),
                            1 => _ = cuda!(cudaEventQuery(event)),
                            2 => assert_eq!(cuda!(cudaFree(malloc(100))), 0),
                            _ => {}
                        }
                    }
                    assert_eq!(cuda!(cudaStreamSynchronize(streams[at])), 0);
                    assert_eq!(wrong.load(Ordering::Relaxed), 0);
                    assert_eq!(cudart_sim::read_device(token, 8), 400u64.to_le_bytes());
                    for s in streams {
                        assert_eq!(cuda!(cudaStreamDestroy(s)), 0);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// Blocking streams with legacy work between them: each legacy kernel sees all that was submitted before it.
#[test]
fn legacy_work_sees_all_blocking_work_before_it_and_is_seen_by_all_after_it() {
    under_every_schedule(|| {
        let streams: Vec<_> = (0..5).map(|_| blocking_stream()).collect();
        let cells: Vec<usize> = (0..5).map(|_| malloc(8) as usize).collect();
        let wrong = Arc::new(AtomicU64::new(0));
        for &cell in &cells {
            cuda!(cudaMemset(cell as *mut _, 0, 8));
        }
        for round in 0..40u8 {
            for (s, cell) in streams.iter().zip(&cells) {
                let wrong = wrong.clone();
                cudart_sim::launch(*s, &[], &[(*cell as *const _, 8)], move |k| {
                    if k.writes[0][0] != 2 * round {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                    k.writes[0][0] += 1;
                });
            }
            let ranges: Vec<_> = cells.iter().map(|c| (*c as *const _, 8)).collect();
            let wrong = wrong.clone();
            cudart_sim::launch(std::ptr::null_mut(), &[], &ranges, move |k| {
                for cell in &mut k.writes {
                    if cell[0] != 2 * round + 1 {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                    cell[0] += 1;
                }
            });
        }
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
        assert_eq!(wrong.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn two_host_functions_that_wait_for_each_other_both_run() {
    under_every_schedule(|| {
        let (a, b) = (stream(), stream());
        let gate = Gate::on(a);
        extern "C" fn open(flag: *mut std::ffi::c_void) {
            // SAFETY: the gate that is passed lives until the streams are done.
            unsafe { &*(flag as *const Gate) }.open();
        }
        let argument = (&raw const gate).cast_mut().cast();
        assert_eq!(cuda!(cudaLaunchHostFunc(b, Some(open), argument)), 0);
        assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
    });
}

#[test]
fn threads_that_allocate_and_free_at_once_get_blocks_of_their_own() {
    under_every_schedule(|| {
        let threads: Vec<_> = (1..=4u64)
            .map(|n| {
                std::thread::spawn(move || {
                    let mut seed = n * 77_777;
                    let s = stream();
                    for _ in 0..300 {
                        let size = 1 + random(&mut seed, 100_000);
                        let (p, q) = (malloc(size), malloc_async(size, s));
                        cuda!(cudaMemsetAsync(p, n as i32, size, s));
                        cuda!(cudaMemsetAsync(q, n as i32, size, s));
                        cuda!(cudaStreamSynchronize(s));
                        assert!(
                            cudart_sim::read_device(p, size)
                                .iter()
                                .all(|b| *b == n as u8)
                        );
                        assert!(
                            cudart_sim::read_device(q, size)
                                .iter()
                                .all(|b| *b == n as u8)
                        );
                        assert_eq!(cuda!(cudaFreeAsync(q, s)), 0);
                        assert_eq!(cuda!(cudaFree(p)), 0);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let info = cudart_sim::memory_info(0).unwrap();
        assert_eq!((info.blocks, info.pool_blocks), ((0, 0), (0, 0)));
    });
}
