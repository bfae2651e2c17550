use std::fs;

use super::{Breakable, ONCE, fallbacks, proxy};
use crate::harness::{
    Client, Config, H2Client, H2Stub, Proxy, Stub, black_hole, closed_port, eventually,
};

const JSON: &str =
    r#"[{status: 503, body: '{"billing":"unavailable"}', content_type: application/json}]"#;

#[test]
fn a_static_answer_has_its_status_type_and_body() {
    let (_socket, closed) = closed_port();
    let keys = format!("{ONCE}\nfallback: {JSON}");
    let proxy = Config::svc_with(&[closed], &keys).start();
    let mut client = Client::connect(proxy.address);
    for method in ["GET", "POST"] {
        client.send(format!(
            "{method} / HTTP/1.1\r\nHost: svc\r\nContent-Length: 0\r\n\r\n"
        ));
        let answer = client.response();
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.text(), r#"{"billing":"unavailable"}"#);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.reason(), Some("fallback"));
    }
    client.send("HEAD / HTTP/1.1\r\nHost: svc\r\n\r\n");
    let head = client.head();
    assert_eq!(
        (head.status(), head.header("content-length")),
        (503, Some("25"))
    );
    // The connection goes on.
    assert_eq!(client.get("/").status(), 503);
    assert_eq!(fallbacks(&proxy, "static"), 4);
    assert_eq!(proxy.attempts("network_error"), 4);
    let line = proxy.logged("fallback");
    assert_eq!(line["outrigger.fallback_for"], "connect_failure", "{line}");
}

#[test]
fn conditions_choose_and_the_order_decides() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            let status = request.target().trim_start_matches('/').to_owned();
            peer.send(format!(
                "HTTP/1.1 {status} X\r\nContent-Length: 5\r\n\r\ntheir"
            ));
        }
    });
    let list = "[{conditions: [http_500], status: 200, body: a}, \
                {conditions: [http_5xx], status: 299, body: b}]";
    let proxy = proxy(&stub, list);
    let mut client = Client::connect(proxy.address);
    for (status, want, text) in [
        (500, 200, "a"),
        (502, 299, "b"),
        (507, 299, "b"),
        (404, 404, "their"),
        (200, 200, "their"),
    ] {
        let answer = client.get(&format!("/{status}"));
        assert_eq!(
            (answer.status(), answer.text().as_str()),
            (want, text),
            "{status}"
        );
        let marked = (text != "their").then_some("fallback");
        assert_eq!(answer.reason(), marked, "{status}");
    }
    // Each attempt keeps what it was, also where its answer was put aside.
    assert_eq!(proxy.attempts("network_error"), 1);
    assert_eq!(proxy.attempts("business_error"), 2);
}

#[test]
fn without_conditions_500_passes_and_503_does_not() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            let status = request.target().trim_start_matches('/').to_owned();
            peer.send(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"));
        }
    });
    let proxy = proxy(&stub, JSON);
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/500").reason(), None);
    assert_eq!(client.get("/503").reason(), Some("fallback"));
}

#[test]
fn a_hung_instance_is_answered_for_at_the_request_limit() {
    let (_kept, hole) = black_hole();
    let silent = Stub::script(|peer| {
        peer.request();
        peer.closed();
    });
    for address in [silent.address, hole] {
        let keys = format!("{ONCE}\ntimeout: {{request: 300ms}}\nfallback: {JSON}");
        let proxy = Config::svc_with(&[address], &keys).start();
        let answer = Client::connect(proxy.address).get("/");
        assert_eq!((answer.status(), answer.reason()), (503, Some("fallback")));
        let line = proxy.logged("fallback");
        assert_eq!(line["outrigger.fallback_for"], "request_timeout", "{line}");
    }
    eventually("the hung request to be given up", || silent.open() == 0);
}

#[test]
fn what_the_app_did_itself_has_no_fallback() {
    let stub = Stub::ok();
    let keys = format!("{ONCE}\nfallback: {JSON}");
    let proxy = Config::svc_with(&[stub.address], &keys)
        .top("limits: {max_body_bytes: 10B}")
        .start();
    let mut client = Client::connect(proxy.address);
    client.send(
        "POST / HTTP/1.1\r\nHost: svc\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n",
    );
    assert_eq!(client.response().reason(), Some("body_too_large"));
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: other\r\n\r\n");
    assert_eq!(client.response().reason(), Some("no_route"));
    assert_eq!(fallbacks(&proxy, "static"), 0);
}

#[test]
fn a_route_may_have_fallbacks_of_its_own() {
    let instance = Breakable::new("", |_| "good".to_owned());
    let routes = "[{name: own, match: {path_prefix: /own}, fallback: [{status: 299, body: own}]}, \
                   {name: none, match: {path: /none}, fallback: []}, \
                   {name: kept, match: {path: /kept}, fallback: [{cache: {}}]}, \
                   {name: same, match: {path: /same}}]";
    let keys = format!("{ONCE}\nfallback: {JSON}\nroutes: {routes}");
    let proxy = Config::svc_with(&[instance.stub.address], &keys).start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/kept").text(), "good");
    assert_eq!(client.get("/other").text(), "good");
    instance.set_broken(true);
    let status = |client: &mut Client, path: &str| client.get(path).status();
    assert_eq!(status(&mut client, "/own/x"), 299);
    assert_eq!(status(&mut client, "/none"), 502);
    assert_eq!(status(&mut client, "/same"), 503);
    assert_eq!(status(&mut client, "/kept"), 200);
    assert_eq!(status(&mut client, "/other"), 503);
    assert!(proxy.metric("outrigger_fallback_cache_bytes", &["svc"]) > 0);
    let rejected = ["route=\"own\"", "reason=\"fallback\""];
    assert_eq!(proxy.metric("outrigger_route_rejected_total", &rejected), 1);
}

