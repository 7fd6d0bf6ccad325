//! What is tried before a request is refused, and what a refusal says. Cases B14, B15 and B40.
//!
//! In a process of its own, on simulated devices with little memory.

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{KIB, MIB, MODES, assert_sound, last_error, manager_in, stall};
use memmgr::{
    Config, DeviceAllocatorMode, DeviceSource, Error, MemoryManager, OutOfMemory, Stream,
};
use memmgr_tests::{Gate, sim_only};
use std::{
    ffi::c_void,
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

/// Device 0 has so much.
const MEMORY: usize = 32 * MIB;

/// The tests of this file take turns: each wants most of the memory.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(feature = "sim")]
        {
            let mut config = cudart_sim::Config::devices(3, MEMORY);
            config.devices[1].memory = 16_777_216;
            config.devices[2].memory = 128 * MIB;
            cudart_sim::configure(config).unwrap();
        }
    });
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refusal<T: std::fmt::Debug>(result: memmgr::Result<T>) -> OutOfMemory {
    match result {
        Err(Error::OutOfMemory(refusal)) => *refusal,
        other => panic!("{other:?}"),
    }
}

/// A pointer that a hook may have.
struct Block(*mut c_void);
// SAFETY: it is only a number to whoever has it.
unsafe impl Send for Block {}

#[test]
fn a_hook_that_frees_memory_saves_the_request_in_every_mode() {
    sim_only!("the device must be full");
    let _turn = turn();
    for mode in MODES {
        let mm = Arc::new(manager_in(mode));
        let stream = Stream::new().unwrap();
        let kept = mm.allocate_device_on(20 * MIB, &stream).unwrap();
        let (kept, calls) = (Mutex::new(Some(Block(kept))), Arc::new(AtomicUsize::new(0)));
        {
            let (weak, stream, calls) = (Arc::downgrade(&mm), stream.clone(), calls.clone());
            mm.on_out_of_memory(move |refusal| {
                calls.fetch_add(1, SeqCst);
                assert_eq!(refusal.holders.blocks, 1, "{mode}");
                let (Some(mm), Some(block)) = (weak.upgrade(), kept.lock().unwrap().take()) else {
                    return false;
                };
                // SAFETY: nobody uses the block.
                unsafe { mm.free_device_on(block.0, &stream).unwrap() };
                true
            });
        }
        let other = Stream::new().unwrap();
        let got = mm
            .allocate_device_on(24 * MIB, &other)
            .unwrap_or_else(|error| panic!("{mode}: {error}"));
        assert_eq!((calls.load(SeqCst), last_error()), (1, 0), "{mode}");
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(got, &other).unwrap() };
        other.synchronize().unwrap();
        assert_sound(&mm);
        mm.shutdown().unwrap();
    }
}

#[test]
fn a_refusal_names_who_holds_the_memory_in_every_mode() {
    sim_only!("the device must be full");
    let _turn = turn();
    for mode in MODES {
        let mm = manager_in(mode);
        let stream = Stream::new().unwrap();
        let large = mm.allocate_device_on(12 * MIB, &stream).unwrap();
        let small: Vec<_> = (0..3)
            .map(|_| mm.allocate_device(2 * MIB).unwrap())
            .collect();
        let refusal = refusal(mm.allocate_device_on(20 * MIB, &stream));
        let holders = &refusal.holders;
        assert_eq!(holders.blocks, 4, "{mode}: {refusal}");
        assert_eq!(
            (holders.largest[0].size, holders.largest[0].address),
            (12 * MIB, large.addr())
        );
        assert_eq!(holders.largest[0].stream, Some(stream.id()), "{mode}");
        assert_eq!(holders.largest[1].stream, None, "{mode}");
        let sizes: Vec<_> = holders.sizes.iter().map(|of| (of.size, of.count)).collect();
        assert_eq!(sizes, [(12 * MIB, 1), (2 * MIB, 3)], "{mode}");
        let text = refusal.to_string();
        for part in [
            "20.0 MiB requested".to_string(),
            "18.0 MiB in use".to_string(),
            format!("12.0 MiB on stream {}", stream.id()),
            "2.0 MiB on no stream".to_string(),
            "3 of 2.0 MiB".to_string(),
            "the device reports".to_string(),
        ] {
            assert!(text.contains(&part), "{mode}: `{text}` lacks `{part}`");
        }
        assert_eq!(last_error(), 0, "{mode}");
        // SAFETY: nobody uses the blocks.
        unsafe {
            small
                .into_iter()
                .for_each(|block| mm.free_device(block).unwrap());
            mm.free_device_on(large, &stream).unwrap();
        }
        stream.synchronize().unwrap();
        mm.shutdown().unwrap();
    }
}

