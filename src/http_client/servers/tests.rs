//! Rotation, credentials and bounds, against scripted servers in paused time.

use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

use super::*;
use crate::clock::Clock;
use crate::http_client::auth::TokenFile;

const HTTP: HttpClient = HttpClient {
    timeout: Duration::from_secs(5),
    max_body: 64,
};

/// What the requests of one server looked like, and what it answers to all of them.
#[derive(Clone)]
struct Fake {
    seen: Arc<Mutex<Vec<String>>>,
    answer: Arc<Mutex<Option<String>>>,
}

fn status(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}")
}

impl Fake {
    fn start(answer: &str) -> (Self, Server) {
        let (sender, mut connections) = mpsc::unbounded_channel::<DuplexStream>();
        let fake = Self {
            seen: Arc::default(),
            answer: Arc::new(Mutex::new(Some(answer.to_owned()))),
        };
        let server = fake.clone();
        tokio::spawn(async move {
            while let Some(stream) = connections.recv().await {
                tokio::spawn(server.clone().serve(stream));
            }
        });
        let server = Server {
            target: Target::Memory(sender),
            prefix: "/base".to_owned(),
        };
        (fake, server)
    }

    async fn serve(self, mut stream: DuplexStream) {
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).await.unwrap();
        let text = String::from_utf8_lossy(&request[..length]).into_owned();
        self.seen.lock().unwrap().push(text);
        let answer = self.answer.lock().unwrap().clone();
        match answer {
            Some(answer) => {
                drop(stream.write_all(answer.as_bytes()).await);
            }
            // A byte a second, for ever.
            None => {
                drop(stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await);
                while stream.write_all(b".").await.is_ok() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    fn answers(&self, answer: Option<String>) {
        *self.answer.lock().unwrap() = answer;
    }

    fn calls(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

fn call() -> Call {
    Call::new(Method::GET, "/v1/x?a=b".to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_working_server_is_kept_and_a_failing_one_left_in_the_same_call() {
    let (first, one) = Fake::start(&status("200 OK", "one"));
    let (second, two) = Fake::start(&status("200 OK", "two"));
    let servers = Servers::new(vec![one, two], 0, HTTP, 8);
    for _ in 0..3 {
        let answered = servers.ask(&call(), by_status).await.unwrap();
        assert_eq!(
            (answered.server, answered.response.body().as_ref()),
            (0, b"one".as_ref())
        );
    }
    assert!(first.seen.lock().unwrap()[0].starts_with("GET /base/v1/x?a=b HTTP/1.1"));
    first.answers(Some(status("503 Busy", "")));
    for _ in 0..3 {
        let answered = servers.ask(&call(), by_status).await.unwrap();
        assert_eq!(answered.server, 1);
    }
    assert_eq!((first.calls(), second.calls()), (4, 3));
    second.answers(Some(status(
        "500 Oops",
        r#"{"timestamp":"now","message":"no leader"}"#,
    )));
    let error = servers.ask(&call(), by_status).await.unwrap_err();
    assert_eq!(error.to_string(), "memory: 503");
    assert!(matches!(error, CallError::Unanswered(_)));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_when_no_other_server_answers() {
    let (first, one) = Fake::start(&status("400 No", "bad filter"));
    let (second, two) = Fake::start(&status("200 OK", "two"));
    let servers = Servers::new(vec![one, two], 0, HTTP, 8);
    for _ in 0..2 {
        let answered = servers.ask(&call(), by_status).await.unwrap();
        assert_eq!(answered.server, 1);
    }
    assert_eq!((first.calls(), second.calls()), (1, 2));
    second.answers(Some(status("503 Busy", "")));
    let error = servers.ask(&call(), by_status).await.unwrap_err();
    assert_eq!(error.to_string(), "memory: 400 bad filter");
    assert!(matches!(error, CallError::Refused(_)));
    servers.replace(Vec::new());
    let error = servers.ask(&call(), by_status).await.unwrap_err();
    assert!(error.to_string().contains("no servers"));
}

#[tokio::test(start_paused = true)]
async fn row_07_a_body_over_the_limit_and_a_slow_drip_are_errors_within_the_deadline() {
    let clock = Clock::new();
    let (fake, one) = Fake::start(&status("200 OK", &"x".repeat(65)));
    let servers = Servers::new(vec![one], 0, HTTP, 8);
    let error = servers.ask(&call(), by_status).await.unwrap_err();
    assert!(
        error.to_string().contains("larger than 64 bytes"),
        "{error}"
    );
    fake.answers(Some(
        "HTTP/1.1 200 OK\r\n\r\n".to_owned() + &"x".repeat(1000),
    ));
    let error = servers.ask(&call(), by_status).await.unwrap_err();
    assert!(
        error.to_string().contains("larger than 64 bytes"),
        "{error}"
    );
    fake.answers(None);
    let start = clock.now();
    let error = servers.ask(&call(), by_status).await.unwrap_err();
    assert_eq!(error.to_string(), "memory: no response within 5s");
    assert_eq!(clock.now().since(start).as_secs(), 5);
    // A question that may be held back has its wait beside that.
    let mut patient = call();
    patient.wait = Duration::from_secs(30);
    let start = clock.now();
    servers.ask(&patient, by_status).await.unwrap_err();
    assert_eq!(clock.now().since(start).as_secs(), 35);
}

#[tokio::test(start_paused = true)]
async fn at_most_so_many_at_once_and_waiting_ones_do_not_count() {
    let (fake, one) = Fake::start("");
    fake.answers(None);
    let servers = Arc::new(Servers::new(vec![one], 0, HTTP, 2));
    let mut patient = call();
    patient.wait = Duration::from_secs(300);
    for call in [patient.clone(), patient, call(), call(), call(), call()] {
        let servers = servers.clone();
        tokio::spawn(async move { servers.ask(&call, by_status).await });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.calls(), 4);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(fake.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_is_read_again_and_the_request_repeated_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "first\n").unwrap();
    let (fake, one) = Fake::start(&status("200 OK", ""));
    let every = Duration::from_secs(60);
    let auth = TokenFile::new(
        file.clone(),
        header::AUTHORIZATION,
        "Bearer ",
        every,
        Clock::new(),
    );
    let servers = Servers::new(vec![one], 0, HTTP, 8).with_auth(Some(Arc::new(auth)));
    let last = || fake.seen.lock().unwrap().last().cloned().unwrap();
    servers.ask(&call(), by_status).await.unwrap();
    assert!(last().contains("authorization: Bearer first\r\n"));
    // Not read at each request, and read when it is due.
    std::fs::write(&file, " second ").unwrap();
    servers.ask(&call(), by_status).await.unwrap();
    assert!(last().contains("Bearer first\r\n"));
    tokio::time::sleep(every).await;
    servers.ask(&call(), by_status).await.unwrap();
    assert!(last().contains("Bearer second\r\n"));
    // A refused one is read at once, and asked with once more.
    std::fs::write(&file, "third").unwrap();
    fake.answers(Some(status("401 Unauthorized", "who are you")));
    let before = fake.calls();
    let error = servers.ask(&call(), by_status).await.unwrap_err();
    assert_eq!(error.to_string(), "memory: 401 who are you");
    assert_eq!(fake.calls() - before, 2);
    assert!(last().contains("Bearer third\r\n"));
    // No storm: within that second nothing is repeated.
    servers.ask(&call(), by_status).await.unwrap_err();
    assert_eq!(fake.calls() - before, 3);
    // A file that is away for a moment is no loss of the token.
    std::fs::remove_file(&file).unwrap();
    fake.answers(Some(status("200 OK", "")));
    tokio::time::sleep(every * 2).await;
    servers.ask(&call(), by_status).await.unwrap();
    assert!(last().contains("Bearer third\r\n"));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_cannot_be_read_at_all_is_told() {
    let (fake, one) = Fake::start(&status("200 OK", ""));
    let clock = Clock::new();
    let path = std::path::PathBuf::from("/none/such");
    let auth = TokenFile::new(path, header::AUTHORIZATION, "", Duration::MAX, clock);
    let servers = Servers::new(vec![one], 0, HTTP, 8).with_auth(Some(Arc::new(auth)));
    let error = servers.ask(&call(), by_status).await.unwrap_err();
    assert!(
        error.to_string().starts_with("token /none/such: "),
        "{error}"
    );
    assert_eq!(fake.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_read_line_by_line_until_it_is_silent() {
    let clock = Clock::new();
    let (fake, one) = Fake::start("HTTP/1.1 200 OK\r\n\r\none\n\ntwo\nrest");
    let servers = Servers::new(vec![one], 0, HTTP, 8);
    let silence = Duration::from_secs(10);
    let mut body = servers.open(&call()).await.unwrap().into_body();
    for want in ["one", "", "two", "rest"] {
        let line = body.line(silence, 100).await.unwrap();
        assert_eq!(line.as_deref(), Some(want.as_bytes()));
    }
    assert!(body.line(silence, 100).await.unwrap().is_none());
    // Dripping: never silent, but too long.
    fake.answers(None);
    let mut body = servers.open(&call()).await.unwrap().into_body();
    let error = body.line(silence, 20).await.unwrap_err();
    assert!(matches!(error, HttpError::BodyTooLarge(20)), "{error}");
    // Cut off inside.
    fake.answers(Some(
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab".to_owned(),
    ));
    let mut body = servers.open(&call()).await.unwrap().into_body();
    let error = body.line(silence, 100).await.unwrap_err();
    assert!(matches!(error, HttpError::Body(_)), "{error}");
    // Open and silent; a cancelled read does not begin the time anew.
    let (sender, mut connections) = mpsc::unbounded_channel::<DuplexStream>();
    tokio::spawn(async move {
        let mut stream = connections.recv().await.unwrap();
        drop(stream.read(&mut [0; 1024]).await);
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nx\n").await);
        std::future::pending::<()>().await;
    });
    let server = Server {
        target: Target::Memory(sender),
        prefix: String::new(),
    };
    let servers = Servers::new(vec![server], 0, HTTP, 8);
    let mut body = servers.open(&call()).await.unwrap().into_body();
    assert_eq!(
        body.line(silence, 100).await.unwrap().as_deref(),
        Some(b"x".as_ref())
    );
    let start = clock.now();
    let patience = Duration::from_secs(6);
    assert!(
        tokio::time::timeout(patience, body.line(silence, 100))
            .await
            .is_err()
    );
    let error = body.line(silence, 100).await.unwrap_err();
    assert!(matches!(error, HttpError::Silent(_)), "{error}");
    assert_eq!(clock.now().since(start).as_secs(), 10);
}

#[test]
fn servers_in_every_form() {
    let plain = Arc::new(TlsClient::new(crate::config::types::RegistryTls::default()));
    let secure = Arc::new(TlsClient::new(crate::config::types::RegistryTls {
        enabled: true,
        ..crate::config::types::RegistryTls::default()
    }));
    for (given, address, prefix, tls) in [
        ("nacos-1:8849", "nacos-1:8849", "", false),
        ("nacos-1", "nacos-1:8848", "", false),
        ("http://nacos-1:8849/", "nacos-1:8849", "", false),
        ("https://e/eureka/v2/", "e:443", "/eureka/v2", true),
        ("http://e/eureka", "e:80", "/eureka", false),
        ("[::1]:9", "[::1]:9", "", false),
        ("::1", "[::1]:8848", "", false),
        ("[::1]", "[::1]:8848", "", false),
    ] {
        let server = Server::parse(given, 8848, &plain);
        assert_eq!(
            (server.target.to_string().as_str(), &*server.prefix),
            (address, prefix)
        );
        assert_eq!(matches!(server.target, Target::Tls(..)), tls, "{given}");
        let server = Server::parse(given, 8848, &secure);
        let tls = tls || !given.starts_with("http");
        assert_eq!(matches!(server.target, Target::Tls(..)), tls, "{given}");
    }
}

#[test]
fn error_texts_are_short_and_the_same_each_time() {
    let body = br#"{"timestamp":"2026-01-02","status":403,"message":"user not found!"}"#;
    assert_eq!(message(body), "user not found!");
    assert_eq!(
        message(b"caused: Param 'ip' is required.;\n"),
        "caused: Param 'ip' is required.;"
    );
    assert_eq!(message(&[b'x'; 1000]).len(), 200);
    assert_eq!(message(&[0xff, 0xfe]).chars().count(), 2);
}
