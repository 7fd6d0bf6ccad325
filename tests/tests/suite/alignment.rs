//! Every block starts at a multiple of 256 bytes (case B08, with the alignment that all requests have).

use crate::common::{
    KIB, MIB, MODES, assert_sound,
    checks::{KINDS, are_disjoint, without_calls},
    manager, manager_in,
};
use bytemuck::Zeroable;
use memmgr::{Error, MemoryManager, Pod, Stream};

const ALIGNMENT: usize = 256;

/// Sizes that are multiples of nothing in particular, and of the granule.
const SIZES: [usize; 12] = [
    1,
    2,
    100,
    255,
    256,
    257,
    511,
    4 * KIB - 1,
    4 * KIB + 1,
    100_000,
    MIB,
    MIB + 1,
];

/// Case B08: first blocks and reused ones, in every mode and pool.
#[test]
fn every_block_is_aligned_to_256_bytes_also_after_splits() {
    for kind in KINDS {
        // An initial size that is no multiple of anything.
        for initial in [0, 3 * MIB + 77] {
            let manager = kind.manager();
            let stream = Stream::new().unwrap();
            kind.set_pool_size(&manager, initial).unwrap();
            let mut live: Vec<(usize, usize)> = Vec::new();
            for round in 0..4 {
                for (number, size) in SIZES.into_iter().enumerate() {
                    let ptr = if number % 2 == 0 {
                        kind.allocate(&manager, size)
                    } else {
                        kind.allocate_on(&manager, size, &stream)
                    };
                    live.push((ptr.unwrap().expose_provenance(), size));
                }
                for (address, size) in &live {
                    assert_eq!(
                        address % ALIGNMENT,
                        0,
                        "{kind:?}, round {round}: {size} bytes at {address:#x}"
                    );
                }
                assert!(are_disjoint(&live), "{kind:?}, round {round}");
                // Free every other one, so that the next round meets holes.
                let mut kept = Vec::new();
                for (number, (address, size)) in live.into_iter().enumerate() {
                    if number % 2 == round % 2 {
                        kept.push((address, size));
                        continue;
                    }
                    let ptr = std::ptr::with_exposed_provenance_mut(address);
                    // SAFETY: nobody uses the block.
                    unsafe {
                        if number % 3 == 0 {
                            kind.free_on(&manager, ptr, &stream).unwrap();
                        } else {
                            kind.free(&manager, ptr).unwrap();
                        }
                    }
                }
                live = kept;
                assert_sound(&manager);
            }
            for (address, _) in live {
                // SAFETY: nobody uses the block.
                unsafe {
                    kind.free(&manager, std::ptr::with_exposed_provenance_mut(address))
                        .unwrap();
                }
            }
            assert_eq!(manager.stats().in_use(), 0);
        }
    }
}

macro_rules! aligned {
    ($($name:ident: $alignment:literal),*) => {$(
        #[derive(Clone, Copy, PartialEq, Debug, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C, align($alignment))]
        struct $name([u8; $alignment]);
    )*};
}

aligned!(A1: 1, A2: 2, A4: 4, A8: 8, A16: 16, A32: 32, A64: 64, A128: 128, A256: 256, A512: 512);

fn guards_are_aligned_for<T: Pod>(manager: &MemoryManager, stream: &Stream) {
    let alignment = align_of::<T>();
    for len in [0, 1, 3, 100] {
        // A small block before each, so that nobody is aligned by chance.
        let odd = manager.pinned::<u8>(1).unwrap();
        let odd_device = manager.device::<u8>(1, stream).unwrap();
        let mut pinned = manager.pinned_zeroed::<T>(len).unwrap();
        let device = manager.device::<T>(len, stream).unwrap();
        assert_eq!(pinned.size_bytes(), len * size_of::<T>());
        assert_eq!(device.size_bytes(), len * size_of::<T>());
        for address in [pinned.as_ptr().addr(), device.as_ptr().addr()] {
            assert_eq!(
                address % ALIGNMENT,
                0,
                "alignment {alignment}, length {len}"
            );
        }
        let slice = pinned.as_slice().unwrap();
        assert_eq!((slice.len(), slice.as_ptr().addr() % alignment), (len, 0));
        let slice = pinned.as_mut_slice().unwrap();
        assert_eq!((slice.len(), slice.as_ptr().addr() % alignment), (len, 0));
        bytemuck::cast_slice_mut::<T, u8>(slice).fill(0x5A);
        // And the elements come back through the device.
        let mut back = manager.pinned_zeroed::<T>(len).unwrap();
        let _ = stream.copy_to_device(&pinned, &device).unwrap();
        let _ = stream.copy_to_host(&device, &mut back).unwrap();
        assert!(
            bytemuck::cast_slice::<T, u8>(back.as_slice().unwrap())
                .iter()
                .all(|byte| *byte == 0x5A)
        );
        drop((odd, odd_device));
    }
}

/// Case B08: guards of types with an alignment of their own.
#[test]
fn guards_of_types_with_alignments_up_to_256_are_aligned() {
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        guards_are_aligned_for::<A1>(&manager, &stream);
        guards_are_aligned_for::<A2>(&manager, &stream);
        guards_are_aligned_for::<A4>(&manager, &stream);
        guards_are_aligned_for::<A8>(&manager, &stream);
        guards_are_aligned_for::<A16>(&manager, &stream);
        guards_are_aligned_for::<A32>(&manager, &stream);
        guards_are_aligned_for::<A64>(&manager, &stream);
        guards_are_aligned_for::<A128>(&manager, &stream);
        guards_are_aligned_for::<A256>(&manager, &stream);
        guards_are_aligned_for::<u128>(&manager, &stream);
        assert_eq!(manager.stats().in_use(), 0);
    }
}

/// Case B08: what cannot be honoured is refused, not ignored.
#[test]
fn a_type_with_a_larger_alignment_is_refused() {
    assert_eq!(A512::zeroed(), A512([0; 512]));
    for mode in MODES {
        let manager = manager_in(mode);
        let stream = Stream::new().unwrap();
        for len in [0, 1, usize::MAX] {
            let refusals = without_calls("an alignment of 512", || {
                [
                    manager.pinned::<A512>(len).map(drop),
                    manager.pinned_zeroed::<A512>(len).map(drop),
                    manager.device::<A512>(len, &stream).map(drop),
                    manager.device_zeroed::<A512>(len, &stream).map(drop),
                ]
            });
            for refusal in refusals {
                let error = refusal.unwrap_err();
                let wanted = Error::InvalidAlignment {
                    alignment: 512,
                    max: 256,
                };
                assert_eq!(error, wanted);
                let text = error.to_string();
                assert!(text.contains("512") && text.contains("256"), "{text}");
            }
        }
        assert_eq!(manager.stats().in_use(), 0);
    }
    assert_sound(&manager());
}
