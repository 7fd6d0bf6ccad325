//! The JSON that `--json` writes: an array of rows, for `replay` one per trace and mode.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tempfile::{Builder, NamedTempFile};

use crate::{replay::pass::AtPeak, table::people};

/// One trace replayed in one mode.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The trace's file name, or its path where others have the same name.
    pub trace: String,
    /// `pool`, `async` or `cuda-pool`: what the device granted.
    pub mode: String,
    /// `gpu` or `simulated`; a simulated device's times say nothing about a GPU.
    pub backend: String,
    pub streams: usize,
    /// Allocations and frees in one pass.
    pub events: usize,
    /// Nanoseconds per call, in each pass.
    pub ns_per_op: Vec<f64>,
    /// The most bytes live at one time, as the trace requests them.
    pub peak_live_bytes: u64,
    /// The most bytes held from the device at one time.
    pub peak_reserved_bytes: u64,
    /// As that, at the end of each pass, of all passes so far.
    pub reserved_by_pass_bytes: Vec<u64>,
    /// How often memory was mapped at another address, in all passes up to each. Only `pool` tells.
    pub remaps_by_pass: Option<Vec<u64>>,
    /// The most that the pool might hold, by `MEMMGR_DEVICE_POOL_LIMIT`; left out where there was no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// How often a request had to wait for another stream's work.
    pub waits: u64,
    /// Requests of all passes that the device's memory could not meet.
    pub failures: u64,
    /// When the most bytes were live, in the last pass: what rounding added to live blocks. Only `pool` tells, as
    /// with what follows.
    pub internal_waste_bytes: Option<u64>,
    /// What was idle in pieces shorter than the largest miss.
    pub external_waste_bytes: Option<u64>,
    /// What was free, but waited for work to finish.
    pub pending_bytes: Option<u64>,
    /// The largest request so far that found no free block of its size at once.
    pub largest_miss_bytes: Option<u64>,
}

impl Row {
    /// How much more was held at the end than after the first pass, in words; nothing where it was no more.
    pub fn grown(&self) -> Option<String> {
        let first = self.reserved_by_pass_bytes.first()?;
        let more = self.peak_reserved_bytes.saturating_sub(*first);
        (more > 0).then(|| {
            format!(
                "{}: later passes reserved {} more than the first",
                self.mode,
                people(more)
            )
        })
    }

    /// What fragmentation took, in words; nothing where the mode does not tell.
    pub fn waste(&self) -> Option<String> {
        let waste = Waste {
            internal: self.internal_waste_bytes?,
            external: self.external_waste_bytes?,
            pending: self.pending_bytes?,
            largest_miss: self.largest_miss_bytes?,
        };
        Some(format!("{}: {waste}", self.mode))
    }
}

/// What a pool loses to fragmentation, and to work that has not finished; bytes.
pub struct Waste {
    pub internal: u64,
    pub external: u64,
    pub pending: u64,
    pub largest_miss: u64,
}

impl From<&AtPeak> for Waste {
    fn from(of: &AtPeak) -> Self {
        Self {
            internal: of.stats.internal_waste as u64,
            external: of.fragmentation.external_waste as u64,
            pending: of.stats.pending as u64,
            largest_miss: of.stats.largest_miss as u64,
        }
    }
}

impl fmt::Display for Waste {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "with the most bytes live, {} were lost to rounding, {} idle in pieces shorter than the largest miss ({}), {} \
             waiting for work",
            people(self.internal),
            people(self.external),
            people(self.largest_miss),
            people(self.pending)
        )
    }
}

/// Whether `path` is standard output: `-`, or the very terminal, pipe or file that standard output is.
pub fn is_stdout(path: &Path) -> bool {
    if path == "-" {
        return true;
    }
    let stdout = io::stdout();
    let Ok(Ok(own)) = stdout
        .as_fd()
        .try_clone_to_owned()
        .map(File::from)
        .map(|f| f.metadata())
    else {
        return false;
    };
    // `/dev/null` and its like take both without mixing them up.
    let mixes = stdout.is_terminal() || !own.file_type().is_char_device();
    mixes && fs::metadata(path).is_ok_and(|other| same(&own, &other))
}

