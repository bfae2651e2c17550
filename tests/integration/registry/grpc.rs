//! The embedded registry over gRPC, message by message: every order of calls that stock clients have,
//! and what they rely on afterwards.

use std::time::Duration;

use outrigger::nacos_client::channel::{Channel, ChannelError, StreamReader, StreamSender};
use outrigger::protocol::nacos::Payload;
use outrigger::protocol::nacos::message::{Denied, Instance, Naming, code, kind, outcome, request};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::running::{Running, config};

const PATIENCE: Duration = Duration::from_secs(10);

/// A client, by hand.
pub(super) struct Peer {
    pub(super) channel: Channel,
    stream: Option<(StreamSender, StreamReader)>,
    pub(super) token: Option<String>,
}

impl Peer {
    /// Connected, nothing said.
    pub(super) async fn connect(run: &Running) -> Self {
        let stream = TcpStream::connect(run.grpc).await.unwrap();
        let channel = Channel::open(stream, &run.grpc.to_string()).await.unwrap();
        Self {
            channel,
            stream: None,
            token: None,
        }
    }

    /// As Java and Python 3: check, set-up with abilities, its acknowledgement.
    pub(super) async fn ready(run: &Running) -> Self {
        let mut peer = Self::connect(run).await;
        let check = peer.call(kind::SERVER_CHECK, &json!({})).await.unwrap();
        assert!(
            check["connectionId"]
                .as_str()
                .unwrap()
                .contains("_127.0.0.1_")
        );
        assert_eq!(check["supportAbilityNegotiation"], true);
        peer.set_up(&json!({"clientVersion": "t", "abilityTable": {}}));
        let (ack, body) = peer.next().await;
        assert_eq!(
            (ack.as_str(), &body["headers"]),
            (kind::SETUP_ACK, &json!({}))
        );
        peer
    }

    fn set_up(&mut self, body: &Value) {
        let set_up = Payload::new(kind::SETUP, body.to_string());
        self.stream = Some(self.channel.stream(&set_up).unwrap());
    }

    pub(super) async fn call(&self, kind: &str, body: &Value) -> Result<Value, Denied> {
        let mut payload = request(kind, "naming", body);
        if let Some(token) = &self.token {
            let header = ("accessToken".to_owned(), token.clone());
            payload.headers.push(header);
        }
        outcome(kind, &self.channel.call(&payload, PATIENCE).await.unwrap())
    }

    async fn naming(&self, kind: &str, naming: &Naming) -> Result<Value, Denied> {
        self.call(kind, &serde_json::to_value(naming).unwrap())
            .await
    }

    pub(super) async fn register(&self, service: &str, port: u32) -> Result<Value, Denied> {
        let action = Naming {
            action: Some("registerInstance".to_owned()),
            instance: Some(instance(port)),
            ..named(service)
        };
        self.naming(kind::INSTANCE, &action).await
    }

    async fn deregister(&self, service: &str, port: u32) -> Result<Value, Denied> {
        let action = Naming {
            action: Some("deregisterInstance".to_owned()),
            instance: Some(instance(port)),
            ..named(service)
        };
        self.naming(kind::INSTANCE, &action).await
    }

    async fn batch(&self, service: &str, ports: &[u32]) -> Result<Value, Denied> {
        let action = Naming {
            action: Some("batchRegisterInstance".to_owned()),
            instances: Some(ports.iter().map(|port| instance(*port)).collect()),
            ..named(service)
        };
        self.naming(kind::BATCH_INSTANCE, &action).await
    }

    async fn subscribe(&self, service: &str, on: bool) -> Vec<u64> {
        let wish = Naming {
            subscribe: Some(on),
            clusters: Some(String::new()),
            ..named(service)
        };
        ports(&self.naming(kind::SUBSCRIBE, &wish).await.unwrap())
    }

    async fn query(&self, service: &str) -> Vec<u64> {
        ports(&self.naming(kind::QUERY, &named(service)).await.unwrap())
    }

    /// The next message of the server; a push is answered.
    async fn next(&mut self) -> (String, Value) {
        let (sender, reader) = self.stream.as_mut().unwrap();
        let next = tokio::time::timeout(PATIENCE, reader.next()).await;
        let payload = next.expect("a message").unwrap().expect("not the end");
        let body: Value = serde_json::from_slice(&payload.body).unwrap();
        if payload.kind != kind::SETUP_ACK {
            let answer = json!({"resultCode": 200, "requestId": body["requestId"]});
            let answer = Payload::new(kind::response(&payload.kind), answer.to_string());
            assert!(sender.send(&answer).await);
        }
        (payload.kind, body)
    }

    /// The ports of the next push.
    async fn pushed(&mut self) -> Vec<u64> {
        let (kind, body) = self.next().await;
        assert_eq!(kind, kind::NOTIFY);
        ports(&body)
    }
}

