//! The way of each frame through the device, written once for every kind of memory: in, crop, border,
//! tiles, out, check. Frames take turns on the streams; each stream has one frame in flight.
//!
//! Two clocks run. One counts the whole work but for what the demo does on the host for its own sake
//! (filling the input, checking the result); the other only the time inside allocating and freeing.

use std::time::{Duration, Instant};

use super::frames::{Frame, Noise, Region};
use crate::error::{Failure, Result};

/// Memory of some kind, and the work that the pipeline does on it. Streams are numbered.
pub trait Memory {
    /// Page-locked host memory.
    type Pinned;
    /// Device memory.
    type Device;

    /// Whether memory may be given back while its last work still runs. Otherwise the pipeline keeps
    /// it until the stream is done.
    const FREES_IN_STREAM_ORDER: bool;

    fn pinned(&mut self, len: usize) -> Result<Self::Pinned>;
    fn device(&mut self, len: usize, stream: usize) -> Result<Self::Device>;
    fn free_pinned(&mut self, memory: Self::Pinned) -> Result<()>;
    fn free_device(&mut self, memory: Self::Device, stream: usize) -> Result<()>;

    /// Writes the contents from the host.
    fn write(&mut self, to: &mut Self::Pinned, bytes: &[u8]) -> Result<()>;
    /// Reads the contents on the host; the caller has synchronised.
    fn read<'m>(&mut self, from: &'m Self::Pinned) -> Result<&'m [u8]>;

    fn copy_in(&mut self, to: &mut Self::Device, from: &Self::Pinned, stream: usize) -> Result<()>;
    fn copy_out(&mut self, to: &mut Self::Pinned, from: &Self::Device, stream: usize)
    -> Result<()>;
    /// Copies `rows` rows of `row` bytes from one region to another.
    fn copy_part(
        &mut self,
        to: (&mut Self::Device, Region),
        from: (&Self::Device, Region),
        row: usize,
        rows: usize,
        stream: usize,
    ) -> Result<()>;
    /// Sets every byte.
    fn fill(&mut self, memory: &mut Self::Device, value: u8, stream: usize) -> Result<()>;
    /// Waits for all work of the stream.
    fn synchronize(&mut self, stream: usize) -> Result<()>;

    /// Called after each request for device memory, outside both clocks.
    fn observe(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What the clocks say at the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    pub work: Duration,
    pub allocation: Duration,
}

/// A frame whose work has been submitted.
struct InFlight<M: Memory> {
    frame: Frame,
    result: M::Pinned,
    /// What can be freed only once the stream is done.
    inputs: Vec<M::Pinned>,
    buffers: Vec<M::Device>,
}

/// Sends frames through `memory`.
pub struct Pipeline<'a, M: Memory> {
    memory: &'a mut M,
    noise: &'a Noise,
    times: Times,
}

impl<'a, M: Memory> Pipeline<'a, M> {
    pub fn new(memory: &'a mut M, noise: &'a Noise) -> Self {
        Self {
            memory,
            noise,
            times: Times::default(),
        }
    }

    /// Processes all frames on `streams` streams; `done` is called after each one.
    pub fn run(
        mut self,
        frames: impl Iterator<Item = Frame>,
        streams: usize,
        mut done: impl FnMut(),
    ) -> Result<Times> {
        let mut slots: Vec<Option<InFlight<M>>> = (0..streams).map(|_| None).collect();
        for (turn, frame) in frames.enumerate() {
            let stream = turn % streams;
            if let Some(earlier) = slots[stream].take() {
                self.finish(earlier, stream)?;
                done();
            }
            slots[stream] = Some(self.submit(frame, stream)?);
        }
        for (stream, slot) in slots.into_iter().enumerate() {
            if let Some(last) = slot {
                self.finish(last, stream)?;
                done();
            }
        }
        Ok(self.times)
    }

    fn submit(&mut self, frame: Frame, stream: usize) -> Result<InFlight<M>> {
        let mut kept = Vec::new();
        let mut input = self.pinned(frame.source_len())?;
        self.memory.write(&mut input, frame.source(self.noise))?;

        let mut image = self.device(frame.source_len(), stream)?;
        self.work(|m| m.copy_in(&mut image, &input, stream))?;
        let mut inputs = Vec::new();
        if M::FREES_IN_STREAM_ORDER {
            self.allocation(|m| m.free_pinned(input))?;
        } else {
            inputs.push(input);
        }

        let mut crop = self.device(frame.crop_len(), stream)?;
        let (row, rows) = (frame.crop_row(), frame.crop_rows());
        let whole = Region {
            offset: 0,
            pitch: row,
        };
        let part = frame.crop_in_source();
        self.work(|m| m.copy_part((&mut crop, whole), (&image, part), row, rows, stream))?;
        self.release(image, stream, &mut kept)?;

        let mut padded = self.device(frame.padded_len(), stream)?;
        let middle = frame.crop_in_padded();
        self.work(|m| {
            m.fill(&mut padded, frame.border, stream)?;
            m.copy_part((&mut padded, middle), (&crop, whole), row, rows, stream)
        })?;
        self.release(crop, stream, &mut kept)?;

        let mut tiled = self.device(frame.result_len(), stream)?;
        let (row, rows) = (frame.padded_row(), frame.padded_rows());
        let whole = Region {
            offset: 0,
            pitch: row,
        };
        self.work(|m| {
            for tile in frame.tiles_in_result() {
                m.copy_part((&mut tiled, tile), (&padded, whole), row, rows, stream)?;
            }
            Ok(())
        })?;
        self.release(padded, stream, &mut kept)?;

        let mut result = self.pinned(frame.result_len())?;
        self.work(|m| m.copy_out(&mut result, &tiled, stream))?;
        self.release(tiled, stream, &mut kept)?;
        Ok(InFlight {
            frame,
            result,
            inputs,
            buffers: kept,
        })
    }

