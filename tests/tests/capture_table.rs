//! B57, all of it: every method beside a capture by other code, on the capturing stream and on another, on the capturing
//! thread and on another, in every mode of the capture and of the allocator.

#[path = "common/capturing.rs"]
mod capturing;
mod common;

use common::{KIB, MIB, MODES, assert_sound};
use memmgr::{
    CaptureMode, Config, CopyKind, DeviceAllocatorMode, DeviceBuffer, Error, Event, Graph,
    MemoryManager, Observer, PerThreadStream, PinnedBuffer, Result, Stream, Submitted, Transfer,
};
use std::{ffi::c_void, future::IntoFuture, sync::Arc};

/// What the methods are called with, made before the capture begins.
struct Rig {
    mode: DeviceAllocatorMode,
    mm: Option<MemoryManager>,
    /// The stream that the method is called with: the one that is captured, or another.
    target: Option<Stream>,
    raw_target: usize,
    /// Raw blocks of `KIB` bytes, used by the target.
    device: [usize; 2],
    host: usize,
    /// Guards that were made for the target, and used by it.
    on_device: [Option<DeviceBuffer<u8>>; 2],
    on_host: Option<PinnedBuffer<u8>>,
    /// Of a third stream, and of the target before the capture.
    events: Vec<Event>,
    submitted: Option<Submitted>,
    graph: Option<Graph>,
    /// Memory of others, used by the target.
    adopted: Option<PinnedBuffer<u8>>,
    adopted_device: Option<DeviceBuffer<u8>>,
    /// Device memory of other code that nobody has adopted.
    foreign: Option<usize>,
    /// A copy in the target that was not waited for.
    transfer: Option<Transfer<PinnedBuffer<u8>, DeviceBuffer<u8>>>,
}

/// Device memory of other code.
fn foreign() -> *mut c_void {
    let mut memory = std::ptr::null_mut();
    // SAFETY: `memory` is a place for one pointer.
    assert_eq!(unsafe { cuda_sys::cudaMalloc(&mut memory, LEN) }.0, 0);
    memory
}

/// A buffer of it, which is freed as other code frees: without a thought of captures.
fn adopt_device(mm: &MemoryManager, memory: *mut c_void, on: &Stream) -> Result<DeviceBuffer<u8>> {
    let address = memory as usize;
    let free = move || {
        // SAFETY: the memory is of `foreign`, and the guard that had it is gone.
        assert_eq!(unsafe { cuda_sys::cudaFree(p(address)) }.0, 0);
    };
    // SAFETY: the memory has these bytes, and `free` alone frees it.
    unsafe { mm.adopt_device::<u8>(memory, LEN, on, free) }
}

const LEN: usize = KIB;

fn p(address: usize) -> *mut c_void {
    address as *mut c_void
}

impl Rig {
    fn new(mode: DeviceAllocatorMode, target: &Stream) -> Result<Self> {
        let config = Config::default()
            .device_growth(2 * MIB)
            .pinned_growth(2 * MIB);
        let mm = MemoryManager::new(config.mode(mode))?;
        let third = Stream::new()?;
        let mut graph_host = mm.pinned_zeroed::<u8>(LEN)?;
        let graph_device = mm.device::<u8>(LEN, &third)?;
        let graph = third.capture(|s| s.copy_to_host(&graph_device, &mut graph_host).map(drop))?;
        let device = [
            mm.allocate_device_on(LEN, target)? as usize,
            mm.allocate_device_on(LEN, target)? as usize,
        ];
        let host = mm.allocate_pinned(LEN)? as usize;
        let on_device = [mm.device::<u8>(LEN, target)?, mm.device::<u8>(LEN, target)?];
        let mut on_host = mm.pinned_zeroed::<u8>(LEN)?;
        let _ = target.copy_to_device(&on_host, &on_device[0])?;
        let submitted = target.copy_to_host(&on_device[0], &mut on_host)?;
        // SAFETY: the blocks are ours and as long as the fills.
        unsafe { mm.memset(p(device[0]), 1, LEN, target)? };
        // Something that the target has freed, and another has asked for.
        let freed = mm.device::<u8>(MIB, target)?;
        let _ = target.memset(&freed, 2)?;
        drop(freed);
        let _ = third.memset(&graph_device, 0)?;
        let adopted = mm.adopt(vec![1u8; LEN])?;
        let adopted_device = adopt_device(&mm, foreign(), target)?;
        let _ = target.copy_to_device(&adopted, &adopted_device)?;
        let transfer =
            target.transfer_to_device(mm.pinned_zeroed(LEN)?, mm.device(LEN, target)?)?;
        let events = vec![third.record()?, target.record()?];
        Ok(Self {
            mode,
            mm: Some(mm),
            target: Some(target.clone()),
            raw_target: target.as_raw() as usize,
            device,
            host,
            on_device: on_device.map(Some),
            on_host: Some(on_host),
            events,
            submitted: Some(submitted),
            graph: Some(graph),
            adopted: Some(adopted),
            adopted_device: Some(adopted_device),
            foreign: Some(foreign() as usize),
            transfer: Some(transfer),
        })
    }

