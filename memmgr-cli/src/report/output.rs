//! Writes the page and the pictures. Each file is written whole or not at all.

use std::path::{Path, PathBuf};

use crate::error::{Failure, Result};
use crate::json::Output;
use crate::replay::cannot_write;

/// A place for a file, which was asked for before the work began.
pub struct Target {
    path: PathBuf,
    output: Output,
}

impl Target {
    /// Whether `path` can be written, and is none of the inputs.
    pub fn prepare(path: &Path, inputs: &[PathBuf]) -> Result<Self> {
        // A folder of the same name, a link to an input: all is asked where `--json` asks it.
        let output = Output::prepare(path, inputs).map_err(|error| {
            let text = error.to_string();
            let text = text.replace("it is the trace", "it is the input");
            Failure::message(format!("cannot write {}: {text}", path.display()))
        })?;
        Ok(Self {
            path: path.to_owned(),
            output,
        })
    }

    pub fn write(self, content: &[u8]) -> Result<()> {
        let path = self.path;
        let written = self.output.write_bytes(content);
        written.map_err(|error| cannot_write(&path, error))
    }
}
