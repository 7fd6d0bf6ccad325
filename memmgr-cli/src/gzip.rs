//! Reads data that gzip compressed: one member after the other, as `gunzip` does. What follows the last one and is no
//! member is told apart from data that ends too early.

use std::fmt;
use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// How such data begins.
pub const MAGIC: &[u8] = &[0x1f, 0x8b];

/// There is something else behind the compressed data, which was complete.
#[derive(Debug)]
struct Trailing;

impl fmt::Display for Trailing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TRAILING)
    }
}

impl std::error::Error for Trailing {}

const TRAILING: &str = "the compressed data is complete, but something else follows it; \
     decompress the file first (gunzip ignores the rest)";

/// The content of all members.
pub struct Members<R> {
    /// The one that is read; none after the last.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Members<R> {
    pub fn new(source: R) -> Self {
        Self {
            member: Some(GzDecoder::new(source)),
        }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(mut member) = self.member.take() {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                self.member = Some(member);
                return Ok(read);
            }
            let mut source = member.into_inner();
            let rest = source.fill_buf()?;
            // The first byte alone may be there yet.
            if !rest.is_empty() && !rest.starts_with(&MAGIC[..rest.len().min(MAGIC.len())]) {
                return Err(io::Error::other(Trailing));
            }
            if !rest.is_empty() {
                self.member = Some(GzDecoder::new(source));
            }
        }
        Ok(0)
    }
}

/// What is wrong with compressed data that cannot be read on; `None` if reading itself failed.
pub fn reason(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Some("the compressed data ends in the middle; the file was cut off")
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            Some("the compressed data is damaged")
        }
        _ if error.get_ref().is_some_and(|inner| inner.is::<Trailing>()) => Some(TRAILING),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufReader, Write};

    fn compressed(text: &str) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).expect("written");
        encoder.finish().expect("finished")
    }

    fn read(bytes: &[u8], buffer: usize) -> Result<String, io::Error> {
        let mut text = String::new();
        Members::new(BufReader::with_capacity(buffer, bytes)).read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn members_are_read_one_after_the_other() {
        let all = [compressed("one, "), compressed(""), compressed("two")].concat();
        for buffer in [1, 2, 3, 7, 64, 4096] {
            assert_eq!(read(&all, buffer).expect("sound"), "one, two");
        }
    }

    #[test]
    fn what_is_wrong_is_told_apart() {
        let whole = compressed("one");
        let with = |more: &[u8]| [&whole, more].concat();
        for buffer in [1, 2, 7, 4096] {
            let reason = |bytes: &[u8]| {
                let error = read(bytes, buffer).expect_err("not sound");
                reason(&error).expect("a reason")
            };
            for more in ["g", "garbage\n", "more than a header of gzip is long"] {
                assert_eq!(reason(&with(more.as_bytes())), TRAILING);
            }
            for cut in 1..whole.len() {
                let text = reason(&whole[..cut]);
                assert!(text.contains("was cut off"), "{cut}: {text}");
            }
            assert!(reason(&with(&whole[..7])).contains("was cut off"));
            assert!(reason(&with(b"\x1f\x8bno member at all")).contains("damaged"));
        }
    }
}
