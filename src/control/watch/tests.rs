use std::fs;

use super::*;

struct Folder {
    dir: tempfile::TempDir,
    lookout: Lookout,
    list: WatchList,
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("m.yaml"), "version: 1\n").unwrap();
        fs::create_dir(dir.path().join("policies")).unwrap();
        fs::write(dir.path().join("policies/a.yaml"), "a").unwrap();
        let list = WatchList {
            main: Some(dir.path().join("m.yaml")),
            globs: vec!["./policies/*.yaml".into()],
            contents: Vec::new(),
            loaded: Digests::default(),
        };
        let mut folder = Self {
            dir,
            lookout: Lookout::default(),
            list,
        };
        folder.load();
        assert_eq!(folder.look(), Look::Quiet);
        folder
    }

    fn load(&mut self) {
        let main = self.list.main.clone().unwrap();
        self.list.loaded = read_digests(&main, &self.list.globs, &self.list.contents);
    }

    fn look(&mut self) -> Look {
        self.lookout.look(&self.list)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }
}

#[test]
fn content_decides_not_time() {
    let mut folder = Folder::new();
    // The same text written again: new times, no change.
    folder.write("m.yaml", "version: 1\n");
    assert_eq!(folder.look(), Look::Quiet);
    // A new file, by a rename.
    folder.write("fresh", "version: 1\n#\n");
    let path = |name: &str| folder.dir.path().join(name);
    fs::rename(path("fresh"), path("m.yaml")).unwrap();
    assert_eq!(folder.look(), Look::Again);
    assert_eq!(folder.look(), Look::Changed);
    folder.load();
    assert_eq!(folder.look(), Look::Quiet);
    folder.write("policies/b.yaml", "b");
    assert_eq!([folder.look(), folder.look()], [Look::Again, Look::Changed]);
}

#[test]
fn a_folder_that_is_made_anew_changes_nothing() {
    let mut folder = Folder::new();
    let policies = folder.dir.path().join("policies");
    fs::remove_dir_all(&policies).unwrap();
    for _ in 0..3 {
        assert_eq!(folder.look(), Look::Again);
    }
    fs::create_dir(&policies).unwrap();
    folder.write("policies/a.yaml", "a");
    assert_eq!(folder.look(), Look::Quiet);
    // Gone for good: told once it is sure.
    fs::remove_dir_all(&policies).unwrap();
    let looks: Vec<Look> = (0..8).map(|_| folder.look()).collect();
    assert_eq!(looks.last(), Some(&Look::Changed));
    assert!(looks.iter().take(7).all(|look| *look == Look::Again));
}

#[test]
fn a_content_that_stat_does_not_tell_is_seen_in_time() {
    let mut folder = Folder::new();
    folder.write("m.yaml", "version: 2\n");
    // As if `stat` said the same as before.
    folder.lookout.stats = stats(folder.list.main.as_ref().unwrap(), &folder.list);
    let seen = (0..FULL_READ).any(|_| folder.look() != Look::Quiet);
    assert!(seen);
}
