//! The stack machine that a pickle is a program for, without the instructions that name Python code.

use rustc_hash::FxHashMap;

use super::pickle::{Id, Node};

/// The most values that are kept: about 1 GiB.
pub const MOST_NODES: usize = 1 << 25;

/// The stack machine that a pickle is a program for.
pub struct Machine<'a> {
    bytes: &'a [u8],
    pub at: usize,
    pub nodes: Vec<Node>,
    stack: Vec<Id>,
    /// Where on the stack a collection begins.
    marks: Vec<usize>,
    memo: FxHashMap<u32, Id>,
    next_memo: u32,
}

const CUT_OFF: &str = "the file ends in the middle of a value; it was cut off";
const TOO_FEW: &str = "a value is missing; this is not a sound pickle";
pub const TOO_LONG: &str = "more values than are kept (2^25); record a shorter history";

impl<'a> Machine<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: FxHashMap::default(),
            next_memo: 0,
        }
    }

    /// One instruction; the value of the whole at the last.
    pub fn step(&mut self) -> Result<Option<Id>, String> {
        let code = self.byte()?;
        match code {
            0x80 => {
                let version = self.byte()?;
                if !(2..=5).contains(&version) {
                    return Err(format!("pickle protocol {version}; 2 to 5 are read"));
                }
            }
            // FRAME: only says how much could be read at a time.
            0x95 => drop(self.take(8)?),
            b'.' => return self.pop().map(Some),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            b'N' => self.push(Node::None)?,
            0x88 | 0x89 => self.push(Node::Bool)?,
            b'J' => {
                let number = self.array::<4>().map(i32::from_le_bytes)?;
                self.push(Node::Int(number.into()))?;
            }
            b'K' => {
                let number = self.byte()?;
                self.push(Node::Int(number.into()))?;
            }
            b'M' => {
                let number = self.array::<2>().map(u16::from_le_bytes)?;
                self.push(Node::Int(number.into()))?;
            }
            0x8a => {
                let len = self.byte()?;
                let node = long(self.take(len.into())?);
                self.push(node)?;
            }
            0x8b => {
                let len = self.length(4)?;
                let node = long(self.take(len)?);
                self.push(node)?;
            }
            b'G' => {
                let number = self.array::<8>().map(f64::from_be_bytes)?;
                self.push(Node::Float(number))?;
            }
            0x8c | b'U' => self.string(1)?,
            b'X' | b'T' => self.string(4)?,
            0x8d => self.string(8)?,
            b'C' => self.other(1)?,
            b'B' => self.other(4)?,
            0x8e | 0x96 => self.other(8)?,
            b']' | b')' | 0x8f => self.push(Node::List(Vec::new()))?,
            b'}' => self.push(Node::Dict(Vec::new()))?,
            b'l' | b't' | 0x91 => {
                let items = self.since_mark()?;
                self.push(Node::List(items))?;
            }
            b'd' => {
                let items = self.since_mark()?;
                let pairs = pairs(&items)?;
                self.push(Node::Dict(pairs))?;
            }
            0x85..=0x87 => {
                let from = self.stack.len().checked_sub(usize::from(code - 0x84));
                let from = from.filter(|&from| from >= self.floor()).ok_or(TOO_FEW)?;
                let items = self.stack.split_off(from);
                self.push(Node::List(items))?;
            }
            b'a' => {
                let item = self.pop()?;
                self.extend(&[item])?;
            }
            b'e' | 0x90 => {
                let items = self.since_mark()?;
                self.extend(&items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(&[key, value])?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.set(&items)?;
            }
            b'q' => {
                let key = self.byte()?;
                self.remember(key.into())?;
            }
            b'r' => {
                let key = self.array::<4>().map(u32::from_le_bytes)?;
                self.remember(key)?;
            }
            0x94 => self.remember(self.next_memo)?,
            b'h' => {
                let key = self.byte()?;
                self.recall(key.into())?;
            }
            b'j' => {
                let key = self.array::<4>().map(u32::from_le_bytes)?;
                self.recall(key)?;
            }
            b'c' | 0x93 | b'R' | b'i' | b'o' | b'b' | 0x81 | 0x92 | 0x82..=0x84 | b'P' | b'Q' => {
                return Err(
                    "it names Python code, which is never run; a memory snapshot holds plain data only"
                        .to_owned(),
                );
            }
            other => {
                return Err(format!(
                    "unknown instruction {other:#04x}; expected a pickle of protocol 2 to 5"
                ));
            }
        }
        Ok(None)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(len).ok_or(CUT_OFF)?;
        let taken = self.bytes.get(self.at..end).ok_or(CUT_OFF)?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take(N)?.try_into().map_err(|_| CUT_OFF.to_owned())
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A length in so many bytes, at most 8.
    fn length(&mut self, width: usize) -> Result<usize, String> {
        let bytes = self.take(width)?;
        let fold = |sum: u64, &byte: &u8| sum << 8 | u64::from(byte);
        let len = bytes.iter().rev().fold(0, fold);
        usize::try_from(len).map_err(|_| CUT_OFF.to_owned())
    }

    fn string(&mut self, width: usize) -> Result<(), String> {
        let len = self.length(width)?;
        let at = self.at;
        let text = self.take(len)?;
        std::str::from_utf8(text).map_err(|_| "text that is not UTF-8")?;
        self.push(Node::Text { at, len })
    }

    fn other(&mut self, width: usize) -> Result<(), String> {
        let len = self.length(width)?;
        self.take(len)?;
        self.push(Node::Other)
    }

    fn push(&mut self, node: Node) -> Result<(), String> {
        if self.nodes.len() >= MOST_NODES {
            return Err(TOO_LONG.to_owned());
        }
        let id = Id::try_from(self.nodes.len()).map_err(|_| TOO_LONG)?;
        self.nodes.push(node);
        self.stack.push(id);
        Ok(())
    }

    /// Below this the stack belongs to a collection that is not finished.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Id, String> {
        if self.stack.len() <= self.floor() {
            return Err(TOO_FEW.to_owned());
        }
        self.stack.pop().ok_or_else(|| TOO_FEW.to_owned())
    }

    fn top(&self) -> Result<Id, String> {
        self.stack.last().copied().ok_or_else(|| TOO_FEW.to_owned())
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or(TOO_FEW)?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn extend(&mut self, items: &[Id]) -> Result<(), String> {
        let top = self.top()?;
        match self.nodes.get_mut(top as usize) {
            Some(Node::List(list)) => list.extend_from_slice(items),
            _ => return Err("something is added to what is no list".to_owned()),
        }
        Ok(())
    }

    fn set(&mut self, items: &[Id]) -> Result<(), String> {
        let new = pairs(items)?;
        let top = self.top()?;
        match self.nodes.get_mut(top as usize) {
            Some(Node::Dict(pairs)) => pairs.extend(new),
            _ => return Err("a key is set in what is no dictionary".to_owned()),
        }
        Ok(())
    }

    fn remember(&mut self, key: u32) -> Result<(), String> {
        let top = self.top()?;
        self.memo.insert(key, top);
        self.next_memo = self.next_memo.max(key.saturating_add(1));
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<(), String> {
        let id = self
            .memo
            .get(&key)
            .ok_or("a value that was not remembered is asked for")?;
        self.stack.push(*id);
        Ok(())
    }
}

fn pairs(items: &[Id]) -> Result<Vec<(Id, Id)>, String> {
    let (pairs, rest) = items.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("a key without a value".to_owned());
    }
    Ok(pairs.iter().map(|&[key, value]| (key, value)).collect())
}

/// A number of any length, least byte first, in two's complement.
fn long(bytes: &[u8]) -> Node {
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    if bytes.len() > 9 {
        return Node::Other;
    }
    let mut all = if negative { [0xff; 16] } else { [0; 16] };
    for (to, from) in all.iter_mut().zip(bytes) {
        *to = *from;
    }
    let number = i128::from_le_bytes(all);
    match (i64::try_from(number), u64::try_from(number)) {
        (Ok(number), _) => Node::Int(number),
        (_, Ok(number)) => Node::Large(number),
        _ => Node::Other,
    }
}
