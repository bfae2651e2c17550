//! The list of Nacos servers behind a URL (`endpoint`): one `host:port` a line, read again every 30 s.
//! An answer without servers, or none, leaves the last list.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::http_client::HttpClient;
use crate::http_client::jitter::Jitter;
use crate::http_client::servers::{Server, Servers, USER_AGENT};

/// Between two readings.
const PERIOD: Duration = Duration::from_secs(30);
/// Before the first list is there.
const RETRY: Duration = Duration::from_secs(2);
/// Servers at most.
const MAX_SERVERS: usize = 1000;

/// The list and the task that reads it, which ends with this.
#[derive(Debug)]
pub(crate) struct ServerList {
    known: watch::Receiver<Known>,
    _task: JoinSet<()>,
}

/// `None` until the first reading; then whether there are servers.
pub(super) type Known = Option<Result<(), Arc<str>>>;

impl ServerList {
    /// Starts reading on the current runtime.
    pub(super) fn start(
        url: Server,
        http: HttpClient,
        servers: Arc<Servers>,
        parse: impl Fn(&str) -> Server + Send + 'static,
        jitter: Jitter,
    ) -> Self {
        let (sender, known) = watch::channel(None);
        let mut task = JoinSet::new();
        task.spawn(async move {
            // Sorted: the order of the lines is no news.
            let mut last: Vec<String> = Vec::new();
            loop {
                let read = read(&http, &url).await.map(|lines| {
                    let mut sorted = lines.clone();
                    sorted.sort_unstable();
                    (lines, sorted)
                });
                match read {
                    Ok((_, sorted)) if sorted == last => {}
                    Ok((lines, sorted)) => {
                        info!(url = %url.target, servers = lines.len(), "list of nacos servers read");
                        servers.replace(lines.iter().map(|line| parse(line)).collect());
                        last = sorted;
                        sender.send_replace(Some(Ok(())));
                    }
                    Err(problem) => {
                        warn!(url = %url.target, problem, "list of nacos servers cannot be read");
                        if last.is_empty() {
                            sender.send_replace(Some(Err(problem.into())));
                        }
                    }
                }
                let pause = if last.is_empty() { RETRY } else { PERIOD };
                tokio::time::sleep(jitter.around(pause)).await;
            }
        });
        Self { known, _task: task }
    }

    /// Whether there are servers, and every reading that changes that.
    pub(super) fn known(&self) -> watch::Receiver<Known> {
        self.known.clone()
    }
}

async fn read(http: &HttpClient, url: &Server) -> Result<Vec<String>, String> {
    let path = if url.prefix.is_empty() {
        "/"
    } else {
        &url.prefix
    };
    let request = Request::get(path)
        .header(header::USER_AGENT, USER_AGENT)
        .body(Full::<Bytes>::default())
        .map_err(|error| error.to_string())?;
    let answer = http.send(&url.target, request).await;
    let answer = answer.map_err(|error| format!("{}: {error}", url.target))?;
    if answer.status() != StatusCode::OK {
        return Err(format!("{}: {}", url.target, answer.status().as_u16()));
    }
    let lines = lines(&String::from_utf8_lossy(answer.body()));
    if lines.is_empty() {
        return Err(format!("{}: no servers in the answer", url.target));
    }
    Ok(lines)
}

/// The servers of an answer; a line that cannot be one is left out: a health page says `OK`.
fn lines(text: &str) -> Vec<String> {
    let all = text.lines().map(str::trim);
    let legal = |line: &&str| {
        let odd = |c: char| c.is_whitespace() || matches!(c, '<' | '>' | '{' | '"' | '#');
        line.len() <= 256 && !line.contains(odd) && is_server(line)
    };
    let mut all: Vec<String> = all.filter(legal).map(str::to_owned).collect();
    all.truncate(MAX_SERVERS);
    all
}

/// A host with a port, or one that cannot be a mere word: with a dot inside, or an address.
fn is_server(line: &str) -> bool {
    let rest = line.split_once("://").map_or(line, |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or_default();
    let port = host.rsplit_once(':');
    port.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        || host.trim_matches('.').contains('.')
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_client::Target;

    /// Answers each request with the next of these bodies, the last one again and again.
    async fn server(bodies: &'static [&'static str]) -> Server {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            for turn in 0.. {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 1024];
                let length = stream.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"GET /nacos/serverlist HTTP/1.1\r\n"));
                let body = bodies.get(turn).or_else(|| bodies.last()).unwrap();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Server {
            target: Target::Tcp(address),
            prefix: "/nacos/serverlist".to_owned(),
        }
    }

    #[tokio::test]
    async fn the_list_becomes_the_servers_and_an_empty_one_is_an_error() {
        let http = HttpClient {
            timeout: Duration::from_secs(5),
            max_body: 1000,
        };
        let parse = |line: &str| Server {
            target: Target::Tcp(line.to_owned()),
            prefix: "/nacos".to_owned(),
        };
        let start = |url, servers: &Arc<Servers>| {
            let jitter = Jitter::new(fastrand::Rng::with_seed(7));
            ServerList::start(url, http, servers.clone(), parse, jitter)
        };
        let servers = Arc::new(Servers::new(Vec::new(), 0, http, 1));
        let list = start(server(&["n-1:1\nn-2:2\n"]).await, &servers);
        let mut known = list.known();
        assert_eq!(
            known.wait_for(Option::is_some).await.unwrap().clone(),
            Some(Ok(()))
        );
        let shown: Vec<String> = servers
            .list()
            .iter()
            .map(|s| s.target.to_string())
            .collect();
        assert_eq!(shown, ["n-1:1", "n-2:2"]);
        let list = start(server(&["<html>"]).await, &servers);
        let mut known = list.known();
        let why = known.wait_for(Option::is_some).await.unwrap().clone();
        assert!(
            why.unwrap()
                .unwrap_err()
                .ends_with("no servers in the answer")
        );
        assert_eq!(servers.list().len(), 2, "the last list stays");
    }

    #[test]
    fn servers_stand_one_a_line() {
        assert_eq!(
            lines("10.0.0.1:8848\r\n\n # note\nnacos-2:80\n<html>\n10.0.0.3:80 x\n"),
            ["10.0.0.1:8848", "nacos-2:80"]
        );
        let bare = [
            "nacos.local",
            "10.0.0.1",
            "::1",
            "[::1]",
            "http://n-1:80/nacos",
        ];
        assert_eq!(lines(&bare.join("\n")), bare);
        for page in ["OK", "healthy", "[]", "UP\n", "status:up", "OK."] {
            assert!(lines(page).is_empty(), "{page}");
        }
        assert!(lines("<html>\n{\"a\":1}").is_empty());
    }
}
