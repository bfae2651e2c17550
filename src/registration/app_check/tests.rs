//! Checks against an app that answers what it is told.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::config::types::JsonRule;
use crate::outlier::policy::CodeSet;

/// An app that answers every request so; its address.
async fn app(answer: &'static str) -> Arc<str> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _length = stream.read(&mut request).await;
            let _gone = stream.write_all(answer.as_bytes()).await;
        }
    });
    address.into()
}

fn check(kind: AppCheckKind) -> AppCheck {
    AppCheck {
        kind,
        interval: Duration::from_millis(20),
        timeout: Duration::from_secs(5),
        rise: 1,
        fall: 1,
    }
}

fn http(address: &Arc<str>, pointer: Option<&str>) -> AppCheck {
    check(AppCheckKind::Http {
        address: Arc::clone(address),
        path: "/health".into(),
        expect: CodeSet::from_ranges([(200, 299)]),
        json: pointer.map(|pointer| JsonRule {
            pointer: pointer.into(),
            value: "UP".into(),
        }),
    })
}

#[tokio::test]
async fn the_status_and_the_json_decide() {
    let up = app("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"status\":\"UP\",\"n\":{\"x\":1}}")
        .await;
    assert_eq!(once(&http(&up, None)).await.unwrap(), "answered 200");
    assert_eq!(
        once(&http(&up, Some("/status"))).await.unwrap(),
        "/status is UP"
    );
    assert!(
        once(&http(&up, Some("/n/x")))
            .await
            .unwrap_err()
            .contains("/n/x is 1, not UP")
    );
    assert!(
        once(&http(&up, Some("/m")))
            .await
            .unwrap_err()
            .contains("nothing at /m")
    );
    let down = app("HTTP/1.1 503 No\r\nconnection: close\r\n\r\n{\"status\":\"DOWN\"}").await;
    assert!(
        once(&http(&down, Some("/status")))
            .await
            .unwrap_err()
            .contains("503")
    );
    let text = app("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nUP").await;
    assert!(
        once(&http(&text, Some("/status")))
            .await
            .unwrap_err()
            .contains("no JSON")
    );
}

#[tokio::test]
async fn a_connection_decides() {
    let up = app("").await;
    assert!(once(&check(AppCheckKind::Tcp(up))).await.is_ok());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unused: Arc<str> = listener.local_addr().unwrap().to_string().into();
    drop(listener);
    assert!(once(&check(AppCheckKind::Tcp(unused))).await.is_err());
}

#[tokio::test]
async fn a_program_decides_and_is_killed_when_it_hangs() {
    let exec = |script: &str| {
        let words = ["sh", "-c", script].map(str::to_owned);
        check(AppCheckKind::Exec(words.to_vec()))
    };
    assert!(once(&exec("exit 0")).await.is_ok());
    assert!(once(&exec("exit 3")).await.unwrap_err().contains('3'));
    let mut slow = exec("sleep 60");
    slow.timeout = Duration::from_millis(50);
    assert!(once(&slow).await.unwrap_err().contains("longer"));
    let none = check(AppCheckKind::Exec(vec!["/no/such/program".to_owned()]));
    assert!(once(&none).await.unwrap_err().contains("cannot start"));
}

#[tokio::test]
async fn changes_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("up");
    std::fs::write(&file, "").unwrap();
    let words = ["test", "-e", file.to_str().unwrap()].map(str::to_owned);
    let settings = crate::config::types::Events {
        sinks: Vec::new(),
        ring_size: 10,
    };
    let journal = Journal::new(crate::sink::Lines::start().unwrap(), &settings);
    let (sender, mut health) = watch::channel(unknown());
    let check = check(AppCheckKind::Exec(words.to_vec()));
    let checker = tokio::spawn(run(check, sender, journal.clone()));
    health
        .wait_for(|h| h.standing == Standing::Up)
        .await
        .unwrap();
    std::fs::remove_file(&file).unwrap();
    health
        .wait_for(|h| h.standing == Standing::Down)
        .await
        .unwrap();
    let events: Vec<_> = journal.after(0).iter().map(|entry| entry.event).collect();
    assert_eq!(events, ["app_up", "app_down"]);
    drop(health);
    checker.await.unwrap();
}
