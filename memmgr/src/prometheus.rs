//! The figures of a manager in the text format that Prometheus reads (version 0.0.4, which OpenMetrics readers take as well).
//!
//! Every pool has the labels `pool` (`device` or `pinned`), `mode` (`pool`, `async`, `cuda-pool`), `backend` (`gpu`,
//! `simulated`) and, but for pinned memory, `device` (the ordinal). What a manager has as a whole has `backend` alone, beside
//! what it is split by.

use crate::{
    DeviceAllocatorMode, backend,
    stats::{Copied, PoolStats, Stats},
};
use std::fmt::Write;

/// What a figure does: a counter never falls while the process runs.
#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

/// One figure.
struct Metric<S> {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    value: fn(&S) -> u64,
}

/// Makes the list of the figures of a type, which must name all of its fields.
macro_rules! metrics {
    ($list:ident of $type:ident: $($field:ident $kind:ident $name:literal $help:literal;)*) => {
        const $list: &[Metric<$type>] = &[$(Metric {
            name: $name,
            kind: Kind::$kind,
            help: $help,
            value: |of| of.$field as u64,
        }),*];
        const _: fn($type) = |of| {
            let $type { $($field: _),* } = of;
        };
    };
}

metrics! { OF_POOLS of PoolStats:
    in_use Gauge "memmgr_in_use_bytes" "Live blocks, rounded up to the granule.";
    reserved Gauge "memmgr_reserved_bytes" "Held from CUDA; 0 in the async modes.";
    idle Gauge "memmgr_idle_bytes" "Free and usable by anybody at once.";
    pending Gauge "memmgr_pending_bytes" "Free, but work that may touch it is not known to have finished.";
    largest_idle Gauge "memmgr_largest_idle_bytes" "The largest idle block.";
    internal_waste Gauge "memmgr_internal_waste_bytes" "What live blocks have beyond what was asked for.";
    largest_miss Gauge "memmgr_largest_miss_bytes" "The largest request that found no free block of its size at once.";
    peak_in_use Gauge "memmgr_peak_in_use_bytes" "The highest in use since the peaks were reset.";
    peak_reserved Gauge "memmgr_peak_reserved_bytes" "The most held since the peaks were reset.";
    live_blocks Gauge "memmgr_live_blocks" "Live blocks.";
    free_spans Gauge "memmgr_free_spans" "Free spans.";
    segments Gauge "memmgr_segments" "Segments.";
    allocations Counter "memmgr_allocations_total" "Blocks handed out.";
    frees Counter "memmgr_frees_total" "Blocks taken back.";
    reuses Counter "memmgr_reuses_total" "Allocations served from memory that the pool held already.";
    steals Counter "memmgr_steals_total" "Allocations that took memory which still had the mark of another stream.";
    waits Counter "memmgr_waits_total" "Steals that had to wait for the other stream.";
    growths Counter "memmgr_growths_total" "Segments obtained from CUDA, or growths that made new chunks.";
    moves Counter "memmgr_moves_total" "Chunks of physical memory that were moved to other addresses.";
    remaps Counter "memmgr_remaps_total" "Moves for which memory was mapped anew.";
    failures Counter "memmgr_failures_total" "Requests refused.";
    splits Counter "memmgr_splits_total" "Blocks divided in two.";
    merges Counter "memmgr_merges_total" "Neighbouring free blocks joined.";
}

metrics! { OF_COPIES of Copied:
    host_to_device Counter "host_to_device" "";
    device_to_host Counter "device_to_host" "";
    device_to_device Counter "device_to_device" "";
    memset Counter "memset" "";
}

/// The text while it is made.
struct Text(String);

/// Label names and values, in the order in which they are written.
type Labels<'a> = &'a [(&'a str, &'a str)];

impl Text {
    fn head(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: u64) {
        self.0.push_str(name);
        for (number, (label, value)) in labels.iter().enumerate() {
            self.0.push(if number == 0 { '{' } else { ',' });
            let _ = write!(self.0, "{label}=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        let _ = writeln!(self.0, "}} {value}");
    }
}

impl Stats {
    /// All figures in Prometheus' text format: served as `text/plain; version=0.0.4`, or written to a file for the textfile
    /// collector of its node exporter. Sizes are bytes.
    ///
    /// `cuda_calls` are those of the process; the rest is this manager's.
    pub fn to_prometheus(&self) -> String {
        let mut text = Text(String::with_capacity(16 << 10));
        let backend = backend().to_string();
        let backend = ("backend", backend.as_str());
        let modes = DeviceAllocatorMode::ALL.map(|mode| mode.to_string());
        let [pool, on_streams, cuda_pool] = modes.each_ref().map(String::as_str);
        let ordinals: Vec<String> = (self.device.iter())
            .map(|device| device.device.to_string())
            .collect();
        for metric in OF_POOLS {
            text.head(metric.name, metric.kind, metric.help);
            for (device, ordinal) in self.device.iter().zip(&ordinals) {
                for (mode, stats) in [
                    (pool, &device.best_fit),
                    (on_streams, &device.async_stream_ordered),
                    (cuda_pool, &device.cuda_async_pool),
                ] {
                    let labels = [
                        ("pool", "device"),
                        ("device", ordinal.as_str()),
                        ("mode", mode),
                        backend,
                    ];
                    text.sample(metric.name, &labels, (metric.value)(stats));
                }
            }
            let labels = [("pool", "pinned"), ("mode", pool), backend];
            text.sample(metric.name, &labels, (metric.value)(&self.pinned));
        }
        let name = "memmgr_device_info";
        let help = "Where the memory of the manager's own pool of a device comes from; always 1.";
        text.head(name, Kind::Gauge, help);
        for (device, ordinal) in self.device.iter().zip(&ordinals) {
            let sources = [device.source, device.requested_source].map(|of| of.to_string());
            let [source, requested] = sources.each_ref().map(String::as_str);
            let labels = [
                ("device", ordinal.as_str()),
                ("source", source),
                ("requested_source", requested),
                backend,
            ];
            text.sample(name, &labels, 1);
        }
        let name = "memmgr_copied_bytes_total";
        let help = "Bytes copied, and filled by memset, through the manager.";
        text.head(name, Kind::Counter, help);
        for metric in OF_COPIES {
            let labels = [("kind", metric.name), backend];
            text.sample(name, &labels, (metric.value)(&self.copied));
        }
        let name = "memmgr_drop_failures_total";
        let help = "Failures in drops, which had nobody to report to.";
        text.head(name, Kind::Counter, help);
        text.sample(name, &[backend], self.drop_failures);
        let name = "memmgr_cuda_calls_total";
        let help = "CUDA calls of this crate, in the whole process.";
        text.head(name, Kind::Counter, help);
        for (call, count) in &self.cuda_calls {
            text.sample(name, &[("call", call), backend], *count);
        }
        text.0
    }
}

#[cfg(test)]
mod tests;
