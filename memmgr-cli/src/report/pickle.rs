//! Reads the plain data of a Python pickle: dictionaries, lists, tuples, text, numbers.
//!
//! A snapshot shares what many events have in common (lists of frames), so values are nodes that others
//! point to, and nothing is copied or walked recursively: memory is bounded by the length of the file and
//! by the machine's limit, whatever it holds. What would name or call Python code is refused.

use super::machine::Machine;

/// A value, as the number of its node.
pub type Id = u32;

/// A value. Text points into the file.
#[derive(Clone, Debug)]
pub enum Node {
    None,
    Bool,
    Int(i64),
    /// A number above the range of `Int`, as addresses may be.
    Large(u64),
    Float(f64),
    Text {
        at: usize,
        len: usize,
    },
    /// A list, tuple or set.
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// Bytes, and numbers that are no address, time or size.
    Other,
}

/// A file that has been read.
pub struct Pickle<'a> {
    bytes: &'a [u8],
    nodes: Vec<Node>,
    pub root: Id,
}

impl<'a> Pickle<'a> {
    /// Values that were read from something else, whose text is in `bytes`.
    pub fn of(bytes: &'a [u8], nodes: Vec<Node>, root: Id) -> Self {
        Self { bytes, nodes, root }
    }

    /// Reads a file; the error names the byte at which it cannot be understood.
    pub fn read(bytes: &'a [u8], mut moved: impl FnMut(u64)) -> Result<Self, String> {
        let mut machine = Machine::new(bytes);
        let mut told = 0;
        let root = loop {
            let start = machine.at;
            if start - told > 1 << 20 {
                moved((start - told) as u64);
                told = start;
            }
            match machine.step() {
                Ok(None) => {}
                Ok(Some(root)) => break root,
                Err(reason) => return Err(format!("byte {start}: {reason}")),
            }
        };
        moved((bytes.len() - told) as u64);
        if machine.at < bytes.len() {
            return Err(format!(
                "byte {}: more data after the end of the snapshot",
                machine.at
            ));
        }
        Ok(Self {
            bytes,
            nodes: machine.nodes,
            root,
        })
    }

    pub fn node(&self, id: Id) -> &Node {
        self.nodes.get(id as usize).unwrap_or(&Node::None)
    }

    pub fn text(&self, id: Id) -> Option<&'a str> {
        match *self.node(id) {
            Node::Text { at, len } => {
                let bytes = self.bytes.get(at..at.checked_add(len)?)?;
                std::str::from_utf8(bytes).ok()
            }
            _ => None,
        }
    }

    pub fn list(&self, id: Id) -> Option<&[Id]> {
        match self.node(id) {
            Node::List(items) => Some(items),
            _ => None,
        }
    }

    pub fn is_dict(&self, id: Id) -> bool {
        matches!(self.node(id), Node::Dict(_))
    }

    /// The value of a key in a dictionary; of several the last, as in Python.
    pub fn get(&self, id: Id, key: &str) -> Option<Id> {
        let Node::Dict(pairs) = self.node(id) else {
            return None;
        };
        let found = pairs
            .iter()
            .rev()
            .find(|(name, _)| self.text(*name) == Some(key));
        found.map(|&(_, value)| value)
    }

    /// A number that is not negative.
    pub fn number(&self, id: Id) -> Option<u64> {
        match *self.node(id) {
            Node::Int(number) => u64::try_from(number).ok(),
            Node::Large(number) => Some(number),
            // A conversion of floats keeps to the range.
            Node::Float(number) if number >= 0.0 => Some(number as u64),
            _ => None,
        }
    }

    /// What a value is, for messages.
    pub fn kind(&self, id: Id) -> &'static str {
        match self.node(id) {
            Node::None => "nothing",
            Node::Bool => "a truth value",
            Node::Int(_) | Node::Large(_) | Node::Float(_) => "a number",
            Node::Text { .. } => "text",
            Node::List(_) => "a list",
            Node::Dict(_) => "a dictionary",
            Node::Other => "other data",
        }
    }
}

#[cfg(test)]
#[path = "pickle_tests.rs"]
mod tests;
