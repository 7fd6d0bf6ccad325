//! Damaged inputs of each kind: each gives a report or one error, never a panic, in bounded memory.
//!
//! `MEMMGR_REPORT_FUZZ` is how many inputs are tried: 100,000 by default where the build is optimized,
//! otherwise 3,000.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use indicatif::ProgressBar;

use super::input::{self, Input};
use super::{build, html};
use crate::rng::Rng;

#[path = "snapshot_bytes.rs"]
mod snapshot_bytes;

fn log() -> Vec<u8> {
    let mut text = crate::trace::HEADER.to_owned() + "\n";
    for row in 0..40_u64 {
        let (address, size, stream) = (0x7f00_0000_0000 + row / 2 * 4096, 1 + row * 97, row % 3);
        let action = if row % 2 == 0 || row > 30 {
            "allocate"
        } else {
            "free"
        };
        let address = address + if row > 30 { row << 24 } else { 0 };
        text += &format!(
            "{},10:00:00:{row:06},{action},{address:#x},{size},{stream:#x}\n",
            row % 2
        );
    }
    text.into_bytes()
}

fn replay() -> Vec<u8> {
    br#"[{"trace": "a.csv", "mode": "pool", "backend": "simulated", "streams": 4, "events": 10,
        "ns_per_op": [20.5, 10.25], "peak_live_bytes": 1024, "peak_reserved_bytes": 2048,
        "waits": 3, "failures": 0}]"#
        .to_vec()
}

/// What memmgr writes: a device and pinned memory, with a block of before, one that is freed, and one that waits.
fn json() -> Vec<u8> {
    br#"{"segments":[{"device":0,"address":1048576,"total_size":4096,"stream":0,"segment_type":"large",
        "segment_pool_id":[0,0],"is_expandable":true,"frames":[],"mode":"pool","blocks":[
        {"address":1048576,"size":1024,"requested_size":1000,"state":"active_allocated","stream":7,
        "frames":[{"name":"a \"name\"","filename":"x.rs","line":12}]},
        {"address":1049600,"size":1024,"requested_size":0,"state":"active_pending_free","frames":[]},
        {"address":1050624,"size":2048,"requested_size":0,"state":"inactive","frames":[]}]},
        {"device":1,"address":9437184,"total_size":256,"stream":0,"blocks":[{"address":9437184,
        "size":256,"requested_size":9,"state":"active_allocated","frames":[]}]}],
        "device_traces":[[{"action":"alloc","addr":1049600,"size":1024,"stream":7,"time_us":5,
        "frames":[]},{"action":"free_requested","addr":1049600,"size":1024,"stream":7,"time_us":6,
        "frames":[]},{"action":"free_completed","addr":1049600,"size":1024,"stream":7,"time_us":6,
        "frames":[]},{"action":"oom","device_free":0,"size":9999,"stream":0,"time_us":7,"frames":[]}],
        []],"external_annotations":[],"memmgr":{"version":"1","pinned":1}}"#
        .to_vec()
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("in memory");
    encoder.finish().expect("in memory")
}

fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..=rng.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len());
        let to = (at + 1 + rng.below(16)).min(bytes.len());
        match rng.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..to)),
            2 => bytes[at] ^= 1 << rng.below(8),
            3 => bytes[at] = rng.next() as u8,
            4 => bytes[at..to].fill(rng.pick([0, 0xff, b'9', b'(', b'h', 0x94])),
            5 => {
                let copy = bytes[at..to].to_vec();
                let place = rng.below(bytes.len());
                bytes.splice(place..place, copy);
            }
            6 => {
                let number = rng.pick([
                    "18446744073709551615",
                    "9223372036854775808",
                    "-1",
                    "0",
                    "1e99",
                    ",",
                ]);
                bytes.splice(at..at, number.bytes());
            }
            _ => {
                let other = rng.below(bytes.len());
                bytes.swap(at, other);
            }
        }
    }
}