#[cfg(feature = "sim")]
#[test]
fn a_failing_trim_does_not_hide_that_memory_has_run_out() {
    use cudart_sim::sys::cudaError;
    let _turn = turn();
    let config = Config::default()
        .device_growth(8 * MIB)
        .device_source(DeviceSource::Malloc);
    let mm = MemoryManager::new(config).unwrap();
    // What cannot be freed is lost to the device: another one than the others use.
    let stream = Stream::builder().device(2).build().unwrap();
    let idle = mm.allocate_device_on(8 * MIB, &stream).unwrap();
    let kept = mm.allocate_device_on(8 * MIB, &stream).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(idle, &stream).unwrap() };
    stream.synchronize().unwrap();
    let fault = cudart_sim::fail("cudaFree", cudaError::cudaErrorUnknown).times(100);
    let refusal = refusal(mm.allocate_device_on(125 * MIB, &stream));
    assert_eq!((refusal.requested, refusal.in_use), (125 * MIB, 8 * MIB));
    assert!(fault.fired() > 0, "nothing was given back");
    drop(fault);
    assert_eq!(last_error(), 0);
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(kept, &stream).unwrap() };
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

/// A pool of segments of 2 MiB, each of them freed on one of the streams.
fn freed_on(mm: &MemoryManager, streams: &[&Stream]) {
    let blocks: Vec<_> = (streams.iter())
        .map(|stream| mm.allocate_device_on(2 * MIB, *stream).unwrap())
        .collect();
    for (block, stream) in blocks.into_iter().zip(streams) {
        // SAFETY: nobody uses the block but work that is in the stream.
        unsafe { mm.free_device_on(block, *stream).unwrap() };
    }
}

fn capped(limit: usize) -> MemoryManager {
    capped_on(limit, DeviceSource::Auto)
}

fn capped_on(limit: usize, source: DeviceSource) -> MemoryManager {
    let config = Config::default()
        .device_source(source)
        .device_growth(2 * MIB)
        .device_pool_limit(Some(limit));
    MemoryManager::new(config).unwrap()
}

/// Two segments of 2 MiB are no 4 MiB: both must go back. (`cudaFree` then waits for the whole device; that fewer streams
/// are waited for before it is a unit test of the pool's.)
#[test]
fn segments_behind_running_work_go_back_before_the_limit_refuses() {
    let _turn = turn();
    let mm = capped_on(6 * MIB, DeviceSource::Malloc);
    let [first, second, asks] = [(); 3].map(|()| Stream::new().unwrap());
    let gate = Gate::new();
    stall(&first, &gate);
    stall(&second, &gate);
    freed_on(&mm, &[&first, &second, &second]);
    let opener = gate.open_after(Duration::from_millis(50));
    let got = mm.allocate_device_on(4 * MIB, &asks).unwrap();
    assert!(second.query().unwrap(), "the memory was in use");
    assert!(mm.stats().device[0].best_fit.peak_reserved <= 6 * MIB);
    opener.join().unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(got, &asks).unwrap() };
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

/// The same with mapped memory: a live block lies between the two halves, which must both be idle before they can move.
#[test]
fn mapped_memory_behind_running_work_moves_before_the_limit_refuses() {
    let _turn = turn();
    let mm = capped_on(6 * MIB, DeviceSource::Virtual);
    let [first, second, asks] = [(); 3].map(|()| Stream::new().unwrap());
    let parts = [&first, &asks, &second]
        .map(|stream| (mm.allocate_device_on(2 * MIB, stream).unwrap(), stream));
    let gate = Gate::new();
    stall(&first, &gate);
    stall(&second, &gate);
    for (block, stream) in [parts[0], parts[2]] {
        // SAFETY: nobody uses the block but work that is in the stream.
        unsafe { mm.free_device_on(block, stream).unwrap() };
    }
    let opener = gate.open_after(Duration::from_millis(50));
    let got = mm.allocate_device_on(4 * MIB, &asks).unwrap();
    assert!(
        first.query().unwrap() && second.query().unwrap(),
        "the memory was in use"
    );
    assert!(mm.stats().device[0].best_fit.peak_reserved <= 6 * MIB);
    opener.join().unwrap();
    // SAFETY: nobody uses the blocks.
    unsafe {
        mm.free_device_on(got, &asks).unwrap();
        mm.free_device_on(parts[1].0, &asks).unwrap();
    }
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

/// Waiting in vain would be the worst of both.
#[test]
fn a_request_that_no_work_makes_room_for_is_refused_at_once() {
    let _turn = turn();
    let mm = capped(6 * MIB);
    let (stuck, asks) = (Stream::new().unwrap(), Stream::new().unwrap());
    let gate = Gate::new();
    stall(&stuck, &gate);
    let kept = mm.allocate_device_on(4 * MIB, &asks).unwrap();
    freed_on(&mm, &[&stuck]);
    let refusal = refusal(mm.allocate_device_on(4 * MIB, &asks));
    assert!(!stuck.query().unwrap(), "it waited");
    assert_eq!((refusal.pending, refusal.in_use), (2 * MIB, 4 * MIB));
    gate.open();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(kept, &asks).unwrap() };
    mm.shutdown().unwrap();
}

