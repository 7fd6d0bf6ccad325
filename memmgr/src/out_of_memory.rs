//! What an out-of-memory error knows, and how it explains itself.

use crate::{error::Place, pool::Label};
use std::{collections::BTreeMap, fmt, panic::Location, sync::Arc};

/// Everything that an out-of-memory error knows; its `Display` explains what was missing. All figures are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Where the memory was wanted.
    pub place: Place,
    /// What was asked for.
    pub requested: usize,
    /// Live in the manager's pool, rounded to its granule.
    pub in_use: usize,
    /// Held from CUDA by the pool.
    pub reserved: usize,
    /// Free in the pool and usable at once.
    pub idle: usize,
    /// Free in the pool, but work that may touch it has not finished.
    pub pending: usize,
    /// The largest idle block: smaller than `requested`, or the request would have been served. `None` in the async
    /// modes, whose pool is the driver's.
    pub largest_idle: Option<usize>,
    /// In how many pieces the free memory lies, idle or pending; 0 in the async modes.
    pub free_pieces: usize,
    /// What the device reported as free (`cudaMemGetInfo`); `None` for pinned memory.
    pub device_free: Option<usize>,
    /// The limit of the pool, if one is set.
    pub limit: Option<usize>,
    /// All memory of the place, in use by whomever.
    pub capacity: usize,
    /// Whether it was the configured size of the pool that could not be reserved, at the first allocation.
    pub initial: bool,
    /// What the pools of other managers of the process have idle on the device, in bytes, where the device has not enough: their
    /// [`trim`](crate::MemoryManager::trim) gives it back. 0 in errors that a hook sees.
    pub idle_of_others: usize,
    /// Whether the process had no addresses left to map memory to, however much memory there is (virtual memory alone).
    pub no_addresses: bool,
    /// Who holds the memory that is in use.
    pub holders: Holders,
}

/// A live block of an [`OutOfMemory`] error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// What was asked for, in bytes.
    pub size: usize,
    /// Where it starts.
    pub address: usize,
    /// CUDA's id of the stream that it was allocated on; `None` without one.
    pub stream: Option<u64>,
    /// Its name, if it was given one.
    pub name: Option<Arc<str>>,
    /// Where the program allocated it, if [`Config::call_sites`](crate::Config::call_sites) is set.
    pub call_site: Option<&'static Location<'static>>,
}

/// A live block, while those that are named are looked for.
#[derive(Clone, Copy)]
pub(crate) struct Held<'a> {
    pub size: usize,
    pub address: usize,
    pub stream: Option<u64>,
    pub label: Option<&'a Label>,
}

impl From<Held<'_>> for Holder {
    fn from(held: Held<'_>) -> Self {
        let Label { name, site } = Label::of(held.label);
        Self {
            size: held.size,
            address: held.address,
            stream: held.stream,
            name,
            call_site: site,
        }
    }
}

/// How many live blocks have a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SizeCount {
    /// What was asked for, in bytes.
    pub size: usize,
    /// How many blocks.
    pub count: usize,
}

/// Who holds what is in use: the live blocks of the pool or mode that refused a request. Both lists are short.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holders {
    /// How many blocks are live.
    pub blocks: usize,
    /// The largest of them, the largest first.
    pub largest: Vec<Holder>,
    /// The sizes that take the most bytes together, the most first.
    pub sizes: Vec<SizeCount>,
}

/// How many blocks and sizes a refusal names.
const NAMED: usize = 4;

impl Holders {
    /// The largest of these blocks, and their sizes.
    pub(crate) fn of<'a>(blocks: impl Iterator<Item = Held<'a>>) -> Self {
        let mut found = Self::default();
        let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
        for block in blocks {
            found.blocks = found.blocks.saturating_add(1);
            let count = sizes.entry(block.size).or_default();
            *count = count.saturating_add(1);
            let at = (found.largest).partition_point(|held| held.size >= block.size);
            if at < NAMED {
                found.largest.insert(at, block.into());
                found.largest.truncate(NAMED);
            }
        }
        found.sizes = (sizes.into_iter())
            .map(|(size, count)| SizeCount { size, count })
            .collect();
        let bytes = |of: &SizeCount| of.size.saturating_mul(of.count);
        found
            .sizes
            .sort_by_key(|of| (std::cmp::Reverse(bytes(of)), of.size));
        found.sizes.truncate(NAMED);
        found
    }
}

