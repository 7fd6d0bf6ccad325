//! What a CUDA runtime does where a memory manager depends on it: raw calls and their answers.
//!
//! The answers were measured on a GPU (an H200, CUDA runtime 13.0) where a fact does not say otherwise. The program runs
//! unchanged on the simulated runtime and on a GPU; a fact that fails on one of them only means that the simulated runtime is
//! wrong. Times are asserted as shapes: whether a call returns while a stream is stalled, or waits until it is not.
//!
//! `MEMMGR_TABLE=1 cargo test -p memmgr-tests --test conformance table -- --nocapture` prints what was found as rows of a
//! Markdown table.
//!
//! Every fact runs on a thread of its own (so that the last error and the capture mode are fresh), one at a time, and not
//! longer than a minute.

#[macro_use]
mod cuda;

mod capture;
mod copies;
mod errors;
mod pointers;
mod pools;
mod queues;
mod relied_upon;
mod sizes;
mod stream_calls;
mod streams;
mod two_devices;
mod virtual_memory;
mod waiting;

use cuda::sys;
use memmgr_tests::SIMULATED;
use std::{
    cell::{Cell, RefCell},
    fmt::Debug,
    panic::{AssertUnwindSafe, Location, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

/// Where an answer comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// It was measured.
    Gpu,
    /// NVIDIA's description says so, and `memmgr` relies on it.
    Documentation,
    /// Neither measured nor documented when it was written down, and `memmgr` relies on it.
    Assumed,
    /// The simulated runtime's own choice, where a GPU crashes.
    Own,
}

/// One promise and the calls that check it.
pub struct Fact {
    name: &'static str,
    promise: &'static str,
    from: From,
    run: fn(),
}

/// Lists the facts of a module, and makes a test of each.
macro_rules! facts {
    ($($name:ident, $from:ident: $promise:literal;)*) => {
        pub const FACTS: &[crate::Fact] = &[$(crate::Fact::new(
            concat!(module_path!(), "::test::", stringify!($name)),
            $promise,
            crate::From::$from,
            $name,
        )),*];

        mod test {
            $(#[test] fn $name() {
                crate::test(super::FACTS, stringify!($name));
            })*
        }
    };
}
pub(crate) use facts;

/// What came of a fact.
enum Verdict {
    Holds,
    Differs(Vec<String>),
    Skipped(&'static str),
}

thread_local! {
    static DIFFERENCES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static SKIPPED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

static TURN: Mutex<()> = Mutex::new(());
static HANGS: AtomicBool = AtomicBool::new(false);
const PATIENCE: Duration = Duration::from_secs(60);

/// Notes a difference between what a call answered and what it should; the fact goes on, so that one run tells all.
#[track_caller]
pub fn is<T: PartialEq + Debug>(what: impl AsRef<str>, got: T, want: T) {
    if got != want {
        let at = Location::caller();
        let what = what.as_ref();
        let text = format!(
            "{what}: got {got:?}, expected {want:?} (line {})",
            at.line()
        );
        DIFFERENCES.with_borrow_mut(|all| all.push(text));
    }
}

/// The fact cannot be checked here.
pub fn skip(why: &'static str) {
    SKIPPED.set(Some(why));
}

impl Fact {
    const fn new(name: &'static str, promise: &'static str, from: From, run: fn()) -> Fact {
        Fact {
            name,
            promise,
            from,
            run,
        }
    }

    fn check(&self) -> Verdict {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        machine();
        if HANGS.load(Ordering::Relaxed) {
            return Verdict::Differs(vec!["not tried: an earlier one never returned".to_owned()]);
        }
        let (send, receive) = mpsc::channel();
        let run = self.run;
        std::thread::spawn(move || {
            // Calls of the driver need the device's context to be current on this thread.
            cuda!(cudaSetDevice(0));
            let outcome = catch_unwind(AssertUnwindSafe(run));
            let mut differences = DIFFERENCES.take();
            if let Err(panic) = outcome {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied());
                differences.push(text.unwrap_or("it panicked").to_owned());
            }
            let settled = cuda!(cudaDeviceSynchronize());
            if settled != 0 {
                differences.push(format!("cudaDeviceSynchronize at the end: {settled}"));
            }
            cuda!(cudaGetLastError());
            let _ = send.send((differences, SKIPPED.get()));
        });
        match receive.recv_timeout(PATIENCE) {
            Ok((_, Some(why))) => Verdict::Skipped(why),
            Ok((differences, None)) if differences.is_empty() => Verdict::Holds,
            Ok((differences, None)) => Verdict::Differs(differences),
            Err(_) => {
                HANGS.store(true, Ordering::Relaxed);
                Verdict::Differs(vec![format!("it has not returned after {PATIENCE:?}")])
            }
        }
    }
}

/// The simulated machine has two devices, for what needs as many. Comes before the first CUDA call.
fn machine() {
    #[cfg(feature = "sim")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let mut machine = cudart_sim::Config::default();
            machine.devices.resize(2, Default::default());
            cudart_sim::configure(machine.or_env()).expect("no call was made before");
        });
    }
}

