//! Parts of guards: who waits for whom, what is refused, and when the block goes back.

use crate::common::{KIB, MIB, assert_sound, manager, manager_in, stall};
use crate::rig::{self, contents, is_range_error};
use memmgr::{Error, MemoryManager, PinnedBuffer, Stream};
use memmgr_tests::Gate;
use std::{sync::Arc, time::Duration};

fn filled(mm: &MemoryManager, len: usize, value: u8) -> PinnedBuffer<u8> {
    let mut host = mm.pinned::<u8>(len).unwrap();
    host.as_mut_slice().unwrap().fill(value);
    host
}

#[test]
fn a_stream_waits_for_the_parts_that_it_shares_with_others_and_for_no_more() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
        let device = mm.device_zeroed::<u8>(2 * MIB, &a).unwrap();
        // From now on `b` follows the allocation.
        let _ = b.memset(&device, 9).unwrap();
        b.synchronize().unwrap();
        let gate = Gate::new();
        stall(&a, &gate);
        let stuck = a.memset(&device.slice(..MIB).unwrap(), 0x11).unwrap();
        let beside = b.memset(&device.slice(MIB..).unwrap(), 0x22).unwrap();
        beside.wait().unwrap();
        assert!(!stuck.is_done().unwrap(), "{mode}");
        // The last byte of the first half.
        let across = b
            .memset(&device.slice(MIB - 1..MIB + 1).unwrap(), 0x33)
            .unwrap();
        assert!(!across.is_done().unwrap(), "{mode}: it did not wait");
        gate.open();
        let bytes = contents(&mm, &device, &b);
        rig::assert_all(&bytes[..MIB - 1], 0x11, "the first half");
        rig::assert_all(&bytes[MIB - 1..MIB + 1], 0x33, "the middle");
        rig::assert_all(&bytes[MIB + 1..], 0x22, "the second half");
        drop(device);
        assert_sound(&mm);
        mm.shutdown().unwrap();
    }
}

#[test]
fn a_use_of_one_part_does_not_cover_an_earlier_one_of_another() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let (s, other) = (Stream::new().unwrap(), Stream::new().unwrap());
        let device = mm.device_zeroed::<u8>(2 * MIB, &s).unwrap();
        let mut host = filled(&mm, 2 * MIB, 7);
        let _ = other.memset(&device, 0).unwrap();
        other.synchronize().unwrap();
        let gate = Gate::new();
        stall(&s, &gate);
        for half in [MIB..2 * MIB, 0..MIB] {
            let _ = s
                .copy_to_device(
                    &host.slice(half.clone()).unwrap(),
                    &device.slice(half).unwrap(),
                )
                .unwrap();
        }
        // On the device: another stream overwrites what was copied first.
        let after = other.memset(&device.slice(MIB..).unwrap(), 5).unwrap();
        assert!(!after.is_done().unwrap(), "{mode}: it did not wait");
        // On the host as well.
        let opener = gate.open_after(Duration::from_millis(50));
        let mut back = host.slice_mut(MIB..).unwrap();
        back.as_mut_slice().unwrap().fill(8);
        opener.join().unwrap();
        let bytes = contents(&mm, &device, &other);
        rig::assert_all(&bytes[..MIB], 7, "the first half");
        rig::assert_all(&bytes[MIB..], 5, "the second half");
        drop((host, device));
        mm.shutdown().unwrap();
    }
}

#[test]
fn hundreds_of_parts_in_flight_are_all_waited_for() {
    const PARTS: usize = 300;
    let mm = manager();
    let streams = [(); 3].map(|()| Stream::new().unwrap());
    let device = mm.device_zeroed::<u8>(PARTS * KIB, &streams[0]).unwrap();
    let mut host = filled(&mm, PARTS * KIB, 0xFF);
    let ready = streams[0].record().unwrap();
    let gate = Gate::new();
    for stream in &streams {
        stream.wait(&ready).unwrap();
        stall(stream, &gate);
    }
    for part in 0..PARTS {
        let range = part * KIB..(part + 1) * KIB;
        let on_device = device.slice(range.clone()).unwrap();
        let stream = &streams[part % 3];
        let _ = stream.memset(&on_device, part as u8).unwrap();
        let mut on_host = host.slice_mut(range).unwrap();
        let _ = stream.copy_to_host(&on_device, &mut on_host).unwrap();
    }
    let opener = gate.open_after(Duration::from_millis(50));
    for part in 0..PARTS {
        let seen = host.slice(part * KIB..(part + 1) * KIB).unwrap();
        rig::assert_all(seen.as_slice().unwrap(), part as u8, "a part");
    }
    opener.join().unwrap();
    drop((host, device));
    mm.shutdown().unwrap();
}