/// Case B40 (b), in the async modes: what one stream has freed serves, and another may be stuck.
#[test]
fn an_async_mode_waits_for_no_stuck_stream_if_another_helps() {
    sim_only!("the device must be full");
    let _turn = turn();
    for mode in [
        DeviceAllocatorMode::AsyncStreamOrdered,
        DeviceAllocatorMode::CudaAsyncPool,
    ] {
        let mm = manager_in(mode);
        // The older stream is asked first.
        let [slow, stuck, asks] = [(); 3].map(|()| Stream::builder().device(2).build().unwrap());
        let blocks = [(60 * MIB, &slow), (MIB, &stuck)]
            .map(|(size, on)| (mm.allocate_device_on(size, on).unwrap(), on));
        let (never, soon) = (Gate::new(), Gate::new());
        stall(&stuck, &never);
        stall(&slow, &soon);
        for (block, on) in blocks {
            // SAFETY: nobody uses the block but work that is in the stream.
            unsafe { mm.free_device_on(block, on).unwrap() };
        }
        let opener = soon.open_after(Duration::from_millis(50));
        let got = mm.allocate_device_on(80 * MIB, &asks).unwrap();
        assert!(!stuck.query().unwrap(), "{mode}: it waited");
        opener.join().unwrap();
        never.open();
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(got, &asks).unwrap() };
        for stream in [slow, stuck, asks] {
            stream.synchronize().unwrap();
        }
        mm.shutdown().unwrap();
    }
}

/// The own pool's request waits for what an async mode has freed.
#[test]
fn memory_that_an_async_mode_frees_behind_work_serves_the_own_pool() {
    sim_only!("the device must be full");
    let _turn = turn();
    let mm = manager_in(DeviceAllocatorMode::CudaAsyncPool);
    let stream = Stream::new().unwrap();
    let block = mm.allocate_device_on(20 * MIB, &stream).unwrap();
    let gate = Gate::new();
    stall(&stream, &gate);
    // SAFETY: nobody uses the block but work that is in the stream.
    unsafe { mm.free_device_on(block, &stream).unwrap() };
    let opener = gate.open_after(Duration::from_millis(50));
    mm.set_device_allocator_mode(DeviceAllocatorMode::BestFitPool);
    let got = mm.allocate_device(24 * MIB).unwrap();
    opener.join().unwrap();
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device(got).unwrap() };
    mm.shutdown().unwrap();
}

/// Case B14 (a): the growth step does not fit, the request does.
#[test]
fn growth_backs_off_to_the_request() {
    sim_only!("the device has 32 MiB");
    let _turn = turn();
    let mm = manager_in(DeviceAllocatorMode::BestFitPool);
    let config = Config::default().device_growth(20 * MIB);
    let other = MemoryManager::new(config).unwrap();
    for mm in [&mm, &other] {
        let blocks: Vec<_> = (0..3)
            .map(|_| mm.allocate_device(8 * MIB).unwrap())
            .collect();
        assert!(mm.stats().device[0].best_fit.reserved <= MEMORY);
        for block in blocks {
            // SAFETY: nobody uses the block.
            unsafe { mm.free_device(block).unwrap() };
        }
        mm.shutdown().unwrap();
    }
}

/// Case B14 (b): the device holds the initial size, and not much more.
#[test]
fn an_initial_size_that_fits_is_reserved_as_it_is() {
    sim_only!("the second device has 16 MiB");
    let _turn = turn();
    let initial = 15_250_961;
    let mm = MemoryManager::new(Config::default().device_pool_size(initial)).unwrap();
    let stream = Stream::builder().device(1).build().unwrap();
    let block = mm.allocate_device_on(MIB, &stream).unwrap();
    let stats = mm.stats();
    let of = stats.device.iter().find(|of| of.device == 1).unwrap();
    assert_eq!(of.best_fit.reserved, initial.next_multiple_of(256));
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device_on(block, &stream).unwrap() };
    mm.shutdown().unwrap();
}

/// Case B14 (c): the limit is no multiple of the granule.
#[test]
fn an_initial_size_that_is_its_own_limit_works() {
    let _turn = turn();
    let mm = rig::capped(1000);
    let block = mm.allocate_device(700).unwrap();
    assert_eq!(mm.stats().device[0].best_fit.reserved, 768);
    assert!(mm.allocate_device(256).unwrap_err().is_out_of_memory());
    let error = mm.allocate_device(1000).unwrap_err().to_string();
    assert!(error.contains("multiple of 256"), "{error}");
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device(block).unwrap() };
    mm.shutdown().unwrap();
}

