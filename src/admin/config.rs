//! Pages about the configuration and the ejection policies in force. They are answered here from the
//! configuration that control applied last; nothing is asked of control, nothing is changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;

use super::answer::{Answer, Fault, ok};
use super::call::Call;
use super::routes::{Param, Route, Verb};
use super::views::{ConfigView, DiagnosticView, Validation};
use crate::config::effective::{effective, policies};
use crate::config::load::policy_text;
use crate::config::suggest::nearest;
use crate::config::types::Config;

pub(super) const ROUTES: &[Route] = &[
    Route::get(
        "/api/v1/config",
        "every key in force, with its origin; secrets are ***",
        |call| {
            Box::pin(async move {
                let config = running(&call);
                ok(&ConfigView {
                    settings: config.inputs.settings(),
                })
            })
        },
    ),
    Route::get(
        "/api/v1/policies",
        "the ejection policies in force, and files that were rejected",
        |call| Box::pin(async move { ok(&policies(&running(&call))) }),
    ),
    Route::get(
        "/api/v1/policies/effective/{u}",
        "the policy of an upstream, why it holds, how many instances may be out",
        |call| Box::pin(one_policy(call)),
    ),
    Route::write(
        Verb::Post,
        "/api/v1/policies:validate",
        "reads a policy file; applies nothing",
        |call| Box::pin(validate(call)),
    )
    .body(&[
        Param::new("content", "the text of the file"),
        Param::new("name", "what to call it in messages"),
    ]),
];

/// The configuration that control applied last.
pub(super) fn running(call: &Call) -> Arc<Config> {
    Arc::clone(&call.deps.settings.borrow().config)
}

async fn one_policy(call: Call) -> Result<Answer, Fault> {
    let config = running(&call);
    let name = call.name("u");
    // A name that is not listed may be discovered; without that it is a slip.
    if !config.services.contains_key(name) && !config.auto_discover {
        let near = nearest(name, config.services.keys().map(|name| &**name));
        let hint = near.map(|near| format!("did you mean `{near}`?"));
        return Err(Fault::new(
            StatusCode::NOT_FOUND,
            "unknown_upstream",
            format!("no service is called `{name}`, and `auto_discover` is false"),
            hint.unwrap_or_else(|| "`outrigger upstreams` lists them".to_owned()),
        ));
    }
    ok(&effective(&config, name))
}

/// A policy file as text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyText {
    content: String,
    name: Option<String>,
}

async fn validate(call: Call) -> Result<Answer, Fault> {
    let text: PolicyText = call.json()?;
    let name = text.name.unwrap_or_else(|| "policies.yaml".to_owned());
    let config = running(&call);
    // No variable of the process: a message could carry its value out.
    let nothing = BTreeMap::<String, String>::new();
    let (names, problems) = policy_text(&text.content, &name, &config.policies, &nothing);
    ok(&Validation {
        valid: !problems.has_errors(),
        policies: names,
        diagnostics: problems.iter().map(DiagnosticView::from).collect(),
    })
}
