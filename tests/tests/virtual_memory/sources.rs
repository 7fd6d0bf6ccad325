//! What each source of device memory says of itself.

use crate::{common::MIB, turn};
use memmgr::{Config, DeviceSource, MemoryManager};

/// Each source says what it is; what is asked for and cannot be is an error that names the way out.
#[test]
fn a_source_is_told_and_can_be_chosen() {
    let _turn = turn();
    let supported = memmgr::devices().unwrap()[0].virtual_memory_supported;
    for (config, requested) in [
        (Config::default(), DeviceSource::Auto),
        (
            Config::default().device_source(DeviceSource::Malloc),
            DeviceSource::Malloc,
        ),
        (
            Config::default().device_source(DeviceSource::Virtual),
            DeviceSource::Virtual,
        ),
        (Config::default().shareable(true), DeviceSource::Malloc),
    ] {
        let manager = MemoryManager::new(config.clone()).unwrap();
        let answer = manager.allocate_device(MIB);
        if requested == DeviceSource::Virtual && !supported {
            assert!(answer.unwrap_err().to_string().contains("malloc"));
            continue;
        }
        let block = answer.unwrap();
        let told = manager.stats().device[0];
        let effective = match requested {
            DeviceSource::Malloc => DeviceSource::Malloc,
            _ if supported => DeviceSource::Virtual,
            _ => DeviceSource::Malloc,
        };
        assert_eq!((told.requested_source, told.source), (requested, effective));
        assert_eq!(requested.on(0), Ok(effective));
        assert!(format!("{manager:?}").contains(&format!("source: {effective:?}")));
        let mut handle = cuda_sys::cudaIpcMemHandle_t::default();
        // SAFETY: a place for one handle, and a block that is live.
        let code = unsafe { cuda_sys::cudaIpcGetMemHandle(&mut handle, block) };
        // SAFETY: the function has no preconditions.
        unsafe { cuda_sys::cudaGetLastError() };
        assert_eq!(code.0 == 0, effective == DeviceSource::Malloc);
        assert_eq!(
            effective.cannot().is_some(),
            effective == DeviceSource::Virtual
        );
    }
    let contrary = Config::default()
        .shareable(true)
        .device_source(DeviceSource::Virtual);
    let error = MemoryManager::new(contrary).unwrap_err().to_string();
    assert!(error.contains("auto or malloc"), "{error}");
}
