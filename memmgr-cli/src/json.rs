//! The JSON that `replay --json` writes: an array with one row per trace and mode.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use tempfile::{Builder, NamedTempFile};

/// One trace replayed in one mode.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The trace's file name.
    pub trace: String,
    /// `pool`, `async` or `cuda-pool`: what the device granted.
    pub mode: String,
    /// `gpu` or `simulated`; a simulated device's times say nothing about a GPU.
    pub backend: String,
    pub streams: usize,
    /// Allocations and frees in one pass.
    pub events: usize,
    /// Nanoseconds per call, in the first and in the second pass.
    pub ns_per_op: [f64; 2],
    /// The most bytes live at one time, as the trace requests them.
    pub peak_live_bytes: u64,
    /// The most bytes held from the device at one time.
    pub peak_reserved_bytes: u64,
    /// How often a request had to wait for another stream's work.
    pub waits: u64,
    /// Requests of both passes that the device's memory could not meet.
    pub failures: u64,
}

/// Whether `path` can be written, asked before the work whose results go there.
pub fn check(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    new_file(path).map(drop)
}

/// Writes `rows` to `path`, whole or not at all: a reader never sees half a file.
pub fn write(path: &Path, rows: &[Row]) -> io::Result<()> {
    let mut file = new_file(path)?;
    serde_json::to_writer_pretty(&mut file, rows)?;
    file.write_all(b"\n")?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// A file in the folder of `path`, which disappears again unless it is given that name.
fn new_file(path: &Path) -> io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = Builder::new();
    builder.prefix(".memmgr-");
    // Readable by others as far as the umask allows, like any file that a program creates.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            trace: "a.csv".to_owned(),
            mode: "pool".to_owned(),
            backend: "simulated".to_owned(),
            streams: 4,
            events: 10,
            ns_per_op: [20.5, 10.25],
            peak_live_bytes: 1 << 40,
            peak_reserved_bytes: 1 << 41,
            waits: 3,
            failures: 0,
        }
    }

    #[test]
    fn the_file_holds_the_documented_fields() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.json");
        write(&path, &[row()]).expect("written");
        let text = std::fs::read_to_string(&path).expect("read");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            value,
            serde_json::json!([{
                "trace": "a.csv", "mode": "pool", "backend": "simulated", "streams": 4,
                "events": 10, "ns_per_op": [20.5, 10.25],
                "peak_live_bytes": 1_u64 << 40, "peak_reserved_bytes": 1_u64 << 41,
                "waits": 3, "failures": 0
            }])
        );
    }

    #[test]
    fn an_old_file_is_replaced_and_no_other_file_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.json");
        std::fs::write(&path, "old").expect("written");
        write(&path, &[]).expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "[]\n");
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 1);
    }

    #[test]
    fn a_failure_leaves_nothing_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let taken = folder.path().join("a-folder");
        std::fs::create_dir(&taken).expect("made");
        assert!(write(&taken, &[row()]).is_err());
        assert!(check(&taken).is_err());
        assert!(check(&folder.path().join("no/such/folder.json")).is_err());
        assert!(check(&folder.path().join("new.json")).is_ok());
        assert!(write(&folder.path().join("no/such/folder.json"), &[row()]).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 1);
    }
}