#[test]
fn nobody_to_ask_is_a_reason_too() {
    let keys = format!("endpoints: []\nfallback: {JSON}");
    let proxy = Config::default().any_service("svc", &keys).start();
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!((answer.status(), answer.reason()), (503, Some("fallback")));
    let line = proxy.logged("fallback");
    assert_eq!(line["outrigger.fallback_for"], "no_instances", "{line}");
}

#[expect(clippy::unwrap_used, reason = "a helper of tests")]
fn grpc(fallback: &str) -> (u16, Option<String>, Option<String>, Proxy) {
    let (_socket, closed) = closed_port();
    let keys = format!("{ONCE}\nfallback: {fallback}");
    let proxy = Config::svc_with(&[closed], &keys).start();
    let answer = H2Client::connect(proxy.address).grpc(&[]).unwrap();
    assert_eq!(answer.header("content-type"), Some("application/grpc"));
    assert!(answer.body.is_empty(), "{answer:?}");
    let message = answer.header("grpc-message").map(str::to_owned);
    let reason = answer.reason().map(str::to_owned);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(message.is_some(), "{answer:?}");
    let status = answer.grpc_status().unwrap().parse().unwrap();
    (status, reason, message, proxy)
}

#[test]
fn a_grpc_call_gets_trailers_only() {
    let fallback = Some("fallback".to_owned());
    let list = "[{grpc_status: resource_exhausted, grpc_message: 'later, 100 %'}]";
    let (status, reason, message, proxy) = grpc(list);
    assert_eq!((status, &reason), (8, &fallback));
    assert_eq!(message.as_deref(), Some("later, 100 %25"));
    let code = ["protocol=\"grpc\"", "code=\"resource_exhausted\""];
    eventually("the count", || {
        proxy.metric("outrigger_requests_total", &code) == 1
    });
    // By the status, where nothing is written for gRPC.
    let (status, reason, ..) = grpc(JSON);
    assert_eq!((status, reason), (14, fallback));
    // An answer that is no error has no form in gRPC.
    let (status, reason, ..) = grpc("[{status: 200, body: x}]");
    assert_eq!((status, reason.as_deref()), (14, Some("connect_failed")));
    // And one for gRPC alone is none for others.
    let (.., proxy) = grpc("[{grpc_status: 14}]");
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!(answer.reason(), Some("connect_failed"));
}

#[test]
fn a_grpc_status_in_the_head_is_a_condition() {
    let stub = H2Stub::start(|mut call| async move {
        let response = http::Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", call.header("x-want").unwrap_or_default())
            .body(());
        let _sent = call.respond.send_response(response.unwrap(), true);
    });
    let list = "[{conditions: [grpc_internal], grpc_status: data_loss}]";
    let proxy = proxy_grpc(&stub, list);
    let h2 = H2Client::connect(proxy.address);
    let status = |code: &str| {
        let answer = h2.grpc(&[("x-want", code)]).unwrap();
        (answer.grpc_status().unwrap(), answer.reason().is_some())
    };
    assert_eq!(status("13"), ("15".to_owned(), true));
    assert_eq!(status("14"), ("14".to_owned(), false));
    assert_eq!(status("0"), ("0".to_owned(), false));
}

fn proxy_grpc(stub: &H2Stub, fallback: &str) -> Proxy {
    let keys = format!("{ONCE}\nfallback: {fallback}");
    Config::svc_with(&[stub.address], &keys).start()
}

#[test]
fn a_file_is_read_at_the_start_and_at_each_reload() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = (
        folder.path().join("outrigger.yaml"),
        folder.path().join("down.json"),
    );
    let instance = Breakable::new("", |_| "good".to_owned());
    instance.set_broken(true);
    let keys = format!("{ONCE}\nfallback: [{{status: 502, file: down.json}}]");
    let text = Config::svc_with(&[instance.stub.address], &keys).text();
    fs::write(&path, &text).unwrap();
    fs::write(&file, "{\"n\":1}").unwrap();
    let proxy = Proxy::start_at(&path);
    let ask = || Client::connect(proxy.address).get("/");
    let answer = ask();
    assert_eq!(
        (answer.status(), answer.text().as_str()),
        (502, "{\"n\":1}")
    );
    assert_eq!(answer.header("content-type"), Some("application/json"));
    // The file alone changes: that is a change of the configuration, seen by itself.
    fs::write(&file, "plain").unwrap();
    eventually("the new text", || ask().text() == "plain");
    let kind = ask().header("content-type").map(str::to_owned);
    assert_eq!(kind.as_deref(), Some("text/plain; charset=utf-8"));
    // A file that is gone is a bad configuration; the old one stays.
    fs::remove_file(&file).unwrap();
    proxy.signal("HUP");
    eventually("the refusal", || proxy.reloads("rejected") >= 1);
    let event = proxy.wait_for_event("config_rejected");
    let problem = event["diagnostics"][0].as_str().unwrap();
    assert!(
        problem.contains("outrigger.yaml:") && problem.contains("down.json"),
        "{problem}"
    );
    assert_eq!(ask().text(), "plain");
}
