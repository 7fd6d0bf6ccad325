//! What ends the program with a message: one line on standard error, and exit code 1.

use std::fmt;
use std::io;

/// A reason to stop.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something that this program found out, ready to be shown.
    #[error("{0}")]
    Message(String),
    /// CUDA had no memory for a plain call that wanted so many bytes.
    #[error("{text}")]
    OutOfMemory { wanted: u64, text: String },
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

    /// How many bytes were wanted, where memory was missing.
    pub fn wanted(&self) -> Option<u64> {
        match self {
            Self::OutOfMemory { wanted, .. } => Some(*wanted),
            Self::Manager(memmgr::Error::OutOfMemory(refusal)) => Some(refusal.requested as u64),
            _ => None,
        }
    }

    /// The text as one line.
    pub fn line(&self) -> String {
        let text = self.to_string();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
