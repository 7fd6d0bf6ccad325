//! Calls of the driver that fail.

#[cfg(feature = "sim")]
use crate::{
    common::{self, MIB, assert_sound},
    stamped::Stamped,
    stats, turn, virtual_memory,
};
#[cfg(feature = "sim")]
use memmgr::{Config, DeviceSource, Error, MemoryManager, PoolStats};

/// What a growth that fails must leave as it was.
#[cfg(feature = "sim")]
fn held(manager: &MemoryManager) -> PoolStats {
    let mut stats = stats(manager);
    (stats.failures, stats.splits, stats.merges) = (0, 0, 0);
    (stats.allocations, stats.reuses) = (0, 0);
    // Finished work is found when somebody looks.
    stats.idle += std::mem::take(&mut stats.pending);
    stats.largest_idle = 0;
    stats
}

/// Each call of a growth fails in turn: the error says which, and nothing has changed.
#[test]
fn a_growth_that_fails_leaves_everything_as_it_was() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let unknown = cuda_sys::cudaError::cudaErrorUnknown;
        for call in [
            "cuMemCreate",
            "cuMemMap",
            "cuMemSetAccess",
            "cudaMemsetAsync",
            "cudaStreamSynchronize",
        ] {
            let mut failed = 0;
            loop {
                let mut stamped = Stamped::with_holes(virtual_memory(Config::default()).unwrap());
                let (figures, memory) = (held(&stamped.manager), cudart_sim::memory_info(0));
                let fault = cudart_sim::fail(call, unknown).after(failed);
                let answer = stamped.manager.allocate_device(10 * MIB);
                let fired = fault.fired();
                drop(fault);
                stamped.verify();
                if fired == 0 {
                    answer.unwrap();
                    break;
                }
                let error = answer.unwrap_err().to_string();
                assert!(error.contains(call), "{error}");
                assert_eq!(held(&stamped.manager), figures, "{call}, {failed}");
                assert_eq!(cudart_sim::memory_info(0), memory, "{call}, {failed}");
                failed += 1;
                // And it can be done afterwards.
                stamped.add(10 * MIB).unwrap();
                assert_eq!(stats(&stamped.manager).reserved, figures.reserved + 4 * MIB);
                stamped.verify();
                let report = stamped.manager.shutdown().unwrap();
                assert_eq!(report.live.len(), 6);
            }
            assert!(failed > 0, "{call}");
        }
    }
}

/// Where a device refuses a range of addresses, a shorter one does; where it refuses all, the error says so.
#[test]
fn addresses_are_asked_for_until_there_are_some() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let refused = cuda_sys::cudaError::cudaErrorMemoryAllocation;
        let manager = virtual_memory(Config::default()).unwrap();
        let fault = cudart_sim::fail("cuMemAddressReserve", refused).times(1000);
        let error = manager.allocate_device(MIB).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        for part in ["addresses of the process", "MEMMGR_DEVICE_SOURCE=malloc"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(fault.fired() > 10);
        // Who leaves it open is served.
        let open = MemoryManager::new(Config::default().device_source(DeviceSource::Auto)).unwrap();
        open.allocate_device(MIB).unwrap();
        assert_eq!(open.stats().device[0].source, DeviceSource::Malloc);
        drop(fault);
        assert_eq!(stats(&manager).segments, 0);
        let fault = cudart_sim::fail("cuMemAddressReserve", refused).times(5);
        manager.allocate_device(MIB).unwrap();
        assert_eq!(fault.fired(), 5);
        assert_sound(&manager);
    }
}

/// As that for what is unmapped: the places where chunks were once, and where others are to be mapped.
#[test]
fn a_place_that_cannot_be_cleared_leaves_everything_as_it_was() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let unknown = cuda_sys::cudaError::cudaErrorUnknown;
        for after in 0..3 {
            let manager = virtual_memory(Config::default().device_growth(2 * MIB)).unwrap();
            let [a, b] = [4, 2].map(|size| manager.allocate_device(size * MIB).unwrap());
            // SAFETY: nobody uses the blocks.
            let free = |block| unsafe { manager.free_device(block).unwrap() };
            free(a);
            // Two chunks move behind the blocks, and stay mapped at the front.
            let c = manager.allocate_device(8 * MIB).unwrap();
            assert_eq!(stats(&manager).moves, 2);
            free(b);
            let (figures, memory) = (held(&manager), cudart_sim::memory_info(0));
            let fault = cudart_sim::fail("cuMemUnmap", unknown).after(after);
            // The front is where the least is missing.
            let answer = manager.allocate_device(6 * MIB);
            let fired = fault.fired();
            drop(fault);
            assert_sound(&manager);
            assert_eq!(fired, u64::from(after < 2));
            if fired > 0 {
                let error = answer.unwrap_err().to_string();
                assert!(error.contains("cuMemUnmap"), "{error}");
                assert_eq!(held(&manager), figures, "{after}");
                assert_eq!(cudart_sim::memory_info(0), memory, "{after}");
                // And it can be done afterwards.
                assert_eq!(manager.allocate_device(6 * MIB).unwrap(), a);
            } else {
                assert_eq!(answer.unwrap(), a);
            }
            assert_eq!(stats(&manager).reserved, figures.reserved + 4 * MIB);
            assert_sound(&manager);
            for block in [a, c] {
                free(block);
            }
            assert_eq!(manager.shutdown().unwrap().live.len(), 0);
        }
    }
}