impl OutOfMemory {
    /// Whether the request would fit if everything else were gone.
    pub fn can_ever_fit(&self) -> bool {
        self.requested <= self.capacity && self.limit.is_none_or(|limit| self.requested <= limit)
    }

    /// What would help.
    fn advice(&self) -> &'static str {
        let free = self.idle.saturating_add(self.pending);
        if self.requested > self.capacity {
            ". It is more than there is at all"
        } else if self.no_addresses {
            ". Not memory ran out, but addresses of the process to map it to: use one manager in place of many, drop those that are done, or take memory from cudaMalloc (device_source, MEMMGR_DEVICE_SOURCE=malloc)"
        } else if self.initial {
            match self.place {
                Place::Device(_) => ". Configure a smaller pool (set_device_pool_size)",
                Place::Pinned => ". Configure a smaller pool (set_pinned_pool_size)",
            }
        } else if self.idle >= self.requested && self.largest_idle.is_some() {
            ". Enough is idle, but not in one piece: a larger initial pool, or freeing neighbours, would help"
        } else if free >= self.requested && self.largest_idle.is_some() && self.pending > 0 {
            ". Enough will be free once pending work has finished, if it then lies in one piece: synchronise its streams and try again"
        } else if (self.limit).is_some_and(|limit| {
            self.requested > limit.saturating_sub(self.in_use)
                && self.device_free.is_none_or(|free| free >= self.requested)
        }) {
            match self.place {
                Place::Device(_) => {
                    ". The pool's limit is reached: raise it (set_device_pool_limit, MEMMGR_DEVICE_POOL_LIMIT), or free some of what is in use"
                }
                Place::Pinned => {
                    ". The pool's limit is reached: raise it (set_pinned_pool_limit, MEMMGR_PINNED_POOL_LIMIT), or free some of what is in use"
                }
            }
        } else {
            ". Free some of what is in use"
        }
    }
}

/// So many of something: `1 block`, `2 blocks`.
pub(crate) struct Counted(pub usize, pub &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, what) = self;
        let more = if *count == 1 { "" } else { "s" };
        write!(f, "{count} {what}{more}")
    }
}

/// Bytes as people read them, beside others that they are not: all digits where both would look the same.
pub(crate) struct Exact(pub usize, pub usize);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = Bytes(self.0).to_string();
        if text == Bytes(self.1).to_string() {
            return Counted(self.0, "byte").fmt(f);
        }
        f.write_str(&text)
    }
}

/// What raises the limit of a pool.
pub(crate) fn limit_setter(place: Place) -> &'static str {
    match place {
        Place::Device(_) => "set_device_pool_limit or MEMMGR_DEVICE_POOL_LIMIT",
        Place::Pinned => "set_pinned_pool_limit or MEMMGR_PINNED_POOL_LIMIT",
    }
}

/// Bytes as people read them: `1.5 MiB`.
struct Bytes(usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0 as f64;
        match self.0 {
            0..1024 => Counted(self.0, "byte").fmt(f),
            1024..1_048_576 => write!(f, "{:.1} KiB", n / 1024.0),
            1_048_576..1_073_741_824 => write!(f, "{:.1} MiB", n / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", n / 1_073_741_824.0),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.initial {
            " for the initial pool"
        } else {
            ""
        };
        write!(
            f,
            "out of memory on {}: {} requested{what}. The pool holds {}: {} in use, {} idle",
            self.place,
            Bytes(self.requested),
            Bytes(self.reserved),
            Bytes(self.in_use),
            Bytes(self.idle),
        )?;
        if let Some(largest) = self.largest_idle {
            write!(f, " (largest block {})", Bytes(largest))?;
        }
        write!(f, ", {} waiting for work to finish", Bytes(self.pending))?;
        if self.free_pieces > 1 {
            write!(f, "; what is free lies in {} pieces", self.free_pieces)?;
        }
        if let Some(free) = self.device_free {
            write!(f, "; the device reports {} free", Bytes(free))?;
        }
        if let Some(limit) = self.limit {
            write!(f, "; the pool's limit is {}", Bytes(limit))?;
        }
        f.write_str(self.advice())?;
        if self.idle_of_others > 0 {
            write!(
                f,
                ". Other managers of this process hold {} idle on it: their trim() gives it back",
                Bytes(self.idle_of_others)
            )?;
        }
        self.holders.fmt(f)
    }
}

