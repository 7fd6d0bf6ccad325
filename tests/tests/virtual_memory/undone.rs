//! One call that fails at any step of a program whose memory moves, comes back and goes: afterwards nothing is lost.

#[cfg(feature = "sim")]
use crate::{
    common::{MIB, assert_sound},
    stamped::Stamped,
    stats, turn, virtual_memory,
};
#[cfg(feature = "sim")]
use memmgr::Config;

/// Grows, moves, comes back, gives a part back, goes on in other addresses, and leaves the first ones, whatever fails.
#[cfg(feature = "sim")]
fn program(stamped: &mut Stamped) {
    let add = |stamped: &mut Stamped, sizes: &[usize]| -> Vec<usize> {
        let added = sizes.iter().map(|size| {
            let added = stamped.add(size * MIB);
            added.map(|_| stamped.blocks.len() - 1)
        });
        added.filter_map(Result::ok).collect()
    };
    let free = |stamped: &mut Stamped, blocks: &[usize]| {
        blocks.iter().for_each(|number| stamped.free(*number));
    };
    let small = add(stamped, &[2, 2, 2, 2, 2]);
    let (kept, gone): (Vec<usize>, Vec<usize>) = small.iter().partition(|number| *number % 2 == 1);
    free(stamped, &gone);
    // The holes move, and their chunks come back.
    let large = add(stamped, &[4]);
    free(stamped, &large);
    let again = add(stamped, &[2, 2]);
    let _ = stamped.manager.trim();
    let _ = stamped.manager.shutdown();
    // What becomes idle there moves to other addresses, and leaves its places.
    free(stamped, &again);
    let new = add(stamped, &[4]);
    stamped.verify();
    free(stamped, &kept);
    // The first range goes, with the places in it.
    let last = add(stamped, &[6]);
    assert_sound(&stamped.manager);
    free(stamped, &new);
    free(stamped, &last);
}

#[test]
fn whatever_fails_nothing_is_lost() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let unknown = cuda_sys::cudaError::cudaErrorUnknown;
        let other = virtual_memory(Config::default()).unwrap();
        other.trim().unwrap();
        let before = cudart_sim::memory_info(0).unwrap().physical;
        let ranges =
            || cudart_sim::calls("cuMemAddressReserve") - cudart_sim::calls("cuMemAddressFree");
        for call in [
            "cuMemCreate",
            "cuMemMap",
            "cuMemSetAccess",
            "cuMemUnmap",
            "cuMemRelease",
            "cuMemAddressReserve",
            "cuMemAddressFree",
            "cudaGetDevice",
            "cudaMemGetInfo",
        ] {
            for after in 0.. {
                let manager = virtual_memory(Config::default()).unwrap();
                let mut stamped = Stamped::new(manager);
                let reserved = ranges();
                let fault = cudart_sim::fail(call, unknown).after(after);
                program(&mut stamped);
                let fired = fault.fired();
                drop(fault);
                program(&mut stamped);
                stamped.manager.trim().unwrap();
                let now = stats(&stamped.manager);
                assert_eq!((now.reserved, now.idle), (0, 0), "{call}, {after}");
                let left = cudart_sim::memory_info(0).unwrap().physical;
                assert_eq!(left, before, "{call}, {after}");
                // A range that the driver does not take back, or does not give, is asked for in vain.
                if call.starts_with("cuMem") && !call.contains("Address") {
                    assert_eq!(ranges(), reserved, "{call}, {after}");
                }
                if fired == 0 {
                    assert!(after > 0, "{call}");
                    break;
                }
            }
        }
    }
}
