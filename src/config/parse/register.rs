//! `app.register`. What depends on the kind of the registry is checked in `config/cross/register.rs`.
//! Next: `config/parse/register/check.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::reader::{Field, Map};
use super::record::Shape;
use super::value::{Span, fixed, integer};
use crate::config::diagnostic::Code;
use crate::config::document::Value;
use crate::config::types::{Advertise, AdvertiseAddress, Hook, Management, Register};
use crate::endpoint::{Address, Weight};

mod check;

pub(super) use check::json_rule;

/// Ports of an app.
const PORTS: std::ops::RangeInclusive<u64> = 1..=65_535;
/// Shorter ones would be work for nobody's gain, longer ones no sign of life.
const HEARTBEAT: Span = Span::between(Duration::from_secs(1), Duration::from_secs(300));

/// The list with where its items stand; those that could not be read are left out.
pub(crate) fn register<'a>(parent: &Map<'a>, app: Option<&str>) -> Vec<(Register, Field<'a>)> {
    parent.declare("register", || {
        Shape::Map.list().default(Vec::<String>::new())
    });
    let items = parent.field("register").and_then(|field| field.items());
    let items = items.unwrap_or_default().into_iter();
    items
        .filter_map(|item| Some((one(&item, app)?, item)))
        .collect()
}

fn one(item: &Field<'_>, app: Option<&str>) -> Option<Register> {
    let map = item.map();
    let missing = |key: &str, help: &str| {
        let message = format!("`{}` has no `{key}`", item.path);
        item.report(Code::MISSING, message, help);
    };
    map.declare("registry", || Shape::Text.required());
    let registry = map.text("registry");
    if map.field("registry").is_none() {
        missing("registry", "write the name of one under `registries`");
    }
    map.declare("service", || Shape::Text.optional());
    let written = map.text("service");
    let service = match (&written, app) {
        (Some(service), _) => Some(Arc::clone(service)),
        (None, Some(name)) if map.field("service").is_none() => Some(Arc::from(name)),
        (None, _) => {
            if map.field("service").is_none() {
                missing(
                    "service",
                    "write the name callers know the app by, or `app.name`",
                );
            }
            None
        }
    };
    let advertise = advertise(&map, item);
    let port = advertise.as_ref().map(|advertise| advertise.port);
    let weight = weight(&map);
    map.declare("metadata", || {
        Shape::Named(Box::new(Shape::Text)).default(serde_json::Map::new())
    });
    let metadata = metadata(&map);
    map.declare("heartbeat_interval", || {
        Shape::Duration(HEARTBEAT).optional()
    });
    let heartbeat = map.field("heartbeat_interval").and_then(|field| {
        field.convert(Code::DURATION, |text| {
            super::value::duration(text, HEARTBEAT)
        })
    });
    let check = check::check(&map, port);
    let management = management(&map, item, service.as_deref());
    let hooks = map.child("hooks");
    let (pre_register, post_register) =
        (hook(&hooks, "pre_register"), hook(&hooks, "post_register"));
    hooks.finish();
    let (group, cluster) = (map.text("group"), map.text("cluster"));
    let (ephemeral, fail_fast) = (
        map.boolean("ephemeral", true),
        map.boolean("fail_fast", false),
    );
    map.finish();
    Some(Register {
        registry: registry?,
        service: service?,
        group,
        cluster,
        advertise: advertise?,
        weight,
        metadata,
        ephemeral,
        heartbeat_interval: heartbeat,
        check,
        management,
        fail_fast,
        pre_register,
        post_register,
    })
}

fn advertise(parent: &Map<'_>, item: &Field<'_>) -> Option<Advertise> {
    parent.declare("advertise", || Shape::Map.required());
    let map = parent.child("advertise");
    map.declare("address", || Shape::Text.default("auto"));
    map.declare("port", || Shape::integer(&PORTS).required());
    let address = match map.field("address") {
        None => Some(AdvertiseAddress::Auto),
        Some(field) => field.convert(Code::ADDRESS, advertise_address),
    };
    let port = map.field("port");
    if port.is_none() {
        let message = format!("`{}` has no `advertise.port`", item.path);
        item.report(
            Code::MISSING,
            message,
            "write `advertise: {port: 8080}`, the port of the app",
        );
    }
    let port = port.and_then(|field| port_of(&field));
    map.finish();
    Some(Advertise {
        address: address?,
        port: port?,
    })
}

