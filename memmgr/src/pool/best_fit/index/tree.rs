//! The tree of the spans of one class and length, by address: a treap (Seidel and Aragon, "Randomized search trees", 1996), with
//! priorities made from the slots. It is known by its lowest span, from which everything is reached: a span that is put in at
//! the low end, or taken out there, needs no way through the tree.

use super::Entry;
use crate::pool::best_fit::blocks::{Blocks, Datum, Slot};

/// Adds a span to the tree whose lowest span is `head`; the lowest one now.
pub(super) fn insert<T: Datum>(blocks: &mut Blocks<T>, head: Slot, entry: Entry) -> Slot {
    let (addr, new) = (entry.addr, entry.slot);
    blocks.link(head);
    blocks.link(new);
    if addr < blocks.links(head).addr {
        hang(blocks, new, head, true);
        return new;
    }
    // Up, along spans that nothing lies below on the left, then down.
    let mut above = head;
    loop {
        let parent = blocks.links(above).parent;
        if parent.is_none() || blocks.links(parent).addr > addr {
            break;
        }
        above = parent;
    }
    loop {
        let links = blocks.links(above);
        let left = addr < links.addr;
        let below = if left { links.left } else { links.right };
        if below.is_none() {
            hang(blocks, new, above, left);
            return head;
        }
        above = below;
    }
}

/// Hangs a span, which is in no tree, below another, on a side where nothing is yet, and rotates it up until the one above has
/// a higher priority.
fn hang<T: Datum>(blocks: &mut Blocks<T>, new: Slot, above: Slot, left: bool) {
    let (mut above, mut left) = (above, left);
    let mut below = (Slot::NONE, Slot::NONE);
    while above.priority() <= new.priority() {
        let links = blocks.links_mut(above);
        let top = std::mem::replace(&mut links.parent, new);
        let moved = if left {
            links.left = std::mem::replace(&mut below.1, above);
            links.left
        } else {
            links.right = std::mem::replace(&mut below.0, above);
            links.right
        };
        if !moved.is_none() {
            blocks.links_mut(moved).parent = above;
        }
        if top.is_none() {
            above = top;
            break;
        }
        left = blocks.links(top).left == above;
        above = top;
    }
    if !above.is_none() {
        let links = blocks.links_mut(above);
        if left {
            links.left = new;
        } else {
            links.right = new;
        }
    }
    let links = blocks.links_mut(new);
    (links.left, links.right, links.parent) = (below.0, below.1, above);
}

/// Takes a span out of its tree, which has others. If it was the lowest one: the lowest one now.
pub(super) fn remove<T: Datum>(
    blocks: &mut Blocks<T>,
    slot: Slot,
    is_lowest: bool,
) -> Option<Slot> {
    let lowest = is_lowest.then(|| after(blocks, slot));
    let links = *blocks.links(slot);
    let below = if links.left.is_none() {
        links.right
    } else if links.right.is_none() {
        links.left
    } else {
        merge(blocks, links.left, links.right)
    };
    if !below.is_none() {
        blocks.links_mut(below).parent = links.parent;
    }
    if !links.parent.is_none() {
        let parent = blocks.links_mut(links.parent);
        if parent.left == slot {
            parent.left = below;
        } else {
            parent.right = below;
        }
    }
    let links = blocks.links_mut(slot);
    (links.left, links.right, links.parent) = (Slot::NONE, Slot::NONE, Slot::NONE);
    lowest
}

/// The span with the next higher address, or none.
pub(super) fn after<T: Datum>(blocks: &Blocks<T>, slot: Slot) -> Slot {
    let right = blocks.links(slot).right;
    if !right.is_none() {
        return leftmost(blocks, right);
    }
    let mut below = slot;
    let mut above = blocks.links(slot).parent;
    while !above.is_none() && blocks.links(above).right == below {
        below = above;
        above = blocks.links(above).parent;
    }
    above
}

fn leftmost<T: Datum>(blocks: &Blocks<T>, mut slot: Slot) -> Slot {
    loop {
        let left = blocks.links(slot).left;
        if left.is_none() {
            return slot;
        }
        slot = left;
    }
}

/// Joins two trees, all of whose spans are in order; the topmost span.
fn merge<T: Datum>(blocks: &mut Blocks<T>, mut low: Slot, mut high: Slot) -> Slot {
    let top = if low.priority() > high.priority() {
        low
    } else {
        high
    };
    // Where the next span hangs: below this one, on the right or on the left.
    let mut hang: Option<(Slot, bool)> = None;
    loop {
        let takes_low = if low.is_none() {
            false
        } else {
            high.is_none() || low.priority() > high.priority()
        };
        let next = if takes_low { low } else { high };
        if let Some((above, right)) = hang {
            let links = blocks.links_mut(above);
            if right {
                links.right = next;
            } else {
                links.left = next;
            }
            if next.is_none() {
                return top;
            }
            blocks.links_mut(next).parent = above;
        }
        if low.is_none() || high.is_none() {
            return top;
        }
        hang = Some((next, takes_low));
        if takes_low {
            low = blocks.links(low).right;
        } else {
            high = blocks.links(high).left;
        }
    }
}
