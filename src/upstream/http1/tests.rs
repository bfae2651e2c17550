use std::time::Duration;

use http::header::HeaderMap;
use http::uri::PathAndQuery;
use http::{Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::protocol::http1::request::RequestLine;

const LIMITS: HeadLimits = HeadLimits {
    max_headers: 64,
    max_bytes: 16 * 1024,
};

async fn pair() -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
    (Connection::new(ours.unwrap(), LIMITS), theirs.unwrap().0)
}

async fn get(connection: &mut Connection) -> Result<ResponseStart, WireError> {
    let target = PathAndQuery::from_static("/");
    let headers = HeaderMap::new();
    let line = RequestLine {
        method: &Method::GET,
        target: &target,
        headers: &headers,
        host: None,
        instead: None,
    };
    let mut call = Call::new(connection, &line, None, HeaderMap::new());
    std::future::poll_fn(|cx| call.poll(connection, cx)).await
}

async fn whole(
    connection: &mut Connection,
    receiving: &mut Receiving,
) -> Result<Vec<u8>, WireError> {
    let mut all = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| receiving.poll_frame(connection, cx)).await {
        if let Ok(data) = frame?.into_data() {
            all.extend_from_slice(&data);
        }
    }
    Ok(all)
}

async fn exchange(answer: &'static [u8]) -> Result<(StatusCode, Vec<u8>, bool), WireError> {
    let (mut connection, mut peer) = pair().await;
    let peer = async move {
        let mut request = [0; 18];
        peer.read_exact(&mut request).await.unwrap();
        for piece in answer.chunks(5) {
            peer.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        // Kept open by being returned, closed otherwise.
        (!answer.ends_with(b"!")).then_some(peer)
    };
    let ours = async {
        let ResponseStart {
            head,
            mut receiving,
        } = get(&mut connection).await?;
        let body = whole(&mut connection, &mut receiving).await?;
        Ok((head.status, body, receiving.leaves_reusable(&connection)))
    };
    let (answered, _peer) = tokio::join!(ours, peer);
    answered
}

#[tokio::test]
async fn responses_are_read_whatever_the_pieces() {
    for (answer, body, reusable) in [
        (
            &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"[..],
            &b"hello"[..],
            true,
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            b"hello",
            true,
        ),
        (
            b"HTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            b"",
            true,
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end!", b"to the end!", false),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy",
            b"x",
            false,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
            b"x",
            false,
        ),
    ] {
        let (status, got, again) = exchange(answer).await.unwrap();
        let name = String::from_utf8_lossy(answer);
        assert_eq!((status, &got[..]), (StatusCode::OK, body), "{name}");
        assert_eq!(again, reusable, "{name}");
    }
}

#[tokio::test]
async fn a_response_that_ends_early_is_an_error() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort!"[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\nshort!",
        b"HTTP/1.1 200 OK\r\nContent-Le!",
    ] {
        let ended = exchange(answer).await;
        assert!(matches!(ended, Err(WireError::Incomplete)), "{ended:?}");
    }
}

#[tokio::test]
async fn an_idle_connection_is_usable_until_anything_happens_on_it() {
    let (connection, mut peer) = pair().await;
    assert!(connection.is_usable());
    peer.write_all(b"x").await.unwrap();
    until(|| !connection.is_usable()).await;
    let (connection, peer) = pair().await;
    drop(peer);
    until(|| !connection.is_usable()).await;
}

#[tokio::test]
async fn a_closed_connection_says_whether_anything_was_heard() {
    let (mut connection, peer) = pair().await;
    drop(peer);
    let ended = get(&mut connection).await;
    assert!(
        matches!(ended, Err(WireError::Closed | WireError::Io(_))),
        "{ended:?}"
    );
}

async fn until(mut done: impl FnMut() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .expect("it happens in time");
}
