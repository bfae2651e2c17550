//! The embedded registry over its real port, with raw requests: what stock clients rely on and what
//! they never send.

mod grpc;
mod running;
mod users;

use std::net::SocketAddr;
use std::time::Duration;

use outrigger::clock::Clock;
use outrigger::config::types::Embedded;
use outrigger::http_client::{HttpClient, Target};
use outrigger::registry::EmbeddedRegistry;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

pub(crate) use running::{Running, config};

#[tokio::test]
async fn an_instance_registers_beats_and_leaves() {
    let run = Running::fresh().await;
    let metadata = "%7B%22zone%22%3A%22a%22%7D";
    let who = "serviceName=orders&ip=10.0.0.1&port=80";
    run.ok(
        "POST",
        &format!("/ns/instance?{who}&weight=2.5&metadata={metadata}"),
    )
    .await;
    let list = run
        .json("GET", "/ns/instance/list?serviceName=orders")
        .await;
    assert_eq!(list["name"], "DEFAULT_GROUP@@orders");
    assert_eq!(list["groupName"], "DEFAULT_GROUP");
    assert!(list["cacheMillis"].as_u64().unwrap() >= 1000);
    let host = &list["hosts"][0];
    assert_eq!(
        host["instanceId"],
        "10.0.0.1#80#DEFAULT#DEFAULT_GROUP@@orders"
    );
    assert_eq!(
        (&host["weight"], &host["healthy"]),
        (&2.5.into(), &true.into())
    );
    assert_eq!(host["metadata"]["zone"], "a");

    let beat = run.json("PUT", &format!("/ns/instance/beat?{who}")).await;
    assert_eq!(
        (&beat["code"], &beat["clientBeatInterval"]),
        (&10200.into(), &5000.into())
    );
    assert_eq!(beat["lightBeatEnabled"], true);

    let detail = run.json("GET", &format!("/ns/instance?{who}")).await;
    assert_eq!(detail["service"], "DEFAULT_GROUP@@orders");
    run.ok("DELETE", &format!("/ns/instance?{who}")).await;
    run.ok("DELETE", &format!("/ns/instance?{who}")).await;
    assert!(run.ports("serviceName=orders").await.is_empty());
    let beat = run.json("PUT", &format!("/ns/instance/beat?{who}")).await;
    assert_eq!(beat["code"], 20404);
    run.ok("POST", &format!("/ns/instance?{who}")).await;
    assert_eq!(run.ports("serviceName=orders").await, [80]);
    run.stop().await;
}

#[tokio::test]
async fn a_full_beat_registers_what_is_unknown_in_query_and_in_body() {
    let run = Running::fresh().await;
    let beat = r#"{"ip":"10.0.0.1","port":81,"weight":3,"serviceName":"g@@svc","cluster":"c",
        "metadata":{"k":"v"},"scheduled":false,"period":5000,"stopped":false}"#;
    let encoded: String = form_urlencoded::Serializer::new(String::new())
        .append_pair("beat", beat)
        .finish();
    let head = "PUT /nacos/v1/ns/instance/beat?serviceName=g@@svc&ip=10.0.0.1&port=81 HTTP/1.1\r\n\
        host: 127.0.0.1\r\ncontent-type: application/x-www-form-urlencoded";
    let (status, body) = run.raw(head, &encoded).await;
    assert!(status == 200 && body.contains("10200"), "{body}");
    let list = run
        .json("GET", "/ns/instance/list?serviceName=svc&groupName=g")
        .await;
    assert_eq!(list["hosts"][0]["clusterName"], "c");
    assert_eq!(list["hosts"][0]["weight"], 3.0);
    assert_eq!(list["hosts"][0]["metadata"]["k"], "v");
    let other = encoded.replace("81", "82");
    let (status, body) = run
        .call(
            "PUT",
            &format!("/ns/instance/beat?serviceName=g@@svc&{other}"),
        )
        .await;
    assert!(status == 200 && body.contains("10200"), "{body}");
    assert_eq!(run.ports("serviceName=g@@svc").await, [81, 82]);
    let (status, _) = run
        .call("PUT", "/ns/instance/beat?serviceName=s&beat=%7B")
        .await;
    assert_eq!(status, 400);
    run.stop().await;
}

