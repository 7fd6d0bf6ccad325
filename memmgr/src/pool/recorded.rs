//! The uses that are recorded with a live block: which bytes, until when, and whether they write.

use super::order::add_follower;
use crate::{
    event::Fence,
    planted::{self, Mistake},
    stream::{Handle, StreamCore},
};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Addresses that something touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub from: usize,
    /// The first address behind it.
    pub to: usize,
}

impl Span {
    /// Whatever the block has.
    pub const ALL: Self = Self {
        from: 0,
        to: usize::MAX,
    };

    /// The `len` bytes at `from`.
    pub fn new(from: usize, len: usize) -> Self {
        Self {
            from,
            to: from.saturating_add(len),
        }
    }

    fn overlaps(self, other: Self) -> bool {
        self.from < other.to && other.from < self.to
    }

    fn contains(self, other: Self) -> bool {
        self.from <= other.from && other.to <= self.to
    }

    /// The smallest span that contains both.
    fn hull(self, other: Self) -> Self {
        Self {
            from: self.from.min(other.from),
            to: self.to.max(other.to),
        }
    }
}

/// A recorded use of a live block.
#[derive(Debug, Clone)]
pub(crate) struct Use {
    pub fence: Arc<Fence>,
    /// The part of the block that it touches.
    pub span: Span,
    /// Whether the use may write the block.
    pub writes: bool,
}

impl Use {
    /// Whether nobody needs it any more once a use like this is recorded: it has finished, or finishes before that does and says
    /// no more.
    #[inline]
    fn is_needless_after(&self, fence: &Fence, span: Span, writes: bool) -> bool {
        self.fence.is_done()
            || (fence.covers(&self.fence)
                && (writes || !self.writes || planted::is_made(Mistake::ReadsReplaceWrites))
                && (span.contains(self.span) || planted::is_made(Mistake::UsesCoverOtherParts)))
    }
}

/// Puts a use in the place of the last of a few, if that is the only one that is needless then. Whether it has.
#[inline]
pub(super) fn replace(uses: &mut [Use], span: Span, fence: &Arc<Fence>, writes: bool) -> bool {
    let needless = |used: &Use| used.is_needless_after(fence, span, writes);
    match uses.split_last_mut() {
        Some((last, others))
            if others.len() < FEW && needless(last) && !others.iter().any(needless) =>
        {
            last.fence = fence.clone();
            (last.span, last.writes) = (span, writes);
            true
        }
        _ => false,
    }
}

/// So many uses are looked at one by one: a block that is written and then read again and again has two.
const FEW: usize = 3;

/// Adds a use to a list; those that it covers go, so that a block that is copied for ever keeps a short list. A use of
/// another part of the block covers nothing.
fn add_use(uses: &mut Vec<Use>, new: Use) {
    uses.retain(|old| !old.is_needless_after(&new.fence, new.span, new.writes));
    uses.push(new);
    if uses.len() >= TOO_MANY_USES && uses.len().is_multiple_of(MANY_USES) {
        join_uses(uses);
    }
}

/// Joins the older half of the uses: those of one stream become one, which waits for the last of them and touches all that
/// they touch. So a block of which many small parts are copied by a stream that is stuck keeps a short list as well; what
/// it costs is that a part may then be waited for longer than it must.
fn join_uses(uses: &mut Vec<Use>) {
    let newer = uses.split_off(uses.len() / 2);
    let older = std::mem::replace(uses, Vec::with_capacity(newer.len() * 2));
    let mut last: FxHashMap<u64, usize> = FxHashMap::default();
    for used in older {
        let place = last
            .get(&used.fence.core().uid)
            .and_then(|at| uses.get_mut(*at));
        match place {
            Some(kept) if used.fence.covers(&kept.fence) => {
                if !planted::is_made(Mistake::JoinedUsesEndEarly) {
                    kept.fence = used.fence;
                }
                kept.span = kept.span.hull(used.span);
                kept.writes |= used.writes;
            }
            _ => {
                last.insert(used.fence.core().uid, uses.len());
                uses.push(used);
            }
        }
    }
    uses.extend(newer);
}

