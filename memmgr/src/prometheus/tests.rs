//! The text is read back by a strict reader of the exposition format, and says what the figures say.

use super::*;
use crate::{DeviceSource, stats::DeviceStats};
use std::collections::{BTreeMap, BTreeSet};

type Series = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// What was read.
#[derive(Default, Debug)]
struct Read {
    series: Series,
    kinds: BTreeMap<String, String>,
}

fn is_name(text: &str, colons: bool) -> bool {
    let fits = |c: char| c.is_ascii_alphabetic() || c == '_' || (colons && c == ':');
    let mut chars = text.chars();
    chars.next().is_some_and(fits) && chars.all(|c| fits(c) || c.is_ascii_digit())
}

/// The labels behind `{`, and what follows `}`.
fn labels(mut rest: &str) -> Result<(BTreeMap<String, String>, &str), String> {
    let mut labels = BTreeMap::new();
    loop {
        if let Some(behind) = rest.strip_prefix('}') {
            return Ok((labels, behind));
        }
        let (name, value) = rest.split_once("=\"").ok_or("a label without a value")?;
        if !is_name(name, false) || name.starts_with("__") {
            return Err(format!("`{name}` is no name of a label"));
        }
        let (mut text, mut chars) = (String::new(), value.char_indices());
        let end = loop {
            match chars.next().ok_or("a value does not end")? {
                (at, '"') => break at,
                (_, '\\') => text.push(match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, c @ ('\\' | '"'))) => c,
                    other => return Err(format!("an escape {other:?}")),
                }),
                (_, c) => text.push(c),
            }
        };
        if labels.insert(name.to_string(), text).is_some() {
            return Err(format!("the label {name} is there twice"));
        }
        rest = value.get(end + 1..).unwrap_or_default();
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None if rest.starts_with('}') => {}
            None => return Err(format!("`{rest}` behind a label")),
        }
    }
}

/// Reads the format, and refuses whatever it does not allow: lines of one metric that are not together, a type or a help
/// that comes twice or late, series that come twice, wrong names, values and escapes, and a last line without an end. Types
/// and helps must be there.
fn read(text: &str) -> Result<Read, String> {
    if !text.ends_with('\n') {
        return Err("the last line has no end".into());
    }
    let (mut found, mut helps) = (Read::default(), BTreeSet::new());
    let (mut current, mut done) = (String::new(), BTreeSet::new());
    for line in text.lines() {
        let comment = line.strip_prefix("# ");
        let name = match comment {
            Some(comment) => comment.split(' ').nth(1).unwrap_or_default(),
            None => line.split(['{', ' ']).next().unwrap_or_default(),
        };
        if !is_name(name, true) {
            return Err(format!("`{line}` names no metric"));
        }
        if name != current {
            if !done.insert(name.to_string()) {
                return Err(format!("the lines of {name} are not together"));
            }
            current = name.to_string();
        }
        let begun = found.series.keys().any(|(known, _)| known == name);
        if let Some(comment) = comment {
            let mut words = comment.splitn(3, ' ');
            match (words.next(), words.nth(1)) {
                _ if begun => return Err(format!("`{line}` comes late")),
                (Some("HELP"), Some(help)) if !help.trim().is_empty() => {
                    if !helps.insert(name.to_string()) {
                        return Err(format!("`{line}` comes twice"));
                    }
                }
                (Some("TYPE"), Some(kind @ ("counter" | "gauge"))) => {
                    if found
                        .kinds
                        .insert(name.to_string(), kind.to_string())
                        .is_some()
                    {
                        return Err(format!("`{line}` comes twice"));
                    }
                }
                _ => return Err(format!("`{line}` is no help and no type")),
            }
            continue;
        }
        if !helps.contains(name) || !found.kinds.contains_key(name) {
            return Err(format!("{name} has no help or no type"));
        }
        let rest = line.get(name.len()..).unwrap_or_default();
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (BTreeMap::new(), rest),
        };
        let value = rest.strip_prefix(' ').ok_or("no value")?;
        let value: f64 = value
            .parse()
            .map_err(|error| format!("`{value}`: {error}"))?;
        if found
            .series
            .insert((name.to_string(), labels), value)
            .is_some()
        {
            return Err(format!("`{line}` comes twice"));
        }
    }
    Ok(found)
}

/// Figures that are all different.
fn numbered(from: usize) -> PoolStats {
    let n = |at: usize| from + at;
    PoolStats {
        in_use: n(1),
        reserved: n(2),
        idle: n(3),
        pending: n(4),
        largest_idle: n(5),
        internal_waste: n(6),
        largest_miss: n(7),
        peak_in_use: n(8),
        peak_reserved: n(9),
        live_blocks: n(10),
        free_spans: n(11),
        segments: n(12),
        allocations: n(13) as u64,
        frees: n(14) as u64,
        reuses: n(15) as u64,
        steals: n(16) as u64,
        waits: n(17) as u64,
        growths: n(18) as u64,
        moves: n(19) as u64,
        remaps: n(20) as u64,
        failures: n(21) as u64,
        splits: n(22) as u64,
        merges: n(23) as u64,
    }
}