fn same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Where the rows go.
#[derive(Debug)]
pub enum Output {
    /// To standard output.
    Stdout,
    /// Into what is there already and is no ordinary file: a device, a pipe.
    Special(File),
    /// To a file with this name, which is no link, and with the permissions of the one that it
    /// replaces.
    Replace(PathBuf, Option<Permissions>),
}

impl Output {
    /// Where `path` leads, and whether it can be written and is none of `inputs`: to be asked before the
    /// work whose results go there.
    pub fn prepare(path: &Path, inputs: &[PathBuf]) -> io::Result<Self> {
        if path == "-" {
            return Ok(Self::Stdout);
        }
        let found = match fs::metadata(path) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let Some(found) = found else {
            let target = followed(path)?;
            new_file(&target).map(drop)?;
            return Ok(Self::Replace(target, None));
        };
        if found.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let is_found = |input: &&PathBuf| fs::metadata(input).is_ok_and(|meta| same(&meta, &found));
        if let Some(input) = inputs.iter().find(is_found) {
            return Err(io::Error::other(format!(
                "it is the trace {}, which would be lost",
                input.display()
            )));
        }
        if is_stdout(path) {
            return Ok(Self::Stdout);
        }
        // Who may do everything asks the permissions in vain.
        if found.is_file() && found.permissions().readonly() {
            return Err(io::Error::other("the file is write-protected"));
        }
        let opened = OpenOptions::new().write(true).open(path)?;
        if !found.is_file() {
            return Ok(Self::Special(opened));
        }
        let target = followed(path)?;
        new_file(&target).map(drop)?;
        Ok(Self::Replace(target, Some(found.permissions())))
    }

    /// Whether both are standard output or the same file.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stdout, Self::Stdout) => true,
            (Self::Replace(one, _), Self::Replace(other, _)) => one == other,
            _ => false,
        }
    }

    /// Writes `rows`. A file is written whole or not at all: a reader never sees half of one.
    pub fn write<R: Serialize>(self, rows: &[R]) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(rows)?;
        text.push(b'\n');
        self.write_bytes(&text)
    }

    /// Writes what is no JSON in the same way.
    pub fn write_bytes(self, content: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(content)?;
                stdout.flush()
            }
            Self::Special(mut file) => file.write_all(content),
            Self::Replace(path, permissions) => {
                let mut file = new_file(&path)?;
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
}

/// The path behind all links that its last part stands for, whether there is a file or not.
fn followed(path: &Path) -> io::Result<PathBuf> {
    // As many as Linux follows.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            Ok(to) => path = folder(&path).join(to),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many links lead to one another"))
}

