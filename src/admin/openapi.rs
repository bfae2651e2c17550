//! `GET /api/v1/openapi.json`, made from the tables of `admin/routes.rs`: what is there is in it, and
//! nothing else.

use serde_json::{Map, Value, json};

use super::answer::ok;
use super::routes::{self, Field, Param, Route, Verb};

pub(super) const ROUTES: &[Route] = &[Route::get(
    "/api/v1/openapi.json",
    "this API for programs, OpenAPI 3.1",
    |_| Box::pin(async { ok(&document(routes::all())) }),
)];

/// The document of these pages.
fn document<'a>(all: impl Iterator<Item = &'a Route>) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in all {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Some(path) = path.as_object_mut() {
            let method = route.method.as_str().to_ascii_lowercase();
            path.insert(method, operation(route));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Outrigger admin API",
            "version": crate::version::VERSION,
            "description": "Served by the admin listener. Writes need `x-outrigger-admin: 1`.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": problem()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        // The token is asked for only where `admin.token_file` is set.
        "security": [{}, {"token": []}],
    })
}

fn operation(route: &Route) -> Value {
    let mut parameters: Vec<Value> = routes::placeholders(route.path)
        .map(|name| {
            json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
        })
        .collect();
    parameters.extend(route.query.iter().map(|param| {
        json!({
            "name": param.name, "in": "query", "schema": schema(param),
        })
    }));
    if route.method != Verb::Get {
        parameters.push(json!({
            "name": "x-outrigger-admin", "in": "header", "required": true,
            "schema": {"const": "1"},
        }));
    }
    let content = json!({route.content: {"schema": {"type": route.shape()}}});
    let refused = json!({"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}});
    let mut operation = Map::new();
    operation.insert("summary".to_owned(), json!(route.about));
    operation.insert("operationId".to_owned(), json!(id(route)));
    operation.insert("parameters".to_owned(), json!(parameters));
    if !route.body.is_empty() {
        let fields = route.body.iter().map(|p| (p.name.to_owned(), schema(p)));
        let fields: Map<String, Value> = fields.collect();
        let schema = json!({
            "type": "object", "properties": fields, "additionalProperties": false,
        });
        let body = json!({"content": {"application/json": {"schema": schema}}});
        operation.insert("requestBody".to_owned(), body);
    }
    let responses = json!({
        "200": {"description": "done", "content": content},
        "default": {"description": "why not, and what to do", "content": refused},
    });
    operation.insert("responses".to_owned(), responses);
    Value::Object(operation)
}

fn schema(param: &Param) -> Value {
    let kind = match param.field {
        Field::Text => "string",
        Field::Number => "integer",
        Field::Switch => "boolean",
    };
    json!({"type": kind, "description": param.about})
}

fn problem() -> Value {
    json!({
        "type": "object",
        "required": ["error", "message", "hint"],
        "properties": {
            "error": {"type": "string", "description": "a word for programs"},
            "message": {"type": "string", "description": "what happened"},
            "hint": {"type": "string", "description": "what to do; may be empty"},
        },
    })
}

/// `get_upstreams_u_instances`.
fn id(route: &Route) -> String {
    let path = route.path.strip_prefix("/api/v1").unwrap_or(route.path);
    let mut id = route.method.as_str().to_ascii_lowercase();
    for word in path.split(|c: char| !c.is_ascii_alphanumeric()) {
        if !word.is_empty() {
            id.push('_');
            id.push_str(word);
        }
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_described_once_and_wholly() {
        let document = document(routes::all());
        let mut ids = std::collections::BTreeSet::new();
        for route in routes::all() {
            let method = route.method.as_str().to_ascii_lowercase();
            let found = &document["paths"][route.path][method];
            assert_eq!(found["summary"], route.about, "{}", route.path);
            assert!(ids.insert(found["operationId"].to_string()), "{found}");
            let named = found["parameters"].as_array().unwrap();
            let in_path = named.iter().filter(|p| p["in"] == "path").count();
            assert_eq!(in_path, route.path.matches('{').count(), "{}", route.path);
        }
        let described: usize = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .map(|path| path.as_object().unwrap().len())
            .sum();
        assert_eq!(described, routes::all().count());
    }
}
