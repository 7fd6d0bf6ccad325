//! Which free spans a request takes: the smallest that fits, of the idle ones and of a class, of whole classes, or by rank; and
//! where no single one does, a run of neighbours.

use super::blocks::Datum;
use super::index::Entry;
use super::owners::ClassRecord;
use super::runs::{Found, Request, best_run};
use super::space::Space;
use super::{ClassId, GRANULE, Owner, OwnerId, Single, Taken, is_alignment, round};

impl<T: Datum> Space<T> {
    /// Takes a block of `size` bytes (rounded up) from the free spans of these classes: from the smallest span
    /// in which it fits at a multiple of `align`, ties by lowest address; if there is none, from the smallest
    /// run of neighbouring spans, ties by lowest address.
    ///
    /// A search for a run looks at every seam of these classes, so a request that finds nothing is dear where
    /// many small spans of different owners lie side by side (about 10 ns each).
    ///
    /// `None` when nothing fits, for size 0, for a size that cannot be rounded up, and for an alignment that is
    /// not a power of two or is below the granule.
    pub fn allocate(&mut self, size: usize, align: usize, classes: &[ClassId]) -> Option<Taken> {
        let request = self.request(size, align)?;
        let found = match self.best_aligned(request, classes) {
            Some(found) => found,
            None => self.run_of_classes(request, classes)?,
        };
        Some(self.take(found, request.size, size))
    }

    /// Takes a block as [`Space::allocate`] does, at the alignment that every block has, from one span that is idle or of the
    /// class `own`. `datum` makes from that owner what the block carries.
    #[inline]
    pub fn take_single(
        &mut self,
        size: usize,
        own: ClassId,
        datum: impl FnOnce(OwnerId) -> T,
    ) -> Option<Single> {
        let requested = size;
        let size = round(size).filter(|_| self.blocks.has_room(1))?;
        let (span, class) = self.best_at_once(size, own)?;
        let Entry { addr, slot, .. } = span;
        let owner = self.blocks.owner(slot)?;
        let owned = Owner::new(owner, class);
        self.take_front(span, owned, (size, requested), datum(owner));
        self.enter(addr, slot, size);
        Some(Single {
            addr,
            len: size,
            slot,
            owner,
        })
    }

    /// The smallest span of at least `size` bytes that is idle or of the class `own`, and its class; ties by address.
    #[inline]
    fn best_at_once(&self, size: usize, own: ClassId) -> Option<(Entry, ClassId)> {
        let recent = &self.recent;
        let fits = recent.len >= size && (recent.class == own || recent.class == ClassId::IDLE);
        let mut best = (Entry::NONE, own);
        if fits {
            best = (recent.entry(), recent.class);
        }
        if own != ClassId::IDLE {
            self.consider(own, size, &mut best);
        }
        self.consider(ClassId::IDLE, size, &mut best);
        (!best.0.slot.is_none()).then_some(best)
    }

    /// Whether a class has a better span of at least `size` bytes than the best one so far.
    #[inline]
    fn consider(&self, id: ClassId, size: usize, best: &mut (Entry, ClassId)) {
        let Some(ClassRecord { index }) = self.owners.class(id) else {
            return;
        };
        // Many classes have no spans, and most no shorter one.
        if index.least() > best.0.len {
            return;
        }
        // Against a span that fits exactly, only another such at a lower address wins.
        let found = if best.0.len == size {
            index.exact(&self.nodes, size)
        } else {
            index.smallest(&self.nodes, size)
        };
        if let Some(slot) = found {
            let entry = Entry::of(&self.blocks, slot);
            if entry < best.0 {
                *best = (entry, id);
            }
        }
    }

    /// The best span of these classes in which the request fits at its alignment.
    fn best_aligned(&mut self, request: Request, classes: &[ClassId]) -> Option<Found> {
        if request.align == GRANULE {
            return self.best_at_start(request.size, classes);
        }
        self.file_recent();
        let mut best: Option<(Entry, usize)> = None;
        for class in classes.iter().filter_map(|id| self.owners.class(*id)) {
            let found = class
                .index
                .at_least(&self.nodes, &self.blocks, request.size)
                .take_while(|entry| best.is_none_or(|(other, _)| *entry < other))
                .find_map(|entry| Some((entry, request.place(entry.addr, entry.len)?)));
            best = found.or(best);
        }
        best.map(|(entry, start)| Found {
            first: entry.slot,
            start,
        })
    }