/// Chunks that are to move stay mapped where they were: a growth that fails has nothing to map back, and whatever comes next finds
/// them there.
#[test]
fn chunks_that_could_not_move_are_where_they_were() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let unknown = cuda_sys::cudaError::cudaErrorUnknown;
        for (call, after, times) in [
            ("cuMemMap", 0, 2),
            ("cuMemMap", 0, 4),
            ("cuMemSetAccess", 0, 2),
            ("cuMemSetAccess", 0, 4),
        ] {
            for trims in [false, true] {
                let mut stamped = Stamped::with_holes(virtual_memory(Config::default()).unwrap());
                let (figures, memory) =
                    (held(&stamped.manager), cudart_sim::memory_info(0).unwrap());
                let fault = cudart_sim::fail(call, unknown).after(after).times(times);
                stamped.manager.allocate_device(10 * MIB).unwrap_err();
                assert_eq!(fault.fired(), 1);
                drop(fault);
                stamped.verify();
                let now = held(&stamped.manager);
                assert_eq!((now.reserved, now.idle), (figures.reserved, figures.idle));
                assert_eq!(
                    cudart_sim::memory_info(0).unwrap().physical,
                    memory.physical
                );
                if trims {
                    assert_eq!(stamped.trim(), 6 * MIB);
                } else {
                    stamped.add(6 * MIB).unwrap();
                    let now = stats(&stamped.manager);
                    assert_eq!((now.reserved, now.idle), (figures.reserved, 0));
                }
                stamped.verify();
                for number in 0..stamped.blocks.len() {
                    if stamped.blocks[number].is_some() {
                        stamped.free(number);
                    }
                }
                assert_eq!(stamped.manager.shutdown().unwrap().live.len(), 0);
                let left = cudart_sim::memory_info(0).unwrap();
                assert_eq!(left.physical.1 + figures.reserved as u64, memory.physical.1);
            }
        }
    }
}

/// A trim that fails keeps what it could not give back.
#[test]
fn a_trim_that_fails_keeps_the_rest() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let unknown = cuda_sys::cudaError::cudaErrorUnknown;
        for call in ["cuMemUnmap", "cuMemRelease"] {
            let stamped = Stamped::with_holes(virtual_memory(Config::default()).unwrap());
            let before = stats(&stamped.manager);
            let fault = cudart_sim::fail(call, unknown).after(1);
            stamped.manager.trim().unwrap_err();
            assert_eq!(fault.fired(), 1);
            drop(fault);
            stamped.verify();
            let now = stats(&stamped.manager);
            assert_eq!(now.reserved, before.reserved - 4 * MIB, "{call}");
            assert_eq!(stamped.trim(), 2 * MIB, "{call}");
            stamped.verify();
        }
    }
}

/// A call of the driver that fails is named, and takes nobody's error away.
#[test]
fn a_failure_of_the_driver_leaves_the_errors_of_others() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        common::checks::leave_foreign_error();
        let manager = virtual_memory(Config::default()).unwrap();
        let fault = cudart_sim::fail("cuMemMap", cuda_sys::cudaError::cudaErrorUnknown);
        let error = manager.allocate_device(MIB).unwrap_err();
        assert_eq!(fault.fired(), 1);
        match error {
            Error::Cuda {
                call,
                code,
                also_pending,
                ..
            } => {
                assert_eq!((call, code, also_pending), ("cuMemMap", 999, None));
            }
            other => panic!("{other}"),
        }
        assert_eq!(common::checks::clear_error(), common::checks::FOREIGN);
        manager.allocate_device(MIB).unwrap();
    }
}

/// While new memory may still be written it is not unmapped, and the pool goes on elsewhere.
#[test]
fn new_memory_that_may_still_be_written_stays() {
    memmgr_tests::sim_only!("it injects faults");
    #[cfg(feature = "sim")]
    {
        let _turn = turn();
        let mut stamped = Stamped::with_holes(virtual_memory(Config::default()).unwrap());
        let figures = held(&stamped.manager);
        let unknown = cuda_sys::cudaError::cudaErrorUnknown;
        let faults = [
            cudart_sim::fail("cudaStreamSynchronize", unknown).times(2),
            cudart_sim::fail("cudaFree", unknown),
        ];
        stamped.manager.allocate_device(10 * MIB).unwrap_err();
        assert!(faults.iter().all(|fault| fault.fired() > 0));
        drop(faults);
        stamped.verify();
        assert_eq!(held(&stamped.manager), figures);
        stamped.add(10 * MIB).unwrap();
        assert_eq!(stats(&stamped.manager).segments, 2);
        stamped.verify();
    }
}
