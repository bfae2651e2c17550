use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use super::format::KeptUpstream;
use super::*;
use crate::clock::wall_now;

fn kept() -> Kept {
    let upstreams = BTreeMap::from([("u".to_owned(), KeptUpstream::default())]);
    Kept::new(WallMs(7), upstreams)
}

#[test]
fn a_state_is_written_whole_for_us_alone_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    assert!(matches!(read(&path, wall_now()), Found::Nothing));
    // Of a crash in between.
    std::fs::write(folder.path().join("state.json.tmp"), "half").unwrap();
    for _ in 0..2 {
        write(&path, &kept()).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let Found::State(read) = read(&path, wall_now()) else {
            panic!("no state");
        };
        assert_eq!(read, kept());
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    // A folder that is not there is an error, not a panic, and told before the first write.
    let nowhere = folder.path().join("none/state");
    assert!(write(&nowhere, &kept()).is_err());
    let found = read(&nowhere, wall_now());
    assert!(matches!(found, Found::NoFolder(absent) if absent == folder.path().join("none")));
    assert!(matches!(
        read(Path::new("no-state"), wall_now()),
        Found::Nothing
    ));
}

#[test]
fn what_cannot_be_used_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    for (text, want) in [
        ("{\"version\":1,\"upst", "not a state file"),
        ("{\"version\":9}", "version is 9"),
    ] {
        std::fs::write(&path, text).unwrap();
        let Found::SetAside { why, kept_at } = read(&path, wall_now()) else {
            panic!("{text} is used");
        };
        assert!(why.contains(want), "{why}");
        let aside = kept_at.unwrap();
        assert!(aside.to_str().unwrap().contains("state.json.corrupt-"));
        assert_eq!(std::fs::read_to_string(aside).unwrap(), text);
        assert!(!path.exists());
    }
    let file = File::create(&path).unwrap();
    file.set_len(MAX_BYTES + 1).unwrap();
    assert!(
        matches!(read(&path, wall_now()), Found::SetAside { why, .. } if why.contains("bytes"))
    );
}
