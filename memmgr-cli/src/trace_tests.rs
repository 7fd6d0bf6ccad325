//! Tests of the trace parser: what it reads, what it leaves out, and what it says of bad input.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;

fn csv(rows: &str) -> String {
    format!("{HEADER}\n{rows}")
}

fn read(text: &str) -> Result<Trace, TraceError> {
    Trace::read(text.as_bytes())
}

fn message(text: &str) -> String {
    read(text).expect_err("a bad trace").to_string()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).expect("written");
    encoder.finish().expect("finished")
}

#[test]
fn rows_become_events_with_blocks_and_streams_numbered_in_order_of_appearance() {
    let trace = read(&csv("0,1:2:3:4,allocate,0x100,256,0xbeef\n\
         1,x,allocate,0x200,512,0x0\n\
         0,x,free,0x100,256,0x0\n\
         0,x,allocate,0x100,64,0xbeef\n\
         0,x,free,0x200,512,0xbeef\n"))
    .expect("a trace");
    let allocate = |block, stream, size| Event::Allocate {
        block,
        stream,
        size,
    };
    let free = |block, stream| Event::Free { block, stream };
    assert_eq!(
        trace.events,
        [
            allocate(0, 0, 256),
            allocate(1, 1, 512),
            free(0, 1),
            allocate(2, 0, 64),
            free(1, 0)
        ]
    );
    assert_eq!((trace.blocks, trace.streams, trace.peak_live), (3, 2, 768));
    assert_eq!(trace.skipped, Skipped::default());
}

#[test]
fn compressed_text_is_recognised_by_its_first_bytes() {
    let text = csv("0,0,allocate,0x100,256,0x0\n0,0,free,0x100,256,0x0\n");
    let plain = read(&text).expect("plain");
    assert_eq!(plain, Trace::read(&gzip(&text)[..]).expect("compressed"));
    let two_members = [
        gzip(&csv("0,0,allocate,0x100,256,0x0\n")),
        gzip("0,0,free,0x100,256,0x0\n"),
    ]
    .concat();
    assert_eq!(plain, Trace::read(&two_members[..]).expect("two members"));
}

#[test]
fn the_recorded_traces_are_read_whole() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/traces");
    // events, blocks, streams, peak in bytes: counted with other tools
    let expected = [
        ("gpt2.csv.gz", 46_523, 23_263, 1, 12_349),
        ("image_pipeline.csv.gz", 8_406, 4_203, 4, 1_898),
        ("llama_serve.csv.gz", 200_073, 100_037, 1, 1_707),
        ("resnet50.csv.gz", 25_693, 12_848, 1, 3_114),
    ];
    for (name, events, blocks, streams, peak_mib) in expected {
        let trace = Trace::open(&folder.join(name)).expect(name);
        assert_eq!(
            (trace.events.len(), trace.blocks, trace.streams),
            (events, blocks, streams),
            "{name}"
        );
        assert_eq!(trace.peak_live >> 20, peak_mib, "{name}");
        assert_eq!(trace.skipped.total(), 0, "{name}");
    }
}

#[test]
fn what_is_odd_but_usual_is_left_out_and_counted() {
    let trace = read(&csv("0,0,free,0x900,256,0x7\n\
         0,0,allocate failure,(nil),1024,0x7\n\
         0,0,allocate_failure,0x0,1024,0x7\n\
         0,0,allocate,(nil),0,0x7\n\
         0,0,free,(nil),0,0x7\n\
         0,0,allocate,0x100,256,(nil)\n"))
    .expect("a trace");
    assert_eq!(
        trace.skipped,
        Skipped {
            unknown_frees: 1,
            recorded_failures: 2,
            empty_requests: 2
        }
    );
    assert_eq!((trace.events.len(), trace.streams), (1, 1));
    assert_eq!(
        trace.skipped.to_string(),
        "1 freeing a pointer that the log did not allocate, \
         2 that failed when the trace was recorded, 2 of zero bytes"
    );
}

#[test]
fn windows_line_ends_spaces_and_a_byte_order_mark_do_no_harm() {
    let text = format!("\u{feff}{HEADER}\r\n0, 1:2, allocate, 0x100, 256, 0x0\r\n");
    assert_eq!(read(&text).expect("a trace").peak_live, 256);
}

