//! What an operation touches, as it is known when it is submitted; and the trace that prints it.
//!
//! With `CUDART_SIM_TRACE=1` every operation is printed on stderr when it is submitted: its stream and number, the call,
//! the ranges that it reads and writes, and the points that it waits for.

use crate::stream::Point;
use crate::work::{Place, Shape, Work};
use std::fmt;
use std::sync::OnceLock;

/// Rows of bytes that an operation reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) start: u64,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) pitch: usize,
    pub(crate) write: bool,
}

impl Access {
    pub(crate) fn new(place: &Place, shape: Shape, pitch: usize, write: bool) -> Access {
        Access {
            start: place.address(),
            width: shape.width,
            height: shape.height,
            pitch,
            write,
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.write { "writes" } else { "reads" };
        write!(f, " {verb} {:#x}+{}", self.start, self.width)?;
        if self.height > 1 {
            write!(f, " x{} every {}", self.height, self.pitch)?;
        }
        Ok(())
    }
}

/// Prints an operation, if the trace is on.
pub(crate) fn submitted(call: &str, point: Point, work: &Work, after: &[Point]) {
    static ON: OnceLock<bool> = OnceLock::new();
    let on = ON.get_or_init(|| std::env::var_os("CUDART_SIM_TRACE").is_some_and(|v| v == "1"));
    if *on {
        eprintln!("{}", line(call, point, &work.accesses(), after));
    }
}

fn line(call: &str, point: Point, accesses: &[Access], after: &[Point]) -> String {
    let mut text = format!("cudart-sim: stream {} #{} {call}", point.uid, point.seq);
    for access in accesses {
        text += &access.to_string();
    }
    for other in after.iter().filter(|p| p.seq > 0) {
        text += &format!(" after {} #{}", other.uid, other.seq);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_stream_call_ranges_and_dependencies() {
        let point = |uid, seq| Point { slot: 0, uid, seq };
        let from = Place::Host(0x2000, true);
        let to = Place::Host(0x1000, true);
        let shape = Shape {
            width: 16,
            height: 3,
            dst_pitch: 64,
            src_pitch: 16,
        };
        let work = Work::Copy {
            dst: to,
            src: from,
            shape,
        };
        let text = line(
            "cudaMemcpy2DAsync",
            point(9, 4),
            &work.accesses(),
            &[point(7, 2)],
        );
        assert_eq!(
            text,
            "cudart-sim: stream 9 #4 cudaMemcpy2DAsync reads 0x2000+16 x3 every 16 \
             writes 0x1000+16 x3 every 64 after 7 #2"
        );
        assert_eq!(
            line(
                "cudaEventRecord",
                point(1, 1),
                &Work::Marker.accesses(),
                &[]
            ),
            "cudart-sim: stream 1 #1 cudaEventRecord"
        );
    }
}
