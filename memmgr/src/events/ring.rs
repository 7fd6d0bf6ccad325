//! The last events, in memory.

use super::Event;
use crate::sync::{Mutex, lock};
use std::collections::VecDeque;

/// The last events of a manager; it takes memory as events come.
pub(super) struct Ring {
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    count: u64,
}

impl Ring {
    /// Of at most so many events.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            state: Mutex::default(),
        }
    }

    /// Adds an event, in the place of the oldest if there is no other.
    pub fn add(&self, event: Event) {
        let mut state = lock(&self.state);
        if state.events.len() >= self.most {
            state.events.pop_front();
        }
        state.events.push_back(event);
        state.count = state.count.saturating_add(1);
    }

    /// All of them, from the oldest on.
    pub fn events(&self) -> Vec<Event> {
        lock(&self.state).events.iter().cloned().collect()
    }

    /// How many were ever added.
    pub fn count(&self) -> u64 {
        lock(&self.state).count
    }
}