#[tokio::test]
async fn parameters_of_stock_clients_are_understood() {
    let run = Running::fresh().await;
    // Python 0.1: capital booleans, cluster None, and no cluster at the end.
    run.ok(
        "POST",
        "/ns/instance?serviceName=s&ip=10.0.0.1&port=1&enable=True&healthy=True&ephemeral=True\
         &clusterName=None&groupName=DEFAULT_GROUP",
    )
    .await;
    let list = run
        .json("GET", "/ns/instance/list?serviceName=s&healthyOnly=False")
        .await;
    assert_eq!(list["hosts"][0]["clusterName"], "None");
    run.ok(
        "DELETE",
        "/ns/instance?serviceName=s&ip=10.0.0.1&port=1&ephemeral=True",
    )
    .await;
    assert!(run.ports("serviceName=s").await.is_empty());
    // A form body, `k=v` metadata.
    let head = "POST /nacos/v1/ns/instance HTTP/1.1\r\nhost: [::1]:1\r\n\
        content-type: application/x-www-form-urlencoded;charset=UTF-8";
    let form = "serviceName=DEFAULT_GROUP%40%40s&ip=h.internal&port=2&metadata=a%3D1%2Cb%3D2";
    assert_eq!(run.raw(head, form).await, (200, "ok".to_owned()));
    let list = run.json("GET", "/ns/instance/list?serviceName=s").await;
    assert_eq!(list["hosts"][0]["metadata"]["b"], "2");
    // Disabled ones are not listed, weight and order are kept, clusters filter.
    run.ok(
        "POST",
        "/ns/instance?serviceName=s&ip=10.0.0.2&port=3&enabled=false",
    )
    .await;
    run.ok(
        "POST",
        "/ns/instance?serviceName=s&ip=10.0.0.3&port=1&weight=0&clusterName=c",
    )
    .await;
    assert_eq!(run.ports("serviceName=s").await, [2, 1]);
    assert_eq!(run.ports("serviceName=s&clusters=c,d").await, [1]);
    assert!(run.ports("serviceName=s&namespaceId=dev").await.is_empty());
    run.stop().await;
}

#[tokio::test]
async fn an_operators_update_is_kept_and_a_patch_changes_only_what_it_names() {
    let run = Running::fresh().await;
    let who = "serviceName=s&ip=10.0.0.1&port=1";
    assert_eq!(run.call("PUT", &format!("/ns/instance?{who}")).await.0, 400);
    run.ok("POST", &format!("/ns/instance?{who}&metadata=a%3D1"))
        .await;
    assert_eq!(
        run.call("PATCH", "/ns/instance?serviceName=s&ip=10.0.0.9&port=1")
            .await
            .0,
        404
    );
    run.ok("PATCH", &format!("/ns/instance?{who}&weight=7"))
        .await;
    run.ok("POST", &format!("/ns/instance?{who}&metadata=a%3D1"))
        .await;
    let detail = run.json("GET", &format!("/ns/instance?{who}")).await;
    assert_eq!(
        (&detail["weight"], &detail["metadata"]["a"]),
        (&7.0.into(), &"1".into())
    );
    run.ok("PUT", &format!("/ns/instance?{who}&enabled=false"))
        .await;
    assert!(run.ports("serviceName=s").await.is_empty());
    run.stop().await;
}

#[tokio::test]
async fn services_are_listed_by_page_in_their_group() {
    let run = Running::fresh().await;
    for name in ["c", "a", "b", "g@@other"] {
        run.ok(
            "POST",
            &format!("/ns/instance?serviceName={name}&ip=10.0.0.1&port=1"),
        )
        .await;
    }
    let page = run
        .json("GET", "/ns/service/list?pageNo=1&pageSize=2")
        .await;
    assert_eq!(page, serde_json::json!({"count": 3, "doms": ["a", "b"]}));
    let page = run
        .json("GET", "/ns/service/list?pageNo=2&pageSize=2")
        .await;
    assert_eq!(page["doms"], serde_json::json!(["c"]));
    let page = run
        .json("GET", "/ns/service/list?pageNo=1&pageSize=9&groupName=g")
        .await;
    assert_eq!(page["doms"], serde_json::json!(["other"]));
    let service = run.json("GET", "/ns/service?serviceName=a").await;
    assert_eq!(
        (&service["name"], &service["groupName"]),
        (&"a".into(), &"DEFAULT_GROUP".into())
    );
    run.stop().await;
}

