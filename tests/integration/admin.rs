//! The admin API and the live commands of the built binary: orders, events, histories.

mod events;
mod live;
mod overrides;

use std::process::Command;

use serde_json::Value;

use crate::harness::{Client, Proxy};

/// An answer of the admin listener: status, head, body.
pub(crate) fn ask(proxy: &Proxy, head: &str, body: &str) -> (u16, Value) {
    let mut client = Client::connect(proxy.listener("admin"));
    let length = match body {
        "" => String::new(),
        body => format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        ),
    };
    let (first, more) = head.split_once('\n').unwrap_or((head, ""));
    let more: String = more.lines().map(|line| format!("{line}\r\n")).collect();
    client.send(format!(
        "{first} HTTP/1.1\r\nHost: localhost\r\n{more}{length}Connection: close\r\n\r\n{body}"
    ));
    let answer = client.response();
    let body = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
    (answer.status(), body)
}

pub(crate) fn get(proxy: &Proxy, path: &str) -> Value {
    let (code, body) = ask(proxy, &format!("GET {path}"), "");
    assert_eq!(code, 200, "{path}: {body}");
    body
}

/// A write with its header.
pub(crate) fn write(proxy: &Proxy, line: &str, body: &str) -> (u16, Value) {
    ask(proxy, &format!("{line}\nx-outrigger-admin: 1"), body)
}

/// A command of the binary: exit code, output, errors.
pub(crate) fn cli(proxy: &Proxy, line: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(line)
        .env_clear()
        .env("OUTRIGGER_ADMIN", proxy.listener("admin").to_string())
        .env("USER", "ann")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}