    fn mm(&self) -> &MemoryManager {
        self.mm.as_ref().expect("a method takes it at most once")
    }

    fn target(&self) -> &Stream {
        self.target
            .as_ref()
            .expect("a method takes it at most once")
    }
}

struct Nobody;
impl Observer for Nobody {}

type Method = (&'static str, fn(&mut Rig) -> Result<()>);

/// Every public method that can meet a capture.
#[rustfmt::skip]
const METHODS: &[Method] = &[
    ("nothing", |_| Ok(())),
    ("allocate_device", |r| r.mm().allocate_device(LEN).map(drop)),
    ("allocate_device, new size", |r| r.mm().allocate_device(9 * MIB).map(drop)),
    ("allocate_device_at", |r| r.mm().allocate_device_at(0, LEN).map(drop)),
    ("allocate_device_on", |r| r.mm().allocate_device_on(LEN, r.target()).map(drop)),
    ("allocate_device_on, new size", |r| r.mm().allocate_device_on(9 * MIB, r.target()).map(drop)),
    // SAFETY: the block is ours; copies and fills through the manager are all that uses it.
    ("free_device", |r| unsafe { r.mm().free_device(p(r.device[0])) }),
    // SAFETY: as above.
    ("free_device_on", |r| unsafe { r.mm().free_device_on(p(r.device[0]), r.target()) }),
    ("allocate_pinned", |r| r.mm().allocate_pinned(LEN).map(drop)),
    ("allocate_pinned, new size", |r| r.mm().allocate_pinned(9 * MIB).map(drop)),
    // SAFETY: as above.
    ("free_pinned", |r| unsafe { r.mm().free_pinned(p(r.host)) }),
    // SAFETY: the blocks are as long as the copies, here and below.
    ("copy_to_device_async", |r| unsafe { r.mm().copy_to_device_async(p(r.device[0]), p(r.host), LEN, r.target()) }),
    // SAFETY: as above.
    ("copy_to_host_async", |r| unsafe { r.mm().copy_to_host_async(p(r.host), p(r.device[0]), LEN, r.target()) }),
    // SAFETY: as above.
    ("copy_device_to_device", |r| unsafe { r.mm().copy_device_to_device(p(r.device[1]), p(r.device[0]), LEN, r.target()) }),
    // SAFETY: as above.
    ("copy_2d", |r| unsafe { r.mm().copy_2d(p(r.device[0]), 32, p(r.host), 32, 16, 8, CopyKind::HostToDevice, r.target()) }),
    // SAFETY: as above.
    ("memset", |r| unsafe { r.mm().memset(p(r.device[0]), 3, LEN, r.target()) }),
    // SAFETY: as above.
    ("memset_2d", |r| unsafe { r.mm().memset_2d(p(r.device[0]), 32, 3, 16, 8, r.target()) }),
    // SAFETY: as above.
    ("memset and free_device_on", |r| unsafe {
        r.mm().memset(p(r.device[0]), 3, LEN, r.target())?;
        r.mm().free_device_on(p(r.device[0]), r.target())
    }),
    ("record_use", |r| r.mm().record_use(p(r.device[0]), r.target())),
    ("set_pinned_pool_size", |r| match r.mm().set_pinned_pool_size(MIB) {
        Err(Error::AlreadyInitialized { .. }) => Ok(()),
        other => other,
    }),
    ("set_device_pool_size", |r| match r.mm().set_device_pool_size(MIB) {
        Err(Error::AlreadyInitialized { .. }) => Ok(()),
        other => other,
    }),
    ("set_…_pool_limit", |r| {
        r.mm().set_pinned_pool_limit(Some(64 * MIB));
        r.mm().set_device_pool_limit(Some(64 * MIB));
        Ok(())
    }),
    ("set_device_allocator_mode", |r| {
        for mode in MODES {
            r.mm().set_device_allocator_mode(mode);
            let block = r.mm().allocate_device(LEN)?;
            // SAFETY: the block is ours and nothing uses it.
            unsafe { r.mm().free_device(block)? };
        }
        r.mm().set_device_allocator_mode(r.mode);
        Ok(())
    }),
    ("…_device_allocator_mode", |r| {
        let _ = r.mm().requested_device_allocator_mode();
        r.mm().effective_device_allocator_mode().map(drop)
    }),
    ("supports_async_device_allocator", |r| r.mm().supports_async_device_allocator().map(drop)),
    ("on_out_of_memory", |r| {
        r.mm().on_out_of_memory(|_| false);
        Ok(())
    }),
    ("set_observer", |r| r.mm().set_observer(Arc::new(Nobody))),
    ("stats", |r| {
        let _ = r.mm().stats();
        r.mm().reset_peak();
        let _ = r.mm().take_error();
        assert_sound(r.mm());
        Ok(())
    }),
    ("native_pool_usage", |r| r.mm().native_pool_usage(DeviceAllocatorMode::CudaAsyncPool).map(drop)),
    ("trim", |r| r.mm().trim().map(drop)),
    ("shutdown", |r| r.mm().shutdown().map(drop)),
    // SAFETY: nobody uses the raw pointers afterwards.
    ("shutdown_and_free_raw", |r| unsafe { r.mm().shutdown_and_free_raw().map(drop) }),
    ("a manager made, used and dropped", |r| {
        let mm = MemoryManager::new(Config::default().mode(r.mode).device_pool_size(4 * MIB))?;
        drop(mm.device::<u8>(LEN, r.target())?);
        drop(mm.pinned::<u8>(LEN)?);
        Ok(())
    }),
    ("the manager dropped", |r| {
        drop((r.mm.take(), r.on_host.take(), r.on_device[0].take(), r.on_device[1].take(), r.graph.take()));
        drop((r.adopted.take(), r.adopted_device.take(), r.transfer.take()));
        MemoryManager::new(Config::default())?.trim().map(drop)
    }),
    ("pinned", |r| r.mm().pinned::<u8>(LEN).map(drop)),
    ("pinned_zeroed", |r| r.mm().pinned_zeroed::<u8>(LEN).map(drop)),
    ("as_slice", |r| r.on_host.as_ref().map_or(Ok(()), |host| host.as_slice().map(drop))),
    ("as_mut_slice", |r| r.on_host.as_mut().map_or(Ok(()), |host| host.as_mut_slice().map(drop))),
    ("a pinned guard dropped", |r| {
        r.on_host = None;
        Ok(())
    }),
    ("device", |r| r.mm().device::<u8>(LEN, r.target()).map(drop)),
    ("device_zeroed", |r| r.mm().device_zeroed::<u8>(LEN, r.target()).map(drop)),
    ("a device guard dropped", |r| {
        r.on_device[0] = None;
        Ok(())
    }),
    ("Stream::copy_to_device", |r| {
        let (Some(host), Some(device)) = (&r.on_host, &r.on_device[0]) else { return Ok(()) };
        r.target().copy_to_device(host, device)?.wait()
    }),
    ("Stream::copy_to_host", |r| {
        let target = r.target().clone();
        let (Some(host), Some(device)) = (&mut r.on_host, &r.on_device[0]) else { return Ok(()) };
        target.copy_to_host(device, host)?.wait()?;
        host.as_slice().map(drop)
    }),
    ("Stream::copy_device_to_device", |r| {
        let [Some(a), Some(b)] = &r.on_device else { return Ok(()) };
        r.target().copy_device_to_device(a, b)?.is_done().map(drop)
    }),
    ("Stream::memset and drop", |r| {
        let Some(device) = r.on_device[0].take() else { return Ok(()) };
        r.target().memset(&device, 4).map(drop)
    }),
    ("a clone dropped", |r| {
        drop(r.target().clone());
        Ok(())
    }),
    ("id, device, kind", |r| {
        let _ = (r.target().id(), r.target().device(), r.target().kind());
        Ok(())
    }),
    ("synchronize", |r| r.target().synchronize()),
    ("query", |r| r.target().query().map(drop)),
    ("record", |r| r.target().record()?.is_done().map(drop)),
    ("wait for another stream's event", |r| r.target().wait(&r.events[0])),
    ("wait for the stream's own event", |r| r.target().wait(&r.events[1])),
    ("another stream waits for its event", |r| Stream::new()?.wait(&r.events[1])),
    ("another stream waits for a new event", |r| Stream::new()?.wait(&r.target().record()?)),
    ("launch_host", |r| r.target().launch_host(|| ())),
    ("borrow_raw", |r| {
        // SAFETY: the stream outlives the handle.
        unsafe { Stream::borrow_raw(p(r.raw_target)).map(drop) }
    }),
    ("the stream dropped", |r| {
        drop((r.on_device[0].take(), r.on_device[1].take(), r.target.take()));
        drop((r.adopted_device.take(), r.transfer.take()));
        Ok(())
    }),
    ("streams made and dropped", |r| {
        let blocking = Stream::builder().blocking(true).priority(-1).build()?;
        blocking.synchronize()?;
        let other = Stream::new()?;
        drop(r.mm().device_zeroed::<u8>(LEN, &blocking));
        other.query().map(drop)
    }),
    ("Stream::legacy", |_| {
        let legacy = Stream::legacy(0)?;
        legacy.record()?.synchronize()?;
        legacy.synchronize()
    }),
    ("PerThreadStream", |r| {
        let own = PerThreadStream::new()?;
        let block = r.mm().allocate_device_on(LEN, &own)?;
        // SAFETY: the block is ours and as long as the fill.
        unsafe {
            r.mm().memset(block, 1, LEN, &own)?;
            r.mm().free_device_on(block, &own)?;
        }
        own.synchronize()
    }),
    ("Event::is_done", |r| r.events.iter().try_for_each(|event| event.is_done().map(drop))),
    ("Event::synchronize", |r| r.events.iter().try_for_each(Event::synchronize)),
    ("Submitted", |r| r.submitted.as_ref().map_or(Ok(()), Submitted::wait)),
    ("Stream::capture", |r| r.target().capture(|_| Ok(())).map(drop)),
    ("Graph::launch", |r| {
        let target = r.target().clone();
        // SAFETY: no slice of its buffers is alive.
        r.graph.as_mut().map_or(Ok(()), |graph| unsafe { graph.launch(&target) }.map(drop))
    }),
    ("a graph dropped", |r| {
        r.graph = None;
        Ok(())
    }),
    ("devices", |_| memmgr::devices().map(drop)),
    ("versions", |_| memmgr::versions().map(drop)),
    ("scope", |r| r.mm().scope(|_| Ok(()))),
    ("Scope::copy_to_device", |r| {
        let Some(device) = &r.on_device[0] else { return Ok(()) };
        let source = [3; LEN];
        r.mm().scope(|scope| scope.copy_to_device(&source, device, r.target()))
    }),
    ("Scope::copy_to_host", |r| {
        let Some(device) = &r.on_device[0] else { return Ok(()) };
        let mut target = [3; LEN];
        r.mm().scope(|scope| scope.copy_to_host(device, &mut target, r.target()))
    }),
    ("adopt", |r| r.mm().adopt(vec![0u8; LEN]).map(drop).map_err(|refused| refused.error().clone())),
    ("adopted memory dropped and given back", |r| {
        drop((r.adopted.take(), r.adopted_device.take()));
        r.mm().trim().map(drop)
    }),
    ("adopt while others wait to be given back", |r| {
        for _ in 0..20 {
            drop(r.mm().adopt(vec![0u8; LEN])?);
        }
        Ok(())
    }),
    ("into_vec", |r| {
        let Some(adopted) = r.adopted.take() else { return Ok(()) };
        adopted.into_vec().map(drop).map_err(|refused| refused.error().clone())
    }),
    ("adopt_device", |r| {
        let Some(memory) = r.foreign.take() else { return Ok(()) };
        drop(adopt_device(r.mm(), p(memory), r.target())?);
        r.mm().trim().map(drop)
    }),
    ("a copy from adopted memory", |r| {
        let (Some(host), Some(device)) = (&r.adopted, &r.on_device[0]) else { return Ok(()) };
        r.target().copy_to_device(host, device)?.wait()
    }),
    ("a fill of adopted memory", |r| {
        let Some(device) = &r.adopted_device else { return Ok(()) };
        r.target().memset(device, 1)?.wait()
    }),
    ("transfer_to_device", |r| {
        let (host, device) = (r.on_host.take().unwrap(), r.on_device[0].take().unwrap());
        Ok(r.target().transfer_to_device(host, device)?.wait().map(drop)?)
    }),
    ("transfer_to_host", |r| {
        let (host, device) = (r.on_host.take().unwrap(), r.on_device[0].take().unwrap());
        Ok(r.target().transfer_to_host(device, host)?.wait().map(drop)?)
    }),
    ("transfer_device_to_device", |r| {
        let [a, b] = [0, 1].map(|i| r.on_device[i].take().unwrap());
        Ok(r.target().transfer_device_to_device(a, b)?.wait().map(drop)?)
    }),
    ("Transfer::is_done and wait", |r| {
        let transfer = r.transfer.take().unwrap();
        transfer.is_done()?;
        Ok(transfer.wait().map(drop)?)
    }),
    ("a transfer dropped", |r| {
        r.transfer = None;
        Ok(())
    }),
    ("Transfer::await", |r| Ok(pollster::block_on(r.transfer.take().unwrap().into_future()).map(drop)?)),
    ("Submitted::await", |r| pollster::block_on(r.submitted.take().unwrap().into_future())),
    ("Event::await", |r| pollster::block_on(r.events[0].clone().into_future())),
    ("a copy awaited", |r| {
        let (Some(host), Some(device)) = (&r.on_host, &r.on_device[0]) else { return Ok(()) };
        pollster::block_on(r.target().copy_to_device(host, device)?.into_future())
    }),
    ("copies of parts", |r| {
        let target = r.target().clone();
        let (Some(host), Some(device)) = (&mut r.on_host, &r.on_device[0]) else { return Ok(()) };
        let _ = target.copy_to_device(&host.slice(..9)?, &device.slice(9..18)?)?;
        let _ = target.copy_to_host(&device.slice(9..18)?, &mut host.slice_mut(..9)?)?;
        host.slice(..9)?.as_slice()?;
        host.slice_mut(..9)?.as_mut_slice().map(drop)
    }),
    ("owning parts", |r| {
        let Some(device) = r.on_device[0].take() else { return Ok(()) };
        let (front, back) = device.split_at(LEN / 2).map_err(|refused| refused.error().clone())?;
        r.target().memset(&front, 1).map(drop)?;
        drop(front);
        drop(back);
        let Some(host) = r.on_host.take() else { return Ok(()) };
        let (front, back) = host.split_at(LEN / 2).map_err(|refused| refused.error().clone())?;
        drop(front.join(back).map_err(|refused| refused.error().clone())?);
        Ok(())
    }),
    ("rectangles of guards", |r| {
        let target = r.target().clone();
        let (Some(host), [Some(a), Some(b)]) = (&mut r.on_host, &r.on_device) else { return Ok(()) };
        let _ = target.copy_2d_to_device(host, 32, a, 32, 16, 8)?;
        let _ = target.copy_2d_device_to_device(a, 32, b, 32, 16, 8)?;
        let _ = target.memset_2d(a, 32, 1, 16, 8)?;
        let _ = target.copy_2d_to_host(b, 32, host, 32, 16, 8)?;
        host.as_slice().map(drop)
    }),
    ("PerThreadStream, a block of the target", |r| {
        let own = PerThreadStream::new()?;
        // SAFETY: copies and fills through the manager are all that uses the block.
        unsafe { r.mm().free_device_on(p(r.device[0]), &own)? };
        own.query().map(drop)
    }),
    ("Stream::from_raw", |_| {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a place for one handle.
        let code = unsafe { cuda_sys::cudaStreamCreateWithFlags(&mut raw, cuda_sys::cudaStreamNonBlocking) };
        assert_eq!(code.0, 0);
        // SAFETY: the stream was just made and nobody else destroys it.
        unsafe { Stream::from_raw(raw.cast()).map(drop) }
    }),
];

/// One method beside one capture.
fn cell(
    method: fn(&mut Rig) -> Result<()>,
    mode: DeviceAllocatorMode,
    capture: CaptureMode,
    on_it: bool,
    elsewhere: bool,
) -> Result<(), String> {
    let (captured, other) = (Stream::new().unwrap(), Stream::new().unwrap());
    let raw = captured.as_raw();
    let target = if on_it { &captured } else { &other };
    let mut rig = Rig::new(mode, target).expect("nothing captures yet");
    // The handle of the test must not be the one that keeps the stream alive.
    let (other, captured) = if on_it {
        (other, None)
    } else {
        (other.clone(), Some(captured))
    };
    if let Some(captured) = &captured {
        capturing::begin(captured, capture);
    } else {
        capturing::begin(rig.target(), capture);
    }
    let result = if elsewhere {
        std::thread::scope(|scope| scope.spawn(|| method(&mut rig)).join().expect("no panic"))
    } else {
        method(&mut rig)
    };
    let status = capturing::status(raw);
    let pulled_in = capturing::status(other.as_raw());
    let (code, graph) = capturing::end(raw);
    capturing::destroy(graph);
    if let Some(memory) = rig.foreign.take() {
        // SAFETY: nobody has adopted the memory.
        unsafe { cuda_sys::cudaFree(p(memory)) };
    }
    // Afterwards everything works as ever.
    let after = (|| {
        if let Some(mm) = &rig.mm {
            drop(mm.device_zeroed::<u8>(LEN, &other)?);
            mm.trim()?;
            assert_sound(mm);
            if let Some(error) = mm.take_error() {
                return Err(error);
            }
        }
        if let Some(target) = &rig.target {
            target.synchronize()?;
        }
        other.synchronize()?;
        drop((
            rig.on_host.take(),
            std::mem::take(&mut rig.on_device),
            rig.graph.take(),
        ));
        drop((
            rig.adopted.take(),
            rig.adopted_device.take(),
            rig.transfer.take(),
        ));
        match rig.mm.take() {
            // SAFETY: nobody uses the raw pointers afterwards.
            Some(mm) => unsafe { mm.shutdown_and_free_raw() }.map(drop),
            None => Ok(()),
        }
    })();
    let told = match &result {
        Ok(()) => true,
        Err(Error::Unsupported { reason }) => reason.contains("captur") && reason.contains(": "),
        Err(_) => false,
    };
    if !told || status != 1 || pulled_in != 0 || code != 0 || after.is_err() {
        return Err(format!(
            "{result:?}, capture {status}, other stream {pulled_in}, end {code}, afterwards {after:?}"
        ));
    }
    Ok(())
}

fn table(mode: DeviceAllocatorMode) {
    let mut wrong = Vec::new();
    for (name, method) in METHODS {
        for capture in CaptureMode::ALL {
            for (on_it, elsewhere) in [(true, false), (true, true), (false, false), (false, true)] {
                if let Err(what) = cell(*method, mode, capture, on_it, elsewhere) {
                    let stream = if on_it { "on it" } else { "on another stream" };
                    let thread = if elsewhere {
                        "on another thread"
                    } else {
                        "on its thread"
                    };
                    wrong.push(format!(
                        "{name}, {capture:?} capture, {stream}, {thread}: {what}"
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cells:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn every_method_leaves_a_capture_alone_or_is_refused() {
    for mode in MODES {
        table(mode);
    }
}
