//! One case on several allocators, which take turns pass by pass.

use std::ffi::c_void;
use std::time::Duration;

use super::figure::Row;
use super::loops::Pass;
use super::subject::Subject;
use crate::error::Result;

/// Passes of a figure, unless the command line says otherwise.
pub const PASSES: usize = 5;
/// Passes that have taken longer are enough.
pub const LONG: Duration = Duration::from_secs(2);
/// Passes that are shorter begin with one that is not measured.
const SHORT: Duration = Duration::from_millis(20);

/// Passes that are not measured make so many calls together, unless they have taken long: a pool finds the memory that it needs
/// within some ten thousand calls.
const WARM: u64 = 100_000;

/// One case of a workload, to be measured on any allocator.
pub trait Case {
    /// Words that tell the figures of one pass apart.
    fn figures(&self) -> &'static [&'static str] {
        &[""]
    }

    /// Fills the pool; what it returns stays live until the case ends.
    fn begin<S: Subject>(&self, _subject: &mut S) -> Vec<*mut c_void> {
        Vec::new()
    }

    /// One pass, and the sample that it gives for each figure.
    fn pass<S: Subject>(&self, subject: &mut S) -> (Pass, Vec<f64>);
}

/// The name of a workload, of a case, and the unit of its figures.
#[derive(Clone, Copy)]
pub struct Label<'a> {
    pub workload: &'static str,
    pub case: &'a str,
    pub unit: &'static str,
}

/// A case on one allocator, and what it has measured so far.
struct Runner<'a, S, C> {
    name: &'static str,
    subject: S,
    case: &'a C,
    kept: Vec<*mut c_void>,
    /// Of each figure.
    samples: Vec<Vec<f64>>,
    /// All that were measured, together.
    passes: Pass,
    /// How long the pass before took.
    last: Duration,
}

/// A case on some allocator.
pub trait Running {
    /// Fills the pool and runs passes that are not measured.
    fn warm_up(&mut self);
    /// Runs a pass, unless those before have taken long.
    fn step(&mut self);
    /// Empties the pool; the rows.
    fn finish(&mut self, label: Label<'_>) -> Result<Vec<Row>>;
}

/// A case on an allocator that goes by this name.
pub fn on<'a, S: Subject + 'a, C: Case>(
    name: &'static str,
    subject: S,
    case: &'a C,
) -> Box<dyn Running + 'a> {
    Box::new(Runner {
        name,
        subject,
        case,
        kept: Vec::new(),
        samples: vec![Vec::new(); case.figures().len()],
        passes: Pass::default(),
        last: Duration::ZERO,
    })
}

impl<S: Subject, C: Case> Running for Runner<'_, S, C> {
    fn warm_up(&mut self) {
        self.kept = self.case.begin(&mut self.subject);
        let (mut calls, mut elapsed) = (0, Duration::ZERO);
        while calls < WARM && elapsed < LONG {
            let pass = self.case.pass(&mut self.subject).0;
            self.last = pass.elapsed;
            calls += pass.operations.max(1);
            elapsed += pass.elapsed;
        }
    }

    fn step(&mut self) {
        if self.passes.elapsed > LONG {
            return;
        }
        if self.last < SHORT {
            // The others have filled the processor's caches meanwhile.
            self.case.pass(&mut self.subject);
        }
        let (pass, samples) = self.case.pass(&mut self.subject);
        self.last = pass.elapsed;
        self.passes.elapsed += pass.elapsed;
        self.passes.failures += pass.failures;
        self.passes.peak_live = self.passes.peak_live.max(pass.peak_live);
        for (all, sample) in self.samples.iter_mut().zip(samples) {
            all.push(sample);
        }
    }

    fn finish(&mut self, label: Label<'_>) -> Result<Vec<Row>> {
        for block in self.kept.drain(..).filter(|block| !block.is_null()) {
            self.subject.free(block);
        }
        self.subject.verdict()?;
        let reserved = self.subject.peak_reserved();
        let figures = self.case.figures().iter().zip(&self.samples);
        let rows = figures.map(|(word, samples)| {
            let case = format!("{} {word}", label.case);
            let case = case.trim_end();
            let mut row = Row::new(label.workload, case, self.name, label.unit, samples);
            row.failures = Some(self.passes.failures);
            if self.passes.peak_live > 0 {
                row.peak_live_bytes = Some(self.passes.peak_live);
                row.peak_reserved_bytes = reserved;
            }
            row
        });
        Ok(rows.collect())
    }
}