impl fmt::Display for Holders {
    /// Nothing where nothing is live, else two sentences.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.largest.is_empty() {
            return Ok(());
        }
        write!(f, ". {} live; the largest: ", Counted(self.blocks, "block"))?;
        for (number, held) in self.largest.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{} on ", Bytes(held.size))?;
            match held.stream {
                Some(stream) => write!(f, "stream {stream}")?,
                None => f.write_str("no stream")?,
            }
            let (name, site) = (held.name.clone(), held.call_site);
            let label = Label { name, site }.to_string();
            if let Some(label) = label.strip_prefix(", ") {
                write!(f, " ({label})")?;
            }
        }
        if self.sizes.iter().any(|of| of.count > 1) {
            f.write_str("; by size: ")?;
            for (number, of) in self.sizes.iter().enumerate() {
                let comma = if number > 0 { ", " } else { "" };
                write!(f, "{comma}{} of {}", of.count, Bytes(of.size))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(size: usize, stream: Option<u64>) -> Held<'static> {
        Held {
            size,
            address: size,
            stream,
            label: None,
        }
    }

    fn refusal() -> OutOfMemory {
        OutOfMemory {
            place: Place::Device(0),
            requested: 3 << 20,
            in_use: 10 << 20,
            reserved: 16 << 20,
            idle: 4 << 20,
            pending: 2 << 20,
            largest_idle: Some(2 << 20),
            free_pieces: 3,
            initial: false,
            no_addresses: false,
            idle_of_others: 0,
            device_free: Some(1 << 20),
            limit: None,
            capacity: 24 << 30,
            holders: Holders::default(),
        }
    }

    #[test]
    fn an_out_of_memory_text_explains_itself() {
        let text = refusal().to_string();
        for part in ["3.0 MiB requested", "not in one piece", "in 3 pieces"] {
            assert!(text.contains(part), "{text}");
        }
        let pending = OutOfMemory {
            idle: 1 << 20,
            pending: 5 << 20,
            ..refusal()
        };
        assert!(pending.to_string().contains("synchronise"), "{pending}");
        let limited = OutOfMemory {
            idle: 0,
            pending: 0,
            limit: Some(11 << 20),
            device_free: Some(1 << 30),
            ..refusal()
        };
        let setter = "raise it (set_device_pool_limit";
        assert!(limited.to_string().contains(setter), "{limited}");
    }

    #[test]
    fn the_largest_holders_are_named_with_stream_and_count() {
        let many = (0..100).map(|_| held(1 << 20, Some(17)));
        let few = [held(5 << 20, None), held(9 << 20, Some(3)), held(64, None)];
        let holders = Holders::of(many.chain(few));
        assert_eq!(holders.blocks, 103);
        let largest: Vec<usize> = holders.largest.iter().map(|of| of.size).collect();
        assert_eq!(largest, [9 << 20, 5 << 20, 1 << 20, 1 << 20]);
        let text = OutOfMemory {
            holders,
            ..refusal()
        }
        .to_string();
        for part in [
            "103 blocks live; the largest: 9.0 MiB on stream 3, 5.0 MiB on no stream",
            "by size: 100 of 1.0 MiB, 1 of 9.0 MiB",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn names_and_call_sites_are_shown_where_they_are_known() {
        let label = Label {
            name: Some("weights".into()),
            site: Some(Location::caller()),
        };
        let named = Held {
            label: Some(&label),
            ..held(8 << 20, Some(3))
        };
        let holders = Holders::of([named, held(1 << 20, None)].into_iter());
        assert_eq!(holders.largest[0].name.as_deref(), Some("weights"));
        let text = holders.to_string();
        let start = "8.0 MiB on stream 3 (\"weights\", allocated at ";
        assert!(text.contains(start), "{text}");
        assert!(text.contains("), 1.0 MiB on no stream"), "{text}");
    }

    #[test]
    fn where_nothing_is_live_no_holders_are_named() {
        assert_eq!(Holders::of(std::iter::empty()).to_string(), "");
    }
}
