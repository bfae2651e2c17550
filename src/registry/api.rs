//! The Nacos v1 open API: which call does what. Writes pass `registry/guard.rs`; where users are
//! configured all but the login and the health pages ask for a token (`registry/users.rs`).
//! Next: `registry/naming.rs` (instances and services), `registry/answer.rs` (shapes and errors).

use std::net::IpAddr;

use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode};
use serde_json::json;

use super::answer::{self, Answer, Fault};
use super::params::Params;
use super::push::Caller;
use super::users::{Credentials, TOKEN_LIFE};
use super::{EmbeddedRegistry, guard, naming, people};

/// The release whose APIs these are: the v1 HTTP API and gRPC.
const COMPATIBLE_WITH: &str = "2.3.1";

/// Answers one request.
pub(super) fn handle(
    registry: &EmbeddedRegistry,
    head: &Parts,
    body: &[u8],
    caller: &Caller,
) -> Answer {
    dispatch(registry, head, body, caller).unwrap_or_else(|fault| fault.answer())
}

fn dispatch(
    registry: &EmbeddedRegistry,
    head: &Parts,
    body: &[u8],
    caller: &Caller,
) -> Result<Answer, Fault> {
    let method = &head.method;
    if !matches!(*method, Method::GET | Method::HEAD) {
        guard::check(&head.headers, caller.local)?;
    }
    let path = head.uri.path();
    let params = Params::parse(head.uri.query(), body);
    let unknown = || Fault::NoSuchApi(method.clone(), path.to_owned());
    if matches!(path, "/" | "/services") && !matches!(*method, Method::GET | Method::HEAD) {
        return Err(unknown());
    }
    let call = match path {
        "/" | "/services" => path,
        _ => {
            let call = path.strip_prefix("/nacos/v1/").ok_or_else(unknown)?;
            call.trim_end_matches('/')
        }
    };
    if !is_open(method, call) {
        let basic = basic(&head.headers);
        let shown = credentials(&head.headers, &params, basic.as_ref());
        let checked = registry
            .0
            .users
            .check(shown, caller.remote, registry.0.clock.now());
        let for_people = call.starts_with('/');
        checked.map_err(|denial| Fault::Denied { denial, for_people })?;
    }
    match (method.as_str(), call) {
        ("GET" | "HEAD", "/" | "/services") => Ok(people::page(&registry.overview())),
        ("POST", "ns/instance") => naming::register(registry, &params),
        ("PUT", "ns/instance") => naming::update(registry, &params),
        ("PATCH", "ns/instance") => naming::patch(registry, &params),
        ("DELETE", "ns/instance") => naming::deregister(registry, &params),
        ("GET", "ns/instance") => naming::detail(registry, &params),
        ("PUT", "ns/instance/beat") => naming::beat(registry, &params),
        ("GET", "ns/instance/list") => {
            naming::list(registry, &params, &caller.with_headers(&head.headers))
        }
        ("GET", "ns/service/list") => naming::services(registry, &params),
        ("GET", "ns/service") => naming::service(registry, &params),
        ("GET", "ns/operator/metrics") => Ok(metrics(registry)),
        ("GET", "ns/operator/switches") => Ok(switches(registry)),
        ("GET", "console/health/readiness" | "console/health/liveness") => {
            Ok(answer::text(StatusCode::OK, "OK"))
        }
        ("GET", "console/server/state") => Ok(state(registry)),
        ("POST", "auth/login" | "auth/users/login") => login(registry, &params, caller.remote),
        _ => Err(unknown()),
    }
}

/// What Nacos answers without a token too.
fn is_open(method: &Method, call: &str) -> bool {
    match method.as_str() {
        "POST" => matches!(call, "auth/login" | "auth/users/login"),
        "GET" => call == "ns/operator/metrics" || call.starts_with("console/"),
        _ => false,
    }
}

/// A token in the query or the form, in a header of its own or as bearer; or name and password in
/// the query of any call (all that the Node client sends), or as a browser sends them.
fn credentials<'a>(
    headers: &'a HeaderMap,
    params: &'a Params,
    basic: Option<&'a (String, String)>,
) -> Credentials<'a> {
    let text = |value: &'a HeaderValue| value.to_str().ok().filter(|text| !text.is_empty());
    let bearer = headers.get(header::AUTHORIZATION).and_then(text);
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
    let own = headers.get("accesstoken").and_then(text);
    let basic = basic.map(|(name, password)| (name.as_str(), password.as_str()));
    Credentials {
        token: params.get("accessToken").or(own).or(bearer),
        username: params.get("username").or_else(|| Some(basic?.0)),
        password: params.get("password").or_else(|| Some(basic?.1)),
    }
}

