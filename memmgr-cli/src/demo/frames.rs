//! What the demo does to each frame, decided by the seed alone, and how the result is checked.
//!
//! A frame is a rectangle of pixels with interleaved channels of one byte. It is cropped, the crop is
//! framed by a border of one value, and the bordered image is laid out as tiles. All of it is memory
//! movement, so that the host knows every byte of the result without computing on pixels.

use std::ffi::c_void;
use std::fmt;

use crate::error::{Failure, Result};
use crate::rng::Rng;

/// 480p to 4K.
const RESOLUTIONS: [(usize, usize); 5] = [
    (640, 480),
    (1280, 720),
    (1920, 1080),
    (2560, 1440),
    (3840, 2160),
];

/// Grey, RGB, RGBA.
const CHANNELS: [usize; 3] = [1, 3, 4];

/// The widest border on each side, in pixels.
const WIDEST_BORDER: usize = 64;

/// Tiles are laid out up to this size, in bytes; a single one may be larger.
const LARGEST_LAYOUT: usize = 32 << 20;

/// The largest frame, in bytes.
const LARGEST_FRAME: usize = 3840 * 2160 * 4;

/// Random bytes that all frames take their contents from, each frame from another place.
pub struct Noise(Vec<u8>);

impl Noise {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut bytes = vec![0; LARGEST_FRAME + (1 << 20)];
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next().to_le_bytes());
        }
        Self(bytes)
    }
}

/// A rectangular part of an image: where it starts and how its rows lie, all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub offset: usize,
    pub pitch: usize,
}

impl Region {
    /// The address of the region in a buffer of `len` bytes, or an error where `rows` rows of `row` bytes
    /// would leave the buffer or overlap each other.
    pub fn within(
        self,
        buffer: *mut c_void,
        len: usize,
        row: usize,
        rows: usize,
    ) -> Result<*mut c_void> {
        let end = rows
            .checked_sub(1)
            .and_then(|above| above.checked_mul(self.pitch))
            .and_then(|bytes| bytes.checked_add(self.offset))
            .and_then(|bytes| bytes.checked_add(row));
        match end {
            Some(end) if end <= len && row <= self.pitch => {
                Ok(buffer.wrapping_byte_add(self.offset))
            }
            _ => Err(Failure::message("a part lies outside its buffer")),
        }
    }
}

/// One frame and what happens to it. Widths and heights are in pixels unless a name says bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub index: usize,
    width: usize,
    height: usize,
    channels: usize,
    /// Where its contents start in the noise.
    noise_at: usize,
    crop_at: (usize, usize),
    crop: (usize, usize),
    /// Border before the crop and after it: left, top and right, bottom.
    before: (usize, usize),
    after: (usize, usize),
    /// The value of every byte of the border.
    pub border: u8,
    tiles: (usize, usize),
}

impl Frame {
    /// The frame of this index: the same for the same seed, whatever the other frames are.
    pub fn new(seed: u64, index: usize) -> Self {
        let mut rng = Rng::new(seed ^ (index as u64).wrapping_mul(0xD1B5_4A32_D192_ED03));
        let (width, height) = rng.pick(RESOLUTIONS);
        let channels = rng.pick(CHANNELS);
        let crop = (
            width / 4 + rng.below(width * 3 / 4) + 1,
            height / 4 + rng.below(height * 3 / 4) + 1,
        );
        let mut frame = Self {
            index,
            width,
            height,
            channels,
            noise_at: rng.below(1 << 20),
            crop_at: (
                rng.below(width - crop.0 + 1),
                rng.below(height - crop.1 + 1),
            ),
            crop,
            before: (rng.below(WIDEST_BORDER), rng.below(WIDEST_BORDER)),
            after: (rng.below(WIDEST_BORDER), rng.below(WIDEST_BORDER)),
            border: rng.below(256) as u8,
            tiles: (1 + rng.below(3), 1 + rng.below(3)),
        };
        while frame.result_len() > LARGEST_LAYOUT && frame.tiles != (1, 1) {
            frame.tiles = (frame.tiles.0.div_ceil(2), frame.tiles.1.div_ceil(2));
        }
        frame
    }