/// The uses of a part of a block that are not known to have finished: all, or those that write.
pub(crate) fn pending_uses(uses: &[Use], span: Span, only_writes: bool) -> Vec<Arc<Fence>> {
    uses.iter()
        .filter(|used| {
            (used.writes || !only_writes) && used.span.overlaps(span) && !used.fence.is_done()
        })
        .map(|used| used.fence.clone())
        .collect()
}

/// As [`pending_uses`], for a stream that is about to use these bytes: its own uses it follows by itself.
pub(super) fn uses_of_others(
    uses: &[Use],
    span: Span,
    only_writes: bool,
    handle: &Handle,
) -> Vec<Arc<Fence>> {
    uses.iter()
        .filter(|used| {
            (used.writes || !only_writes)
                && !used.fence.core().is_same(handle.core())
                && used.span.overlaps(span)
                && !used.fence.is_done()
        })
        .map(|used| used.fence.clone())
        .collect()
}

/// How many uses of a block are worth a look for those that have finished.
const MANY_USES: usize = 16;
/// How many uses of a block are kept apart.
const TOO_MANY_USES: usize = 64;

/// Uses to be queried, outside the lock, when there are many: those that have finished go at the next [`add_use`].
fn worth_a_query(uses: &[Use]) -> Vec<Arc<Fence>> {
    if uses.is_empty() || !uses.len().is_multiple_of(MANY_USES) {
        return Vec::new();
    }
    uses.iter().map(|used| used.fence.clone()).collect()
}

/// Adds a use of a part of a block; those that are worth a query once no lock is held ([`query_all`]).
pub(crate) fn record(
    uses: &mut Vec<Use>,
    span: Span,
    fence: &Arc<Fence>,
    writes: bool,
) -> Vec<Arc<Fence>> {
    let new = Use {
        fence: fence.clone(),
        span,
        writes,
    };
    add_use(uses, new);
    worth_a_query(uses)
}

/// Asks about fences that [`record`] named; no lock may be held.
pub(crate) fn query_all(fences: Vec<Arc<Fence>>) {
    for fence in fences {
        let _ = fence.query();
    }
}

/// Who uses a live block whose memory no best-fit pool orders: the driver's, or that of others.
#[derive(Debug)]
pub(crate) struct Users {
    /// The stream that the block was allocated or adopted on; none where the host has waited.
    pub stream: Option<Arc<StreamCore>>,
    /// Copies and other uses that were recorded.
    pub uses: Vec<Use>,
    /// Streams that have been made to wait for `stream`, by uid.
    followers: Vec<u64>,
}

impl Users {
    /// Of a block that is new.
    pub fn new(stream: Option<Arc<StreamCore>>, uses: Vec<Use>) -> Self {
        Self {
            stream,
            uses,
            followers: Vec::new(),
        }
    }

    /// What a stream must wait for before it uses these bytes: uses of other streams, and the stream of the block.
    pub fn before_use(&self, span: Span, handle: &Handle, writes: bool) -> Vec<Arc<Fence>> {
        let mut fences = uses_of_others(&self.uses, span, !writes, handle);
        if let Some(core) = &self.stream
            && !core.is_same(handle.core())
            && !self.followers.contains(&handle.core().uid)
            && !planted::is_made(Mistake::AllocationsAreNotFollowed)
        {
            fences.push(Fence::open(core.clone()));
        }
        fences
    }