fn named(service: &str) -> Naming {
    Naming {
        namespace: Some("public".to_owned()),
        service_name: Some(service.to_owned()),
        group_name: Some("DEFAULT_GROUP".to_owned()),
        ..Naming::default()
    }
}

fn instance(port: u32) -> Instance {
    Instance {
        ip: Some("10.0.0.1".to_owned()),
        port: Some(port),
        ..Instance::default()
    }
}

fn ports(body: &Value) -> Vec<u64> {
    let hosts = body["serviceInfo"]["hosts"].as_array().unwrap();
    hosts
        .iter()
        .map(|host| host["port"].as_u64().unwrap())
        .collect()
}

/// As the Rust client: the stream first, then calls until they are let in.
#[tokio::test]
async fn before_the_set_up_calls_are_refused_and_any_order_will_do() {
    let run = Running::fresh().await;
    let mut peer = Peer::connect(&run).await;
    for kind in [
        kind::HEALTH_CHECK,
        kind::INSTANCE,
        kind::SUBSCRIBE,
        kind::QUERY,
    ] {
        let denied = peer.call(kind, &json!({})).await.unwrap_err();
        assert_eq!(denied.code, code::UNREGISTERED, "{kind}");
    }
    let unknown = peer
        .call("ConfigQueryRequest", &json!({}))
        .await
        .unwrap_err();
    assert_eq!(unknown.code, code::NO_HANDLER);
    // Without abilities, as Python 2: no acknowledgement.
    peer.set_up(&json!({"clientVersion": "t", "tenant": "", "requestId": "1"}));
    let until = async {
        while peer.call(kind::HEALTH_CHECK, &json!({})).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, until).await.unwrap();
    peer.call(kind::SERVER_CHECK, &json!({})).await.unwrap();
    assert!(peer.subscribe("s", true).await.is_empty());
    peer.register("s", 80).await.unwrap();
    assert_eq!(peer.pushed().await, [80], "the first message is the push");
    run.stop().await;
}

#[tokio::test]
async fn an_instance_lives_as_long_as_its_connection_and_both_apis_show_it() {
    let run = Running::fresh().await;
    let mut watcher = Peer::ready(&run).await;
    assert!(watcher.subscribe("s", true).await.is_empty());
    let peer = Peer::ready(&run).await;
    peer.register("s", 80).await.unwrap();
    assert_eq!(watcher.pushed().await, [80]);
    assert_eq!(run.ports("serviceName=s").await, [80]);
    run.ok("POST", "/ns/instance?serviceName=s&ip=10.0.0.1&port=81")
        .await;
    assert_eq!(watcher.pushed().await, [80, 81]);
    assert_eq!(watcher.query("s").await, [80, 81]);
    let (_, overview) = run.call_root("GET", "/").await;
    assert!(
        overview.contains("2 services") || overview.contains("1 services"),
        "{overview}"
    );
    assert!(
        overview.contains("10.0.0.1:80") && overview.contains("by connection"),
        "{overview}"
    );
    drop(peer);
    assert_eq!(watcher.pushed().await, [81]);
    watcher.subscribe("s", false).await;
    run.ok("DELETE", "/ns/instance?serviceName=s&ip=10.0.0.1&port=81")
        .await;
    let page = json!({"pageNo": 1, "pageSize": 2147483647});
    let list = watcher.call(kind::LIST, &page).await.unwrap();
    assert_eq!(
        (&list["count"], &list["serviceNames"]),
        (&json!(1), &json!(["s"]))
    );
    run.stop().await;
}

#[tokio::test]
async fn a_connection_has_one_set_of_instances_per_service() {
    let run = Running::fresh().await;
    let peer = Peer::ready(&run).await;
    peer.register("s", 80).await.unwrap();
    peer.register("s", 81).await.unwrap();
    assert_eq!(peer.query("s").await, [81], "the second replaces the first");
    peer.batch("s", &[82, 83, 81]).await.unwrap();
    assert_eq!(
        peer.query("s").await,
        [81, 82, 83],
        "known ones keep their place"
    );
    peer.batch("s", &[83]).await.unwrap();
    assert_eq!(peer.query("s").await, [83]);
    // Who registers an address later has it: the end of the earlier one takes nothing away.
    let second = Peer::ready(&run).await;
    second.register("s", 83).await.unwrap();
    drop(peer);
    let mut watcher = Peer::ready(&run).await;
    watcher.subscribe("s", true).await;
    second.register("s", 84).await.unwrap();
    assert_eq!(watcher.pushed().await, [84]);
    second.deregister("s", 84).await.unwrap();
    assert_eq!(watcher.pushed().await, [0_u64; 0]);
    let persistent = json!({"serviceName": "p", "type": "registerInstance",
        "instance": {"ip": "10.0.0.9", "port": 9, "ephemeral": false}});
    second
        .call(kind::PERSISTENT_INSTANCE, &persistent)
        .await
        .unwrap();
    drop(second);
    assert_eq!(watcher.query("p").await, [9]);
    run.stop().await;
}

