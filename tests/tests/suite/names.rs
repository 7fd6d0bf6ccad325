//! Names and call sites of blocks: shown where blocks are, and gone with them.

use crate::common::{
    assert_sound,
    checks::{KINDS, Kind},
    manager,
};
use crate::rig;
use memmgr::{Config, Error, LiveBlock, MemoryManager, Stream};

const KIB: usize = 1 << 10;

fn one_live(manager: &MemoryManager) -> LiveBlock {
    let live = manager.live_blocks();
    assert_eq!(live.len(), 1, "{live:?}");
    live[0].clone()
}

#[test]
fn a_name_goes_with_its_block_and_whoever_has_the_memory_next_has_none_in_every_mode() {
    for kind in KINDS {
        let manager = kind.manager();
        let stream = Stream::new().unwrap();
        let block = kind.allocate_on(&manager, 4 * KIB, &stream).unwrap();
        assert_eq!(one_live(&manager).name, None, "{kind:?}");
        // Into the block, not only at its start.
        let inside = block.wrapping_byte_add(100);
        manager.name_block(inside, "first").unwrap();
        manager.name_block(block, String::from("second")).unwrap();
        let live = one_live(&manager);
        assert_eq!(live.name.as_deref(), Some("second"), "{kind:?}");
        assert_eq!((live.address, live.size), (block.addr(), 4 * KIB));
        let of_stream = (kind != Kind::Pinned).then(|| stream.id());
        assert_eq!((live.stream, live.call_site), (of_stream, None), "{kind:?}");
        // SAFETY: nobody uses the block.
        unsafe { kind.free_on(&manager, block, &stream).unwrap() };
        let unknown = manager.name_block(block, "late");
        assert!(
            matches!(unknown, Err(Error::UnknownPointer { .. })),
            "{kind:?}: {unknown:?}"
        );
        let again = kind.allocate_on(&manager, 4 * KIB, &stream).unwrap();
        if kind.is_own_pool() {
            assert_eq!(again, block, "the memory is used again");
        }
        assert_eq!(one_live(&manager).name, None, "{kind:?}");
        // SAFETY: nobody uses the block.
        unsafe { kind.free_on(&manager, again, &stream).unwrap() };
        stream.synchronize().unwrap();
        assert_sound(&manager);
    }
}

#[test]
fn null_and_the_memory_of_others_have_no_name() {
    let manager = manager();
    let local = 7u64;
    for ptr in [std::ptr::null(), std::ptr::from_ref(&local).cast()] {
        let unknown = manager.name_block(ptr, "mine");
        assert!(matches!(unknown, Err(Error::UnknownPointer { .. })));
    }
    let empty = manager.pinned::<u8>(0).unwrap().with_name("nothing");
    assert!(empty.is_empty() && manager.live_blocks().is_empty());
}

#[test]
fn buffers_name_their_blocks_and_so_do_their_parts() {
    let manager = manager();
    let stream = Stream::new().unwrap();
    let host = manager.pinned::<u8>(KIB).unwrap().with_name("staging");
    let device = manager.device::<u8>(2 * KIB, &stream).unwrap();
    let (front, back) = device.split_at(KIB).unwrap();
    let back = back.with_name("weights");
    let names = || {
        let live = manager.live_blocks();
        let names = live.into_iter().map(|block| block.name);
        names.map(|name| name.unwrap_or_default().to_string())
    };
    assert!(names().eq(["staging", "weights"]));
    // The copy's mark stands beside the name.
    let _ = stream.copy_to_device(&host, &front).unwrap();
    assert!(names().eq(["staging", "weights"]));
    drop(front);
    assert!(names().eq(["staging", "weights"]), "a part is left");
    drop((back, host));
    stream.synchronize().unwrap();
    assert_eq!(names().count(), 0);
    assert_sound(&manager);
}

#[test]
fn the_report_of_a_shutdown_and_a_refusal_say_who_it_is() {
    let manager = rig::capped(64 * KIB);
    let block = manager.allocate_device(48 * KIB).unwrap();
    manager.name_block(block, "cache of \"keys\"").unwrap();
    let Err(Error::OutOfMemory(refused)) = manager.allocate_device(32 * KIB) else {
        panic!("there is no room");
    };
    let holder = &refused.holders.largest[0];
    assert_eq!(holder.name.as_deref(), Some("cache of \"keys\""));
    let quoted = "\"cache of \\\"keys\\\"\"";
    let text = refused.to_string();
    let expected = format!("48.0 KiB on no stream ({quoted})");
    assert!(text.contains(&expected), "{text}");
    let report = manager.shutdown().unwrap();
    assert_eq!(report.live, manager.live_blocks());
    let text = report.to_string();
    assert!(text.contains(&format!("(raw pointer, {quoted})")), "{text}");
    // SAFETY: nobody uses the block.
    unsafe { manager.free_device(block).unwrap() };
}

#[test]
fn every_allocating_call_keeps_where_it_was_called_if_that_is_wanted() {
    let manager = MemoryManager::new(Config::default().call_sites(true)).unwrap();
    let stream = Stream::new().unwrap();
    let sites = || {
        let live = manager.live_blocks();
        let sites = live
            .iter()
            .map(|block| block.call_site.expect("it is kept"));
        let mut lines: Vec<u32> = sites
            .inspect(|site| assert!(site.file().ends_with("names.rs"), "{site}"))
            .map(|site| site.line())
            .collect();
        lines.sort_unstable();
        lines
    };
    let first = line!();
    let raw = [
        manager.allocate_pinned(KIB).unwrap(),
        manager.allocate_device(KIB).unwrap(),
        manager.allocate_device_at(0, KIB).unwrap(),
        manager.allocate_device_on(KIB, &stream).unwrap(),
    ];
    let guards = (
        manager.pinned::<u8>(KIB).unwrap(),
        manager.pinned_zeroed::<u8>(KIB).unwrap(),
        manager.device::<u8>(KIB, &stream).unwrap(),
        manager.device_zeroed::<u8>(KIB, &stream).unwrap(),
    );
    let lines: Vec<u32> = (first + 2..first + 6)
        .chain(first + 8..first + 12)
        .collect();
    assert_eq!(sites(), lines);
    // A name does not take the place away.
    manager.name_block(raw[3], "named").unwrap();
    assert_eq!(sites(), lines);
    let report = manager.shutdown().unwrap().to_string();
    assert!(report.contains("\"named\", allocated at "), "{report}");
    // Served from the same memory, at another place.
    // SAFETY: nobody uses the block.
    unsafe { manager.free_device_on(raw[3], &stream).unwrap() };
    let again = manager.allocate_device_on(KIB, &stream).unwrap();
    let line = line!() - 1;
    assert_eq!(again, raw[3]);
    assert!(sites().contains(&line) && !sites().contains(&(first + 5)));
    drop(guards);
    // SAFETY: nobody uses the blocks.
    unsafe {
        manager.free_pinned(raw[0]).unwrap();
        for block in [raw[1], raw[2], again] {
            manager.free_device(block).unwrap();
        }
    }
    assert!(manager.live_blocks().is_empty());
    assert_sound(&manager);
}
