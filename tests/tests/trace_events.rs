//! What goes to `tracing` with the feature `trace-events`: growth, trims, waits, refusals, and every block where somebody wants
//! that.

mod common;

use common::{KIB, MIB, config, stall};
use memmgr::{MemoryManager, Stream};
use memmgr_tests::Gate;
use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex},
    time::Duration,
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Writes down what it hears, up to a level.
struct Listener {
    most: Level,
    heard: Arc<Mutex<Vec<String>>>,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Listener {
    fn note(&self, text: String) {
        self.heard.lock().unwrap().push(text);
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut text = Text(format!("span {}", attributes.metadata().name()));
        attributes.record(&mut text);
        self.note(text.0);
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!("{}", event.metadata().level()));
        event.record(&mut text);
        self.note(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {
        self.note("end".into());
    }
}

/// What is heard of a program, at most at this level.
fn heard(most: Level) -> Vec<String> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = Listener {
        most,
        heard: heard.clone(),
    };
    tracing::subscriber::with_default(listener, || {
        let mm = MemoryManager::new(config().device_pool_limit(Some(4 * MIB))).unwrap();
        let (one, other) = (Stream::new().unwrap(), Stream::new().unwrap());
        let block = mm.allocate_device_on(3 * MIB, &one).unwrap();
        assert!(mm.allocate_device(2 * MIB).is_err());
        let gate = Gate::new();
        stall(&one, &gate);
        // SAFETY: nobody uses the block but what is in the stream.
        unsafe { mm.free_device_on(block, &one).unwrap() };
        let opener = gate.open_after(Duration::from_millis(20));
        let next = mm.allocate_device_on(3 * MIB, &other).unwrap();
        opener.join().unwrap();
        other.synchronize().unwrap();
        // SAFETY: nobody uses the block.
        unsafe { mm.free_device_on(next, &other).unwrap() };
        drop(mm.pinned::<u8>(KIB).unwrap());
        mm.trim().unwrap();
    });
    std::mem::take(&mut *heard.lock().unwrap())
}

#[test]
fn growth_trims_waits_and_refusals_are_told() {
    let heard = heard(Level::DEBUG);
    let has = |words: &[&str]| {
        let found = |line: &String| words.iter().all(|word| line.contains(word));
        assert!(heard.iter().any(found), "{words:?}: {heard:#?}");
    };
    has(&["span grow", "place=device 0", "bytes=3145728"]);
    has(&["span wait", "bytes=3145728"]);
    has(&["span trim", "place=pinned host memory", "bytes=0"]);
    has(&["INFO", "a request was refused", "bytes=2097152", "device 0"]);
    has(&["DEBUG", "a request waits for other streams", "streams=1"]);
    has(&["DEBUG", "memory was obtained from CUDA", "device 0"]);
    has(&["DEBUG", "memory goes back to CUDA", "pinned host memory"]);
    let spans = heard.iter().filter(|line| line.starts_with("span")).count();
    let ends = heard.iter().filter(|line| *line == "end").count();
    assert_eq!(spans, ends);
    assert!(!heard.iter().any(|line| line.starts_with("TRACE")));
}

#[test]
fn every_block_is_told_where_somebody_wants_that() {
    let heard = heard(Level::TRACE);
    let count = |what: &str| {
        let lines = heard.iter().filter(|line| line.starts_with("TRACE"));
        lines.filter(|line| line.contains(what)).count()
    };
    assert_eq!((count("allocated"), count("freed")), (3, 3), "{heard:#?}");
    assert_eq!(count("bytes=1024"), 2);
    assert_eq!(count("stream="), 4);
}
