//! What is found, and how it reads: two operations, what they are, where they were called.

use crate::trace::Access;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, OnceLock};

/// What kind of mistake it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// Two accesses, one of them a write, with no order between them.
    Race,
    /// Memory is used, or freed, by work that is not ordered behind its allocation.
    UsedBeforeAllocation,
    /// Memory is freed while work that is not ordered before the free may still use it.
    FreedInUse,
    /// A block is handed out while work that is not ordered before that may still use it.
    ReusedInUse,
    /// Memory is used after its free.
    UsedAfterFree,
    /// Memory of a pool that no block covers, or past the end of a block.
    NotAllocated,
    /// Two blocks that are in use overlap.
    Overlap,
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FindingKind::Race => "no order between two accesses",
            FindingKind::UsedBeforeAllocation => {
                "used or freed without being ordered behind the allocation"
            }
            FindingKind::FreedInUse => "freed while work may still use it",
            FindingKind::ReusedInUse => "handed out while work may still use it",
            FindingKind::UsedAfterFree => "used after its free",
            FindingKind::NotAllocated => "used where no block is, or past the end of one",
            FindingKind::Overlap => "handed out while another block there is in use",
        })
    }
}

/// Whether an operation only touches memory, or brings it into use, or ends its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Access,
    Allocate,
    Free,
}

/// An operation as it is remembered.
pub(crate) struct Op {
    pub(crate) call: Box<str>,
    /// The stream's id; none: the host.
    pub(crate) stream: Option<u64>,
    /// Its number in the stream; 0 for reports and for what the host does.
    pub(crate) number: u64,
    pub(crate) role: Role,
    pub(crate) accesses: Vec<Access>,
    tag: Option<Arc<str>>,
    site: Option<&'static Location<'static>>,
    backtrace: Option<Box<Backtrace>>,
}

crate::sync::thread_local! {
    static TAG: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
    static SITE: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// Names what this thread does from now on; findings show it. Empty: no name.
pub fn tag(name: &str) {
    let name = (!name.is_empty()).then(|| Arc::from(name));
    let _ = TAG.try_with(|t| t.replace(name));
}

/// Until it is dropped, findings name one place of the program for what this thread does.
#[must_use = "findings name the place as long as this lives"]
pub struct CalledFrom {
    former: Option<&'static Location<'static>>,
    here: std::marker::PhantomData<*const ()>,
}

impl CalledFrom {
    fn new(site: &'static Location<'static>) -> CalledFrom {
        let former = SITE.try_with(Cell::get).ok().flatten();
        // The outermost is what the program itself has called.
        let _ = SITE.try_with(|s| s.set(former.or(Some(site))));
        CalledFrom {
            former,
            here: std::marker::PhantomData,
        }
    }
}

impl Drop for CalledFrom {
    fn drop(&mut self) {
        let _ = SITE.try_with(|s| s.set(self.former));
    }
}

/// For a library that calls CUDA for a program: findings name the caller of the function that calls this, if that is
/// `#[track_caller]`, instead of no place at all.
#[track_caller]
pub fn called_here() -> CalledFrom {
    CalledFrom::new(Location::caller())
}

/// Runs `f`; what it submits was called from here.
pub(crate) fn called_from<T>(site: &'static Location<'static>, f: impl FnOnce() -> T) -> T {
    let _called = CalledFrom::new(site);
    f()
}

fn backtrace() -> Option<Box<Backtrace>> {
    static ON: OnceLock<bool> = OnceLock::new();
    let on = ON.get_or_init(|| match std::env::var("CUDART_SIM_BACKTRACE").as_deref() {
        Ok("1") => true,
        Ok("0" | "") | Err(_) => false,
        Ok(other) => {
            eprintln!("cudart-sim: CUDART_SIM_BACKTRACE={other} is ignored: it must be 0 or 1");
            false
        }
    });
    on.then(|| Box::new(Backtrace::force_capture()))
}

impl Op {
    pub(crate) fn new(
        call: &str,
        stream: Option<u64>,
        number: u64,
        role: Role,
        accesses: Vec<Access>,
    ) -> Op {
        Op {
            call: call.into(),
            stream,
            number,
            role,
            accesses,
            tag: TAG.try_with(|t| t.borrow().clone()).ok().flatten(),
            site: SITE.try_with(Cell::get).ok().flatten(),
            backtrace: backtrace(),
        }
    }

    pub(crate) fn show(&self, which: usize) -> Operation {
        let access = self.accesses.get(which).copied();
        let (start, width, height, pitch) =
            access.map_or((0, 0, 0, 0), |a| (a.start, a.width, a.height, a.pitch));
        Operation {
            call: self.call.to_string(),
            stream: self.stream,
            number: self.number,
            start,
            width,
            height,
            pitch,
            writes: access.is_some_and(|a| a.write),
            tag: self.tag.as_ref().map(|t| t.to_string()),
            site: self.site.map(|s| s.to_string()),
            backtrace: self.backtrace.as_ref().map(|b| b.to_string()),
        }
    }
}

/// One of the two operations of a [`Finding`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// The function that was called.
    pub call: String,
    /// The id of the stream (`cudaStreamGetId`); `None`: the host.
    pub stream: Option<u64>,
    /// The operation's number in its stream, from 1; 0 for reports of allocators and for what the host does.
    pub number: u64,
    /// The first byte that it touches.
    pub start: u64,
    /// Bytes of a row.
    pub width: usize,
    /// How many rows.
    pub height: usize,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// Whether it writes there (allocations and frees count as writes).
    pub writes: bool,
    /// What [`tag`] named in the calling thread.
    pub tag: Option<String>,
    /// Where it was called, if it was called from Rust by a function that knows its caller.
    pub site: Option<String>,
    /// The stack of the call, with `CUDART_SIM_BACKTRACE=1`.
    pub backtrace: Option<String>,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.call)?;
        match self.stream {
            Some(id) => write!(f, " on stream {id}")?,
            None => f.write_str(" by the host")?,
        }
        if self.number > 0 {
            write!(f, " #{}", self.number)?;
        }
        let verb = if self.writes { "writes" } else { "reads" };
        write!(f, " {verb} {:#x}+{}", self.start, self.width)?;
        if self.height > 1 {
            write!(f, " x{} every {}", self.height, self.pitch)?;
        }
        if let Some(tag) = &self.tag {
            write!(f, " [{tag}]")?;
        }
        if let Some(site) = &self.site {
            write!(f, " at {site}")?;
        }
        if let Some(backtrace) = &self.backtrace {
            write!(f, "\n{backtrace}")?;
        }
        Ok(())
    }
}

/// A mistake in the order of operations, or in what they touch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What kind of mistake.
    pub kind: FindingKind,
    /// The operation that was submitted first; none if nothing is known of these bytes.
    pub first: Option<Operation>,
    /// The operation that was submitted later.
    pub second: Operation,
    /// The first byte that both touch.
    pub address: u64,
    /// How many bytes from there on.
    pub len: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#x}+{})", self.kind, self.address, self.len)?;
        if let Some(first) = &self.first {
            write!(f, "\n  {first}")?;
        }
        write!(f, "\n  {}", self.second)
    }
}
