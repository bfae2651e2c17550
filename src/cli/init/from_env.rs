//! What the variables of other products tell about an app: its name and its registry. Files refer to
//! the variables; their values, secrets above all, are not copied.

use crate::config::environment::Environment;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The variable with the app's name.
    pub(super) name: Option<String>,
    /// Entry of `registries`, called `nacos`.
    pub(super) registry: Option<String>,
    /// What was seen and cannot be used, and what was used.
    pub(super) notes: Vec<String>,
}

const NAMES: [&str; 4] = [
    "APP_NAME",
    "SPRING_APPLICATION_NAME",
    "DUBBO_APPLICATION_NAME",
    "OTEL_SERVICE_NAME",
];
const NACOS_SERVERS: [&str; 4] = [
    "SPRING_CLOUD_NACOS_DISCOVERY_SERVER_ADDR",
    "SPRING_CLOUD_NACOS_SERVER_ADDR",
    "NACOS_SERVER_ADDR",
    "NACOS_ADDR",
];
const NACOS_NAMESPACES: [&str; 2] = ["SPRING_CLOUD_NACOS_DISCOVERY_NAMESPACE", "NACOS_NAMESPACE"];
const NACOS_GROUPS: [&str; 2] = ["SPRING_CLOUD_NACOS_DISCOVERY_GROUP", "NACOS_GROUP"];
const NACOS_USERS: [&str; 3] = [
    "SPRING_CLOUD_NACOS_DISCOVERY_USERNAME",
    "SPRING_CLOUD_NACOS_USERNAME",
    "NACOS_USERNAME",
];
const NACOS_PASSWORDS: [&str; 3] = [
    "SPRING_CLOUD_NACOS_DISCOVERY_PASSWORD",
    "SPRING_CLOUD_NACOS_PASSWORD",
    "NACOS_PASSWORD",
];
/// Registries that this version cannot ask.
const OTHERS: [(&str, &str); 5] = [
    ("EUREKA_CLIENT_SERVICEURL_DEFAULTZONE", "Eureka"),
    ("EUREKA_CLIENT_SERVICE_URL_DEFAULTZONE", "Eureka"),
    ("CONSUL_HTTP_ADDR", "Consul"),
    ("SPRING_CLOUD_CONSUL_HOST", "Consul"),
    ("SPRING_CLOUD_ZOOKEEPER_CONNECT_STRING", "ZooKeeper"),
];

/// Looks at the variables.
pub(super) fn look(env: &dyn Environment) -> Found {
    let set = |names: &[&'static str]| {
        let found = names.iter().find(|name| {
            let value = env.variable(name);
            value.is_some_and(|value| !value.trim().is_empty())
        });
        found.copied()
    };
    let mut notes = Vec::new();
    let name = set(&NAMES);
    notes.extend(name.map(|name| format!("app.name comes from ${name}")));
    let registry = set(&NACOS_SERVERS).map(|variable| {
        notes.push(format!("Nacos was found in ${variable}"));
        let value = env.variable(variable).unwrap_or_default();
        let mut text = format!(
            "  nacos:\n    kind: nacos\n    servers: [{}]\n",
            servers(variable, &value)
        );
        let keys = [
            ("namespace", set(&NACOS_NAMESPACES)),
            ("group", set(&NACOS_GROUPS)),
            ("username", set(&NACOS_USERS)),
            // A variable is no inline secret.
            ("password", set(&NACOS_PASSWORDS)),
        ];
        for (key, variable) in keys {
            if let Some(variable) = variable {
                text.push_str(&format!("    {key}: ${{{variable}:-}}\n"));
            }
        }
        text
    });
    for (variable, product) in OTHERS {
        if set(&[variable]).is_some() {
            notes.push(format!(
                "{product} was found in ${variable}; this version cannot ask it yet"
            ));
        }
    }
    if name.is_none() && registry.is_none() {
        notes.push("no variable of an app or a registry was found".to_owned());
    }
    Found {
        name: name.map(str::to_owned),
        registry,
        notes,
    }
}

/// The variable as it stands where it holds one server; several in one text are written out, since a
/// variable is one value.
fn servers(variable: &str, value: &str) -> String {
    let bare = |server: &str| {
        let server = server.trim();
        let server = server.strip_prefix("http://").unwrap_or(server);
        server.trim_end_matches('/').to_owned()
    };
    if !value.contains(',') && bare(value) == value {
        return format!("\"${{{variable}}}\"");
    }
    let all = value
        .split(',')
        .map(bare)
        .filter(|server| !server.is_empty());
    let all: Vec<String> = all.map(|server| format!("{server:?}")).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn secrets_stay_in_their_variables() {
        let env: BTreeMap<String, String> = [
            ("NACOS_SERVER_ADDR", "http://a:8848/,b:8848"),
            ("NACOS_PASSWORD", "hunter2"),
            ("SPRING_APPLICATION_NAME", "web"),
            ("CONSUL_HTTP_ADDR", "c:8500"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
        let found = look(&env);
        let registry = found.registry.unwrap();
        assert!(
            registry.contains("servers: [\"a:8848\", \"b:8848\"]"),
            "{registry}"
        );
        assert!(
            registry.contains("password: ${NACOS_PASSWORD:-}"),
            "{registry}"
        );
        assert!(!registry.contains("hunter2"));
        assert_eq!(found.name.as_deref(), Some("SPRING_APPLICATION_NAME"));
        assert!(found.notes.iter().any(|note| note.contains("Consul")));
    }
}
