//! The Nacos v1 open API: which call does what. Reads are open; writes pass `registry/guard.rs`.
//! Next: `registry/naming.rs` (instances and services), `registry/answer.rs` (shapes and errors).

use http::request::Parts;
use http::{Method, StatusCode};
use serde_json::json;

use super::answer::{self, Answer, Fault};
use super::params::Params;
use super::push::Caller;
use super::{EmbeddedRegistry, guard, naming};

/// The release whose HTTP API this is: clients that look take HTTP, not gRPC.
const COMPATIBLE_WITH: &str = "1.4.8";

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
    let call = path.strip_prefix("/nacos/v1/").ok_or_else(unknown)?;
    match (method.as_str(), call.trim_end_matches('/')) {
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
        ("GET", "console/server/state") => Ok(state()),
        ("POST", "auth/login" | "auth/users/login") => Ok(login(&params)),
        _ => Err(unknown()),
    }
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

fn state() -> Answer {
    answer::json(
        StatusCode::OK,
        &json!({
            "version": COMPATIBLE_WITH,
            "standalone_mode": "standalone",
            "startup_mode": "standalone",
            "function_mode": "naming",
            "auth_enabled": "false",
            "outrigger_version": env!("CARGO_PKG_VERSION"),
        }),
    )
}

/// There are no users: whoever logs in is let in.
fn login(params: &Params) -> Answer {
    answer::json(
        StatusCode::OK,
        &json!({
            "accessToken": "AUTH_DISABLED",
            "tokenTtl": 18000,
            "globalAdmin": false,
            "username": params.get("username").unwrap_or_default(),
        }),
    )
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