fn figures() -> Stats {
    let device = |device: i32, from| DeviceStats {
        device,
        requested_source: DeviceSource::Auto,
        source: DeviceSource::Virtual,
        best_fit: numbered(from),
        async_stream_ordered: numbered(from + 100),
        cuda_async_pool: numbered(from + 200),
    };
    Stats {
        device: vec![device(0, 1000), device(3, 2000)],
        pinned: numbered(1 << 40),
        copied: Copied {
            host_to_device: 1,
            device_to_host: 2,
            device_to_device: 3,
            memset: 4,
        },
        drop_failures: 5,
        cuda_calls: vec![("cudaMalloc", 6), ("cudaFree", 7)],
    }
}

/// The names of the figures of a pool, in the order of [`numbered`].
const NAMES: [&str; 23] = [
    "in_use_bytes",
    "reserved_bytes",
    "idle_bytes",
    "pending_bytes",
    "largest_idle_bytes",
    "internal_waste_bytes",
    "largest_miss_bytes",
    "peak_in_use_bytes",
    "peak_reserved_bytes",
    "live_blocks",
    "free_spans",
    "segments",
    "allocations_total",
    "frees_total",
    "reuses_total",
    "steals_total",
    "waits_total",
    "growths_total",
    "moves_total",
    "remaps_total",
    "failures_total",
    "splits_total",
    "merges_total",
];

#[test]
fn the_text_is_read_back_as_the_figures_and_has_nothing_else() {
    let read = read(&figures().to_prometheus()).unwrap();
    let mut expected = Series::new();
    let backend = backend().to_string();
    let mut expect = |name: &str, labels: &[(&str, &str)], value: usize| {
        let labels = (labels.iter().copied())
            .chain([("backend", backend.as_str())])
            .map(|(name, value)| (name.to_string(), value.to_string()));
        let key = (format!("memmgr_{name}"), labels.collect());
        assert!(expected.insert(key, value as f64).is_none());
    };
    for (name, number) in NAMES.iter().zip(1..) {
        for (device, from) in [("0", 1000), ("3", 2000)] {
            for (mode, more) in [("pool", 0), ("async", 100), ("cuda-pool", 200)] {
                let labels = [("pool", "device"), ("device", device), ("mode", mode)];
                expect(name, &labels, from + more + number);
            }
        }
        let labels = [("pool", "pinned"), ("mode", "pool")];
        expect(name, &labels, (1 << 40) + number);
    }
    for device in ["0", "3"] {
        let labels = [
            ("device", device),
            ("source", "vmm"),
            ("requested_source", "auto"),
        ];
        expect("device_info", &labels, 1);
    }
    let kinds = [
        "host_to_device",
        "device_to_host",
        "device_to_device",
        "memset",
    ];
    for (kind, bytes) in kinds.into_iter().zip(1..) {
        expect("copied_bytes_total", &[("kind", kind)], bytes);
    }
    expect("drop_failures_total", &[], 5);
    expect("cuda_calls_total", &[("call", "cudaMalloc")], 6);
    expect("cuda_calls_total", &[("call", "cudaFree")], 7);
    assert_eq!(read.series, expected);
    for (name, kind) in read.kinds {
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
    }
}

#[test]
fn a_manager_that_has_done_nothing_has_a_text_too() {
    let found = read(&Stats::default().to_prometheus()).unwrap();
    let pinned = NAMES.len();
    assert_eq!(found.series.len(), pinned + OF_COPIES.len() + 1);
    assert!(found.series.values().all(|value| *value == 0.0));
}

#[test]
fn label_values_are_escaped() {
    let mut text = Text(String::new());
    text.head("name", Kind::Gauge, "Help.");
    text.sample("name", &[("a", "x\"\\\n"), ("b", "")], 1);
    assert!(text.0.ends_with("name{a=\"x\\\"\\\\\\n\",b=\"\"} 1\n"));
    let found = read(&text.0).unwrap();
    let labels = found.series.keys().next().unwrap().1.clone();
    assert_eq!(labels["a"], "x\"\\\n");
}

#[test]
fn the_reader_refuses_what_the_format_does_not_allow() {
    let head = "# HELP a b\n# TYPE a gauge\n";
    assert!(read(&format!("{head}a{{b=\"c\"}} 1\na 2\n")).is_ok());
    for (text, word) in [
        ("a 1", "no end"),
        ("a 1\na 1\n", "comes twice"),
        ("a{b=\"\",b=\"\"} 1\n", "there twice"),
        ("a{b=\"c} 1\n", "does not end"),
        ("a{b=\"\\x\"} 1\n", "an escape"),
        ("a{2=\"c\"} 1\n", "no name"),
        ("a{b=\"c\"c=\"d\"} 1\n", "behind a label"),
        ("a{b} 1\n", "without a value"),
        ("a x\n", "`x`"),
        ("a 1 x\n", "`1 x`"),
        ("c 1\n", "no help or no type"),
        ("a 1\n# TYPE a gauge\n", "comes late"),
        ("# TYPE a gauge\n", "comes twice"),
        ("# HELP a c\n", "comes twice"),
        ("# HELP c d\n# TYPE c counter\nc 1\na 1\n", "not together"),
        ("2 1\n", "names no metric"),
    ] {
        let error = read(&format!("{head}{text}")).unwrap_err();
        assert!(error.contains(word), "{text}: {error}");
    }
}