#[test]
fn ranges_and_splits_that_leave_a_buffer_are_refused_without_a_cuda_call() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let mut host = mm.pinned::<u32>(100).unwrap();
    let mut device = mm.device::<u32>(100, &s).unwrap();
    let ((host, device), calls) = rig::calls_of(|| {
        #[allow(clippy::reversed_empty_ranges)]
        for (from, to) in [(0, 101), (101, 101), (5, 4), (101, 100), (0, usize::MAX)] {
            is_range_error(host.slice(from..to));
            is_range_error(host.slice_mut(from..to));
            is_range_error(device.slice(from..to));
            is_range_error(device.slice_mut(from..to));
        }
        is_range_error(host.slice(..=100));
        // The error has the range as it is written.
        #[allow(clippy::reversed_empty_ranges)]
        let text = host.slice(7..3).unwrap_err().to_string();
        assert!(text.contains("elements 7..3 of"), "{text}");
        let text = host.slice(9..=100).unwrap_err().to_string();
        assert!(text.contains("elements 9..=100 of"), "{text}");
        is_range_error(host.slice(0..=usize::MAX));
        is_range_error(host.slice((
            std::ops::Bound::Excluded(usize::MAX),
            std::ops::Bound::Unbounded,
        )));
        // A part is left as a buffer is.
        let part = host.slice(10..20).unwrap();
        is_range_error(part.slice(..11));
        assert_eq!(part.slice(10..).unwrap().len(), 0);
        let mut part = host.slice_mut(10..20).unwrap();
        is_range_error(part.slice(9..11));
        is_range_error(part.slice_mut(11..));
        is_range_error(part.split_at_mut(11));
        is_range_error(device.slice(90..).unwrap().slice(..11));
        is_range_error(device.slice_mut(90..).unwrap().split_at_mut(11));
        // A buffer that is refused comes back.
        let refused = host.split_at(101).unwrap_err();
        assert!(
            matches!(refused.error(), Error::InvalidRange { .. }),
            "{refused}"
        );
        host = refused.into_inner();
        device = device.split_at(usize::MAX).unwrap_err().into_inner();
        assert_eq!((host.len(), device.len()), (100, 100));
        // Lengths that differ.
        let part = device.slice(1..).unwrap();
        is_range_error(s.copy_to_device(&host, &part));
        is_range_error(s.copy_to_host(&part, &mut host));
        is_range_error(s.copy_device_to_device(&part, &part.slice(..5).unwrap()));
        // Parts that overlap, by one element too.
        is_range_error(s.copy_device_to_device(&device, &device));
        let (front, back) = (device.slice(..50).unwrap(), device.slice(49..).unwrap());
        is_range_error(s.copy_device_to_device(&front, &back));
        (host, device)
    });
    assert_eq!(calls, 0);
    drop((host, device));
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

#[test]
fn only_neighbours_of_one_block_are_joined_and_others_come_back() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let (a, rest) = mm.device::<u16>(90, &s).unwrap().split_at(30).unwrap();
    let (b, c) = rest.split_at(30).unwrap();
    let starts = [&a, &b, &c].map(|part| part.as_ptr() as usize);
    assert_eq!([starts[1] - starts[0], starts[2] - starts[1]], [60, 60]);
    // With a gap, in the wrong order, with itself as a whole, with a buffer of another block.
    let (a, c) = a.join(c).unwrap_err().into_inner();
    let (b, a) = b.join(a).unwrap_err().into_inner();
    let whole = mm.device::<u16>(90, &s).unwrap();
    let other = mm.device::<u16>(90, &s).unwrap();
    let refused = whole.join(other).unwrap_err();
    assert!(
        matches!(refused.error(), Error::InvalidRange { .. }),
        "{refused}"
    );
    let (whole, other) = refused.into_inner();
    let (a, whole) = a.join(whole).unwrap_err().into_inner();
    // From the back, as from the front.
    let all = a.join(b.join(c).unwrap()).unwrap();
    assert_eq!((all.len(), all.size_bytes()), (90, 180));
    assert_eq!(all.as_ptr() as usize, starts[0]);
    drop((all, whole, other));
    assert_eq!(mm.stats().in_use(), 0);
    assert_eq!(mm.stats().drop_failures, 0);
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

