//! Writes the page and the pictures. Each file is written whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::Builder;

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
        put(self.output, content).map_err(|error| cannot_write(&path, error))
    }
}

fn put(output: Output, content: &[u8]) -> io::Result<()> {
    match output {
        Output::Stdout => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(content)?;
            stdout.flush()
        }
        Output::Special(mut file) => file.write_all(content),
        Output::Replace(path, permissions) => {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            let mut file = Builder::new().prefix(".memmgr-").make_in(folder, |path| {
                fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(path)
            })?;
            file.as_file_mut().write_all(content)?;
            if let Some(permissions) = permissions {
                file.as_file().set_permissions(permissions)?;
            }
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|failed| failed.error)?;
            Ok(())
        }
    }
}
