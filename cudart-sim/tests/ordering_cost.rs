//! What the ordering checker costs, in things that can be counted: what it looks at, and what it remembers. Times are
//! `cargo bench -p cudart-sim --bench checker`.

mod common;
#[path = "common/programs.rs"]
mod programs;
use cudart_sim::{By, Check, checker_size, on_allocate, on_free, on_segment};
use programs::*;

/// Ranges and accesses that the checker looks at for each of `count` operations.
fn visited(count: usize, f: impl FnMut(usize)) -> f64 {
    let before = checker_size().visited;
    (0..count).for_each(f);
    (checker_size().visited - before) as f64 / count as f64
}

#[test]
fn an_operation_looks_at_no_more_among_many_ranges() {
    let streams = 4;
    let mut costs: Vec<[f64; 4]> = Vec::new();
    for ranges in [100, 1_000, 10_000, 100_000] {
        let _turn = machine().eager();
        cudart_sim::check(Check::Report);
        let d = malloc(ranges * 64);
        let streams: Vec<_> = (0..streams).map(|_| stream()).collect();
        let of = |range: usize| (at(d, range * 64), streams[range % 4]);
        for range in 0..ranges {
            fill(of(range).0, 32, of(range).1);
        }
        assert_eq!(checker_size().ranges, ranges);
        // In no order of addresses.
        let place = |i: usize| i.wrapping_mul(7919) % ranges;
        let fills = visited(2_000, |i| fill(of(place(i)).0, 32, of(place(i)).1));
        let copies = visited(2_000, |i| {
            let (to, from) = (place(i), (place(i) + 4 * (i % 7 + 1)) % ranges);
            copy(of(to).0, of(from).0, 32, of(to).1);
        });
        // Half of a range, and half of its neighbour.
        let parts = visited(2_000, |i| {
            let range = place(i) / 4 * 4;
            fill(at(of(range).0, 8), 16, of(range).1);
        });
        let report = |i| {
            let (p, s) = of(place(i));
            on_allocate(p, 64, By::Stream(s));
            on_free(p, 64, By::Stream(s));
        };
        // The first report of a block joins the parts that it was filled in.
        visited(2_000, report);
        let reports = visited(2_000, report);
        println!(
            "{ranges} ranges: {fills:.1} for a fill, {copies:.1} for a copy, {parts:.1} for a part, {reports:.1} for a report"
        );
        assert!(checker_size().ranges >= ranges);
        costs.push([fills, copies, parts, reports]);
    }
    for cost in &costs {
        for (now, first) in cost.iter().zip(&costs[0]) {
            // As many as among 100 ranges; one sweep of all, at most, for as many operations.
            assert!(*now <= first + 1.0, "{costs:?}");
            assert!(*now <= 16.0, "{costs:?}");
        }
    }
}

#[test]
fn ten_thousand_short_lived_streams_leave_no_clocks_behind() {
    let _turn = machine().eager();
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
}

#[test]
fn what_the_host_has_seen_done_is_forgotten() {
    let _turn = machine().eager();
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
}