    fn finish(&mut self, in_flight: InFlight<M>, stream: usize) -> Result<()> {
        self.work(|m| m.synchronize(stream))?;
        let result = self.memory.read(&in_flight.result)?;
        in_flight
            .frame
            .check(self.noise, result)
            .map_err(Failure::message)?;
        self.allocation(|m| {
            for buffer in in_flight.buffers {
                m.free_device(buffer, stream)?;
            }
            for input in in_flight.inputs {
                m.free_pinned(input)?;
            }
            m.free_pinned(in_flight.result)
        })
    }

    fn pinned(&mut self, len: usize) -> Result<M::Pinned> {
        self.allocation(|m| m.pinned(len))
    }

    fn device(&mut self, len: usize, stream: usize) -> Result<M::Device> {
        let memory = self.allocation(|m| m.device(len, stream))?;
        self.memory.observe()?;
        Ok(memory)
    }

    /// Gives back memory whose last work has been submitted, or keeps it where that is too early.
    fn release(
        &mut self,
        memory: M::Device,
        stream: usize,
        kept: &mut Vec<M::Device>,
    ) -> Result<()> {
        if M::FREES_IN_STREAM_ORDER {
            self.allocation(|m| m.free_device(memory, stream))
        } else {
            kept.push(memory);
            Ok(())
        }
    }

    fn work(&mut self, action: impl FnOnce(&mut M) -> Result<()>) -> Result<()> {
        let start = Instant::now();
        let outcome = action(self.memory);
        self.times.work += start.elapsed();
        outcome
    }

    fn allocation<T>(&mut self, action: impl FnOnce(&mut M) -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let outcome = action(self.memory);
        let elapsed = start.elapsed();
        self.times.work += elapsed;
        self.times.allocation += elapsed;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of the host, where all work is done at once. `broken` leaves out the border.
    #[derive(Default)]
    struct Host {
        live: usize,
        early: usize,
        broken: bool,
    }

    impl Memory for Host {
        type Pinned = Vec<u8>;
        type Device = Vec<u8>;
        const FREES_IN_STREAM_ORDER: bool = true;

        fn pinned(&mut self, len: usize) -> Result<Vec<u8>> {
            self.live += 1;
            Ok(vec![0; len])
        }
        fn device(&mut self, len: usize, _: usize) -> Result<Vec<u8>> {
            self.pinned(len)
        }
        fn free_pinned(&mut self, _: Vec<u8>) -> Result<()> {
            self.live -= 1;
            Ok(())
        }
        fn free_device(&mut self, memory: Vec<u8>, _: usize) -> Result<()> {
            self.early += 1;
            self.free_pinned(memory)
        }
        fn write(&mut self, to: &mut Vec<u8>, bytes: &[u8]) -> Result<()> {
            to.copy_from_slice(bytes);
            Ok(())
        }
        fn read<'m>(&mut self, from: &'m Vec<u8>) -> Result<&'m [u8]> {
            Ok(from)
        }
        fn copy_in(&mut self, to: &mut Vec<u8>, from: &Vec<u8>, _: usize) -> Result<()> {
            self.write(to, from)
        }
        fn copy_out(&mut self, to: &mut Vec<u8>, from: &Vec<u8>, _: usize) -> Result<()> {
            self.write(to, from)
        }
        fn copy_part(
            &mut self,
            to: (&mut Vec<u8>, Region),
            from: (&Vec<u8>, Region),
            row: usize,
            rows: usize,
            _: usize,
        ) -> Result<()> {
            for y in 0..rows {
                let source = &from.0[from.1.offset + y * from.1.pitch..][..row];
                to.0[to.1.offset + y * to.1.pitch..][..row].copy_from_slice(source);
            }
            Ok(())
        }
        fn fill(&mut self, memory: &mut Vec<u8>, value: u8, _: usize) -> Result<()> {
            if !self.broken {
                memory.fill(value);
            }
            Ok(())
        }
        fn synchronize(&mut self, _: usize) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_frame_comes_back_right_and_everything_is_freed() {
        let (mut host, noise) = (Host::default(), Noise::new(3));
        let mut done = 0;
        let frames = (0..7).map(|i| Frame::new(3, i));
        Pipeline::new(&mut host, &noise)
            .run(frames, 3, || done += 1)
            .expect("all frames are right");
        assert_eq!((done, host.live, host.early), (7, 0, 28));
    }

    #[test]
    fn a_wrong_byte_is_found_and_named() {
        let mut host = Host {
            broken: true,
            ..Host::default()
        };
        let noise = Noise::new(3);
        let frames = (0..7).map(|i| Frame::new(3, i));
        let failure = Pipeline::new(&mut host, &noise)
            .run(frames, 2, || ())
            .expect_err("the border is missing");
        let text = failure.to_string();
        assert!(text.starts_with("frame 0 ("), "{text}");
        assert!(text.contains(" is 0x00 and must be 0x"), "{text}");
    }
}
