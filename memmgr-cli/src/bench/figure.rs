//! One figure of a benchmark: the samples of its passes, the line that shows it, and its row in the JSON.

use serde::Serialize;

/// Columns for the name of a case.
const CASE: usize = 24;

/// The median, and the smallest and largest sample beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Spread {
    /// Of the samples, of which there is at least one. The lower middle of an even number counts, so
    /// that the median is one of them.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        Self {
            median: at(sorted.len().saturating_sub(1) / 2),
            low: at(0),
            high: at(sorted.len().saturating_sub(1)),
        }
    }
}

/// What was measured in one case of a workload on one allocator.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub workload: &'static str,
    pub case: String,
    /// `memmgr`, `null` (the loop alone), `list`, `btree` or `cuda` (plain calls).
    pub subject: &'static str,
    /// `gpu` or `simulated`; a simulated device's times say nothing about a GPU.
    pub backend: String,
    pub unit: &'static str,
    /// The median of the passes.
    pub value: f64,
    pub low: f64,
    pub high: f64,
    pub passes: usize,
    /// On the rows of others: `memmgr`'s value over this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The most bytes live at one time, as requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_live_bytes: Option<u64>,
    /// The most bytes held from CUDA at one time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_reserved_bytes: Option<u64>,
    /// How threads met at the pool, in all passes and the warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<Met>,
    /// Requests of all passes that could not be met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failures: Option<u64>,
}

/// How threads met at the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Met {
    pub calls: u64,
    /// Of the requests, the share that was served without the lock.
    pub front: f64,
    /// Requests that bypass the lock and had to take it, and those of them that got what another thread held back.
    pub missed: u64,
    pub fetched: u64,
    /// Blocks that a thread had no room to hold back.
    pub refused: u64,
    pub flushes: u64,
    /// How often the lock was taken by a thread without its bias, and how often it was waited for.
    pub locked: u64,
    pub waited: u64,
    /// How often a bias was withdrawn.
    pub withdrawn: u64,
}

impl Row {
    pub fn new(
        workload: &'static str,
        case: impl Into<String>,
        subject: &'static str,
        unit: &'static str,
        samples: &[f64],
    ) -> Self {
        let spread = Spread::of(samples);
        let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
        Self {
            workload,
            case: case.into(),
            subject,
            backend: memmgr::backend().to_string(),
            unit,
            value: rounded(spread.median),
            low: rounded(spread.low),
            high: rounded(spread.high),
            passes: samples.len(),
            ..Self::default()
        }
    }

    /// The line on the terminal; `usual` is the number of passes that its heading names.
    pub fn line(&self, usual: usize) -> String {
        let range = format!("{}..{}", short(self.low), short(self.high));
        let mut notes = Vec::new();
        if let Some(ratio) = self.ratio {
            notes.push(format!("ours x{ratio:.2}"));
        }
        match (
            self.failures,
            self.peak_live_bytes,
            self.peak_reserved_bytes,
        ) {
            // Less was live than the workload asks for.
            (Some(failures @ 1..), ..) => notes.push(format!("{failures} failed")),
            (_, Some(live @ 1..), Some(reserved)) => {
                notes.push(format!("held x{:.3}", reserved as f64 / live as f64));
            }
            _ => (),
        }
        if let Some(met) = self.met {
            let locked = 100.0 * met.locked as f64 / met.calls.max(1) as f64;
            notes.push(format!("locked {locked:.2}%"));
        }
        if self.passes < usual {
            notes.push(format!("of {}", self.passes));
        }
        // A trace may have a long name; the JSON has all of it.
        let case: String = self.case.chars().take(CASE).collect();
        let text = format!(
            "{:<6} {case:<CASE$} {:>8} {:<6} {range:>14}  {}",
            self.subject,
            short(self.value),
            self.unit,
            notes.join(" ")
        );
        text.trim_end().to_owned()
    }
}

/// Four significant digits are more than any of these figures is worth.
fn short(value: f64) -> String {
    if value >= 1000.0 {
        format!("{value:.0}")
    } else if value >= 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_one_of_the_samples() {
        let spread = Spread::of(&[3.0, 1.0, 9.0, 2.0, 4.0]);
        assert_eq!((spread.low, spread.median, spread.high), (1.0, 3.0, 9.0));
        assert_eq!(Spread::of(&[1.0, 2.0]).median, 1.0);
        assert_eq!(Spread::of(&[5.0]).high, 5.0);
    }

    #[test]
    fn a_line_fits_a_terminal() {
        let samples = [54_321.4, 44_321.0, 64_321.0];
        let mut row = Row::new("random", "n=100000 max=1024MiB", "btree", "ns/op", &samples);
        row.ratio = Some(0.0123);
        let line = row.line(3);
        assert!(line.chars().count() <= 80, "{line}");
        assert!(
            line.ends_with("54321 ns/op    44321..64321  ours x0.01"),
            "{line}"
        );
        row.ratio = None;
        row.peak_live_bytes = Some(1000);
        row.peak_reserved_bytes = Some(1013);
        let line = row.line(5);
        assert!(line.ends_with("held x1.013 of 3"), "{line}");
        assert!(line.chars().count() <= 80, "{line}");
    }
}