#[tokio::test]
async fn wrong_calls_get_the_texts_of_nacos() {
    let run = Running::fresh().await;
    let long = "x".repeat(5000);
    for (method, call, status, text) in [
        (
            "POST",
            "/ns/instance?serviceName=s&ip=1.1.1.1",
            400,
            "caused: Param 'port' is required.;",
        ),
        (
            "GET",
            "/ns/instance/list",
            400,
            "caused: Param 'serviceName' is required.;",
        ),
        (
            "GET",
            "/ns/instance/list?serviceName=@@s",
            400,
            "'groupName' is illegal",
        ),
        (
            "POST",
            "/ns/instance?serviceName=s&ip=1.1.1.1&port=70000",
            400,
            "'port' is illegal",
        ),
        (
            "POST",
            "/ns/instance?serviceName=s&ip=a%20b&port=1",
            400,
            "'ip' is illegal",
        ),
        (
            "POST",
            "/ns/instance?serviceName=s&ip=a&port=1&weight=NaN",
            400,
            "weight",
        ),
        (
            "POST",
            "/ns/instance?serviceName=s&ip=a&port=1&weight=-1",
            400,
            "weight",
        ),
        (
            "POST",
            "/ns/instance?serviceName=s&ip=a&port=1&enabled=maybe",
            400,
            "'enabled' is illegal",
        ),
        (
            "POST",
            "/ns/instance?serviceName=s&ip=a&port=1&metadata=%7B",
            400,
            "'metadata' is illegal",
        ),
        (
            "POST",
            "/ns/instance?serviceName=s&ip=a&port=1&metadata=preserved.heart.beat.timeout%3D1",
            400,
            "preserved.heart.beat.interval",
        ),
        (
            "POST",
            &format!("/ns/instance?serviceName=s&ip=a&port=1&metadata=a%3D{long}"),
            400,
            "5001 bytes of metadata, at most 4096",
        ),
        (
            "GET",
            "/ns/instance?serviceName=s&ip=a&port=1",
            404,
            "no matched ip found!",
        ),
        ("GET", "/ns/service?serviceName=s", 400, "service not found"),
        (
            "GET",
            "/ns/service/list?pageNo=x&pageSize=1",
            400,
            "'pageNo' is illegal",
        ),
        (
            "GET",
            "/cs/configs",
            501,
            "no such api:GET:/nacos/v1/cs/configs",
        ),
        (
            "POST",
            "/ns/instance/list?serviceName=s",
            501,
            "no such api:POST",
        ),
    ] {
        let (got, body) = run.call(method, call).await;
        assert!(
            got == status && body.contains(text),
            "{method} {call}: {got} {body}"
        );
    }
    assert_eq!(run.registry.counts(), (0, 0));
    run.stop().await;
}

#[tokio::test]
async fn what_clients_look_at_first_is_there() {
    let run = Running::fresh().await;
    assert_eq!(
        run.json("GET", "/ns/operator/metrics").await["status"],
        "UP"
    );
    assert_eq!(
        run.json("GET", "/ns/operator/switches").await["lightBeatEnabled"],
        true
    );
    assert_eq!(
        run.call("GET", "/console/health/readiness").await,
        (200, "OK".to_owned())
    );
    assert!(run.json("GET", "/console/server/state").await["version"].is_string());
    for path in ["/auth/login", "/auth/users/login"] {
        let login = run
            .json("POST", &format!("{path}?username=u&password=p"))
            .await;
        assert!(login["accessToken"].is_string() && login["tokenTtl"] == 18000);
    }
    run.stop().await;
}

#[tokio::test]
async fn a_browser_cannot_write() {
    let run = Running::fresh().await;
    let line = "/nacos/v1/ns/instance?serviceName=s&ip=10.0.0.1&port=1 HTTP/1.1";
    for headers in [
        "host: localhost\r\norigin: http://evil.example",
        "host: localhost\r\norigin: null",
        "host: localhost\r\nsec-fetch-site: same-origin",
        "host: evil.example:15005",
        "host: localhost\r\nhost: evil.example",
    ] {
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let (status, body) = run.raw(&format!("{method} {line}\r\n{headers}"), "").await;
            assert!(
                status == 403 || status == 400,
                "{method} {headers}: {status} {body}"
            );
        }
    }
    assert_eq!(run.registry.counts(), (0, 0));
    run.stop().await;
}

