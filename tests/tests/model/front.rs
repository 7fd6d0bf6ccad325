//! Threads that bypass the lock of a pool, while others want everything that they hold back.

use crate::{
    explore::{self, Machine},
    show::*,
};
use memmgr::{Error, MemoryManager, Stream, model::use_front};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

/// One hundredth of it is enough for bins of a few granules.
const POOL: usize = 512 << 10;
const BLOCK: usize = 256;

/// The ordering checker does not look on: who is told of each block sees to it that none is in the front.
const UNCHECKED: Machine = Machine {
    checked: false,
    ..EAGER
};

fn beside_the_lock(name: &str, program: fn()) {
    explore::all(name, 2, UNCHECKED, program);
    explore::drawn(name, UNCHECKED, program);
}

/// A manager with a pool, and a stream.
fn machine() -> (Arc<MemoryManager>, Stream, Had) {
    // Other programs have left it on.
    cudart_sim::check(cudart_sim::Check::Off);
    let stream = Stream::new().unwrap();
    (Arc::new(pool_of(POOL)), stream, Had::default())
}

/// The blocks that somebody has.
#[derive(Clone, Default)]
struct Had(Arc<Mutex<BTreeSet<usize>>>);

impl Had {
    fn allocate(&self, manager: &MemoryManager, stream: &Stream) -> Block {
        let block = manager.allocate_device_on(BLOCK, stream).unwrap();
        assert!(
            self.0.lock().unwrap().insert(block.addr()),
            "somebody has it"
        );
        Block(block)
    }

    fn free(&self, block: Block, manager: &MemoryManager, stream: &Stream) {
        assert!(self.0.lock().unwrap().remove(&block.0.addr()));
        block.free_on(manager, stream);
    }
}

fn whole(manager: &MemoryManager, stream: &Stream) {
    Block(manager.allocate_device_on(POOL, stream).unwrap()).free_on(manager, stream);
}

/// A manager, a stream, and a thread that does something with them beside the lock.
fn beside(
    manager: &Arc<MemoryManager>,
    stream: &Stream,
    had: &Had,
    work: impl FnOnce(&MemoryManager, &Stream, &Had) + Send + 'static,
) -> shuttle::thread::JoinHandle<()> {
    let (manager, stream, had) = (manager.clone(), stream.clone(), had.clone());
    start(move || {
        use_front();
        work(&manager, &stream, &had);
    })
}

/// Two threads free and take while a third looks at the books, which empties all bins.
fn taken_and_emptied() {
    let (manager, stream, had) = machine();
    let pairs = |manager: &MemoryManager, stream: &Stream, had: &Had| {
        for _ in 0..2 {
            let block = had.allocate(manager, stream);
            had.free(block, manager, stream);
        }
    };
    let looks = manager.clone();
    join([
        beside(&manager, &stream, &had, pairs),
        beside(&manager, &stream, &had, pairs),
        start(move || {
            let stats = looks.stats();
            for device in &stats.device {
                assert!(device.best_fit.in_use <= 2 * BLOCK);
            }
        }),
    ]);
    whole(&manager, &stream);
    sound_and_empty(&manager);
}

/// A thread takes over what gathers in the bins of another, which looks at the books meanwhile: what was free before is free
/// for it, wherever it is on its way.
fn moved_and_counted() {
    let (manager, stream, had) = machine();
    use_front();
    // A stream that the pool does not know yet makes it empty all bins.
    let block = had.allocate(&manager, &stream);
    had.free(block, &manager, &stream);
    // Whoever looks goes through the bins of this thread first. They have something, so that the lock is free afterwards.
    let other = Stream::new().unwrap();
    // (The first block of a stream is made at length, and in no bin.)
    for _ in 0..3 {
        let block = had.allocate(&manager, &other);
        had.free(block, &manager, &other);
    }
    assert_eq!(manager.contention(0).unwrap().from_front, 1);
    let (given, taken) = shuttle::sync::mpsc::channel();
    let gives = beside(&manager, &stream, &had, move |manager, stream, had| {
        let blocks = [(); 3].map(|()| had.allocate(manager, stream));
        for block in blocks {
            had.free(block, manager, stream);
        }
        given.send(()).unwrap();
        let stats = manager.stats();
        assert!(stats.device[0].best_fit.in_use <= BLOCK, "{stats:?}");
    });
    taken.recv().unwrap();
    let block = had.allocate(&manager, &stream);
    had.free(block, &manager, &stream);
    join([gives]);
    whole(&manager, &stream);
    sound_and_empty(&manager);
}

#[test]
fn no_block_is_lost_or_had_twice_beside_the_lock() {
    beside_the_lock("taken and emptied", taken_and_emptied);
}

#[test]
fn what_goes_from_thread_to_thread_is_never_missing() {
    beside_the_lock("moved and counted", moved_and_counted);
}

/// Two threads free one block at a time.
fn freed_twice() {
    let (manager, stream, had) = machine();
    use_front();
    let block = had.allocate(&manager, &stream);
    let freed = Arc::new(Mutex::new(0));
    let tries = || {
        let freed = freed.clone();
        beside(&manager, &stream, &had, move |manager, stream, _| {
            let block = block;
            // SAFETY: nobody uses the block; whether it is live is what the manager is asked.
            match unsafe { manager.free_device_on(block.0, stream) } {
                Ok(()) => *freed.lock().unwrap() += 1,
                Err(error) => assert!(matches!(error, Error::DoubleFree { .. }), "{error}"),
            }
        })
    };
    join([tries(), tries()]);
    assert_eq!(*freed.lock().unwrap(), 1);
    whole(&manager, &stream);
    sound_and_empty(&manager);
}

#[test]
fn of_two_frees_of_a_block_one_is_told() {
    beside_the_lock("freed twice", freed_twice);
}
