//! What ends the program with a message: one line on standard error, and exit code 1.

use std::fmt;
use std::io;

/// A reason to stop.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something that this program found out, ready to be shown.
    #[error("{0}")]
    Message(String),
    /// CUDA had no memory for a plain call.
    #[error("{0}")]
    OutOfMemory(String),
    #[error(transparent)]
    Manager(#[from] memmgr::Error),
    /// Standard output could not be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub fn message(text: impl fmt::Display) -> Self {
        Self::Message(text.to_string())
    }

    /// Whether the reader of standard output went away, as `memmgr info | head -1` does.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether memory was missing, of the device or of the host.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory(_) => true,
            Self::Manager(error) => error.is_out_of_memory(),
            _ => false,
        }
    }

    /// The text as one line.
    pub fn line(&self) -> String {
        let text = self.to_string();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