fn advertise_address(text: &str) -> Result<AdvertiseAddress, super::value::Wrong> {
    let help = || "write `auto`, an IP address, a host name, or `interface:eth0`".to_owned();
    if text == "auto" {
        return Ok(AdvertiseAddress::Auto);
    }
    if let Some(name) = text.strip_prefix("interface:") {
        return match name {
            "" => Err(("the interface has no name".to_owned(), help())),
            name => Ok(AdvertiseAddress::Interface(Arc::from(name))),
        };
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<std::net::IpAddr>() {
        if ip.is_unspecified() {
            let help = "write the address that callers connect to, or `auto`".to_owned();
            return Err((format!("`{text}` is no address of anybody"), help));
        }
        return Ok(AdvertiseAddress::Fixed(ip.to_string().into()));
    }
    match Address::from_parts(text, 1) {
        Ok(_) => Ok(AdvertiseAddress::Fixed(Arc::from(text))),
        Err(_) if text.contains(':') => {
            let help = "the port goes into `advertise.port`".to_owned();
            Err((format!("`{text}` is no address"), help))
        }
        Err(_) => Err((format!("`{text}` is no address"), help())),
    }
}

fn port_of(field: &Field<'_>) -> Option<u16> {
    let port = field.convert(Code::NUMBER, |text| integer(text, &PORTS))?;
    u16::try_from(port).ok()
}

fn weight(map: &Map<'_>) -> Weight {
    map.declare("weight", || Shape::Decimal { most: 10_000 }.default(1));
    let weight = map.field("weight").and_then(|field| {
        field.convert(Code::NUMBER, |text| {
            match (text.parse::<f64>(), fixed(text, 3)) {
                (Ok(number), Some(_)) if number <= 10_000.0 => Ok(Weight::from_number(number).0),
                (Ok(_) | Err(_), _) => {
                    let help = "a number from 0 to 10000".to_owned();
                    Err((format!("`{text}` is no weight"), help))
                }
            }
        })
    });
    weight.unwrap_or(Weight::ONE)
}

fn metadata(parent: &Map<'_>) -> BTreeMap<String, String> {
    let Some(field) = parent.field("metadata") else {
        return BTreeMap::new();
    };
    let map = field.map();
    let pairs = map.entries();
    pairs
        .filter_map(|(key, field)| Some((key.to_owned(), field.text()?.to_owned())))
        .collect()
}

fn management(parent: &Map<'_>, item: &Field<'_>, service: Option<&str>) -> Option<Management> {
    parent.declare("management", || Shape::Map.optional());
    let written = parent.field("management").is_some();
    let map = parent.child("management");
    map.declare("port", || Shape::integer(&PORTS).required());
    let port = map.field("port");
    if written && port.is_none() {
        let message = format!("`{}.management` has no `port`", item.path);
        map.context.report(
            Code::MISSING,
            &map.place,
            message,
            "write `management: {port: 8081}`",
        );
    }
    let port = port.and_then(|field| port_of(&field));
    let name = map.text("service");
    map.finish();
    Some(Management {
        service: match name {
            Some(name) => name,
            None => format!("{}-management", service?).into(),
        },
        port: port?,
    })
}

/// A list of a program and its arguments, or a URL.
fn hook(map: &Map<'_>, key: &'static str) -> Option<Hook> {
    map.declare(key, || {
        Shape::Pattern("^http://").or(Shape::Text.list()).optional()
    });
    let field = map.field(key)?;
    if let Value::Sequence(_) = &field.node.value {
        return program(&field).map(Hook::Exec);
    }
    field.convert(Code::ADDRESS, |text| match text.parse::<http::Uri>() {
        Ok(uri) if uri.scheme_str() == Some("http") && uri.host().is_some() => {
            Ok(Hook::Http(Arc::from(text)))
        }
        Ok(_) | Err(_) => {
            let help =
                "write `http://127.0.0.1:8080/hook`, or a program as a list: `[sh, -c, ...]`";
            Err((format!("`{text}` is no http URL"), help.to_owned()))
        }
    })
}

/// A program and its arguments.
pub(super) fn program(field: &Field<'_>) -> Option<Vec<String>> {
    let items = field.items()?;
    let words: Vec<String> = items
        .iter()
        .filter_map(|item| item.text().map(str::to_owned))
        .collect();
    if words.first().is_none_or(String::is_empty) {
        field.wrong(
            Code::EMPTY,
            "no program",
            "write it as a list: `[sh, -c, \"...\"]`",
        );
        return None;
    }
    Some(words)
}
