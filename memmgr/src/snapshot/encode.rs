//! Two forms of the same plain values: Python's pickle, and JSON.
//!
//! Both are written in one pass and keep nothing but the words that were said before. A pickle names a word by a short
//! reference the second time, which general writers of pickles do not: a file with a million blocks is a third as long for it,
//! and Python holds each key once.

use rustc_hash::FxHashMap;
use std::io::{self, Write};

/// Writes plain values, one after the other. What goes wrong is said at the end.
pub(super) trait Encoder {
    /// A dictionary begins: keys, each followed by its value.
    fn dict(&mut self);
    /// A dictionary ends.
    fn end_dict(&mut self);
    /// A list begins.
    fn list(&mut self);
    /// A list ends.
    fn end_list(&mut self);
    /// The key of the next value.
    fn key(&mut self, key: &str);
    fn text(&mut self, text: &str);
    fn number(&mut self, number: u64);
    /// A number below zero.
    fn negative(&mut self, number: i32);
    fn float(&mut self, number: f64);
    fn truth(&mut self, value: bool);
    /// Two numbers that belong together: a tuple.
    fn pair(&mut self, pair: (u64, u64));
    /// The end of the one value.
    fn finish(self) -> io::Result<()>;
}

/// Protocol 4.
pub(super) struct Pickle<W> {
    out: W,
    words: FxHashMap<Box<str>, u32>,
    failed: io::Result<()>,
}

impl<W: Write> Pickle<W> {
    pub fn new(out: W) -> Self {
        let mut pickle = Self {
            out,
            words: FxHashMap::default(),
            failed: Ok(()),
        };
        pickle.put(&[0x80, 4]);
        pickle
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.failed.is_ok() {
            self.failed = self.out.write_all(bytes);
        }
    }
}

impl<W: Write> Encoder for Pickle<W> {
    fn dict(&mut self) {
        self.put(b"}(");
    }

    fn end_dict(&mut self) {
        self.put(b"u");
    }

    fn list(&mut self) {
        self.put(b"](");
    }

    fn end_list(&mut self) {
        self.put(b"e");
    }

    fn key(&mut self, key: &str) {
        self.text(key);
    }

    fn text(&mut self, text: &str) {
        if let Some(at) = self.words.get(text).copied() {
            return match u8::try_from(at) {
                Ok(at) => self.put(&[b'h', at]),
                Err(_) => {
                    self.put(b"j");
                    self.put(&at.to_le_bytes());
                }
            };
        }
        match u8::try_from(text.len()) {
            Ok(len) => self.put(&[0x8c, len]),
            Err(_) => {
                self.put(&[0x8d]);
                self.put(&(text.len() as u64).to_le_bytes());
            }
        }
        self.put(text.as_bytes());
        // As the reader counts them.
        if let Ok(at) = u32::try_from(self.words.len()) {
            self.words.insert(text.into(), at);
            self.put(&[0x94]);
        }
    }

    fn number(&mut self, number: u64) {
        if let Ok(number) = u8::try_from(number) {
            self.put(&[b'K', number]);
        } else if let Ok(number) = u16::try_from(number) {
            self.put(b"M");
            self.put(&number.to_le_bytes());
        } else if let Ok(number) = i32::try_from(number) {
            self.put(b"J");
            self.put(&number.to_le_bytes());
        } else {
            // As many bytes as it takes, the last of which carries the sign.
            let bytes = u128::from(number).to_le_bytes();
            let len = (64 - number.leading_zeros()) as usize / 8 + 1;
            self.put(&[0x8a, len as u8]);
            self.put(bytes.get(..len).unwrap_or(&bytes));
        }
    }

    fn negative(&mut self, number: i32) {
        self.put(b"J");
        self.put(&number.to_le_bytes());
    }

    fn float(&mut self, number: f64) {
        self.put(b"G");
        self.put(&number.to_be_bytes());
    }

    fn truth(&mut self, value: bool) {
        self.put(if value { &[0x88] } else { &[0x89] });
    }

    fn pair(&mut self, (first, second): (u64, u64)) {
        self.number(first);
        self.number(second);
        self.put(&[0x86]);
    }

    fn finish(mut self) -> io::Result<()> {
        self.put(b".");
        self.failed
    }
}

/// On one line.
pub(super) struct Json<W> {
    out: W,
    /// Whether the next value is not the first of its list or dictionary, or belongs to a key.
    comma: bool,
    failed: io::Result<()>,
}

