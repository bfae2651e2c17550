//! Looking at a running process: histories, watching, services, the description of the API itself.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{cli, get};
use crate::harness::{Client, Config, Stub, eventually};

#[test]
fn a_history_counts_what_was_requested() {
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address]).start();
    let path = "/api/v1/upstreams/svc/history";
    assert_eq!(get(&proxy, path)["step_s"], 5);
    let mut client = Client::connect(proxy.address);
    let mut sent = 0_u64;
    eventually("a step with requests in it", || {
        assert_eq!(client.get("/").status(), 200);
        sent += 1;
        let points = get(&proxy, path)["points"].clone();
        let points = points.as_array().unwrap();
        let busy = |p: &&Value| p["requests"].as_u64() > Some(0);
        points
            .iter()
            .any(|p| busy(&p) && p["p50_ms"].is_number() && p["instances"] == 1)
    });
    let points = get(&proxy, path)["points"].clone();
    let points = points.as_array().unwrap();
    let counted: u64 = points.iter().map(|p| p["requests"].as_u64().unwrap()).sum();
    assert!(
        counted <= sent && points.iter().all(|p| p["ejected"] == 0),
        "{points:?}"
    );
    let (code, body) = super::ask(&proxy, &format!("GET {path}?range=1h"), "");
    assert_eq!((code, &body["error"]), (400, &json!("bad_query")));
    assert_eq!(
        super::ask(&proxy, &format!("GET {path}?step=7s"), "").0,
        400
    );
}

#[test]
fn watching_shows_block_after_block_until_interrupted() {
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address]).start();
    let mut child = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["upstreams", "--watch", "--interval", "20ms", "--admin"])
        .arg(proxy.listener("admin").to_string())
        .env_clear()
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let block: Vec<String> = (0..3).map(|_| lines.next().unwrap().unwrap()).collect();
        assert!(
            block[0].starts_with("UPSTREAM") && block[1].starts_with("svc"),
            "{block:?}"
        );
        assert_eq!(block[2], "");
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    // Its pipe must not fill up before it looks.
    for _ in lines.map_while(Result::ok) {}
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn every_page_of_the_description_is_there() {
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address]).start();
    let document = get(&proxy, "/api/v1/openapi.json");
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 15, "{}", paths.len());
    let at = stub.address.to_string();
    for (template, methods) in paths {
        let path = template
            .replace("{u}", "svc")
            .replace("{service}", "svc")
            .replace("{i}", &at)
            .replace("{id}", "ov-0");
        assert!(
            !path.contains('{'),
            "a name that this test does not know: {template}"
        );
        let mut client = Client::connect(proxy.listener("admin"));
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        let head = client.head();
        let Some(get) = methods.get("get") else {
            assert_eq!(head.status(), 405, "{template}");
            let allow = head.header("allow").unwrap().to_ascii_lowercase();
            for method in methods.as_object().unwrap().keys() {
                assert!(allow.contains(method), "{template}: {allow}");
            }
            continue;
        };
        // `url` is not optional.
        let wanted = if template == "/api/v1/route" {
            400
        } else {
            200
        };
        assert_eq!(head.status(), wanted, "{template}");
        if wanted == 200 {
            let content = get["responses"]["200"]["content"].as_object().unwrap();
            let told = head.header("content-type").unwrap();
            assert!(
                content.keys().any(|known| told.starts_with(known)),
                "{template}: {told}"
            );
        }
    }
}

#[test]
fn services_bundle_and_the_commands_about_commands() {
    let stub = Stub::ok();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("e.yaml");
    std::fs::write(
        &file,
        "services:\n  users:\n    - {address: \"127.0.0.1:9\", metadata: {api-key: hush}}\n",
    )
    .unwrap();
    let proxy = Config::svc(&[stub.address])
        .top(&format!(
            "registries: {{here: {{kind: file, path: \"{}\"}}}}",
            file.display()
        ))
        .start();
    let (code, out, err) = cli(&proxy, &["services"]);
    assert!(
        code == 0 && out.contains("svc") && out.contains("users"),
        "{out}{err}"
    );
    let asked = Client::connect(proxy.address)
        .send("GET / HTTP/1.1\r\nHost: users\r\n\r\n")
        .response();
    assert_eq!(asked.status(), 502);
    let path = folder.path().join("bundle.json");
    let name = path.to_str().unwrap();
    assert_eq!(cli(&proxy, &["bundle", name]).0, 0);
    let text = std::fs::read_to_string(&path).unwrap();
    let bundle: Value = serde_json::from_str(&text).unwrap();
    assert!(
        bundle["metrics"]
            .as_str()
            .unwrap()
            .contains("outrigger_build_info")
    );
    assert_eq!(bundle["upstreams"].as_array().unwrap().len(), 2);
    assert!(text.contains("api-key") && !text.contains("hush"));
    let (code, _, err) = cli(&proxy, &["bundle", name]);
    assert!(code == 1 && err.contains("cannot write"), "{err}");
    let (code, out, _) = cli(&proxy, &["completions", "bash"]);
    assert!(code == 0 && out.contains("overrides"));
    let (code, out, _) = cli(&proxy, &["man", "eject"]);
    assert!(
        code == 0 && out.contains(".TH") && out.contains("\\-\\-for"),
        "{out}"
    );
    assert_eq!(cli(&proxy, &["man", "nothing"]).0, 2);
}