#[tokio::test]
async fn the_end_of_the_stream_is_the_end_of_the_client() {
    let run = Running::fresh().await;
    let mut watcher = Peer::ready(&run).await;
    watcher.subscribe("s", true).await;
    let mut peer = Peer::ready(&run).await;
    peer.register("s", 80).await.unwrap();
    assert_eq!(watcher.pushed().await, [80]);
    peer.stream = None;
    assert_eq!(watcher.pushed().await, [0_u64; 0]);
    let denied = peer.register("s", 80).await.unwrap_err();
    assert_eq!(denied.code, code::UNREGISTERED);
    peer.set_up(&json!({"abilityTable": {}}));
    assert_eq!(peer.next().await.0, kind::SETUP_ACK);
    peer.register("s", 80).await.unwrap();
    assert_eq!(watcher.pushed().await, [80]);
    run.stop().await;
}

#[tokio::test]
async fn what_is_refused_says_why_and_bounds_hold() {
    let mut settings = config();
    (settings.max_instances, settings.max_connections) = (3, 2);
    let run = Running::start(&settings, ([127, 0, 0, 1], 0).into()).await;
    let peer = Peer::ready(&run).await;
    for (body, want) in [
        (
            json!({"serviceName": "s", "type": "registerInstance"}),
            "'instance' is required",
        ),
        (
            json!({"type": "registerInstance"}),
            "'serviceName' is illegal",
        ),
        (
            json!({"serviceName": "s", "type": "x"}),
            "Unsupported operation",
        ),
        (
            json!({"serviceName": "s", "type": "registerInstance", "instance": {"ip": "h", "port": 70000}}),
            "'port' is illegal",
        ),
        (
            json!({"serviceName": "s", "type": "registerInstance",
            "instance": {"ip": "h", "port": 1, "weight": -1.0}}),
            "weight",
        ),
        (json!("x"), "unreadable InstanceRequest"),
    ] {
        let denied = peer.call(kind::INSTANCE, &body).await.unwrap_err();
        assert_eq!(denied.code, code::INVALID_PARAM, "{denied}");
        assert!(denied.message.contains(want), "{denied}");
    }
    let denied = peer.batch("s", &[1, 2, 3, 4]).await.unwrap_err();
    assert_eq!(denied.code, code::OVER_THRESHOLD);
    assert!(peer.query("s").await.is_empty(), "whole or not at all");
    peer.batch("s", &[1, 2, 3]).await.unwrap();
    peer.batch("s", &[4, 5, 6]).await.unwrap();
    assert_eq!(
        peer.query("s").await,
        [4, 5, 6],
        "what it replaces makes room"
    );
    let second = Peer::ready(&run).await;
    let third = TcpStream::connect(run.grpc).await.unwrap();
    let refused = match Channel::open(third, "r").await {
        Ok(third) => {
            let check = Payload::new(kind::SERVER_CHECK, "{}");
            third.call(&check, PATIENCE).await.is_err()
        }
        Err(_) => true,
    };
    assert!(refused, "the third connection is over the limit");
    drop(second);
    let odd = Payload::new(kind::SERVER_CHECK, vec![b'x'; 2 * 1024 * 1024]);
    let too_long = peer.channel.call(&odd, PATIENCE).await;
    assert!(
        matches!(
            too_long,
            Err(ChannelError::Grpc { .. } | ChannelError::Http(_))
        ),
        "{too_long:?}"
    );
    assert_eq!(peer.query("s").await, [4, 5, 6], "the connection goes on");
    run.stop().await;
}

#[tokio::test]
async fn a_restart_keeps_what_connections_registered_until_they_are_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = config();
    settings.data = Some(folder.path().to_owned());
    let run = Running::start(&settings, ([127, 0, 0, 1], 0).into()).await;
    let peer = Peer::ready(&run).await;
    peer.register("s", 80).await.unwrap();
    run.stop().await;
    let check = Payload::new(kind::HEALTH_CHECK, "{}");
    assert!(peer.channel.call(&check, PATIENCE).await.is_err());
    let run = Running::start(&settings, ([127, 0, 0, 1], 0).into()).await;
    assert_eq!(
        run.ports("serviceName=s").await,
        [80],
        "no empty list in between"
    );
    let peer = Peer::ready(&run).await;
    peer.register("s", 80).await.unwrap();
    let (_, overview) = run.call_root("GET", "/services").await;
    assert!(overview.contains("by connection"), "{overview}");
    run.stop().await;
}
