//! One call that fails at any step of a program whose memory moves, comes back and goes: afterwards nothing is lost.

#[cfg(feature = "sim")]
use crate::{
    common::{MIB, assert_sound},
    stamped::Stamped,
    stats, turn, virtual_memory,
};
#[cfg(feature = "sim")]
use memmgr::Config;

/// Grows, moves, comes back, gives a part back, and begins again, whatever fails; no block is lost sight of.
#[cfg(feature = "sim")]
fn program(stamped: &mut Stamped) {
    for turn in 0..3 {
        let mut blocks = Vec::new();
        let mut add = |stamped: &mut Stamped, size: usize| {
            if stamped.add(size * MIB).is_ok() {
                blocks.push(stamped.blocks.len() - 1);
            }
        };
        for size in [2, 2, 4, 2, 4, 2] {
            add(stamped, size);
        }
        for number in [0, 2, 4] {
            if let Some(number) = blocks.get(number) {
                stamped.free(*number);
            }
        }
        let mut more = Vec::new();
        for size in [8, 6] {
            if stamped.add(size * MIB).is_ok() {
                more.push(stamped.blocks.len() - 1);
            }
        }
        let _ = stamped.manager.trim();
        stamped.verify();
        for number in blocks.iter().skip(1).step_by(2).chain(&more) {
            if stamped.blocks[*number].is_some() {
                stamped.free(*number);
            }
        }
        let left: Vec<usize> = (0..stamped.blocks.len())
            .filter(|number| stamped.blocks[*number].is_some())
            .collect();
        if turn == 1 {
            for number in left {
                stamped.free(number);
            }
            let _ = stamped.manager.shutdown();
        }
        assert_sound(&stamped.manager);
    }
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
                let fault = cudart_sim::fail(call, unknown).after(after);
                program(&mut stamped);
                let fired = fault.fired();
                drop(fault);
                program(&mut stamped);
                for number in 0..stamped.blocks.len() {
                    if stamped.blocks[number].is_some() {
                        stamped.free(number);
                    }
                }
                stamped.manager.trim().unwrap();
                let now = stats(&stamped.manager);
                assert_eq!((now.reserved, now.idle), (0, 0), "{call}, {after}");
                let left = cudart_sim::memory_info(0).unwrap().physical;
                assert_eq!(left, before, "{call}, {after}");
                if fired == 0 {
                    break;
                }
            }
        }
    }
}
