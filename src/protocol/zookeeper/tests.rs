use proptest::prelude::*;

use super::*;

#[test]
fn the_first_frame_of_a_connection() {
    let frame = connect(7, 60_000, &SessionId::default());
    let mut want = vec![
        0, 0, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0xea, 0x60,
    ];
    want.extend([0; 8]);
    want.extend([0, 0, 0, 16]);
    want.extend([0; 17]);
    assert_eq!(frame, want);
}

#[test]
fn requests() {
    let frame = read(5, Read::Children, "/a");
    assert_eq!(
        frame,
        [
            0, 0, 0, 15, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0, 2, b'/', b'a', 1
        ]
    );
    assert_eq!(ping(), [0, 0, 0, 8, 255, 255, 255, 254, 0, 0, 0, 11]);
    assert_eq!(close(9), [0, 0, 0, 8, 0, 0, 0, 9, 255, 255, 255, 245]);
}

#[test]
fn an_expired_session_has_no_time() {
    let mut body = vec![0; 4];
    body.extend([0, 0, 0, 0]);
    body.extend([0; 8]);
    body.extend([0, 0, 0, 16]);
    body.extend([0; 17]);
    let answer = connected(&body).unwrap();
    assert_eq!((answer.timeout, answer.session.id), (0, 0));
    // Older servers leave the last byte away.
    assert_eq!(connected(&body[..body.len() - 1]).unwrap(), answer);
}

#[test]
fn events_and_children() {
    let mut body = vec![0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2];
    body.extend(b"/a");
    let got = event(&body).unwrap();
    assert_eq!((got.kind, &*got.path), (EventKind::Children, "/a"));
    let mut body = vec![
        0, 0, 0, 3, 0, 0, 0, 1, b'b', 0, 0, 0, 1, b'a', 0, 0, 0, 1, 0xff,
    ];
    assert_eq!(children(&body).unwrap(), ["a".into(), "b".into()]);
    body.truncate(10);
    assert_eq!(children(&body), Err(Malformed));
    assert_eq!(data(&[255, 255, 255, 255]).unwrap(), b"");
}

#[test]
fn many_watches_are_many_frames() {
    let watches: Vec<Watch> = (0..3000)
        .map(|n| Watch {
            read: if n % 2 == 0 {
                Read::Children
            } else {
                Read::Data
            },
            path: format!("/{n:0>200}").into(),
        })
        .collect();
    let frames = set_watches(42, &watches);
    assert!(frames.len() > 4);
    for frame in &frames {
        assert!(frame.len() < 140 * 1024, "{}", frame.len());
    }
    // Each path is there once.
    let mut paths = 0;
    for frame in &frames {
        let mut body = Body(&frame[4..]);
        assert_eq!(body.int().unwrap(), SET_WATCHES_XID);
        assert_eq!((body.int().unwrap(), body.long().unwrap()), (101, 42));
        for _ in 0..3 {
            for _ in 0..body.int().unwrap() {
                assert_eq!(body.text().unwrap().len(), 201);
                paths += 1;
            }
        }
        assert!(body.0.is_empty());
    }
    assert_eq!(paths, 3000);
    assert!(set_watches(1, &[] as &[Watch]).is_empty());
}

proptest! {
    #[test]
    fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _any = connected(&bytes);
        let _any = children(&bytes);
        let _any = data(&bytes);
        if let Ok((_, rest)) = reply(&bytes) {
            let _any = event(rest);
        }
    }
}
