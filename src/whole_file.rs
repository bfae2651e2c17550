//! Files that are replaced as a whole: the state file, the cache of endpoints.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Only we read them.
const MODE: u32 = 0o600;

/// Replaces a file in one step: whoever reads sees the old one or the new one, also after a crash.
///
/// # Errors
/// The folder or the file cannot be written; the old file is untouched.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let fresh = PathBuf::from(name);
    // Left behind by a crash, perhaps with other rights.
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(MODE);
    let mut file = options.open(&fresh)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let written = written.and_then(|()| std::fs::rename(&fresh, path));
    if let Err(error) = written {
        let _left_behind = std::fs::remove_file(&fresh);
        return Err(error);
    }
    // The rename itself outlives a crash only when the folder is written too; not all file systems
    // can do that, and then it comes later by itself.
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    if let Ok(folder) = File::open(folder.unwrap_or_else(|| Path::new("."))) {
        let _later = folder.sync_all();
    }
    Ok(())
}