/// Measures a case on several allocators, which take turns pass by pass, so that what else the machine
/// does meanwhile befalls all of them.
pub fn measure(
    label: Label<'_>,
    passes: usize,
    mut runners: Vec<Box<dyn Running + '_>>,
) -> Result<Vec<Row>> {
    runners.iter_mut().for_each(|runner| runner.warm_up());
    for _ in 0..passes {
        runners.iter_mut().for_each(|runner| runner.step());
    }
    let mut rows = Vec::new();
    for runner in &mut runners {
        rows.extend(runner.finish(label)?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::super::subject::Null;
    use super::*;
    use std::cell::RefCell;

    /// Notes who runs.
    struct Noted<'a>(&'a RefCell<String>, Duration, u64);

    impl Case for Noted<'_> {
        fn begin<S: Subject>(&self, subject: &mut S) -> Vec<*mut c_void> {
            self.0.borrow_mut().push('(');
            vec![subject.allocate(1)]
        }

        fn pass<S: Subject>(&self, _: &mut S) -> (Pass, Vec<f64>) {
            self.0.borrow_mut().push('.');
            let pass = Pass {
                elapsed: self.1,
                operations: self.2,
                failures: 1,
                ..Pass::default()
            };
            (
                pass,
                vec![f64::from(u8::try_from(self.0.borrow().len()).expect("few"))],
            )
        }
    }

    fn run(passes: usize, each: Duration) -> (String, Vec<Row>) {
        run_calls(passes, each, WARM)
    }

    fn run_calls(passes: usize, each: Duration, calls: u64) -> (String, Vec<Row>) {
        let notes = RefCell::default();
        let case = Noted(&notes, each, calls);
        let label = Label {
            workload: "none",
            case: "noted",
            unit: "ns",
        };
        let runners = ["a", "b"].map(|name| on(name, Null::new(), &case));
        let rows = measure(label, passes, Vec::from(runners)).expect("no failure");
        (notes.into_inner(), rows)
    }

    #[test]
    fn allocators_take_turns_after_a_warm_up() {
        let (notes, rows) = run(3, Duration::from_millis(100));
        assert_eq!(notes, "(.(".to_owned() + &".".repeat(7));
        assert_eq!(rows.iter().map(|row| row.subject).collect::<String>(), "ab");
        assert!(
            rows.iter()
                .all(|row| row.passes == 3 && row.failures == Some(3))
        );
        assert_eq!((rows[0].low, rows[1].low), (5.0, 6.0));
        // A short pass has one before it that is not measured.
        assert_eq!(
            run(3, Duration::from_millis(1)).0,
            "(.(".to_owned() + &".".repeat(13)
        );
    }

    #[test]
    fn passes_of_few_calls_are_repeated_in_the_warm_up() {
        let notes = run_calls(1, Duration::from_millis(100), WARM / 2 - 1).0;
        assert_eq!(notes, "(...(...".to_owned() + "..");
        let notes = run_calls(1, Duration::from_millis(900), 0).0;
        assert_eq!(notes, "(...(...".to_owned() + "..");
    }

    #[test]
    fn what_takes_long_has_fewer_passes_and_at_least_one() {
        assert_eq!(run(9, Duration::from_millis(900)).1[0].passes, 3);
        assert_eq!(run(9, Duration::from_secs(60)).1[1].passes, 1);
    }
}
