//! The unary calls of Nacos's gRPC protocol. Every call has a message as its answer; what is refused is
//! told in the message, with gRPC status 0, as Nacos does.

use serde_json::{Map, Value, json};

use super::super::answer::{self, List};
use super::super::clients::Client;
use super::super::model::{
    DEFAULT_GROUP, DEFAULT_NAMESPACE, InstanceKey, Refusal, Registration, ServiceKey,
};
use super::super::session::Topic;
use super::super::users::Credentials;
use super::super::{EmbeddedRegistry, naming, params};
use crate::protocol::nacos::Payload;
use crate::protocol::nacos::message::{self, Denied, Instance, Naming, code, kind};

type Fields = Map<String, Value>;

/// Answers one call.
pub(super) fn answer(registry: &EmbeddedRegistry, client: &Client, call: &Payload) -> Payload {
    client.heard(registry.0.clock.now());
    let id = message::request_id(&call.body);
    match dispatch(registry, client, call) {
        Ok(fields) => message::done(&call.kind, id.as_ref(), fields),
        // Nacos tells these by the general message, the others by the response of the call.
        Err(denied) if matches!(denied.code, code::UNREGISTERED | code::NO_HANDLER) => {
            message::denied(kind::ERROR, &denied)
        }
        Err(denied) => message::denied(kind::response(&call.kind), &denied),
    }
}

fn dispatch(
    registry: &EmbeddedRegistry,
    client: &Client,
    call: &Payload,
) -> Result<Fields, Denied> {
    if call.kind == kind::SERVER_CHECK {
        return Ok(fields(json!({
            "connectionId": client.id,
            "supportAbilityNegotiation": true,
        })));
    }
    let handler: fn(&EmbeddedRegistry, &Client, Naming) -> Result<Fields, Denied> =
        match call.kind.as_str() {
            kind::HEALTH_CHECK => |_, _, _| Ok(Fields::new()),
            kind::INSTANCE => instance,
            kind::PERSISTENT_INSTANCE => persistent_instance,
            kind::BATCH_INSTANCE => batch,
            kind::SUBSCRIBE => subscribe,
            kind::QUERY => query,
            kind::LIST => list,
            other => {
                let what = format!("no handler for {other}");
                return Err(Denied::new(code::NO_HANDLER, what));
            }
        };
    if !client.is_set_up() {
        let what = "Connection is unregistered.";
        return Err(Denied::new(code::UNREGISTERED, what));
    }
    if call.kind == kind::HEALTH_CHECK {
        return Ok(Fields::new());
    }
    let bearer = || call.header("Authorization")?.strip_prefix("Bearer ");
    let shown = Credentials {
        token: call.header("accessToken").or_else(bearer),
        username: call.header("username"),
        password: call.header("password"),
    };
    let checked = registry
        .0
        .users
        .check(shown, Some(client.from), registry.0.clock.now());
    checked.map_err(|denial| Denied::new(code::NO_RIGHT, denial.to_string()))?;
    let naming: Naming = serde_json::from_slice(&call.body).map_err(|error| {
        let what = format!("unreadable {}: {error}", call.kind);
        Denied::new(code::INVALID_PARAM, what)
    })?;
    handler(registry, client, naming)
}

fn instance(registry: &EmbeddedRegistry, client: &Client, call: Naming) -> Result<Fields, Denied> {
    let service = service(&call)?;
    let action = call.action.unwrap_or_default();
    match action.as_str() {
        message::REGISTER => {
            let one = registration(&call.instance.ok_or_else(|| missing("instance"))?)?;
            publish(registry, client, &service, vec![one])?;
        }
        message::DEREGISTER => {
            registry.with(|table, now| table.withdraw(&service, client.number, now));
            client.note_published(&service, false);
        }
        other => return Err(Denied::new(code::INVALID_PARAM, unknown_action(other))),
    }
    Ok(fields(json!({"type": action})))
}

