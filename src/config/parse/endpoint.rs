//! A list of endpoints, the same in `services.NAME.endpoints` and in an endpoints file: items are
//! `host:port` or a map.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::reader::Field;
use super::record::{HOST_PORT, Shape};
use super::value::fixed;
use crate::config::diagnostic::Code;
use crate::config::document::Value;
use crate::endpoint::address::AddressError;
use crate::endpoint::{Address, Endpoint, Weight};

/// Reads the list; an address that comes twice holds where it stands first.
pub(crate) fn endpoints(field: &Field<'_>) -> Option<Arc<[Endpoint]>> {
    let mut seen = BTreeSet::new();
    let mut endpoints = Vec::new();
    for item in field.items()? {
        let Some(endpoint) = endpoint(&item) else {
            continue;
        };
        if seen.insert(endpoint.address.clone()) {
            endpoints.push(endpoint);
        } else {
            let message = format!("`{}` stands twice in `{}`", endpoint.address, field.path);
            item.report(Code::SAME_ENDPOINT, message, "the first one holds");
        }
    }
    Some(endpoints.into())
}

/// Items are `host:port` or a map.
pub(crate) fn list_shape() -> Shape {
    HOST_PORT.or(Shape::Map).list()
}

fn endpoint(item: &Field<'_>) -> Option<Endpoint> {
    if !matches!(item.node.value, Value::Mapping(_)) {
        return address(item).map(Endpoint::new);
    }
    let map = item.map();
    map.declare("address", || HOST_PORT.required());
    let field = map.field("address");
    if field.is_none() {
        let message = format!("`{}` has no `address`", item.path);
        item.report(Code::MISSING, message, "write `address: \"10.0.0.1:8080\"`");
    }
    let endpoint = field.as_ref().and_then(address).map(Endpoint::new);
    map.declare("weight", || Shape::Decimal { most: 10_000 }.default(1));
    let weight = map.field("weight").and_then(|field| {
        field.convert(Code::NUMBER, |text| {
            match (text.parse::<f64>(), fixed(text, 3)) {
                (Ok(number), Some(_)) if number <= 10_000.0 => Ok(Weight::from_number(number).0),
                _ => Err((
                    format!("`{text}` is no weight"),
                    "a number from 0 to 10000".to_owned(),
                )),
            }
        })
    });
    let zone = map.text("zone");
    let priority = map.integer("priority", 0, &(0..=65_535));
    let enabled = map.boolean("enabled", true);
    let metadata = map
        .named("metadata", || Shape::Text)
        .map(|field| metadata(&field))
        .unwrap_or_default();
    map.finish();
    Some(Endpoint {
        weight: weight.unwrap_or(Weight::ONE),
        zone,
        priority,
        enabled,
        metadata: Arc::new(metadata),
        ..endpoint?
    })
}

fn metadata(field: &Field<'_>) -> BTreeMap<String, String> {
    let entries = field.map();
    entries
        .entries()
        .filter_map(|(key, value)| Some((key.to_owned(), value.text()?.to_owned())))
        .collect()
}

fn address(field: &Field<'_>) -> Option<Address> {
    field.convert(Code::ADDRESS, |text| {
        let example = || "write `host:port`, as in `10.0.0.1:8080` or `[::1]:8080`".to_owned();
        if text.contains("://") {
            return Err((format!("`{text}` is a URL"), example()));
        }
        Address::parse(text).map_err(|error| match error {
            AddressError::Port(_) => (format!("`{text}` has no port from 1 to 65535"), example()),
            AddressError::Host(_) => (format!("`{text}` has no usable host"), example()),
        })
    })
}