/// The folder in which `path` is.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A file in the folder of `path`, which disappears again unless it is given that name.
fn new_file(path: &Path) -> io::Result<NamedTempFile<File>> {
    let no_name = path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.file_name().is_none();
    if no_name {
        return Err(io::Error::other("it does not name a file"));
    }
    // `make_in`, unlike `tempfile_in`, does not name the temporary file in its errors, and lets the umask
    // decide who may read it, as for any file that a program creates.
    Builder::new()
        .prefix(".memmgr-")
        .make_in(folder(path), |path| {
            OpenOptions::new().write(true).create_new(true).open(path)
        })
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
            ns_per_op: vec![20.5, 10.25],
            peak_live_bytes: 1 << 40,
            peak_reserved_bytes: 1 << 41,
            reserved_by_pass_bytes: vec![1 << 40, 1 << 41],
            remaps_by_pass: Some(vec![9, 9]),
            limit_bytes: None,
            waits: 3,
            failures: 0,
            internal_waste_bytes: Some(5),
            external_waste_bytes: Some(6),
            pending_bytes: Some(7),
            largest_miss_bytes: None,
        }
    }

    fn write(path: &Path, rows: &[Row]) -> io::Result<()> {
        Output::prepare(path, &[])?.write(rows)
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path).expect("read")
    }

    #[test]
    fn the_file_holds_the_documented_fields() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.json");
        write(&path, &[row()]).expect("written");
        let value: serde_json::Value = serde_json::from_str(&read(&path)).expect("JSON");
        assert_eq!(
            value,
            serde_json::json!([{
                "trace": "a.csv", "mode": "pool", "backend": "simulated", "streams": 4,
                "events": 10, "ns_per_op": [20.5, 10.25],
                "peak_live_bytes": 1_u64 << 40, "peak_reserved_bytes": 1_u64 << 41,
                "reserved_by_pass_bytes": [1_u64 << 40, 1_u64 << 41], "remaps_by_pass": [9, 9],
                "waits": 3, "failures": 0, "internal_waste_bytes": 5, "external_waste_bytes": 6,
                "pending_bytes": 7, "largest_miss_bytes": null
            }])
        );
    }

    #[test]
    fn an_old_file_is_replaced_and_no_other_file_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.json");
        std::fs::write(&path, "old").expect("written");
        write(&path, &[]).expect("written");
        assert_eq!(read(&path), "[]\n");
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 1);
    }

    #[test]
    fn a_failure_leaves_nothing_behind_and_names_no_temporary_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let taken = folder.path().join("a-folder");
        fs::create_dir(&taken).expect("made");
        for path in [
            taken,
            folder.path().join("no/such/folder.json"),
            folder.path().join("no-name/"),
            folder.path().join("no/.."),
            PathBuf::new(),
            PathBuf::from("/proc/out.json"),
        ] {
            let error = Output::prepare(&path, &[]).expect_err("refused");
            let text = error.to_string();
            assert!(!text.contains(".memmgr-"), "{}: {text}", path.display());
        }
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 1);
    }

    #[test]
    fn a_link_stays_and_the_file_behind_it_is_written() {
        use std::os::unix::fs::symlink;

        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("below")).expect("made");
        fs::write(at("below/old.json"), "old").expect("written");
        symlink("below/old.json", at("first")).expect("linked");
        symlink("first", at("second")).expect("linked");
        symlink("below/new.json", at("dangling")).expect("linked");
        symlink("round", at("round")).expect("linked");
        for (link, target) in [("second", "below/old.json"), ("dangling", "below/new.json")] {
            write(&at(link), &[]).expect("written");
            assert_eq!(read(&at(target)), "[]\n");
            assert!(at(link).is_symlink());
        }
        assert!(write(&at("round"), &[]).is_err());
        assert!(at("round").is_symlink());
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 5);
        assert_eq!(fs::read_dir(at("below")).expect("list").count(), 2);
    }

    #[test]
    fn the_new_file_has_the_permissions_of_the_old_one() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.json");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("set");
        write(&path, &[]).expect("written");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    }

    #[test]
    fn a_write_protected_file_is_refused() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.json");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o444)).expect("set");
        assert!(write(&path, &[]).is_err());
        assert_eq!(read(&path), "old");
    }

    #[test]
    fn an_input_is_refused_under_any_of_its_names() {
        use std::os::unix::fs::symlink;

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.csv");
        fs::write(&path, "trace").expect("written");
        let link = folder.path().join("link.csv");
        symlink("trace.csv", &link).expect("linked");
        let roundabout = folder.path().join(".").join("trace.csv");
        for name in [&path, &link, &roundabout] {
            let error = Output::prepare(name, std::slice::from_ref(&path)).expect_err("refused");
            assert!(error.to_string().contains("it is the trace"), "{error}");
            assert!(Output::prepare(&path, std::slice::from_ref(name)).is_err());
        }
    }
}