/// One that lives without its connection, until it is deregistered.
fn persistent_instance(
    registry: &EmbeddedRegistry,
    _: &Client,
    call: Naming,
) -> Result<Fields, Denied> {
    let service = service(&call)?;
    let mut one = registration(&call.instance.ok_or_else(|| missing("instance"))?)?;
    one.ephemeral = false;
    let action = call.action.unwrap_or_default();
    match action.as_str() {
        message::REGISTER => registry.register(&service, one).map_err(refused)?,
        message::DEREGISTER => {
            registry.deregister(&service, one.key.target(), false);
        }
        other => return Err(Denied::new(code::INVALID_PARAM, unknown_action(other))),
    }
    Ok(fields(json!({"type": action})))
}

fn batch(registry: &EmbeddedRegistry, client: &Client, call: Naming) -> Result<Fields, Denied> {
    let service = service(&call)?;
    let action = call.action.unwrap_or_default();
    if action != message::BATCH_REGISTER {
        return Err(Denied::new(code::INVALID_PARAM, unknown_action(&action)));
    }
    let all = call.instances.unwrap_or_default();
    let all = all.iter().map(registration).collect::<Result<_, _>>()?;
    publish(registry, client, &service, all)?;
    Ok(fields(json!({"type": action})))
}

fn subscribe(registry: &EmbeddedRegistry, client: &Client, call: Naming) -> Result<Fields, Denied> {
    let service = service(&call)?;
    let clusters = clusters(call.clusters)?;
    let topic = Topic {
        service: service.clone(),
        clusters: clusters.clone(),
    };
    if call.subscribe.unwrap_or(true) {
        if !registry.0.clients.subscribe(client, topic) {
            let what = "too many subscriptions";
            return Err(Denied::new(code::OVER_THRESHOLD, what));
        }
    } else {
        registry.0.clients.unsubscribe(client, &topic);
    }
    let info = service_info(registry, &service, &clusters, false);
    Ok(fields(json!({"serviceInfo": info})))
}

fn query(registry: &EmbeddedRegistry, _: &Client, call: Naming) -> Result<Fields, Denied> {
    let service = service(&call)?;
    let clusters = clusters(call.cluster)?;
    let healthy_only = call.healthy_only.unwrap_or(false);
    let info = service_info(registry, &service, &clusters, healthy_only);
    Ok(fields(json!({"serviceInfo": info})))
}

fn list(registry: &EmbeddedRegistry, _: &Client, call: Naming) -> Result<Fields, Denied> {
    let given = |text: Option<String>, default: &str| {
        text.filter(|text| !text.is_empty())
            .unwrap_or_else(|| default.to_owned())
    };
    let namespace = given(call.namespace, DEFAULT_NAMESPACE);
    let names = registry.names(&namespace, &given(call.group_name, DEFAULT_GROUP));
    let size = usize::try_from(call.page_size.unwrap_or(20)).unwrap_or(usize::MAX);
    let page = usize::try_from(call.page_no.unwrap_or(1)).unwrap_or(usize::MAX);
    let first = page.saturating_sub(1).saturating_mul(size);
    let page: Vec<&str> = names.iter().skip(first).take(size).map(|n| &**n).collect();
    Ok(fields(json!({"count": names.len(), "serviceNames": page})))
}

/// What is said of a service over gRPC: its bare name.
pub(super) fn service_info(
    registry: &EmbeddedRegistry,
    service: &ServiceKey,
    clusters: &str,
    healthy_only: bool,
) -> List {
    let mut list = naming::listed(registry, service, clusters, healthy_only);
    list.name = service.name.to_string();
    list.cache_millis = naming::PUSHED_CACHE_MILLIS;
    list
}

fn publish(
    registry: &EmbeddedRegistry,
    client: &Client,
    service: &ServiceKey,
    all: Vec<Registration>,
) -> Result<(), Denied> {
    let some = !all.is_empty();
    let published = registry.with(|table, now| table.publish(service, client.number, all, now));
    published.map_err(refused)?;
    client.note_published(service, some);
    Ok(())
}