    /// The frame's contents.
    pub fn source<'n>(&self, noise: &'n Noise) -> &'n [u8] {
        &noise.0[self.noise_at..][..self.source_len()]
    }

    pub fn source_len(&self) -> usize {
        self.width * self.height * self.channels
    }

    /// Bytes of a row of the crop.
    pub fn crop_row(&self) -> usize {
        self.crop.0 * self.channels
    }

    pub fn crop_rows(&self) -> usize {
        self.crop.1
    }

    pub fn crop_len(&self) -> usize {
        self.crop_row() * self.crop_rows()
    }

    /// Where the crop lies in the frame.
    pub fn crop_in_source(&self) -> Region {
        let pitch = self.width * self.channels;
        Region {
            offset: self.crop_at.1 * pitch + self.crop_at.0 * self.channels,
            pitch,
        }
    }

    /// Bytes of a row of the image with its border.
    pub fn padded_row(&self) -> usize {
        (self.before.0 + self.crop.0 + self.after.0) * self.channels
    }

    pub fn padded_rows(&self) -> usize {
        self.before.1 + self.crop.1 + self.after.1
    }

    pub fn padded_len(&self) -> usize {
        self.padded_row() * self.padded_rows()
    }

    /// Where the crop lies in the image with its border.
    pub fn crop_in_padded(&self) -> Region {
        let pitch = self.padded_row();
        Region {
            offset: self.before.1 * pitch + self.before.0 * self.channels,
            pitch,
        }
    }

    pub fn result_len(&self) -> usize {
        self.padded_len() * self.tiles.0 * self.tiles.1
    }

    /// Where each tile lies in the result.
    pub fn tiles_in_result(&self) -> impl Iterator<Item = Region> + use<> {
        let (across, down) = self.tiles;
        let (row, rows) = (self.padded_row(), self.padded_rows());
        let pitch = row * across;
        (0..down).flat_map(move |y| {
            (0..across).map(move |x| Region {
                offset: y * rows * pitch + x * row,
                pitch,
            })
        })
    }

    /// Compares every byte of `result` with what it must be.
    pub fn check(&self, noise: &Noise, result: &[u8]) -> Result<(), Mismatch> {
        let mismatch = |at: usize, found: Option<u8>, expected: Option<u8>| Mismatch {
            frame: self.to_string(),
            at,
            found,
            expected,
        };
        if result.len() != self.result_len() {
            return Err(mismatch(result.len().min(self.result_len()), None, None));
        }
        let crop = self.crop_in_source();
        let source = self.source(noise);
        let row = self.padded_row();
        let (left, top) = (self.before.0 * self.channels, self.before.1);
        let mut expected = vec![self.border; row];
        for y in 0..self.padded_rows() {
            expected.fill(self.border);
            if (top..top + self.crop.1).contains(&y) {
                let from = crop.offset + (y - top) * crop.pitch;
                expected[left..][..self.crop_row()]
                    .copy_from_slice(&source[from..][..self.crop_row()]);
            }
            for tile in self.tiles_in_result() {
                let at = tile.offset + y * tile.pitch;
                let found = &result[at..][..row];
                if found != expected
                    && let Some(i) = (0..row).find(|&i| found[i] != expected[i])
                {
                    return Err(mismatch(at + i, Some(found[i]), Some(expected[i])));
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            index,
            width,
            height,
            channels,
            ..
        } = self;
        write!(f, "frame {index} ({width}×{height}, {channels} channels)")
    }
}

/// A result that is not what it must be.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch {
    frame: String,
    at: usize,
    found: Option<u8>,
    expected: Option<u8>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} came back wrong: ", self.frame)?;
        match (self.found, self.expected) {
            (Some(found), Some(expected)) => {
                write!(
                    f,
                    "byte {} is {found:#04x} and must be {expected:#04x}",
                    self.at
                )
            }
            _ => write!(f, "it ends or goes on at byte {}", self.at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_lies_inside_the_buffer_it_is_part_of() {
        for index in 0..2000 {
            let f = Frame::new(7, index);
            let last = |r: Region, row: usize, rows: usize| r.offset + (rows - 1) * r.pitch + row;
            assert!(f.source_len() <= LARGEST_FRAME);
            assert!(f.crop.0 <= f.width && f.crop.1 <= f.height, "{f:?}");
            assert!(last(f.crop_in_source(), f.crop_row(), f.crop_rows()) <= f.source_len());
            assert!(last(f.crop_in_padded(), f.crop_row(), f.crop_rows()) <= f.padded_len());
            let mut end = 0;
            for tile in f.tiles_in_result() {
                end = end.max(last(tile, f.padded_row(), f.padded_rows()));
            }
            assert_eq!(end, f.result_len(), "the last tile ends the result");
            assert!(f.result_len() <= LARGEST_LAYOUT.max(f.padded_len()));
        }
    }

    #[test]
    fn a_region_that_leaves_its_buffer_is_refused() {
        let region = |offset, pitch| Region { offset, pitch };
        let buffer = std::ptr::without_provenance_mut(0x1000);
        let at = region(10, 30).within(buffer, 100, 30, 3).expect("inside");
        assert_eq!(at.addr(), 0x100a);
        for (bad, row, rows) in [
            (region(11, 30), 30, 3),
            (region(0, 10), 11, 1),
            (region(0, 10), 10, 0),
            (region(usize::MAX, 10), 10, 1),
            (region(0, usize::MAX), 10, 3),
        ] {
            assert!(bad.within(buffer, 100, row, rows).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn frames_depend_on_seed_and_index_alone_and_are_of_many_kinds() {
        assert_eq!(Frame::new(1, 5), Frame::new(1, 5));
        assert_ne!(Frame::new(1, 5), Frame::new(2, 5));
        let kinds: std::collections::BTreeSet<_> = (0..500)
            .map(|i| Frame::new(1, i))
            .map(|f| (f.width, f.channels))
            .collect();
        assert_eq!(kinds.len(), RESOLUTIONS.len() * CHANNELS.len());
    }
}
