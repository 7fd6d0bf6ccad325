//! Runs one program: everything about it follows from its seed, but for the threads of those that run at once.

use crate::{
    rig,
    worker::Worker,
    world::{Lane, Tally, World, lock},
};
use memmgr::{Config, DeviceAllocatorMode, MemoryManager, Reuse};
use memmgr_tests::Rng;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

/// A step takes milliseconds; a program that makes none for this long is stuck.
const PATIENCE: Duration = Duration::from_secs(240);
const THREADS: u64 = 4;
const LANES: usize = 5;

/// What a program did.
#[derive(Debug, Default)]
pub struct Outcome {
    pub steps: u64,
    pub verified: u64,
    pub bytes: u64,
    pub tally: Tally,
    /// Wrong bytes, wrong answers and panics.
    pub failure: Option<String>,
    /// What the ordering checker said.
    pub findings: Vec<String>,
}

impl Outcome {
    pub fn is_clean(&self) -> bool {
        self.failure.is_none() && self.findings.is_empty()
    }
}

#[cfg(feature = "sim")]
pub type Mistake = Option<memmgr::planted::Mistake>;
#[cfg(not(feature = "sim"))]
pub type Mistake = Option<()>;

/// Runs `f` with the mistake made on this thread.
fn with<T>(mistake: Mistake, f: impl FnOnce() -> T) -> T {
    #[cfg(feature = "sim")]
    return memmgr::planted::make(mistake, f);
    #[cfg(not(feature = "sim"))]
    return match mistake {
        None => f(),
        Some(()) => unreachable!("there is nothing to plant"),
    };
}

/// What `f` panicked with.
fn caught<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()))
            .unwrap_or_else(|| "a panic".into())
    })
}

/// A thread, which makes as many steps as it is told, and ends when nobody can tell it any more.
struct Thread {
    steps: mpsc::Sender<u64>,
    handle: JoinHandle<()>,
}

type Done = mpsc::Sender<Result<(), String>>;

fn spawn(world: &Arc<World>, seed: u64, mistake: Mistake, done: Done) -> Thread {
    let (steps, orders) = mpsc::channel();
    let world = world.clone();
    let handle = std::thread::spawn(move || {
        with(mistake, || {
            let mut worker = Worker::new(world, seed);
            for count in orders {
                let result = caught(|| (0..count).for_each(|_| worker.step()));
                let failed = result.is_err();
                let _ = done.send(result);
                if failed {
                    // Nothing that it holds can be trusted to go.
                    std::mem::forget(worker);
                    return;
                }
            }
        });
    });
    Thread { steps, handle }
}

fn world(rng: &mut Rng, at_once: bool) -> Arc<World> {
    let modes = rig::modes();
    let cap = (256 << 10) << rng.below(4);
    let mm = MemoryManager::new(
        Config::default()
            .mode(modes[rng.below(modes.len() as u64) as usize])
            .reuse(match rng.below(2) {
                0 => Reuse::PreferSpeed,
                _ => Reuse::PreferMemory,
            })
            .device_growth(cap / 4)
            .device_pool_limit(Some(cap))
            .pinned_growth(cap / 4)
            .pinned_pool_limit(Some(2 * cap)),
    )
    .expect("valid settings");
    Arc::new(World {
        mm,
        cap,
        has_pools: modes.len() == DeviceAllocatorMode::ALL.len(),
        at_once,
        lanes: (0..LANES).map(|_| Mutex::new(Lane::new(rng))).collect(),
        raws: Mutex::default(),
        guards: Mutex::default(),
        checks: Mutex::default(),
        transfers: Mutex::default(),
        captured: Mutex::default(),
        events: Mutex::default(),
        forgotten: Mutex::default(),
        pageable: Mutex::default(),
        gate: Mutex::default(),
        tally: Mutex::default(),
        verified: AtomicU64::new(0),
        verified_bytes: AtomicU64::new(0),
    })
}

/// Looks at everything that is left, frees it, and makes sure that nothing stays.
fn finish(world: Arc<World>, seed: u64) {
    let mut worker = Worker::new(world.clone(), seed);
    // What is looked at needs room.
    world.mm.set_device_pool_limit(None);
    world.mm.set_pinned_pool_limit(None);
    #[cfg(feature = "sim")]
    drop(Limit);
    for transfer in std::mem::take(&mut *lock(&world.transfers)) {
        world.arrive(transfer);
    }
    drop(std::mem::take(&mut *lock(&world.forgotten)));
    for captured in std::mem::take(&mut *lock(&world.captured)) {
        if let Some(target) = captured.target {
            drop(captured.graph);
            lock(&world.guards).push(target);
        }
    }
    while !lock(&world.raws).is_empty() {
        worker.raw_free();
    }
    while !lock(&world.guards).is_empty() {
        worker.guard_drop();
    }
    for check in std::mem::take(&mut *lock(&world.checks)) {
        world.settle(check);
    }
    if let Some(gate) = lock(&world.gate).take() {
        gate.join().expect("the gate opens");
    }
    worker.mine.synchronize().unwrap();
    drop(worker);
    world.mm.on_out_of_memory(|_| false);
    let mut world = world;
    let World { mm, lanes, .. } = Arc::get_mut(&mut world).expect("the threads have ended");
    for lane in lanes.drain(..) {
        let lane = lane.into_inner().expect("nobody panicked");
        lane.stream.synchronize().unwrap();
    }
    mm.trim().unwrap();
    mm.check().unwrap();
    let stats = mm.stats();
    assert_eq!(stats.drop_failures, 0, "{:?}", mm.take_error());
    assert_eq!(stats.in_use(), 0, "{stats:?}");
    let report = mm.shutdown().unwrap();
    assert!(report.live.is_empty(), "{report}");
    let stats = mm.stats();
    let reserved = stats.device.iter().map(|device| device.best_fit.reserved);
    assert_eq!(
        stats.pinned.reserved + reserved.sum::<usize>(),
        0,
        "{stats:?}"
    );
    mm.check().unwrap();
}