/// Case B14 (d).
#[test]
fn an_initial_size_above_its_limit_is_refused_when_it_is_set() {
    let config = Config::default()
        .device_pool_size(2 * MIB)
        .device_pool_limit(Some(MIB));
    let error = MemoryManager::new(config).unwrap_err();
    assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
}

/// Case B15.
#[test]
fn a_free_segment_goes_back_before_the_limit_refuses() {
    let _turn = turn();
    let config = Config::default()
        .device_pool_size(256 * KIB)
        .device_pool_limit(Some(MIB));
    let mm = MemoryManager::new(config).unwrap();
    let block = mm.allocate_device(MIB).unwrap();
    let stats = mm.stats().device[0].best_fit;
    assert_eq!((stats.reserved, stats.peak_reserved), (MIB, MIB));
    // SAFETY: nobody uses the block.
    unsafe { mm.free_device(block).unwrap() };
    mm.shutdown().unwrap();
}

/// Case B15, the variant.
#[test]
fn a_segment_with_a_live_block_stays_and_the_rest_can_still_be_had() {
    let _turn = turn();
    let config = Config::default()
        .device_pool_size(256 * KIB)
        .device_pool_limit(Some(MIB));
    let mm = MemoryManager::new(config).unwrap();
    let live = mm.allocate_device(256).unwrap();
    let refused = refusal(mm.allocate_device(MIB));
    assert_eq!((refused.in_use, refused.limit), (256, Some(MIB)));
    let rest = mm.allocate_device(MIB - 256 * KIB).unwrap();
    assert_eq!(mm.stats().device[0].best_fit.peak_reserved, MIB);
    // SAFETY: nobody uses the blocks.
    unsafe {
        mm.free_device(live).unwrap();
        mm.free_device(rest).unwrap();
    }
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

#[test]
fn the_figures_say_what_rounding_and_fragmentation_take() {
    let _turn = turn();
    let mm = rig::capped(MIB);
    let sizes = [1, 255, 256, 257, 1000];
    let blocks = sizes.map(|size| mm.allocate_device(size).unwrap());
    let stats = mm.stats().device[0].best_fit;
    let (asked, rounded) = sizes.iter().fold((0, 0), |(a, r), size| {
        (a + size, r + size.next_multiple_of(256))
    });
    assert_eq!(stats.in_use, rounded);
    assert_eq!(stats.internal_waste, rounded - asked);
    assert_eq!(stats.reserved_over_live(), MIB as f64 / rounded as f64);
    for block in blocks {
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device(block).unwrap() };
    }
    assert_eq!(mm.stats().device[0].best_fit.internal_waste, 0);
    // Four blocks of 256 KiB; the first and the third are freed.
    let blocks = [(); 4].map(|()| mm.allocate_device(256 * KIB).unwrap());
    mm.reset_peak();
    let free = |block| {
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device(block).unwrap() }
    };
    free(blocks[0]);
    free(blocks[2]);
    let external_waste = || mm.fragmentation().of_device(0).external_waste;
    assert_eq!(external_waste(), 0, "nobody asked");
    let refused = refusal(mm.allocate_device(300 * KIB));
    assert_eq!(refused.free_pieces, 2);
    let stats = mm.stats().device[0].best_fit;
    assert_eq!(
        (stats.largest_miss, external_waste(), stats.idle),
        (300 * KIB, 512 * KIB, 512 * KIB)
    );
    free(blocks[1]);
    let stats = mm.stats().device[0].best_fit;
    assert_eq!((external_waste(), stats.idle), (0, 768 * KIB));
    free(blocks[3]);
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

/// What lacks is idle in another manager: the refusal says so, and what it names helps.
#[test]
fn memory_that_another_manager_holds_idle_is_named() {
    sim_only!("the device must be full");
    let _turn = turn();
    let config = || common::config().device_growth(2 * MIB);
    let [one, other] = [(); 2].map(|()| MemoryManager::new(config()).unwrap());
    let block = other.allocate_device(24 * MIB).unwrap();
    let refused = refusal(one.allocate_device(16 * MIB));
    let text = refused.to_string();
    assert!(!text.contains("Other managers"), "it is in use: {text}");
    // SAFETY: nobody uses the block.
    unsafe { other.free_device(block).unwrap() };
    let refused = refusal(one.allocate_device(16 * MIB));
    assert!(refused.idle_of_others >= 24 * MIB, "{refused}");
    let text = refused.to_string();
    assert!(
        text.contains("Other managers of this process hold"),
        "{text}"
    );
    assert!(text.contains("trim()"), "{text}");
    other.trim().unwrap();
    let block = one.allocate_device(16 * MIB).unwrap();
    // SAFETY: nobody uses the block.
    unsafe { one.free_device(block).unwrap() };
    one.shutdown().unwrap();
}
