//! What settings are read from, and what is refused.

use super::*;

#[test]
fn sizes_are_read_with_suffixes_and_never_overflow() {
    assert_eq!(parse_size("64K"), Some(65_536));
    assert_eq!(parse_size(" 2GiB "), Some(2 << 30));
    assert_eq!(parse_size("17179869184G"), None);
    assert_eq!(parse_size("-1"), None);
    assert_eq!(parse_size(""), None);
}

#[test]
fn a_variable_that_cannot_be_read_is_named() {
    let error =
        Config::from_lookup(|name| (name == "MEMMGR_DEVICE_POOL_SIZE").then(|| "lots".into()))
            .unwrap_err();
    assert!(
        error.to_string().contains("MEMMGR_DEVICE_POOL_SIZE") && error.to_string().contains("lots")
    );
    let config =
        Config::from_lookup(|name| (name == "MEMMGR_DEVICE_ALLOCATOR").then(|| "cuda-pool".into()))
            .unwrap();
    assert_eq!(config.mode, DeviceAllocatorMode::CudaAsyncPool);
}

#[test]
fn words_are_read_and_others_are_refused_with_the_ones_that_are_meant() {
    let read = |name: &'static str, text: &'static str| {
        Config::from_lookup(move |of| (of == name).then(|| text.into()))
    };
    let source = read("MEMMGR_PINNED_SOURCE", "alloc").unwrap().pinned_source;
    assert_eq!(source, PinnedSource::HostAlloc);
    assert!(
        read("MEMMGR_PINNED_FALLBACK", "on")
            .unwrap()
            .pinned_fallback
    );
    for (text, on) in [("1", true), ("on", true), ("0", false), ("off", false)] {
        let config = read("MEMMGR_CALL_SITES", text).unwrap();
        assert_eq!(config.call_sites, on);
    }
    for (name, meant) in [
        ("MEMMGR_CALL_SITES", "1 or 0"),
        ("MEMMGR_PINNED_SOURCE", "register or alloc"),
        ("MEMMGR_PINNED_FALLBACK", "on or off"),
    ] {
        let error = read(name, "maybe").unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(meant), "{error}");
    }
}

#[test]
fn a_size_above_its_limit_is_refused() {
    let device = Config::default()
        .device_pool_size(2000)
        .device_pool_limit(Some(1000));
    let warm_up = Config::default()
        .pinned_warm_up(Some(2000))
        .pinned_pool_limit(Some(1000));
    for config in [device, warm_up] {
        assert!(matches!(
            config.validate(),
            Err(Error::InvalidSetting { .. })
        ));
    }
}

#[test]
fn the_warm_up_is_read_from_its_variable_and_off_by_default() {
    let read = |text: &'static str| {
        Config::from_lookup(|name| (name == "MEMMGR_PINNED_WARM_UP").then(|| text.into()))
    };
    assert_eq!(read("64M").unwrap().pinned_warm_up, Some(64 << 20));
    let error = read("some").unwrap_err().to_string();
    assert!(error.contains("MEMMGR_PINNED_WARM_UP"), "{error}");
    assert_eq!(Config::default().pinned_warm_up, None);
}

#[test]
fn a_limit_may_be_a_share_of_the_device() {
    let read = |text: &'static str| {
        Config::from_lookup(|name| (name == "MEMMGR_DEVICE_POOL_LIMIT").then(|| text.into()))
    };
    assert_eq!(read("50%").unwrap().device_pool_limit_share, Some(0.5));
    assert_eq!(
        read(" 12.5 % ").unwrap().device_pool_limit_share,
        Some(0.125)
    );
    assert_eq!(read("2G").unwrap().device_pool_limit, Some(2 << 30));
    for text in ["0%", "101%", "-5%", "%", "1e1%", "inf%", "50%%", "nan%"] {
        let error = read(text).unwrap_err().to_string();
        assert!(
            error.contains("MEMMGR_DEVICE_POOL_LIMIT"),
            "{text}: {error}"
        );
    }
    for share in [0.0, -0.5, 1.5, f64::NAN, f64::INFINITY] {
        let config = Config::default().device_pool_limit_share(share);
        assert!(config.validate().is_err(), "{share}");
    }
}

#[test]
fn the_release_of_idle_memory_is_off_by_default_and_read_from_its_variables() {
    let config = Config::from_lookup(|name| match name {
        "MEMMGR_RELEASE_THRESHOLD" => Some("64M".into()),
        "MEMMGR_RELEASE_AFTER" => Some("250".into()),
        _ => None,
    })
    .unwrap();
    assert_eq!(config.release_threshold, Some(64 << 20));
    assert_eq!(config.release_after, Duration::from_millis(250));
    assert_eq!(Config::default().release_threshold, None);
    for (name, text) in [
        ("MEMMGR_RELEASE_THRESHOLD", "some"),
        ("MEMMGR_RELEASE_AFTER", "-1"),
    ] {
        let error = Config::from_lookup(|of| (of == name).then(|| text.into()));
        assert!(error.unwrap_err().to_string().contains(name));
    }
}

#[test]
fn a_source_is_read_from_its_variable_and_shareable_memory_is_of_cuda_malloc() {
    let read = |text: &'static str| {
        Config::from_lookup(|name| (name == "MEMMGR_DEVICE_SOURCE").then(|| text.into()))
    };
    assert_eq!(read("vmm").unwrap().device_source, DeviceSource::Virtual);
    let error = read("some").unwrap_err().to_string();
    assert!(
        error.contains("MEMMGR_DEVICE_SOURCE") && error.contains("malloc"),
        "{error}"
    );
    let shareable = Config::default().shareable(true);
    assert_eq!(shareable.requested_source(), DeviceSource::Malloc);
    assert!(shareable.validate().is_ok());
    let contrary = shareable.device_source(DeviceSource::Virtual);
    assert!(matches!(
        contrary.validate(),
        Err(Error::InvalidSetting { .. })
    ));
}

#[test]
fn a_setting_that_is_no_utf8_is_refused_and_the_path_of_the_log_is_taken_as_it_is() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let read = |name: &'static str, bytes: &'static [u8]| {
        Config::from_lookup(move |of| (of == name).then(|| OsStr::from_bytes(bytes).to_owned()))
    };
    for name in [
        "MEMMGR_DEVICE_POOL_LIMIT",
        "MEMMGR_PINNED_POOL_SIZE",
        "MEMMGR_REUSE",
        "MEMMGR_EVENT_RING",
        "MEMMGR_CALL_SITES",
    ] {
        let text = read(name, b"1K\xff").unwrap_err().to_string();
        assert!(text.contains(name) && text.contains("UTF-8"), "{text}");
    }
    let log = read("MEMMGR_LOG_FILE", b"\xff.csv").unwrap().log_file;
    assert_eq!(log, Some(OsStr::from_bytes(b"\xff.csv").into()));
}