fn steps_of(
    world: &Arc<World>,
    rng: &mut Rng,
    count: u64,
    mistake: Mistake,
    seed: u64,
) -> (u64, Result<(), String>) {
    let (done, answers) = mpsc::channel();
    let mut threads: Vec<Thread> = (0..THREADS)
        .map(|_| spawn(world, rng.next_u64(), mistake, done.clone()))
        .collect();
    let answer = || {
        answers.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            eprintln!("seed {seed}: no step has ended for {PATIENCE:?}");
            std::process::abort()
        })
    };
    let (mut made, mut result) = (0, Ok(()));
    if world.at_once {
        for thread in &threads {
            let _ = thread.steps.send(count / THREADS);
        }
        for _ in 0..threads.len() {
            result = result.and(answer());
            made += count / THREADS;
        }
    }
    while result.is_ok() && made < count {
        made += 1;
        let at = rng.below(THREADS) as usize;
        // A thread goes, with its default stream, and another comes.
        if rng.below(64) == 0 {
            let next = spawn(world, rng.next_u64(), mistake, done.clone());
            let former = std::mem::replace(&mut threads[at], next);
            drop(former.steps);
            let ended = former.handle.join();
            result = ended.map_err(|_| "a thread's end panicked".to_string());
        }
        if threads[at].steps.send(1).is_err() {
            return (made, Err("a thread could not begin".into()));
        }
        result = result.and(answer());
    }
    for thread in threads {
        drop(thread.steps);
        let ended = thread.handle.join();
        result = result.and(ended.map_err(|_| "a thread's end panicked".to_string()));
    }
    (made, result)
}

/// Runs the program of this seed.
pub fn run(seed: u64, steps: u64, mistake: Mistake) -> Outcome {
    let mut outcome = Outcome::default();
    #[cfg(feature = "sim")]
    let limited = strict(seed);
    let mut rng = Rng(seed);
    // A mistake that is found must be found again: one thread after the other.
    let at_once = mistake.is_none() && rng.below(3) == 0;
    let result = with(mistake, || {
        let world = match caught(|| world(&mut rng, at_once)) {
            Ok(world) => world,
            Err(failure) => return Err(failure),
        };
        let (made, result) = steps_of(&world, &mut rng, steps, mistake, seed);
        outcome.steps = made;
        outcome.verified = world.verified.load(Relaxed);
        outcome.tally = std::mem::take(&mut *lock(&world.tally));
        outcome.bytes = world.verified_bytes.load(Relaxed);
        match result {
            Ok(()) => {
                // Pageable memory goes after all work.
                let pageable = std::mem::take(&mut *lock(&world.pageable));
                let result = caught(move || finish(world, seed));
                let later = wait_for_the_device();
                if result.is_err() {
                    std::mem::forget(pageable);
                }
                result.and(later)
            }
            Err(failure) => {
                std::mem::forget(world);
                wait_for_the_device().and(Err(failure))
            }
        }
    });
    outcome.failure = result.err();
    #[cfg(feature = "sim")]
    {
        drop(limited);
        outcome.findings = cudart_sim::report()
            .iter()
            .map(ToString::to_string)
            .collect();
        let info = cudart_sim::memory_info(0);
        let left = info.map(|info| (info.blocks.0, info.pool_blocks.0));
        if mistake.is_none() && outcome.is_clean() && left != Some((0, 0)) {
            outcome.failure = Some(format!("memory is left: {info:?}"));
        }
    }
    outcome
}

fn wait_for_the_device() -> Result<(), String> {
    // SAFETY: the function has no preconditions.
    match unsafe { cuda_sys::cudaDeviceSynchronize() }.0 {
        0 => Ok(()),
        code => Err(format!("cudaDeviceSynchronize: {code}")),
    }
}

/// The schedules take turns, with the checker on; some devices have little memory.
#[cfg(feature = "sim")]
fn strict(seed: u64) -> Limit {
    use cudart_sim::{Check, Limited, Schedule};
    cudart_sim::set_schedule(match seed % 3 {
        0 => Schedule::Eager,
        1 => Schedule::Lazy,
        _ => Schedule::Random(seed),
    });
    cudart_sim::check(Check::Off);
    cudart_sim::check(Check::Report);
    if seed % 8 == 5 {
        cudart_sim::limit(Limited::Pools(0), Some(4 << 20));
    }
    if seed % 8 == 6 {
        cudart_sim::limit(Limited::Malloc(0), Some(1 << 20));
        cudart_sim::limit(Limited::Host, Some(1 << 20));
    }
    Limit
}

#[cfg(feature = "sim")]
struct Limit;

#[cfg(feature = "sim")]
impl Drop for Limit {
    fn drop(&mut self) {
        use cudart_sim::Limited;
        for limited in [Limited::Pools(0), Limited::Malloc(0), Limited::Host] {
            cudart_sim::limit(limited, None);
        }
    }
}