#[test]
fn a_malformed_row_is_named_with_its_line_and_reason() {
    let good = "0,0,allocate,0x100,256,0x0\n";
    for (bad, reason) in [
        ("0,0,allocate,0x200,256", "5 columns where"),
        ("0,0,allocate,0x200,256,0x0,9", "7 columns where"),
        ("hello", "1 column where"),
        ("0,0,grow,0x200,256,0x0", "unknown action `grow`"),
        ("0,0,allocate,zzz,256,0x0", "pointer `zzz` is not a number"),
        ("0,0,allocate,+1,256,0x0", "pointer `+1` is not a number"),
        ("0,0,allocate,0x,256,0x0", "pointer `0x` is not a number"),
        ("0,0,allocate,0x200,256,abc", "stream `abc` is not a number"),
        ("0,0,allocate,0x200,256,", "stream `` is not a number"),
        (
            "0,0,allocate,0x200,,0x0",
            "size `` is not a number of bytes",
        ),
        ("0,0,allocate,0x200,-5,0x0", "size `-5` is not a number"),
        ("0,0,allocate,0x200,1e9,0x0", "size `1e9` is not a number"),
        (
            "0,0,allocate,0x200,9223372036854775809,0x0",
            "size 9223372036854775809 is above 2^63 bytes",
        ),
        (
            "0,0,allocate,0x200,99999999999999999999999,0x0",
            "size 99999999999999999999999 is above 2^63 bytes",
        ),
        (
            "0,0,allocate,0x200,9223372036854775808,0x0",
            "more than 2^63 bytes would be live",
        ),
        (
            "0,0,allocate,0x0,256,0x0",
            "256 bytes allocated at address 0",
        ),
        (
            "0,0,allocate,0x100,256,0x0",
            "allocates 0x100, which line 2 allocated and nothing freed",
        ),
    ] {
        let message = message(&csv(&format!("{good}\n{bad}\n{good}")));
        assert!(message.starts_with("line 4: "), "{bad}: {message}");
        assert!(message.contains(reason), "{bad}: {message}");
        assert!(!message.contains('\n'));
    }
}

#[test]
fn files_that_are_no_traces_are_refused_with_the_reason() {
    assert_eq!(message(""), "the file is empty");
    let nothing = Trace::read(&gzip("")[..]).expect_err("nothing inside");
    assert_eq!(nothing.to_string(), "the file is empty");
    assert_eq!(message(HEADER), "it has a header but no allocation");
    assert!(message("\x7fELF\x02\x01\x01\0\0\n").contains("binary data"));
    assert_eq!(
        message(&"x".repeat(10_000)),
        "line 1: longer than 4096 bytes"
    );
    let no_header = message("0,0,allocate,0x100,256,0x0\n");
    assert!(no_header.starts_with("line 1: expected the header `Thread,Time,"));
    assert!(no_header.contains("found `0,0,allocate,0x100,256,0x0`"));
}

#[test]
fn a_compressed_file_that_was_cut_off_or_damaged_is_recognised() {
    let rows: String = (1..2000)
        .map(|i| format!("0,{i},allocate,{:#x},{},0x0\n", i * 512, i * 31 % 977 + 1))
        .collect();
    let whole = gzip(&csv(&rows));
    for cut in [whole.len() - 4, whole.len() / 2, 20, 5] {
        let error = Trace::read(&whole[..cut]).expect_err("cut off").to_string();
        assert!(error.contains("cut off"), "{cut}: {error}");
        assert!(error.starts_with("line "), "{cut}: {error}");
    }
    let mut damaged = whole.clone();
    let middle = whole.len() / 2;
    damaged[middle..middle + 64].fill(0xff);
    assert!(Trace::read(&damaged[..]).is_err());
}

/// Rows that are almost right, so that the parser is driven past its first check.
fn almost_a_row() -> impl Strategy<Value = String> {
    let action = prop::sample::select(vec!["allocate", "free", "allocate failure", "", "frée"]);
    let number = prop_oneof![
        (0_u64..6).prop_map(|n| format!("{n:#x}")),
        any::<u64>().prop_map(|n| n.to_string()),
        "[0-9a-fx(nil)+ -]{0,8}",
    ];
    (
        action,
        number.clone(),
        number.clone(),
        number,
        "[,\"\r]{0,2}",
    )
        .prop_map(|(action, pointer, size, stream, tail)| {
            format!("0,0,{action},{pointer},{size},{stream}{tail}\n")
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_give_a_trace_or_an_error_of_one_line(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        for input in [bytes.clone(), [HEADER.as_bytes(), b"\n", &bytes[..]].concat(), [&[0x1f, 0x8b][..], &bytes[..]].concat()] {
            if let Err(error) = Trace::read(&input[..]) {
                prop_assert!(!error.to_string().contains('\n'));
            }
        }
    }

    #[test]
    fn what_is_read_can_be_replayed(rows in prop::collection::vec(almost_a_row(), 0..12)) {
        if let Ok(trace) = read(&csv(&rows.concat())) {
            let mut live = vec![false; trace.blocks];
            let mut seen = 0;
            for event in &trace.events {
                let (block, stream) = match *event {
                    Event::Allocate { block, stream, size } => {
                        prop_assert!(size > 0);
                        prop_assert!(!std::mem::replace(&mut live[block as usize], true));
                        (block, stream)
                    }
                    Event::Free { block, stream } => {
                        prop_assert!(std::mem::replace(&mut live[block as usize], false));
                        (block, stream)
                    }
                };
                prop_assert!((block as usize) < trace.blocks && (stream as usize) < trace.streams);
                prop_assert!(stream as usize <= seen, "streams are numbered in order of appearance");
                seen = seen.max(stream as usize + 1);
            }
        }
    }
}
