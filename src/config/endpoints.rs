//! The endpoints file of a `kind: file` registry: services with lists of endpoints.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::diagnostic::Diagnostics;
use super::document::{self, Node};
use super::environment::{Environment, Overrides};
use super::parse::endpoint::{endpoints, list_shape};
use super::parse::main_file::version;
use super::parse::reader::{Context, Map};
use super::parse::record::Shape;
use super::substitute::substitute;
use crate::config::diagnostic::Code;
use crate::endpoint::EndpointSet;

/// What an endpoints file says.
#[derive(Clone, Debug, Default)]
pub struct EndpointsFile {
    /// By name of the service.
    pub services: BTreeMap<Arc<str>, EndpointSet>,
    /// What is legal and yet remarkable.
    pub warnings: Diagnostics,
}

/// Reads the bytes of an endpoints file, shown as `name` in messages.
///
/// # Errors
/// Every problem of the file. A file with one is not to be used at all: the last good one stays.
pub fn parse(
    bytes: impl AsRef<[u8]>,
    name: &str,
    environment: &dyn Environment,
) -> Result<EndpointsFile, Diagnostics> {
    let (mut root, mut problems) = document::parse(bytes.as_ref(), name);
    if problems.has_errors() {
        return Err(problems);
    }
    substitute(&mut root, environment, &mut problems);
    let overrides = Overrides::default();
    let context = Context::new(&overrides, Path::new(""));
    let services = services(&context, &root);
    problems.extend(context.finish().0);
    problems.sort();
    if problems.has_errors() {
        return Err(problems);
    }
    Ok(EndpointsFile {
        services,
        warnings: problems,
    })
}

/// Reads a file only for what its readers tell.
pub(super) fn read(context: &Context<'_>, root: &Node) {
    services(context, root);
}

fn services(context: &Context<'_>, root: &Node) -> BTreeMap<Arc<str>, EndpointSet> {
    let map = Map::root(context, root, false);
    version(&map);
    let mut services = BTreeMap::new();
    map.declare("services", || {
        Shape::Named(Box::new(list_shape())).required()
    });
    match map.named("services", list_shape) {
        Some(field) => {
            for (name, field) in field.map().entries() {
                let endpoints = endpoints(&field).unwrap_or_default();
                let set = EndpointSet {
                    endpoints,
                    health_unknown: false,
                };
                services.insert(Arc::from(name), set);
            }
        }
        None => {
            let help = "write `services:` with a list of endpoints for each name";
            context.report(
                Code::MISSING,
                &map.place,
                "the file has no `services`",
                help,
            );
        }
    }
    map.finish();
    services
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_forms() {
        let text = "version: 1\nservices:\n  legacy:\n    - 10.0.3.7:8080\n    - {address: \
                    \"10.0.3.8:8080\", weight: 50, zone: a, enabled: false, metadata: {version: \"2\"}}\n  \
                    empty: []\n";
        let file = parse(text, "endpoints.yaml", &BTreeMap::new()).unwrap();
        let legacy = &file.services["legacy"].endpoints;
        assert_eq!(legacy.len(), 2);
        assert_eq!(legacy[1].weight.thousandths(), 50_000);
        assert!(!legacy[1].enabled && legacy[1].metadata["version"] == "2");
        assert!(file.services["empty"].endpoints.is_empty() && file.warnings.is_empty());
    }

    #[test]
    fn one_problem_refuses_the_file() {
        let text = "services: {a: [10.0.0.1], b: [\"10.0.0.1:1\", {adress: x}]}\n";
        let problems = parse(text, "e.yaml", &BTreeMap::new()).unwrap_err();
        assert_eq!(problems.errors().count(), 3, "{problems}");
    }
}