/// Whether the input is understood; all that a report does with it is done.
fn report(content: Vec<u8>) -> bool {
    let bar = ProgressBar::hidden();
    match input::parse("fuzz \"</script>", content, &bar) {
        Err(reason) => {
            assert!(!reason.is_empty());
            false
        }
        Ok(input) => {
            let (recordings, replays) = match input {
                Input::Recordings(recordings) => (recordings, Vec::new()),
                Input::Replays(replays) => (Vec::new(), replays),
            };
            let (sections, _) = build(recordings, true, &bar);
            let page = html::page(&sections, &replays).expect("a page");
            assert!(page.ends_with("</html>\n") && page.len() < 15_000_000);
            assert_eq!(page.matches("</script>").count(), 2);
            true
        }
    }
}

/// The most memory that this process has held, in KiB.
fn high_water() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    number.unwrap_or(0)
}

#[test]
fn damaged_inputs_give_a_report_or_one_error() {
    let asked = std::env::var("MEMMGR_REPORT_FUZZ")
        .ok()
        .and_then(|text| text.parse().ok());
    let tries: u64 = asked.unwrap_or(if cfg!(debug_assertions) {
        3_000
    } else {
        100_000
    });
    let snapshot = snapshot_bytes::SNAPSHOT.to_vec();
    let kinds = [
        log(),
        snapshot.clone(),
        replay(),
        compressed(&log()),
        compressed(&snapshot),
        json(),
    ];
    for whole in &kinds {
        assert!(report(whole.clone()));
    }
    let mut understood = 0_u64;
    for seed in 0..tries {
        let mut rng = Rng::new(seed);
        let kind = seed as usize % kinds.len();
        let mut bytes = kinds[kind].clone();
        damage(&mut rng, &mut bytes);
        let result = catch_unwind(AssertUnwindSafe(|| report(bytes)));
        understood += u64::from(result.unwrap_or_else(|_| panic!("kind {kind}, seed {seed}")));
    }
    // Some damage is none that a reader could see; were all of it, nothing would be tested.
    assert!(
        understood > tries / 50 && understood < tries * 9 / 10,
        "{understood} of {tries}"
    );
    assert!(high_water() < 1 << 20, "{} KiB", high_water());
}

#[test]
fn each_truncation_is_understood_or_an_error() {
    for whole in [
        log(),
        snapshot_bytes::SNAPSHOT.to_vec(),
        replay(),
        json(),
        compressed(&log()),
    ] {
        for len in 0..whole.len() {
            report(whole[..len].to_vec());
        }
    }
    // Only a log, whose rows stand alone, may end early.
    for whole in [
        snapshot_bytes::SNAPSHOT.to_vec(),
        replay(),
        json(),
        compressed(&log()),
    ] {
        for len in 0..whole.len() {
            assert!(!report(whole[..len].to_vec()), "{len}");
        }
    }
}

#[test]
fn what_is_compressed_twice_is_not_unpacked_further() {
    let twice = compressed(&compressed(&log()));
    let error = input::parse("twice", twice, &ProgressBar::hidden())
        .err()
        .expect("refused");
    assert!(error.contains("compressed twice"), "{error}");
}

#[test]
fn what_shares_its_parts_is_not_multiplied_without_end() {
    // 2^12 segments that are one, with 2^12 blocks that are one: more than are read.
    let mut bytes = b"\x80\x02}X\x08\0\0\0segments]q\x01(".to_vec();
    let put = |bytes: &mut Vec<u8>, key: &str, value: &[u8]| {
        bytes.extend([b'X', key.len() as u8, 0, 0, 0]);
        bytes.extend(key.bytes());
        bytes.extend(value);
    };
    bytes.extend(b"}(");
    put(&mut bytes, "address", b"K\x01");
    put(&mut bytes, "total_size", b"K\x01");
    put(&mut bytes, "blocks", b"](}(");
    put(&mut bytes, "size", b"K\x01");
    put(&mut bytes, "state", b"X\x08\0\0\0inactive");
    bytes.extend(b"uq\x02");
    bytes.extend(b"h\x02".repeat(1 << 12));
    bytes.extend(b"euq\x03");
    bytes.extend(b"h\x03".repeat(1 << 12));
    bytes.extend(b"es.");
    let error = input::parse("shared", bytes, &ProgressBar::hidden())
        .err()
        .expect("refused");
    assert!(
        error.contains("more than 8388608 blocks and calls"),
        "{error}"
    );
}
