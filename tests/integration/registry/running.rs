//! A registry on a port of its own, and raw requests to it.

use std::net::SocketAddr;
use std::time::Duration;

use outrigger::clock::Clock;
use outrigger::config::types::Embedded;
use outrigger::registry::EmbeddedRegistry;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(crate) fn config() -> Embedded {
    Embedded {
        listen: None,
        data: None,
        unhealthy_after: Duration::from_secs(15),
        remove_after: Duration::from_secs(30),
        beat_interval: Duration::from_secs(5),
        max_services: 100,
        max_instances: 1000,
        max_metadata_bytes: 4096,
        max_connections: 100,
        users_file: None,
    }
}

/// A running registry.
pub(crate) struct Running {
    pub(crate) registry: EmbeddedRegistry,
    pub(crate) address: SocketAddr,
    pub(crate) grpc: SocketAddr,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Running {
    pub(crate) async fn start(config: &Embedded, address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let for_grpc = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let grpc = for_grpc.local_addr().unwrap();
        let registry = EmbeddedRegistry::new(config, Clock::new());
        let (stop, stopped) = watch::channel(false);
        let tasks = vec![
            tokio::spawn(registry.clone().maintain(stopped.clone())),
            tokio::spawn(registry.clone().serve(listener, stopped.clone())),
            tokio::spawn(registry.clone().serve_grpc(for_grpc, stopped)),
        ];
        Self {
            registry,
            address,
            grpc,
            stop,
            tasks,
        }
    }

    pub(crate) async fn fresh() -> Self {
        Self::start(&config(), SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    pub(crate) async fn stop(self) {
        self.stop.send(true).unwrap();
        for task in self.tasks {
            task.await.unwrap();
        }
    }

    /// Status and body of a raw request; `head` is the request line and header lines.
    pub(crate) async fn raw(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let request =
            format!("{head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            body.to_owned(),
        )
    }

    /// Outside of Nacos's paths.
    pub(crate) async fn call_root(&self, method: &str, path: &str) -> (u16, String) {
        self.raw(&format!("{method} {path} HTTP/1.1\r\nhost: localhost"), "")
            .await
    }

    pub(crate) async fn call(&self, method: &str, path_query: &str) -> (u16, String) {
        self.raw(
            &format!("{method} /nacos/v1{path_query} HTTP/1.1\r\nhost: localhost"),
            "",
        )
        .await
    }

    pub(crate) async fn ok(&self, method: &str, path_query: &str) {
        assert_eq!(
            self.call(method, path_query).await,
            (200, "ok".to_owned()),
            "{path_query}"
        );
    }

    pub(crate) async fn json(&self, method: &str, path_query: &str) -> Value {
        let (status, body) = self.call(method, path_query).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    pub(crate) async fn ports(&self, query: &str) -> Vec<u64> {
        let list = self
            .json("GET", &format!("/ns/instance/list?{query}"))
            .await;
        let hosts = list["hosts"].as_array().unwrap();
        hosts
            .iter()
            .map(|host| host["port"].as_u64().unwrap())
            .collect()
    }
}
