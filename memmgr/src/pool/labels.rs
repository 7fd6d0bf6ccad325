//! Names and call sites of live blocks. They are kept aside, with what else only some blocks have, and go with the block:
//! whoever gets the memory next has none of it.

use super::{Pool, native::Native};
use std::{fmt, panic::Location, sync::Arc};

/// What a block is called, and where it was allocated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Label {
    pub name: Option<Arc<str>>,
    pub site: Option<&'static Location<'static>>,
}

impl Label {
    /// What is known of a block of which this may be known.
    pub fn of(label: Option<&Self>) -> Self {
        label.cloned().unwrap_or_default()
    }

    /// Adds to it what is given.
    pub fn add(&mut self, more: Self) {
        self.name = more.name.or(self.name.take());
        self.site = more.site.or(self.site);
    }
}

impl fmt::Display for Label {
    /// `, "name", allocated at file:line:column`, as far as that is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, ", {name:?}")?;
        }
        if let Some(site) = self.site {
            write!(f, ", allocated at {site}")?;
        }
        Ok(())
    }
}

impl Pool {
    /// Adds to what the live block that starts at `address` is called; whether there is one.
    pub fn label(&self, address: usize, more: Label) -> bool {
        let mut state = self.lock_block(address);
        let Some(extra) = state.make_extra(address) else {
            return false;
        };
        extra.label.get_or_insert_default().add(more);
        true
    }
}

impl Native {
    /// As [`Pool::label`].
    pub fn label(&self, address: usize, more: Label) -> bool {
        self.with_label(address, |label| label.add(more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_name_replaces_the_earlier_and_what_is_not_given_stays() {
        let mut label = Label::default();
        assert_eq!(label.to_string(), "");
        let site = Some(Location::caller());
        label.add(Label { name: None, site });
        for name in ["first", "second"] {
            label.add(Label {
                name: Some(name.into()),
                site: None,
            });
        }
        assert_eq!(label.site, site);
        let text = label.to_string();
        assert!(
            text.starts_with(", \"second\", allocated at ") && text.contains("labels.rs:"),
            "{text}"
        );
    }
}
