//! What the ordering checker costs: time for each operation, and memory. Run it with `--release -- --nocapture`.

mod common;
#[path = "common/programs.rs"]
mod programs;
use cudart_sim::{By, Check, checker_size, on_allocate, on_free, on_segment};
use programs::*;
use std::time::Instant;

/// Nanoseconds for each of `count` operations of `f`: the best of several rounds.
fn nanoseconds(count: usize, mut f: impl FnMut(usize)) -> f64 {
    (0..5)
        .map(|_| {
            let start = Instant::now();
            (0..count).for_each(&mut f);
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .fold(f64::INFINITY, f64::min)
}

/// Small fills on four streams, each of a range of its own, in no order of addresses.
fn fills(ranges: usize, d: Pointer, streams: &[cudart_sim::sys::cudaStream_t]) -> f64 {
    nanoseconds(20_000, |i| {
        let range = i.wrapping_mul(7919) % ranges;
        fill(at(d, range * 64), 32, streams[range % streams.len()]);
    })
}

#[test]
fn an_operation_costs_little_and_hardly_more_among_many_ranges() {
    let _turn = machine();
    let d = malloc(64 << 20);
    let streams: Vec<_> = (0..4).map(|_| stream()).collect();
    cudart_sim::check(Check::Off);
    let off = fills(10_000, d, &streams);
    println!("check off: {off:.0} ns for each fill of 32 bytes");
    let mut costs = Vec::new();
    for ranges in [100, 1_000, 10_000, 100_000] {
        cudart_sim::check(Check::Off);
        cudart_sim::check(Check::Report);
        for range in 0..ranges {
            fill(at(d, range * 64), 32, streams[range % streams.len()]);
        }
        assert_eq!(checker_size().ranges, ranges);
        let on = fills(ranges, d, &streams);
        println!(
            "{ranges} live ranges: {on:.0} ns, {:.0} of them the check",
            on - off
        );
        costs.push(on - off);
        cudart_sim::expect_clean();
    }
    assert_eq!(cuda!(cudaDeviceSynchronize()), 0);
    let per_pair = nanoseconds(10_000, |i| {
        let p = at(d, (i.wrapping_mul(7919) % 10_000) * 64);
        on_allocate(p, 64, By::Stream(streams[0]));
        on_free(p, 64, By::Stream(streams[0]));
    });
    cudart_sim::expect_clean();
    println!("a reported allocation and its free: {per_pair:.0} ns");
    cudart_sim::check(Check::Off);
    if !cfg!(debug_assertions) {
        assert!(costs[2] < 10_000.0, "{costs:?}");
    }
}

#[test]
fn events_cost_as_much_as_there_are_streams() {
    let _turn = machine();
    for count in [4, 64, 512] {
        let streams: Vec<_> = (0..count).map(|_| stream()).collect();
        let (d, e) = (malloc(1 << 20), event());
        let mut costs = [Check::Off, Check::Report].map(|check| {
            cudart_sim::check(Check::Off);
            cudart_sim::check(check);
            nanoseconds(20_000, |i| {
                let (a, b) = (streams[i * 7 % count], streams[i * 11 % count]);
                fill(at(d, i * 7 % count * 64), 32, a);
                record(e, a);
                wait(b, e);
            })
        });
        costs[1] -= costs[0];
        let [off, more] = costs;
        println!(
            "{count} streams: a fill, a record and a wait take {off:.0} ns, the check {more:.0} ns"
        );
        cudart_sim::expect_clean();
        cuda!(cudaDeviceSynchronize());
    }
    cudart_sim::check(Check::Off);
}

#[test]
fn ten_thousand_short_lived_streams_leave_no_clocks_behind() {
    let _turn = machine();
    cudart_sim::check(Check::Off);
    cudart_sim::check(Check::Report);
    let (d, main) = (malloc(1 << 20), stream());
    // The host waits for each of them.
    for i in 0..10_000 {
        let s = stream();
        fill(at(d, i % 512 * K), K, s);
        sync(s);
        cuda!(cudaStreamDestroy(s));
    }
    println!("waited for by the host: {:?}", checker_size());
    assert!(checker_size().clocks <= 4);
    // Another stream waits for each of them, and the host for none.
    for i in 0..10_000 {
        let s = stream();
        let p = at(d, i % 512 * K);
        behind(s, main);
        fill(p, K, s);
        behind(main, s);
        cuda!(cudaStreamDestroy(s));
        fill(p, K, main);
    }
    println!("waited for by a stream: {:?}", checker_size());
    assert!(checker_size().clocks <= 200);
    cudart_sim::expect_clean();
    cuda!(cudaDeviceSynchronize());
    cudart_sim::check(Check::Off);
}

#[test]
fn what_the_host_has_seen_done_is_forgotten() {
    let _turn = machine();
    cudart_sim::check(Check::Off);
    cudart_sim::check(Check::Report);
    let (d, s) = (malloc(64 << 20), stream());
    on_segment(malloc(K), K, true);
    let mut most = 0;
    for round in 0..200 {
        for i in 0..1_000 {
            fill(at(d, (round * 1_000 + i) * 128), 64, s);
        }
        sync(s);
        most = most.max(checker_size().ranges);
    }
    println!("200,000 ranges in turn: at most {most} remembered");
    assert!(most <= 10_000);
    // A write of everything leaves one range.
    for i in 0..3_000 {
        fill(at(d, i * 128), 64, s);
    }
    fill(d, 64 << 20, s);
    assert_eq!(checker_size().ranges, 1);
    cudart_sim::expect_clean();
    cuda!(cudaDeviceSynchronize());
    cudart_sim::check(Check::Off);
}
