//! Watches the files of the configuration: their contents decide, not their time stamps, so a rename
//! over a file, a symlink that is switched (`..data` of a Kubernetes mount), a slow writer and a
//! folder that is made anew are all seen. Polling works on every file system, network and bind
//! mounts too, where notifications do not; the contents are read only when `stat` says something
//! else than before, and now and then anyway.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::reload::{Asker, ReloadWish};
use crate::config::digest::Digests;
use crate::config::read_digests;
use crate::config::settle::{Look, Settle};

/// How often the files are looked at.
const PERIOD: Duration = Duration::from_secs(1);
/// How soon again while a change is watched.
const SOON: Duration = Duration::from_millis(400);
/// Contents are read at every such look, whatever `stat` says.
const FULL_READ: u32 = 15;

/// What is watched.
#[derive(Clone, Debug, Default)]
pub struct WatchList {
    /// The main file; without one there is nothing to watch.
    pub main: Option<PathBuf>,
    /// Policy globs, relative to its folder.
    pub globs: Vec<PathBuf>,
    /// Files whose contents are values of the main file.
    pub contents: Vec<PathBuf>,
    /// What the last load read, whatever came of it.
    pub loaded: Digests,
}

/// Watches until nobody takes wishes any more.
pub(super) async fn watch_files(
    list: watch::Receiver<WatchList>,
    wishes: mpsc::Sender<ReloadWish>,
) {
    let mut lookout = Lookout::default();
    loop {
        let pause = if lookout.settle.is_waiting() {
            SOON
        } else {
            PERIOD
        };
        tokio::time::sleep(pause).await;
        let list = list.borrow().clone();
        // A file system that hangs holds up this task alone.
        let look = tokio::task::spawn_blocking(move || {
            let seen = lookout.look(&list);
            (lookout, seen)
        });
        let Ok((back, seen)) = look.await else { return };
        lookout = back;
        if seen == Look::Changed {
            let (reply, done) = oneshot::channel();
            let wish = ReloadWish {
                asker: Asker::Watch,
                reply: Some(reply),
            };
            if wishes.send(wish).await.is_err() {
                return;
            }
            // Its end brings a new list.
            let _report = done.await;
        }
    }
}

#[derive(Debug, Default)]
struct Lookout {
    settle: Settle,
    stats: Vec<Option<Stat>>,
    looks: u32,
}

/// Device, inode, size, time of content and of change, in seconds and nanoseconds.
type Stat = (u64, u64, u64, [i64; 4]);

impl Lookout {
    fn look(&mut self, list: &WatchList) -> Look {
        let Some(main) = &list.main else {
            return Look::Quiet;
        };
        if std::fs::File::open(main).is_err_and(|error| out_of_files(&error)) {
            // Without a file to spare everything would look as if it were gone.
            return Look::Quiet;
        }
        self.looks = self.looks.wrapping_add(1);
        let stats = stats(main, list);
        let same = stats == self.stats && !self.settle.is_waiting();
        self.stats = stats;
        if same && !self.looks.is_multiple_of(FULL_READ) {
            return Look::Quiet;
        }
        self.settle.look(
            read_digests(main, &list.globs, &list.contents),
            &list.loaded,
        )
    }
}

/// EMFILE, ENFILE.
fn out_of_files(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let code = Errno::from_io_error(error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE))
}

/// Of the files and of the folders that globs look into.
fn stats(main: &Path, list: &WatchList) -> Vec<Option<Stat>> {
    let folder = main.parent().unwrap_or_else(|| Path::new(""));
    let files = crate::config::policy_paths(folder, &list.globs);
    files
        .iter()
        .chain(&list.contents)
        .map(PathBuf::as_path)
        .chain([main])
        .map(stat)
        .collect()
}

fn stat(path: &Path) -> Option<Stat> {
    let found = std::fs::metadata(path).ok()?;
    let times = [
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    ];
    Some((found.dev(), found.ino(), found.size(), times))
}

#[cfg(test)]
mod tests;