#[test]
fn parts_without_bytes_are_as_good_as_any_other_and_cost_no_cuda_call() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let mut host = filled(&mm, KIB, 1);
    let device = mm.device_zeroed::<u8>(KIB, &s).unwrap();
    let mut nothing = mm.pinned::<u8>(0).unwrap();
    let ((), calls) = rig::calls_of(|| {
        for at in [0, 5, KIB] {
            let on_device = device.slice(at..at).unwrap();
            assert!(on_device.is_empty() && on_device.as_ptr().is_null());
            let _ = s
                .copy_to_device(&host.slice(at..at).unwrap(), &on_device)
                .unwrap();
            let mut part = host.slice_mut(at..at).unwrap();
            assert!(part.as_mut_slice().unwrap().is_empty());
            let _ = s.copy_to_host(&on_device, &mut part).unwrap();
            let _ = s.copy_to_host(&on_device, &mut nothing).unwrap();
            let _ = s.memset(&on_device, 1).unwrap();
            let _ = s.copy_device_to_device(&on_device, &on_device).unwrap();
        }
        // Elements without a size.
        let units = mm.pinned::<()>(1000).unwrap();
        assert_eq!(units.slice(10..500).unwrap().as_slice().unwrap().len(), 490);
        let (front, back) = units.split_at(400).unwrap();
        assert_eq!((front.len(), back.len()), (400, 600));
        assert_eq!(front.join(back).unwrap().as_slice().unwrap().len(), 1000);
    });
    assert_eq!(calls, 0);
    // An owning part without bytes keeps its block.
    let (empty, all) = host.split_at(0).unwrap();
    assert_eq!((empty.len(), all.len()), (0, KIB));
    let (all, last) = all.split_at(KIB).unwrap();
    drop(all);
    assert_eq!(mm.stats().pinned.in_use, KIB);
    drop(empty);
    assert!(last.is_empty());
    drop(last);
    assert_eq!(mm.stats().pinned.in_use, 0);
    drop(device);
    assert_sound(&mm);
    mm.shutdown().unwrap();
}

#[test]
fn a_block_goes_back_with_its_last_part_on_any_thread_and_in_any_order() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let s = Stream::new().unwrap();
        let device = mm.device::<u8>(4 * KIB, &s).unwrap();
        let host = mm.pinned::<u8>(4 * KIB).unwrap();
        let (d1, d2) = device.split_at(KIB).unwrap();
        let (d2, d3) = d2.split_at(KIB).unwrap();
        let (h1, h2) = host.split_at(3 * KIB).unwrap();
        for part in [d2, d1] {
            std::thread::spawn(move || drop(part)).join().unwrap();
        }
        drop(h2);
        assert_eq!(mm.stats().in_use(), 8 * KIB, "{mode}");
        assert_eq!(mm.stats().pinned.live_blocks, 1);
        let _ = s.memset(&d3, 1).unwrap();
        s.launch_host(move || drop((d3, h1))).unwrap();
        s.synchronize().unwrap();
        assert_eq!(mm.stats().in_use(), 0, "{mode}");
        assert_eq!(mm.stats().drop_failures, 0, "{mode}");
        assert_sound(&mm);
        mm.shutdown().unwrap();
    }
}

/// B22, for parts: the last one to go had nothing to do with the copies that are in flight.
#[test]
fn a_block_goes_back_behind_the_uses_of_all_its_parts() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let (s, other) = (Stream::new().unwrap(), Stream::new().unwrap());
        let device = mm.device_zeroed::<u8>(2 * MIB, &s).unwrap();
        let target = mm.device_zeroed::<u8>(MIB, &other).unwrap();
        let (host, untouched) = filled(&mm, 2 * MIB, 0x42).split_at(MIB).unwrap();
        let (from, rest) = device.split_at(MIB).unwrap();
        let _ = other.memset(&from, 0x43).unwrap();
        other.synchronize().unwrap();
        let (host_at, from_at) = (host.as_ptr(), from.as_ptr());
        let gate = Gate::new();
        stall(&other, &gate);
        let _ = other.copy_device_to_device(&from, &target).unwrap();
        let on_device = mm.device::<u8>(MIB, &other).unwrap();
        let _ = other.copy_to_device(&host, &on_device).unwrap();
        drop((host, from));
        drop((untouched, rest));
        let mut next = mm.pinned::<u8>(2 * MIB).unwrap();
        assert_ne!(next.as_ptr(), host_at, "{mode}");
        next.as_mut_slice().unwrap().fill(0xEE);
        // Whatever the address is: it is ordered.
        let again = mm.device::<u8>(2 * MIB, &s).unwrap();
        let _ = s.memset(&again, 0xEE).unwrap();
        assert!(*mode != memmgr::DeviceAllocatorMode::BestFitPool || again.as_ptr() != from_at);
        gate.open();
        rig::assert_all(&contents(&mm, &target, &other), 0x43, "the device's");
        rig::assert_all(&contents(&mm, &on_device, &other), 0x42, "the host's");
        drop((next, again, target, on_device));
        assert_eq!(mm.stats().drop_failures, 0);
        assert_sound(&mm);
        mm.shutdown().unwrap();
    }
}