impl<W: Write> Json<W> {
    pub fn new(out: W) -> Self {
        Self {
            out,
            comma: false,
            failed: Ok(()),
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.failed.is_ok() {
            self.failed = self.out.write_all(bytes);
        }
    }

    /// What comes before a value.
    fn next(&mut self) {
        if std::mem::replace(&mut self.comma, true) {
            self.put(b",");
        }
    }

    fn say(&mut self, value: impl std::fmt::Display) {
        self.next();
        if self.failed.is_ok() {
            self.failed = write!(self.out, "{value}");
        }
    }

    fn quoted(&mut self, text: &str) {
        self.put(b"\"");
        let mut rest = text;
        while let Some(at) = rest.find(|letter: char| letter < ' ' || "\"\\".contains(letter)) {
            let (plain, odd) = rest.split_at(at);
            self.put(plain.as_bytes());
            let mut letters = odd.chars();
            let letter = letters.next().map_or(0, u32::from);
            self.put(format!("\\u{letter:04x}").as_bytes());
            rest = letters.as_str();
        }
        self.put(rest.as_bytes());
        self.put(b"\"");
    }
}

impl<W: Write> Encoder for Json<W> {
    fn dict(&mut self) {
        self.next();
        self.put(b"{");
        self.comma = false;
    }

    fn end_dict(&mut self) {
        self.put(b"}");
        self.comma = true;
    }

    fn list(&mut self) {
        self.next();
        self.put(b"[");
        self.comma = false;
    }

    fn end_list(&mut self) {
        self.put(b"]");
        self.comma = true;
    }

    fn key(&mut self, key: &str) {
        self.next();
        self.quoted(key);
        self.put(b":");
        self.comma = false;
    }

    fn text(&mut self, text: &str) {
        self.next();
        self.quoted(text);
    }

    fn number(&mut self, number: u64) {
        self.say(number);
    }

    fn negative(&mut self, number: i32) {
        self.say(number);
    }

    fn float(&mut self, number: f64) {
        self.say(format_args!("{number:?}"));
    }

    fn truth(&mut self, value: bool) {
        self.say(value);
    }

    fn pair(&mut self, (first, second): (u64, u64)) {
        self.list();
        self.number(first);
        self.number(second);
        self.end_list();
    }

    fn finish(mut self) -> io::Result<()> {
        self.put(b"\n");
        self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(encoder: &mut impl Encoder) {
        encoder.dict();
        encoder.key("a \"key\"\n");
        encoder.list();
        for number in [
            0,
            255,
            256,
            65_535,
            65_536,
            0x7fff_ffff,
            0x8000_0000,
            u64::MAX,
        ] {
            encoder.number(number);
        }
        encoder.negative(-1);
        encoder.end_list();
        encoder.key("empty");
        encoder.list();
        encoder.end_list();
        encoder.key("more");
        encoder.dict();
        encoder.end_dict();
        encoder.key("empty");
        encoder.pair((1, 2));
        encoder.key("rest");
        encoder.list();
        encoder.float(0.5);
        encoder.truth(true);
        encoder.text("empty");
        encoder.end_list();
        encoder.end_dict();
    }

    #[test]
    fn json_is_json() {
        let mut out = Vec::new();
        let mut json = Json::new(&mut out);
        all(&mut json);
        json.finish().unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"a \\u0022key\\u0022\\u000a\":[0,255,256,65535,65536,2147483647,2147483648,\
             18446744073709551615,-1],\"empty\":[],\"more\":{},\"empty\":[1,2],\
             \"rest\":[0.5,true,\"empty\"]}\n"
        );
    }

    #[test]
    fn a_pickle_names_words_once_and_numbers_by_their_length() {
        let mut out = Vec::new();
        let mut pickle = Pickle::new(&mut out);
        all(&mut pickle);
        pickle.finish().unwrap();
        let expected: &[&[u8]] = &[
            b"\x80\x04}(\x8c\x08a \"key\"\n\x94](",
            b"K\0K\xffM\0\x01M\xff\xffJ\0\0\x01\0J\xff\xff\xff\x7f",
            b"\x8a\x05\0\0\0\x80\0\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0J\xff\xff\xff\xffe",
            b"\x8c\x05empty\x94](e\x8c\x04more\x94}(uh\x01K\x01K\x02\x86",
            b"\x8c\x04rest\x94](G\x3f\xe0\0\0\0\0\0\0\x88h\x01eu.",
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn what_cannot_be_written_is_said_at_the_end() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut pickle = Pickle::new(Full);
        all(&mut pickle);
        assert!(pickle.finish().is_err());
        let mut json = Json::new(Full);
        all(&mut json);
        assert!(json.finish().is_err());
    }
}
