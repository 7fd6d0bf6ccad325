//! Copies and memsets of rectangles between guards: against a model on the host, and what is refused.

use crate::common::{manager, manager_in, stall};
use crate::rig::{self, contents, is_range_error};
use memmgr::{MemoryManager, Stream};
use memmgr_tests::Gate;

const PITCH: usize = 40;
const ROWS: usize = 30;

fn numbered(mm: &MemoryManager, len: usize) -> memmgr::PinnedBuffer<u32> {
    let mut host = mm.pinned::<u32>(len).unwrap();
    for (i, element) in host.as_mut_slice().unwrap().iter_mut().enumerate() {
        *element = 1 + i as u32;
    }
    host
}

#[test]
fn rectangles_arrive_where_they_should_and_nothing_else_changes() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
        let source = numbered(&mm, 7 * 5);
        let device = mm.device_zeroed::<u32>(PITCH * ROWS, &a).unwrap();
        let mut model = vec![0u32; PITCH * ROWS];
        // In at row 3, column 2; across to another matrix on another stream; back into a matrix of yet another pitch.
        let _ = a
            .copy_2d_to_device(
                &source,
                7,
                &device.slice(3 * PITCH + 2..).unwrap(),
                PITCH,
                6,
                5,
            )
            .unwrap();
        for (y, x) in (0..5).flat_map(|y| (0..6).map(move |x| (y, x))) {
            model[(3 + y) * PITCH + 2 + x] = source.as_slice().unwrap()[y * 7 + x];
        }
        let second = mm.device_zeroed::<u32>(10 * 5, &b).unwrap();
        let from = device.slice(3 * PITCH + 2..).unwrap();
        let _ = b
            .copy_2d_device_to_device(&from, PITCH, &second, 10, 6, 5)
            .unwrap();
        // Side by side within one matrix: the rows of one lie in the gaps of the other.
        let to = device.slice(3 * PITCH + 8..).unwrap();
        let _ = a
            .copy_2d_device_to_device(&from, PITCH, &to, PITCH, 6, 5)
            .unwrap();
        for (y, x) in (0..5).flat_map(|y| (0..6).map(move |x| (y, x))) {
            model[(3 + y) * PITCH + 8 + x] = model[(3 + y) * PITCH + 2 + x];
        }
        // The last element of the matrix belongs to the last row.
        let corner = device.slice((ROWS - 2) * PITCH + 30..).unwrap();
        let _ = b.memset_2d(&corner, PITCH, 0x5A, 10, 2).unwrap();
        for row in [ROWS - 2, ROWS - 1] {
            model[row * PITCH + 30..(row + 1) * PITCH].fill(0x5A5A_5A5A);
        }
        let mut back = mm.pinned_zeroed::<u32>(8 * 5).unwrap();
        let _ = a
            .copy_2d_to_host(&second, 10, &mut back.slice_mut(1..).unwrap(), 8, 6, 5)
            .unwrap();
        let seen = back.as_slice().unwrap();
        for (y, x) in (0..5).flat_map(|y| (0..8).map(move |x| (y, x))) {
            let expected = match x {
                1..7 => source.as_slice().unwrap()[y * 7 + x - 1],
                _ => 0,
            };
            assert_eq!(seen[y * 8 + x], expected, "{mode}: row {y}, column {x}");
        }
        assert!(contents(&mm, &device, &a) == model, "{mode}");
        drop((source, device, second, back));
        mm.shutdown().unwrap();
    }
}

#[test]
fn a_rectangle_is_waited_for_from_its_first_to_its_last_byte() {
    let mm = manager();
    let (a, b) = (Stream::new().unwrap(), Stream::new().unwrap());
    let device = mm.device_zeroed::<u32>(PITCH * ROWS, &a).unwrap();
    a.synchronize().unwrap();
    let gate = Gate::new();
    stall(&a, &gate);
    let middle = device.slice(10 * PITCH + 5..).unwrap();
    let _ = a.memset_2d(&middle, PITCH, 1, 10, 2).unwrap();
    let before = b
        .memset(&device.slice(..10 * PITCH + 5).unwrap(), 2)
        .unwrap();
    let behind = b
        .memset(&device.slice(11 * PITCH + 15..).unwrap(), 3)
        .unwrap();
    behind.wait().unwrap();
    assert!(before.is_done().unwrap());
    let last = device.slice(11 * PITCH + 14..11 * PITCH + 15).unwrap();
    let last = b.memset(&last, 4).unwrap();
    assert!(!last.is_done().unwrap());
    gate.open();
    let seen = contents(&mm, &device, &b);
    assert_eq!(
        seen[11 * PITCH + 13..11 * PITCH + 16],
        [0x0101_0101, 0x0404_0404, 0x0303_0303]
    );
    drop(device);
    mm.shutdown().unwrap();
}

#[test]
fn rectangles_that_leave_a_side_are_refused_before_any_cuda_call() {
    for mode in rig::modes() {
        let mm = manager_in(*mode);
        let s = Stream::new().unwrap();
        let mut host = mm.pinned_zeroed::<u32>(100).unwrap();
        let device = mm.device_zeroed::<u32>(100, &s).unwrap();
        let ((), calls) = rig::calls_of(|| {
            // (pitch, width, height) that 100 elements do not hold.
            for (pitch, width, height) in [
                (10, 10, 11),
                (10, 1, 11),
                (9, 10, 2),
                (0, 1, 1),
                (100, 101, 1),
                (99, 2, 2),
                (usize::MAX, 1, 2),
                (usize::MAX / 4, 1, 5),
                (1, 1, usize::MAX),
                (usize::MAX / 2, usize::MAX / 2, 1),
            ] {
                is_range_error(s.copy_2d_to_device(&host, pitch, &device, 10, width, height));
                is_range_error(s.copy_2d_to_host(&device, 10, &mut host, pitch, width, height));
                is_range_error(s.copy_2d_to_host(&device, pitch, &mut host, 10, width, height));
                is_range_error(s.memset_2d(&device, pitch, 1, width, height));
            }
            // Rectangles that overlap.
            let moved = device.slice(11..).unwrap();
            is_range_error(s.copy_2d_device_to_device(&device, 10, &moved, 10, 2, 4));
            is_range_error(s.copy_2d_device_to_device(&device, 10, &device, 20, 2, 4));
            // What holds nothing leaves nothing.
            let _ = s.copy_2d_to_device(&host, 0, &device, 0, 0, 7).unwrap();
            let _ = s.memset_2d(&device, 0, 1, 5, 0).unwrap();
        });
        assert_eq!(calls, 0, "{mode}");
        // By one byte.
        let bytes = mm.device::<u8>(100, &s).unwrap();
        is_range_error(s.memset_2d(&bytes, 99, 1, 2, 2));
        let _ = s.memset_2d(&bytes, 98, 1, 2, 2).unwrap();
        // What fits to the last element is taken.
        for (pitch, width, height) in [(10, 10, 10), (98, 2, 2), (100, 100, 1), (1000, 100, 1)] {
            let _ = s
                .copy_2d_to_device(&host, pitch, &device, pitch, width, height)
                .unwrap();
        }
        s.synchronize().unwrap();
        drop((host, device, bytes));
        mm.shutdown().unwrap();
    }
}