    /// As [`Space::best_aligned`], where every span that is long enough will do, and is taken from its start: the recent one need
    /// not be filed.
    fn best_at_start(&self, size: usize, classes: &[ClassId]) -> Option<Found> {
        let recent = &self.recent;
        let none = (Entry::NONE, ClassId::IDLE);
        let mut best = match recent.len >= size && classes.contains(&recent.class) {
            true => (recent.entry(), recent.class),
            false => none,
        };
        for class in classes {
            self.consider(*class, size, &mut best);
        }
        let Entry { addr, slot, .. } = best.0;
        (!slot.is_none()).then_some(Found {
            first: slot,
            start: addr,
        })
    }

    /// Takes a block as [`Space::allocate`] does, but from all free spans for whose owner `rank` gives a number;
    /// `None` keeps the spans of that owner out. Idle spans have rank 0. `rank` is called once for each owner
    /// that has spans.
    ///
    /// Among single spans the lowest rank counts first, then the length, then the address. If no single span
    /// does, a run is taken: the lowest highest rank, then the fewest owners that are not idle, then the
    /// smallest total, then the lowest address.
    ///
    /// This is the slow path of a caller that is ready to wait. It may look at every free span.
    pub fn allocate_ranked(
        &mut self,
        size: usize,
        align: usize,
        rank: &mut dyn FnMut(OwnerId) -> Option<u32>,
    ) -> Option<Taken> {
        let request = self.request(size, align)?;
        self.file_recent();
        let ranks: Vec<Option<u32>> = self
            .owners
            .owners()
            .map(|(slot, owner)| {
                if slot == OwnerId::IDLE {
                    Some(0)
                } else {
                    (owner.spans > 0).then(|| rank(slot)).flatten()
                }
            })
            .collect();
        let usable = |owner: OwnerId| ranks.get(owner.0 as usize).copied().flatten();
        for (number, rank) in (0..).zip(&ranks) {
            if rank.is_some() && !self.has_class_alone(OwnerId(number)) {
                self.make_list(OwnerId(number));
            }
        }
        let mut order: Vec<(u32, OwnerId)> = self
            .owners
            .owners()
            .filter_map(|(slot, _)| Some((usable(slot)?, slot)))
            .collect();
        order.sort_by_key(|(rank, _)| *rank);
        let single = order
            .chunk_by(|left, right| left.0 == right.0)
            .find_map(|equal| {
                let best = equal
                    .iter()
                    .filter_map(|(_, owner)| self.best_of_owner(*owner, request))
                    .min_by_key(|(entry, _)| *entry)?;
                Some(Found {
                    first: best.0.slot,
                    start: best.1,
                })
            });
        let found = match single {
            Some(found) => found,
            None => best_run(
                &mut self.blocks,
                Some(ranks.len()),
                &mut self.seams,
                request,
                usable,
                &mut self.scratch,
            )?,
        };
        Some(self.take(found, request.size, size))
    }

    /// The request in granules, or nothing if it cannot be met.
    fn request(&self, size: usize, align: usize) -> Option<Request> {
        // An allocation adds two blocks at most: what is left before and behind.
        (is_alignment(align) && self.blocks.has_room(2)).then_some(Request {
            size: round(size)?,
            align,
        })
    }

    /// The best run of spans of these classes.
    #[cold]
    fn run_of_classes(&mut self, request: Request, classes: &[ClassId]) -> Option<Found> {
        let (members, bytes) = self.owners.of_classes(classes);
        if bytes < request.size {
            return None;
        }
        self.file_recent();
        let owners = &self.owners;
        let usable = |owner: OwnerId| {
            // Nearly always there are few owners.
            let is_member = match 1u64.checked_shl(owner.0) {
                Some(bit) => members & bit != 0,
                None => classes.contains(&owners.class_of(owner)),
            };
            is_member.then_some(0)
        };
        best_run(
            &mut self.blocks,
            None,
            &mut self.seams,
            request,
            usable,
            &mut self.scratch,
        )
    }

    /// The smallest span of an owner in which the request fits, and where.
    fn best_of_owner(&self, id: OwnerId, request: Request) -> Option<(Entry, usize)> {
        let owner = self.owners.owner(id)?;
        let class = self.owners.class(owner.class)?;
        let fit = |entry: Entry| Some((entry, request.place(entry.addr, entry.len)?));
        if self.has_class_alone(id) {
            // The index is in the right order.
            return class
                .index
                .at_least(&self.nodes, &self.blocks, request.size)
                .find_map(fit);
        }
        owner
            .list
            .iter()
            .filter(|slot| self.blocks.owner(**slot) == Some(id))
            .filter_map(|slot| fit(Entry::of(&self.blocks, *slot)))
            .min_by_key(|(entry, _)| *entry)
    }
}