fn service(call: &Naming) -> Result<ServiceKey, Denied> {
    let name = call.service_name.as_deref().unwrap_or_default();
    ServiceKey::new(call.namespace.as_deref(), call.group_name.as_deref(), name).map_err(refused)
}

/// A list of clusters with commas, of bounded length.
fn clusters(given: Option<String>) -> Result<String, Denied> {
    let clusters = given.unwrap_or_default();
    match clusters.len() <= params::MAX_CLUSTERS {
        true => Ok(clusters),
        false => {
            let what = format!("clusters are longer than {} bytes", params::MAX_CLUSTERS);
            Err(Denied::new(code::INVALID_PARAM, what))
        }
    }
}

fn registration(instance: &Instance) -> Result<Registration, Denied> {
    let ip = instance.ip.as_deref().ok_or_else(|| missing("ip"))?;
    let port = instance.port.ok_or_else(|| missing("port"))?;
    let port = u16::try_from(port).map_err(|_| {
        let what = format!("Param 'port' is illegal, {port} is not from 0 to 65535");
        Denied::new(code::INVALID_PARAM, what)
    })?;
    let key = InstanceKey::new(ip, port, instance.cluster_name.as_deref()).map_err(refused)?;
    let mut one = Registration::new(key);
    if instance.weight.is_some() {
        let weight = params::weight(instance.weight);
        one.weight = weight.map_err(|e| Denied::new(code::INVALID_PARAM, e.to_string()))?;
    }
    one.healthy = instance.healthy.unwrap_or(true);
    one.enabled = instance.enabled.unwrap_or(true);
    one.metadata = instance.metadata_texts().into();
    Ok(one)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refused(refusal: Refusal) -> Denied {
    let code = match refusal {
        Refusal::TooManyInstances(_) | Refusal::TooManyServices(_) => code::OVER_THRESHOLD,
        Refusal::Intervals
        | Refusal::Metadata { .. }
        | Refusal::Name { .. }
        | Refusal::NoInstance
        | Refusal::NoService { .. }
        | Refusal::Weight => code::INVALID_PARAM,
    };
    Denied::new(code, refusal.to_string())
}

fn missing(name: &str) -> Denied {
    Denied::new(code::INVALID_PARAM, format!("Param '{name}' is required."))
}

fn unknown_action(action: &str) -> String {
    format!("Unsupported operation type `{action}`")
}

fn fields(value: Value) -> Fields {
    serde_json::from_value(value).unwrap_or_default()
}

// Requests of the server have `headers`, empty as they are: the Rust client refuses those without.

/// The message that tells a subscriber of a change.
pub(super) fn notification(registry: &EmbeddedRegistry, id: u64, topic: &Topic) -> Payload {
    let service = &topic.service;
    let body = json!({
        "headers": {},
        "requestId": id.to_string(),
        "module": "naming",
        "namespace": &*service.namespace,
        "serviceName": &*service.name,
        "groupName": &*service.group,
        "serviceInfo": service_info(registry, service, &topic.clusters, false),
    });
    Payload::new(kind::NOTIFY, body.to_string())
}

/// The message that asks a client whether it is there.
pub(super) fn detection(id: u64) -> Payload {
    let body = json!({"headers": {}, "requestId": id.to_string(), "module": "internal"});
    Payload::new(kind::DETECTION, body.to_string())
}

/// What a client's set-up is answered with, if it wants an answer.
pub(super) fn set_up_ack(set_up: &Payload) -> Option<Payload> {
    let body: Value = serde_json::from_slice(&set_up.body).ok()?;
    body.get("abilityTable").filter(|table| !table.is_null())?;
    let ack = json!({
        "headers": {},
        "requestId": answer::epoch_millis().to_string(),
        "module": "internal",
        "abilityTable": {"supportPersistentInstanceByGrpc": true},
    });
    Some(Payload::new(kind::SETUP_ACK, ack.to_string()))
}