#[test]
fn two_mutable_parts_of_one_buffer_are_filled_at_once() {
    let mm = manager();
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let mut device = mm.device::<u8>(2 * MIB, &a).unwrap();
    let mut host = filled(&mm, 2 * MIB, 0);
    let (front, back) = device.slice_mut(..).unwrap().split_at_mut(MIB).unwrap();
    let (mut to_front, mut to_back) = host.slice_mut(..).unwrap().split_at_mut(MIB).unwrap();
    std::thread::scope(|threads| {
        for (stream, on_device, on_host, value) in [
            (&a, front, &mut to_front, 0xA1),
            (&b, back, &mut to_back, 0xB2),
        ] {
            threads.spawn(move || {
                let _ = stream.memset(&on_device, value).unwrap();
                let _ = stream.copy_to_host(&on_device, on_host).unwrap();
                rig::assert_all(on_host.as_slice().unwrap(), value, "a half");
                on_host.as_mut_slice().unwrap()[0] = 1;
            });
        }
    });
    let seen = host.as_slice().unwrap();
    assert_eq!(
        [seen[0], seen[1], seen[MIB], seen[MIB + 1]],
        [1, 0xA1, 1, 0xB2]
    );
    drop((host, device));
    mm.shutdown().unwrap();
}

#[test]
fn whatever_points_to_a_guard_is_taken_for_it() {
    let mm = manager();
    let s = Stream::new().unwrap();
    let mut boxed = Box::new(filled(&mm, KIB, 3));
    let shared = Arc::new(mm.device::<u8>(KIB, &s).unwrap());
    let _ = s.copy_to_device(&boxed, &shared).unwrap();
    let _ = s.copy_to_device(&&*boxed, &&shared).unwrap();
    let _ = s.copy_to_host(&shared, &mut boxed).unwrap();
    let mut lent = &mut *boxed;
    let _ = s.copy_to_host(&shared, &mut lent).unwrap();
    let _ = s.copy_to_host::<u8>(&shared, lent).unwrap();
    rig::assert_all(boxed.as_slice().unwrap(), 3, "through pointers");
    drop((boxed, shared));
    mm.shutdown().unwrap();
}

#[test]
fn what_is_zeroed_or_copied_on_one_stream_is_seen_on_every_other() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
        // Not the zeros that new segments have.
        let dirty = mm.device::<u8>(2 * MIB, &a).unwrap();
        let _ = a.memset(&dirty, 0xDD).unwrap();
        drop(dirty);
        let gate = Gate::new();
        stall(&a, &gate);
        let zeroed = mm.device_zeroed::<u8>(2 * MIB, &a).unwrap();
        let copy = mm.device::<u8>(MIB, &b).unwrap();
        let _ = b
            .copy_device_to_device(&zeroed.slice(MIB..).unwrap(), &copy)
            .unwrap();
        let _ = a
            .copy_device_to_device(&copy, &zeroed.slice(..MIB).unwrap())
            .unwrap();
        let _ = b.memset(&copy, 0xCC).unwrap();
        gate.open();
        rig::assert_all(&contents(&mm, &zeroed, &b), 0, &mode.to_string());
        rig::assert_all(&contents(&mm, &copy, &a), 0xCC, &mode.to_string());
        let dirty = filled(&mm, MIB, 0xDD);
        drop(dirty);
        let host = mm.pinned_zeroed::<u8>(MIB).unwrap();
        rig::assert_all(host.as_slice().unwrap(), 0, "the host's");
        drop((host, zeroed, copy));
        assert_sound(&mm);
        mm.shutdown().unwrap();
    }
}

/// A part may be made in a function and its elements be returned.
#[test]
fn the_elements_of_a_mutable_part_live_as_long_as_the_buffer_is_borrowed() {
    fn first_four(buffer: &mut PinnedBuffer<u8>) -> memmgr::Result<&mut [u8]> {
        buffer.slice_mut(..4)?.into_mut_slice()
    }
    let mm = manager();
    let stream = Stream::new().unwrap();
    let mut host = filled(&mm, 8, 1);
    let device = mm.device::<u8>(8, &stream).unwrap();
    // It waits, as every view of what a copy reads.
    let _ = stream.copy_to_device(&host, &device).unwrap();
    first_four(&mut host).unwrap().fill(2);
    assert_eq!(host.as_slice().unwrap(), [2, 2, 2, 2, 1, 1, 1, 1]);
    let mut back = filled(&mm, 8, 0);
    let _ = stream.copy_to_host(&device, &mut back).unwrap();
    assert_eq!(back.as_slice().unwrap(), [1; 8]);
}