    /// A stream was made to wait for what [`Users::before_use`] named.
    pub fn follows(&mut self, handle: &Handle) {
        if self.stream.is_some() {
            add_follower(&mut self.followers, handle.core().uid);
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::stream::{Stream, handle_of};
    use std::{
        sync::{Condvar, Mutex},
        time::Duration,
    };

    fn used(stream: &Stream, span: Span, writes: bool) -> Use {
        let fence = Fence::record(handle_of(stream)).unwrap();
        Use {
            fence,
            span,
            writes,
        }
    }

    /// Nothing on the streams ends before the answer is dropped, for ten seconds at most.
    fn stuck(streams: &[Stream]) -> impl Drop {
        struct Open(Arc<(Mutex<bool>, Condvar)>);
        impl Drop for Open {
            fn drop(&mut self) {
                *self.0.0.lock().unwrap() = true;
                self.0.1.notify_all();
            }
        }
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        for stream in streams {
            let gate = gate.clone();
            let wait = move || {
                let open = gate.0.lock().unwrap();
                let _ = gate
                    .1
                    .wait_timeout_while(open, Duration::from_secs(10), |open| !*open);
            };
            stream.launch_host(wait).unwrap();
        }
        Open(gate)
    }

    #[test]
    fn a_list_of_uses_of_many_parts_stays_short_and_every_part_is_still_waited_for() {
        let streams = [(); 2].map(|()| Stream::new().unwrap());
        let stuck = stuck(&streams);
        let (mut list, mut all) = (Vec::new(), Vec::new());
        for part in 0..800 {
            let new = used(&streams[part % 2], Span::new(part * 8, 8), part % 3 == 0);
            all.push(new.clone());
            add_use(&mut list, new);
            assert!(list.len() < TOO_MANY_USES + MANY_USES, "{}", list.len());
        }
        for one in &all {
            let covered = |fences: Vec<Arc<Fence>>| {
                fences
                    .iter()
                    .any(|fence| Arc::ptr_eq(fence, &one.fence) || fence.covers(&one.fence))
            };
            assert!(covered(pending_uses(&list, one.span, false)), "{one:?}");
            assert!(
                !one.writes || covered(pending_uses(&list, one.span, true)),
                "{one:?}"
            );
        }
        // The newest are still exact.
        let (last, next) = (Span::new(799 * 8, 8), Span::new(800 * 8, 8));
        assert_eq!(pending_uses(&list, last, false).len(), 1);
        assert!(pending_uses(&list, next, false).is_empty());
        drop(stuck);
        for stream in &streams {
            stream.synchronize().unwrap();
        }
    }

    #[test]
    fn a_later_use_replaces_those_of_its_own_bytes_that_it_proves_and_no_others() {
        let streams = [(); 2].map(|()| Stream::new().unwrap());
        let [a, b] = &streams;
        let stuck = stuck(&streams);
        let span = |from, to| Span { from, to };
        // What comes first, what comes then, and how many are kept.
        for (first, then, kept) in [
            ((a, span(8, 16), false), (a, span(8, 16), false), 1),
            ((a, span(8, 16), false), (a, span(0, 17), true), 1),
            ((a, span(8, 16), true), (a, span(8, 16), false), 2),
            ((a, span(8, 16), true), (b, span(8, 16), true), 2),
            ((a, span(8, 16), true), (a, span(9, 16), true), 2),
            ((a, span(8, 16), true), (a, span(8, 15), true), 2),
            ((a, span(8, 16), false), (a, span(16, 24), false), 2),
            ((a, span(8, 16), true), (a, Span::ALL, true), 1),
        ] {
            let mut list = Vec::new();
            for (stream, span, writes) in [first, then] {
                add_use(&mut list, used(stream, span, writes));
            }
            assert_eq!(list.len(), kept, "{first:?}, {then:?}");
        }
        drop(stuck);
        for stream in &streams {
            stream.synchronize().unwrap();
        }
    }

    /// The short way leaves the list that the long one makes, in the same order, or leaves it alone.
    #[test]
    fn a_use_that_replaces_the_last_one_gives_the_list_that_adding_it_gives() {
        let streams = [(); 2].map(|()| Stream::new().unwrap());
        let stuck = stuck(&streams);
        let spans = [Span::ALL, Span::new(0, 8), Span::new(4, 8)];
        let (mut list, mut replaced, mut random) = (Vec::new(), 0, 1u32);
        let mut below = |most: usize| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) as usize % most
        };
        for _ in 0..400 {
            // Mostly one stream, and now and then a list that is done with.
            let stream = &streams[usize::from(below(4) == 0)];
            if below(4) == 0 {
                list.clear();
            }
            let new = used(stream, spans[below(3)], below(2) == 0);
            let (mut short, mut long) = (list.clone(), list);
            add_use(&mut long, new.clone());
            if replace(&mut short, new.span, &new.fence, new.writes) {
                replaced += 1;
            } else {
                add_use(&mut short, new);
            }
            let facts = |list: &[Use]| -> Vec<(u64, Span, bool)> {
                let of = |used: &Use| (used.fence.uid, used.span, used.writes);
                list.iter().map(of).collect()
            };
            assert_eq!(facts(&short), facts(&long));
            list = long;
        }
        assert!(replaced > 50, "{replaced}");
        drop(stuck);
        for stream in &streams {
            stream.synchronize().unwrap();
        }
    }
}
