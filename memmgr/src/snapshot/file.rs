//! Files that are written whole or not at all.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write},
    path::Path,
};

/// Lets `f` write the file: a new one beside it, which takes its name at the end. What is no ordinary file (a pipe, a device)
/// is written to.
pub(super) fn write(
    path: &Path,
    f: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<()> {
    let filled = |file: &File| {
        let mut buffered = BufWriter::with_capacity(1 << 18, file);
        f(&mut buffered)?;
        buffered.flush()
    };
    let found = match fs::metadata(path) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if found.as_ref().is_some_and(|found| found.is_dir()) {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if found.as_ref().is_some_and(|found| !found.is_file()) {
        return filled(&OpenOptions::new().write(true).open(path)?);
    }
    // A link stays, and what it leads to is replaced.
    let target = match found {
        Some(_) => fs::canonicalize(path)?,
        None => path.to_owned(),
    };
    if target.file_name().is_none() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it does not name a file",
        ));
    }
    let folder = target
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // So made, the file is as readable for others as any that the program makes.
    let made = tempfile::Builder::new()
        .prefix(".memmgr-")
        .make_in(folder, |path| {
            OpenOptions::new().write(true).create_new(true).open(path)
        })?;
    filled(made.as_file())?;
    if let Some(found) = found {
        made.as_file().set_permissions(found.permissions())?;
    }
    made.as_file().sync_all()?;
    made.persist(&target).map_err(|failed| failed.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_or_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write(&path, |file| file.write_all(b"first")).unwrap();
        let failed = write(&path, |file| {
            file.write_all(b"sec")?;
            Err(io::Error::other("no more"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no more");
        assert_eq!(fs::read(&path).unwrap(), b"first");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("file", &link).unwrap();
        write(&link, |file| file.write_all(b"second")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(folder.path()).len(), 2);
        assert!(write(folder.path(), |_| Ok(())).is_err());
        assert!(write(&folder.path().join("no/such"), |_| Ok(())).is_err());
        write(Path::new("/dev/null"), |file| file.write_all(b"x")).unwrap();
    }
}