fn basic(headers: &HeaderMap) -> Option<(String, String)> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let decoded = people::from_base64(value.strip_prefix("Basic ")?.trim())?;
    let (name, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

fn metrics(registry: &EmbeddedRegistry) -> Answer {
    let (services, instances) = registry.counts();
    let body = json!({"status": "UP", "serviceCount": services, "instanceCount": instances});
    answer::json(StatusCode::OK, &body)
}

fn switches(registry: &EmbeddedRegistry) -> Answer {
    let beat = u64::try_from(registry.0.beat_interval.as_millis()).unwrap_or(u64::MAX);
    answer::json(
        StatusCode::OK,
        &json!({
            "clientBeatInterval": beat,
            "defaultCacheMillis": 3000,
            "defaultPushCacheMillis": naming::PUSHED_CACHE_MILLIS,
            "defaultInstanceEphemeral": true,
            "distroEnabled": false,
            "healthCheckEnabled": false,
            "lightBeatEnabled": true,
            "pushEnabled": true,
        }),
    )
}

fn state(registry: &EmbeddedRegistry) -> Answer {
    let auth = registry.0.users.required().to_string();
    answer::json(
        StatusCode::OK,
        &json!({
            "version": COMPATIBLE_WITH,
            "standalone_mode": "standalone",
            "startup_mode": "standalone",
            "function_mode": "naming",
            "auth_enabled": auth,
            "outrigger_version": env!("CARGO_PKG_VERSION"),
        }),
    )
}

/// Without users whoever logs in is let in.
fn login(
    registry: &EmbeddedRegistry,
    params: &Params,
    from: Option<IpAddr>,
) -> Result<Answer, Fault> {
    let shown = Credentials {
        token: None,
        username: params.get("username"),
        password: params.get("password"),
    };
    let token = if registry.0.users.required() {
        let token = registry.0.users.log_in(shown, from, registry.0.clock.now());
        token.map_err(Fault::Login)?
    } else {
        "AUTH_DISABLED".to_owned()
    };
    let mut answer = answer::json(
        StatusCode::OK,
        &json!({
            "accessToken": token,
            "tokenTtl": TOKEN_LIFE.as_secs(),
            "globalAdmin": false,
            "username": shown.username.unwrap_or_default(),
        }),
    );
    if let Ok(bearer) = HeaderValue::from_str(&format!("Bearer {token}")) {
        answer.headers_mut().insert(header::AUTHORIZATION, bearer);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;
    use crate::config::types::Embedded;
    use proptest::prelude::*;

    fn registry() -> EmbeddedRegistry {
        let config = Embedded {
            listen: None,
            data: None,
            unhealthy_after: Duration::from_secs(15),
            remove_after: Duration::from_secs(30),
            beat_interval: Duration::from_secs(5),
            max_services: 4,
            max_instances: 8,
            max_metadata_bytes: 256,
            max_connections: 100,
            users_file: None,
        };
        EmbeddedRegistry::new(&config, Clock::new())
    }

    /// Values as clients and attackers send them.
    fn value() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-c]",
            "[0-9]{1,6}",
            "(g@@a|@@a|a@@b@@c|10\\.0\\.0\\.[1-3]|true|FALSE|None|NaN|-1|1e400)",
            Just(r#"{"ip":"10.0.0.1","port":80}"#.to_owned()),
            Just(
                r#"{"preserved.heart.beat.interval":"0","preserved.heart.beat.timeout":"0"}"#
                    .into()
            ),
            ".{0,12}",
        ]
    }

    fn call() -> impl Strategy<Value = (Method, String, Vec<u8>)> {
        let names = prop::sample::select(vec![
            "serviceName",
            "groupName",
            "namespaceId",
            "ip",
            "port",
            "clusterName",
            "weight",
            "enabled",
            "healthy",
            "ephemeral",
            "metadata",
            "beat",
            "pageNo",
            "pageSize",
            "clusters",
            "udpPort",
        ]);
        let params = prop::collection::vec((names, value()), 0..10);
        let method = prop::sample::select(vec!["GET", "POST", "PUT", "PATCH", "DELETE"]);
        let path = prop::sample::select(vec![
            "ns/instance",
            "ns/instance/beat",
            "ns/instance/list",
            "ns/service/list",
            "ns/service",
            "auth/login",
            "ns/operator/metrics",
            "x",
        ]);
        (
            method,
            path,
            params,
            prop::collection::vec(any::<u8>(), 0..20),
        )
            .prop_map(|(method, path, params, body)| {
                let query = form_urlencoded::Serializer::new(String::new())
                    .extend_pairs(params)
                    .finish();
                let method = Method::from_bytes(method.as_bytes()).unwrap();
                (method, format!("/nacos/v1/{path}?{query}"), body)
            })
    }

    proptest! {
        /// Whatever is asked: an answer, no panic, and the bounds hold.
        #[test]
        fn every_call_has_an_answer(calls in prop::collection::vec(call(), 1..30)) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _entered = runtime.enter();
            let registry = registry();
            for (method, uri, body) in calls {
                let request = http::Request::builder().method(method).uri(uri).body(()).unwrap();
                let (head, ()) = request.into_parts();
                let answer = handle(&registry, &head, &body, &Caller::default());
                prop_assert!(answer.status().as_u16() < 500 || answer.status() == 501);
                let (services, instances) = registry.counts();
                prop_assert!(services <= 4 && instances <= 8);
            }
        }
    }
}
