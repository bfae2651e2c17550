//! The state file: what outlives a restart. `state_file/format.rs` is its text, pure; here it is read
//! once at the start and written after changes, at most about once a second, and at the end.
//! Whatever is wrong with it never stops the start: it is set aside and told.

pub mod format;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::whole_file;

use self::format::{Kept, Unusable, WallMs, parse, render};

/// A larger file is not read, a larger state is cut down before it is written.
pub const MAX_BYTES: u64 = 16 << 20;

/// What a start found.
#[derive(Debug)]
pub enum Found {
    /// Nothing: a first start.
    Nothing,
    /// Not even this folder, so nothing can be written.
    NoFolder(PathBuf),
    /// The state of an earlier process.
    State(Kept),
    /// Something else, set aside under another name (`None`: even that failed).
    SetAside {
        /// What is wrong.
        why: String,
        /// Where it is now.
        kept_at: Option<PathBuf>,
    },
}

/// Reads the file of an earlier process.
pub fn read(path: &Path, now: SystemTime) -> Found {
    let why = match content(path) {
        Ok(None) => {
            let folder = path.parent().filter(|folder| *folder != Path::new(""));
            let absent = folder.filter(|folder| !folder.is_dir());
            return absent.map_or(Found::Nothing, |folder| Found::NoFolder(folder.to_owned()));
        }
        Ok(Some(bytes)) => match parse(&bytes) {
            Ok(kept) => return Found::State(kept),
            Err(unusable) => unusable.to_string(),
        },
        Err(error) => format!("it cannot be read: {error}"),
    };
    let stamp = WallMs::from(now).0 / 1_000;
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".corrupt-{stamp}"));
    let aside = PathBuf::from(name);
    let moved = std::fs::rename(path, &aside).is_ok();
    Found::SetAside {
        why,
        kept_at: moved.then_some(aside),
    }
}

/// Replaces the file in one step: whoever reads sees the old one or the new one, also after a crash.
///
/// # Errors
/// The folder or the file cannot be written; the old file is untouched.
pub fn write(path: &Path, kept: &Kept) -> io::Result<()> {
    let bytes = render(kept, MAX_BYTES);
    whole_file::replace(path, &bytes)
}

fn content(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    // A pipe would be read for ever.
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if found.len() > MAX_BYTES {
        return Err(io::Error::other(
            Unusable::TooLarge(found.len()).to_string(),
        ));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests;