fn backend() -> &'static str {
    if SIMULATED { "simulated" } else { "GPU" }
}

/// Checks one fact as a test.
fn test(facts: &[Fact], name: &str) {
    let of_that_name = |fact: &&Fact| fact.name.rsplit("::").next() == Some(name);
    let fact = facts.iter().find(of_that_name).expect("it is listed");
    match fact.check() {
        Verdict::Holds => {}
        Verdict::Skipped(why) => {
            memmgr_tests::skip(fact.name, why);
        }
        Verdict::Differs(differences) => panic!(
            "{} ({}):\n  {}",
            fact.promise,
            backend(),
            differences.join("\n  ")
        ),
    }
}

/// All facts, by subject.
const SUBJECTS: &[&[Fact]] = &[
    sizes::FACTS,
    errors::FACTS,
    pointers::FACTS,
    copies::FACTS,
    waiting::FACTS,
    queues::FACTS,
    streams::FACTS,
    stream_calls::FACTS,
    pools::FACTS,
    capture::FACTS,
    virtual_memory::FACTS,
    relied_upon::FACTS,
    two_devices::FACTS,
];

/// Checks everything once more and prints a row for each fact, if `MEMMGR_TABLE` is 1.
#[test]
fn table() {
    if std::env::var("MEMMGR_TABLE").as_deref() != Ok("1") {
        return;
    }
    let mut failed = 0;
    println!(
        "| promise | test (in `tests/tests/conformance`) | from | {} |",
        backend()
    );
    println!("| --- | --- | --- | --- |");
    for fact in SUBJECTS.iter().copied().flatten() {
        let verdict = match fact.check() {
            Verdict::Holds => "ok".to_owned(),
            Verdict::Skipped(why) => format!("not tried: {why}"),
            Verdict::Differs(differences) => {
                failed += 1;
                format!(
                    "failed: {}",
                    differences.join("; ").replace(['|', '\n'], "/")
                )
            }
        };
        let name = fact
            .name
            .split_once("::")
            .map_or(fact.name, |(_, name)| name);
        let from = match fact.from {
            From::Gpu => "H200",
            From::Documentation => "documentation",
            From::Assumed => "assumed",
            From::Own => "own",
        };
        let name = name.replace("::test::", "::");
        println!("| {} | `{name}` | {from} | {verdict} |", fact.promise);
    }
    assert_eq!(failed, 0, "facts that do not hold");
}

/// No two facts share a name, and the program runs on what it says.
#[test]
fn every_fact_is_listed_once_and_the_backend_is_what_it_says() {
    let mut names: Vec<_> = SUBJECTS.iter().copied().flatten().map(|f| f.name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    machine();
    let mut properties = sys::cudaDeviceProp::default();
    assert_eq!(
        cuda!(cudaGetDeviceProperties(&mut properties, 0)),
        0,
        "a device"
    );
    let name: Vec<u8> = properties.name.iter().map(|c| *c as u8).collect();
    let simulated = name.starts_with(b"Simulated");
    assert_eq!(simulated, SIMULATED, "{}", String::from_utf8_lossy(&name));
}
