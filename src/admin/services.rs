//! `GET /api/v1/services`: what can be asked for, by name.

use super::answer::{Answer, Fault, ok};
use super::call::Call;
use super::routes::{Param, Route};
use super::views::{ServiceName, Services};
use super::{PATIENCE, within};

pub(super) const ROUTES: &[Route] = &[Route::get(
    "/api/v1/services",
    "names that the registries and the configuration know",
    |call| Box::pin(list(call)),
)
.query(&[Param::new(
    "pattern",
    "only names with this in them; * stands for anything",
)])];

async fn list(call: Call) -> Result<Answer, Fault> {
    let control = &call.deps.control;
    let questions = async {
        let names = control.names().await?;
        Ok((control.process().await?.upstreams, names))
    };
    let (upstreams, registries) = within(PATIENCE, questions).await?;
    let pattern = call.value("pattern").unwrap_or_default();
    let mut services: Vec<ServiceName> = upstreams
        .into_iter()
        .map(|upstream| ServiceName {
            instances: Some(upstream.listed),
            upstream: Some(upstream.name.clone()),
            name: upstream.name,
            source: upstream.source,
        })
        .collect();
    let mut problems = Vec::new();
    for (registry, names) in registries {
        match names {
            Ok(names) => {
                let known = services.len();
                for (name, instances) in names {
                    let bare = name.strip_prefix("DEFAULT_GROUP@@").unwrap_or(&name);
                    let same = |s: &ServiceName| {
                        s.source == registry && (s.name == name || s.name == bare)
                    };
                    if !services.iter().take(known).any(same) {
                        services.push(ServiceName {
                            name,
                            source: registry.clone(),
                            upstream: None,
                            instances,
                        });
                    }
                }
            }
            Err(problem) => problems.push(format!("registry {registry}: {problem}")),
        }
    }
    services.retain(|service| matches(pattern, &service.name));
    services.sort_by(|a, b| (&a.name, &a.source).cmp(&(&b.name, &b.source)));
    ok(&Services { services, problems })
}

/// Whether `name` has the parts of the pattern in their order, in any case of letters.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.to_ascii_lowercase(), name.to_ascii_lowercase());
    let mut rest = &*name;
    for part in pattern.split('*') {
        let Some((_, after)) = rest.split_once(part) else {
            return part.is_empty();
        };
        rest = after;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_name_parts_in_their_order() {
        for good in ["", "order", "ORDERS", "o*s", "*", "order*", "*svc*orders"] {
            assert!(matches(good, "svc-Orders"), "{good}");
        }
        for bad in ["orders*svc", "x", "o*x"] {
            assert!(!matches(bad, "svc-orders"), "{bad}");
        }
    }
}
