//! The tree of the spans of one class and length, by address: a treap (Seidel and Aragon, "Randomized search trees", 1996), with
//! priorities made from the slots. It is known by its lowest span, from which everything is reached: a span that is put in at
//! the low end, or taken out there, needs no way through the tree.

use super::Entry;
use crate::pool::best_fit::blocks::{Blocks, Slot};

/// Adds a span to the tree whose lowest span is `head`; the lowest one now.
pub(super) fn insert<T: Default>(blocks: &mut Blocks<T>, head: Slot, entry: Entry) -> Slot {
    let (addr, new) = (entry.addr, entry.slot);
    if addr < blocks.at(head).addr {
        hang(blocks, new, head, true);
        return new;
    }
    // Up, along spans that nothing lies below on the left, then down.
    let mut above = head;
    loop {
        let parent = blocks.span(above).parent;
        if parent.is_none() || blocks.at(parent).addr > addr {
            break;
        }
        above = parent;
    }
    loop {
        let left = addr < blocks.at(above).addr;
        let span = blocks.span(above);
        let below = if left { span.left } else { span.right };
        if below.is_none() {
            hang(blocks, new, above, left);
            return head;
        }
        above = below;
    }
}

/// Hangs a span, which is in no tree, below another, on a side where nothing is yet, and rotates it up until the one above has
/// a higher priority.
fn hang<T: Default>(blocks: &mut Blocks<T>, new: Slot, above: Slot, left: bool) {
    let (mut above, mut left) = (above, left);
    let mut below = (Slot::NONE, Slot::NONE);
    while above.priority() <= new.priority() {
        let span = blocks.span_mut(above);
        let top = std::mem::replace(&mut span.parent, new);
        let moved = if left {
            span.left = std::mem::replace(&mut below.1, above);
            span.left
        } else {
            span.right = std::mem::replace(&mut below.0, above);
            span.right
        };
        if !moved.is_none() {
            blocks.span_mut(moved).parent = above;
        }
        if top.is_none() {
            above = top;
            break;
        }
        left = blocks.span(top).left == above;
        above = top;
    }
    if !above.is_none() {
        let span = blocks.span_mut(above);
        if left {
            span.left = new;
        } else {
            span.right = new;
        }
    }
    let span = blocks.span_mut(new);
    (span.left, span.right, span.parent) = (below.0, below.1, above);
}

/// Takes a span out of its tree, which has others. If it was the lowest one: the lowest one now.
pub(super) fn remove<T: Default>(
    blocks: &mut Blocks<T>,
    slot: Slot,
    is_lowest: bool,
) -> Option<Slot> {
    let lowest = is_lowest.then(|| after(blocks, slot));
    let span = *blocks.span(slot);
    let below = if span.left.is_none() {
        span.right
    } else if span.right.is_none() {
        span.left
    } else {
        merge(blocks, span.left, span.right)
    };
    if !below.is_none() {
        blocks.span_mut(below).parent = span.parent;
    }
    if !span.parent.is_none() {
        let parent = blocks.span_mut(span.parent);
        if parent.left == slot {
            parent.left = below;
        } else {
            parent.right = below;
        }
    }
    let span = blocks.span_mut(slot);
    (span.left, span.right, span.parent) = (Slot::NONE, Slot::NONE, Slot::NONE);
    lowest
}

/// The span with the next higher address, or none.
pub(super) fn after<T: Default>(blocks: &Blocks<T>, slot: Slot) -> Slot {
    let right = blocks.span(slot).right;
    if !right.is_none() {
        return leftmost(blocks, right);
    }
    let mut below = slot;
    let mut above = blocks.span(slot).parent;
    while !above.is_none() && blocks.span(above).right == below {
        below = above;
        above = blocks.span(above).parent;
    }
    above
}

fn leftmost<T: Default>(blocks: &Blocks<T>, mut slot: Slot) -> Slot {
    loop {
        let left = blocks.span(slot).left;
        if left.is_none() {
            return slot;
        }
        slot = left;
    }
}

/// Joins two trees, all of whose spans are in order; the topmost span.
fn merge<T: Default>(blocks: &mut Blocks<T>, mut low: Slot, mut high: Slot) -> Slot {
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
            let span = blocks.span_mut(above);
            if right {
                span.right = next;
            } else {
                span.left = next;
            }
            if next.is_none() {
                return top;
            }
            blocks.span_mut(next).parent = above;
        }
        if low.is_none() || high.is_none() {
            return top;
        }
        hang = Some((next, takes_low));
        if takes_low {
            low = blocks.span(low).right;
        } else {
            high = blocks.span(high).left;
        }
    }
}
