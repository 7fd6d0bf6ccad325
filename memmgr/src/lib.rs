//! A CUDA memory manager: exact best-fit pools for pinned host and device memory, three device allocators behind one
//! interface, copies that keep their buffers alive, and guards that give memory back by themselves.
//!
//! With the feature `sim` everything runs on a simulated CUDA runtime, without a GPU or a toolkit.
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `sim` | the simulated runtime in place of CUDA's; no item |
//! | `async` | `.await` on [`Transfer`], [`Submitted`] and [`Event`]; the items `Completion` and `TransferFuture` |
//! | `serde` | `Serialize` for the figures ([`Stats`] and what it holds, [`Peaks`], [`Fragmentation`]) and the modes |
//! | `trace-events` | events and spans of `tracing`, beyond warnings; no item |
//! | `nvtx` | ranges and memory for tools; no item |
//! | `dynamic` | links `libcudart.so` instead of `libcudart_static.a`; no item |
//!
//! All other items are there without a feature.
//!
//! **The feature `sim` spreads.** Cargo unites the features of all crates that it builds together: where one of a workspace
//! turns `sim` on, as one for tests may, `cargo build --workspace` makes every program of it a simulated one, without a
//! warning. Build a product alone (`cargo build -p product`). [`backend`] says what is linked, at compile time too; this line in
//! the product ends such a build with an error:
//!
//! ```ignore
//! const _: () = assert!(matches!(memmgr::backend(), memmgr::Backend::Gpu), "memmgr was built with `sim`");
//! ```
//!
//! # Elements
//!
//! Typed buffers hold what is plain bytes ([`Pod`]): numbers, arrays of them, and structures with the derives of `bytemuck`.
//! Those are not re-exported: name it in your `Cargo.toml`, `bytemuck = { version = "1", features = ["derive"] }`, and write
//! `#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]` and `#[repr(C)]`.
//!
//! # Order
//!
//! CUDA work runs asynchronously, in *streams*. Memory that is freed while work may still touch it must not reach
//! anybody who is not ordered behind that work. The manager keeps that promise like this:
//!
//! - Memory that is freed on a stream carries that stream's *mark*. Work submitted later to the same stream may have it
//!   at once. Others get it when the mark is known to have completed, or after their stream has been made to wait.
//! - A copy made through the manager marks its source and destination. A pinned block is handed out again only when its
//!   last copy has finished.
//! - A free adds marks and never drops one that is not known to be complete.
//! - What is not submitted through the manager (a kernel launch) belongs to the stream that the memory was allocated on,
//!   or is told with [`MemoryManager::record_use`]. Tell it as well where another stream goes on with the memory: an
//!   operation there waits for what the manager knows of.
//! - What is captured into a graph has not run when its call returns: the graph keeps its blocks instead ([`Graph`]). No
//!   method ends a capture, of whatever mode and code; what has no place in one answers [`Error::Unsupported`].
//!
//! # Example
//!
//! ```
//! use memmgr::{MemoryManager, Stream};
//! # fn main() -> memmgr::Result<()> {
//! let manager = MemoryManager::instance();
//! let stream = Stream::new()?;
//! let mut host = manager.pinned::<f32>(1024)?;
//! host.as_mut_slice()?.fill(1.5);
//! let device = manager.device::<f32>(1024, &stream)?;
//! let _ = stream.copy_to_device(&host, &device)?;
//! // Launch kernels on `stream.as_raw()` with `device.as_ptr()` here.
//! let _ = stream.copy_to_host(&device, &mut host)?;
//! assert_eq!(host.as_slice()?[7], 1.5); // waits for the copy, and for nothing else
//! # Ok(()) }
//! ```
//!
//! # Threads
//!
//! Every type is `Send` and `Sync`, but for one. The manager and its pools lock; a stream is a counted handle, which CUDA
//! lets any thread use; events and transfers are points in a stream, and buffers own blocks of plain bytes, which only
//! `&mut` can write. A [`PerThreadStream`] is neither: on another thread the same handle means another stream.
#![cfg_attr(
    feature = "async",
    doc = r#"
# Awaiting

With the feature `async`, transfers (copies that own their buffers), submitted operations and events can be awaited, with
any executor:

```
use memmgr::{MemoryManager, Stream};

async fn upload_and_clear() -> memmgr::Result<()> {
    let manager = MemoryManager::instance();
    let stream = Stream::new()?;
    let mut host = manager.pinned::<f32>(1024)?;
    host.as_mut_slice()?.fill(1.5);
    let device = manager.device::<f32>(1024, &stream)?;
    let (host, device) = stream.transfer_to_device(host, device)?.await?;
    assert_eq!(host.as_slice()?[7], 1.5);
    stream.memset(&device, 0)?.await?;
    let (_device, host) = stream.transfer_to_host(device, host)?.await?;
    assert_eq!(host.as_slice()?[7], 0.0);
    Ok(())
}

pollster::block_on(upload_and_clear()).unwrap();
```
"#
)]
#![deny(missing_docs)]

mod biased;
mod buffer;
mod capture;
mod checker;
#[cfg(feature = "async")]
mod completion;
mod config;
mod context;
mod cuda;
mod device;
mod error;
mod event;
mod event_cache;
pub mod events;
mod foreign;
pub mod graph;
mod manager;
mod mode;
#[cfg(all(shuttle, feature = "sim"))]
#[doc(hidden)]
pub mod model;
mod out_of_memory;
#[cfg(feature = "sim")]
#[doc(hidden)]
pub mod planted;
#[cfg(not(feature = "sim"))]
mod planted;
mod pool;
mod process;
mod prometheus;
mod scope;
pub mod snapshot;
mod source;
mod spans;
mod stats;
mod stream;
mod sync;
#[cfg(feature = "async")]
mod watchdog;

pub use buffer::{
    DeviceBuffer, DevicePart, DeviceSlice, DeviceSliceMut, PinnedBuffer, PinnedPart, PinnedPartMut,
    PinnedSlice, PinnedSliceMut, Transfer, TransferError, TransferResult,
};
pub use bytemuck::{Pod, Zeroable};
#[cfg(feature = "async")]
pub use completion::{Completion, TransferFuture};
pub use config::{Config, PinnedSource, Reuse};
pub use cuda::{CopyKind, cuda_calls, cuda_calls_on_this_thread};
pub use device::{
    Backend, DeviceInfo, Versions, backend, current_device, device, devices, synchronize_device,
    versions,
};
pub use error::{Error, Place, Refused, Result};
pub use event::{Event, Submitted};
pub use graph::{CaptureMode, Graph};
pub use manager::{LiveBlock, MemoryManager, PeakScope, ShutdownReport};
pub use mode::{DeviceAllocatorMode, UnknownMode};
pub use out_of_memory::{Holder, Holders, OutOfMemory, SizeCount};
#[doc(hidden)]
pub use pool::Contention;
pub use pool::observer::{By, Observer, SegmentChange};
pub use scope::Scope;
pub use snapshot::Snapshot;
pub use source::{DeviceSource, UnknownSource};
pub use stats::{
    Copied, DevicePeaks, DeviceStats, Fragmentation, NativePoolUsage, Peak, Peaks,
    PoolFragmentation, PoolStats, Stats,
};
pub use stream::{AsStream, PerThreadStream, Stream, StreamBuilder, StreamKind};
