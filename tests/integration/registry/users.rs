//! The embedded registry with users: every way in which stock clients log in and show their token.

use outrigger::protocol::nacos::message::{code, kind};
use serde_json::{Value, json};

use super::grpc::Peer;
use super::running::{Running, config};

async fn with_users() -> (Running, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "ann: s3cret\n").unwrap();
    let mut settings = config();
    settings.users_file = Some(users);
    let run = Running::start(&settings, ([127, 0, 0, 1], 0).into()).await;
    (run, folder)
}

async fn token(run: &Running) -> String {
    let login = "/auth/login?username=ann&password=s3cret";
    let (status, body) = run.call("POST", login).await;
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["tokenTtl"], 18_000);
    body["accessToken"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn both_login_paths_take_query_and_form() {
    let (run, _folder) = with_users().await;
    for path in ["login", "users/login"] {
        let head = format!("POST /nacos/v1/auth/{path} HTTP/1.1\r\nhost: localhost");
        let (status, body) = run.raw(&head, "username=ann&password=s3cret").await;
        assert_eq!(status, 200, "{body}");
        let head = format!("POST /nacos/v1/auth/{path}?username=ann HTTP/1.1\r\nhost: localhost");
        assert_eq!(run.raw(&head, "password=s3cret").await.0, 200);
        for wrong in ["password=x", "", "username=bob&password=s3cret"] {
            let (status, body) = run.raw(&head, wrong).await;
            let bob = wrong.starts_with("username");
            assert_eq!((status, bob), (if bob { 200 } else { 403 }, bob), "{body}");
        }
    }
    run.stop().await;
}

#[tokio::test]
async fn every_way_to_show_a_token_is_taken_and_nothing_else() {
    let (run, _folder) = with_users().await;
    let token = token(&run).await;
    let list = "/nacos/v1/ns/instance/list?serviceName=s";
    let get = |query: String, header: String| {
        let head = format!("GET {list}{query} HTTP/1.1\r\nhost: localhost{header}");
        let run = &run;
        async move { run.raw(&head, "").await }
    };
    for (query, header) in [
        (format!("&accessToken={token}"), String::new()),
        (String::new(), format!("\r\naccessToken: {token}")),
        (String::new(), format!("\r\nauthorization: Bearer {token}")),
        ("&username=ann&password=s3cret".to_owned(), String::new()),
        (
            String::new(),
            "\r\nauthorization: Basic YW5uOnMzY3JldA==".to_owned(),
        ),
    ] {
        let (status, body) = get(query.clone(), header.clone()).await;
        assert_eq!(status, 200, "{query} {header} {body}");
    }
    for (query, header) in [
        (String::new(), String::new()),
        ("&accessToken=made-up".to_owned(), String::new()),
        ("&username=ann&password=x".to_owned(), String::new()),
        (String::new(), "\r\nauthorization: Basic !".to_owned()),
    ] {
        let (status, body) = get(query.clone(), header.clone()).await;
        assert_eq!(status, 403, "{query} {header} {body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["status"], 403);
    }
    for open in [
        "/ns/operator/metrics",
        "/console/health/readiness",
        "/console/server/state",
    ] {
        assert_eq!(run.call("GET", open).await.0, 200, "{open}");
    }
    let register = "/ns/instance?serviceName=s&ip=10.0.0.1&port=80";
    assert_eq!(run.call("POST", register).await.0, 403);
    assert_eq!(
        run.call("GET", "/ns/service/list?pageNo=1&pageSize=9")
            .await
            .0,
        403
    );
    assert_eq!(
        run.call_root("GET", "/").await.0,
        401,
        "a browser asks for the password"
    );
    run.stop().await;
}

#[tokio::test]
async fn grpc_asks_for_the_token_on_naming_calls_only() {
    let (run, _folder) = with_users().await;
    let mut peer = Peer::ready(&run).await;
    peer.call(kind::HEALTH_CHECK, &json!({})).await.unwrap();
    let denied = peer.register("s", 80).await.unwrap_err();
    assert_eq!(denied.code, code::NO_RIGHT);
    assert!(denied.message.starts_with("user not found!"), "{denied}");
    peer.token = Some("made-up".to_owned());
    assert_eq!(
        peer.register("s", 80).await.unwrap_err().code,
        code::NO_RIGHT
    );
    peer.token = Some(token(&run).await);
    peer.register("s", 80).await.unwrap();
    run.stop().await;
}