#[tokio::test]
async fn heads_and_bodies_are_bounded() {
    let run = Running::fresh().await;
    let head = "POST /nacos/v1/ns/instance HTTP/1.1\r\nhost: localhost";
    let (status, _) = run.raw(head, &"a=b&".repeat(100_000)).await;
    assert_eq!(status, 413);
    let (status, _) = run
        .raw(&format!("{head}\r\nx: {}", "y".repeat(200_000)), "")
        .await;
    assert_eq!(status, 431);
    for rubbish in [
        "\r\n\r\n",
        "GET\r\n\r\n",
        "\0\0\0\0",
        "GET / HTTP/9.9\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(run.address).await.unwrap();
        stream.write_all(rubbish.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer).await);
    }
    assert_eq!(
        run.json("GET", "/ns/operator/metrics").await["status"],
        "UP"
    );
    run.stop().await;
}

#[tokio::test]
async fn a_client_that_takes_pushes_is_sent_the_new_list() {
    let run = Running::fresh().await;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    // The address of the caller counts, whatever `clientIP` says.
    let line = format!(
        "GET /nacos/v1/ns/instance/list?serviceName=s&clusters=DEFAULT&udpPort={port}\
         &clientIP=192.0.2.1 HTTP/1.1\r\nhost: localhost"
    );
    let (_, polled) = run.raw(&line, "").await;
    assert!(
        polled.contains("\"cacheMillis\":3000"),
        "an unknown client polls: {polled}"
    );
    let line = format!("{line}\r\nuser-agent: Nacos-Java-Client:v1.4.8");
    let (_, pushed) = run.raw(&line, "").await;
    assert!(pushed.contains("\"cacheMillis\":10000"), "{pushed}");
    for port in [1, 2] {
        run.ok(
            "POST",
            &format!("/ns/instance?serviceName=s&ip=10.0.0.1&port={port}"),
        )
        .await;
    }
    run.ok(
        "POST",
        "/ns/instance?serviceName=s&ip=10.0.0.1&port=3&clusterName=other",
    )
    .await;
    let mut datagram = vec![0; 65_536];
    let received = socket.recv(&mut datagram);
    let length = tokio::time::timeout(Duration::from_secs(3), received)
        .await
        .unwrap()
        .unwrap();
    let outer: Value = serde_json::from_slice(&datagram[..length]).unwrap();
    assert!(outer["type"] == "dom" && outer["lastRefTime"].is_u64());
    let list: Value = serde_json::from_str(outer["data"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&list["name"], &list["clusters"]),
        (&"DEFAULT_GROUP@@s".into(), &"DEFAULT".into())
    );
    assert_eq!(list["hosts"].as_array().unwrap().len(), 2);
    run.stop().await;
}

#[tokio::test]
async fn a_unix_socket_serves_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("registry.sock");
    let registry = EmbeddedRegistry::new(&config(), Clock::new());
    let (stop, stopped) = watch::channel(false);
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let task = tokio::spawn(registry.clone().serve(listener, stopped));
    let client = HttpClient {
        timeout: Duration::from_secs(2),
        max_body: 1 << 16,
    };
    let request = http::Request::post("/nacos/v1/ns/instance?serviceName=s&ip=10.0.0.1&port=1")
        .body(http_body_util::Full::default())
        .unwrap();
    let answer = client.send(&Target::Unix(path), request).await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), answer.body().as_ref()),
        (200, b"ok".as_slice())
    );
    assert_eq!(registry.counts(), (1, 1));
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test]
async fn a_kept_connection_ends_with_the_server() {
    let run = Running::fresh().await;
    let mut stream = TcpStream::connect(run.address).await.unwrap();
    let request = "GET /nacos/v1/ns/operator/metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for _ in 0..2 {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut some = [0; 1024];
        assert!(stream.read(&mut some).await.unwrap() > 0);
    }
    tokio::time::timeout(Duration::from_secs(3), run.stop())
        .await
        .unwrap();
    assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_restart_keeps_the_instances_and_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let config = Embedded {
        data: Some(folder.path().to_owned()),
        ..config()
    };
    let run = Running::start(&config, SocketAddr::from(([127, 0, 0, 1], 0))).await;
    for port in [3, 1, 2] {
        run.ok(
            "POST",
            &format!("/ns/instance?serviceName=s&ip=10.0.0.1&port={port}"),
        )
        .await;
    }
    let address = run.address;
    run.stop().await;
    let run = Running::start(&config, address).await;
    assert_eq!(run.ports("serviceName=s").await, [3, 1, 2]);
    let beat = run
        .json("PUT", "/ns/instance/beat?serviceName=s&ip=10.0.0.1&port=2")
        .await;
    assert_eq!(beat["code"], 10200);
    run.stop().await;
}
