//! The admin API: read only so far. Names in paths are percent-decoded.

use http::{Request, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Serialize;

use super::answer::{Answer, Fault, html, json};
use super::server::Local;
use super::views::{Instances, Registries, UpstreamDetail, Upstreams, hosts};
use super::{Deps, PATIENCE, events, guard, within};
use crate::config::suggest::nearest;
use crate::control::NoAnswer;
use crate::status::{ProcessStatus, UpstreamStatus};

const PAGE: &str = include_str!("page.html");

impl From<NoAnswer> for Fault {
    fn from(error: NoAnswer) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "control_unavailable",
            error.to_string(),
            "it is starting or stopping; try again, then look at the process's log",
        )
    }
}

pub(super) async fn answer<B>(deps: &Deps, request: Request<B>, local: Local) -> Answer {
    let (head, _) = request.into_parts();
    let token_file = deps.settings.borrow().token_file.clone();
    if let Err(fault) = guard::check(&head, local, token_file.as_deref()) {
        return fault.answer();
    }
    let query = form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes());
    let query: Vec<(String, String)> = query.into_owned().collect();
    let answered = match segments(head.uri.path()) {
        Ok(path) => {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            route(deps, &path, &query).await
        }
        Err(fault) => Err(fault),
    };
    answered.unwrap_or_else(|fault| fault.answer())
}

fn segments(path: &str) -> Result<Vec<String>, Fault> {
    let parts = path.split('/').filter(|part| !part.is_empty());
    let decoded = parts.map(|part| percent_decode_str(part).decode_utf8());
    let whole: Result<Vec<String>, _> = decoded.map(|p| p.map(Into::into)).collect();
    whole.map_err(|_| {
        let message = "the path is not UTF-8 after percent-decoding";
        Fault::new(StatusCode::BAD_REQUEST, "bad_path", message, "")
    })
}

async fn route(deps: &Deps, path: &[&str], query: &[(String, String)]) -> Result<Answer, Fault> {
    let (api, rest) = match path {
        [] => return Ok(html(PAGE)),
        ["api", "v1", rest @ ..] => (true, rest),
        _ => (false, path),
    };
    match rest {
        ["status"] if api => ok(&process(deps).await?),
        ["upstreams"] if api => ok(&Upstreams {
            upstreams: process(deps).await?.upstreams,
        }),
        ["upstreams", name] if api => ok(&UpstreamDetail::from(upstream(deps, name).await?)),
        ["upstreams", name, "instances"] if api => {
            let status = upstream(deps, name).await?;
            ok(&Instances {
                upstream: status.summary.name,
                instances: status.instances,
            })
        }
        ["upstreams", name, "instances", address] if api => {
            instance(upstream(deps, name).await?, address)
        }
        ["hosts", name] if api => {
            let all = query
                .iter()
                .any(|(key, value)| key == "state" && value == "any");
            ok(&hosts(upstream(deps, name).await?, all))
        }
        ["events"] if api => ok(&events::find(&deps.journal, query)?),
        ["registries"] if api => ok(&Registries {
            registries: process(deps).await?.registries,
        }),
        ["route"] if api => explain(deps, query).await,
        _ => Err(Fault::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("no such page: /{}", path.join("/")),
            "GET / lists what there is",
        )),
    }
}

fn ok(value: &impl Serialize) -> Result<Answer, Fault> {
    Ok(json(StatusCode::OK, value))
}

async fn process(deps: &Deps) -> Result<ProcessStatus, Fault> {
    Ok(within(PATIENCE, deps.control.process()).await?)
}

async fn upstream(deps: &Deps, name: &str) -> Result<UpstreamStatus, Fault> {
    if let Some(found) = within(PATIENCE, deps.control.upstream(name)).await? {
        return Ok(found);
    }
    let known = process(deps).await?.upstreams;
    let hint = match nearest(name, known.iter().map(|u| &*u.name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`outrigger upstreams` lists them; a discovered one is there after its first \
                 request"
            .to_owned(),
    };
    let message = format!("no upstream is called `{name}`");
    Err(Fault::new(
        StatusCode::NOT_FOUND,
        "unknown_upstream",
        message,
        hint,
    ))
}

fn instance(status: UpstreamStatus, address: &str) -> Result<Answer, Fault> {
    let known = status.instances.iter().map(|i| &*i.instance);
    let hint = nearest(address, known).map(|near| format!("did you mean `{near}`?"));
    let mut instances = status.instances.into_iter();
    match instances.find(|i| i.instance == address) {
        Some(found) => ok(&found),
        None => Err(Fault::new(
            StatusCode::NOT_FOUND,
            "unknown_instance",
            format!("`{}` has no instance `{address}`", status.summary.name),
            hint.unwrap_or_else(|| "instances are written ip:port".to_owned()),
        )),
    }
}

async fn explain(deps: &Deps, query: &[(String, String)]) -> Result<Answer, Fault> {
    let bad =
        |message: &str, hint: &str| Fault::new(StatusCode::BAD_REQUEST, "bad_query", message, hint);
    let Some((_, url)) = query.iter().find(|(key, _)| key == "url") else {
        let hint = "/api/v1/route?url=http%3A%2F%2Forders%2Fv1&header=x-a%3A%20b";
        return Err(bad("`url` is missing", hint));
    };
    let lines = query.iter().filter(|(key, _)| key == "header");
    let headers = lines.map(|(_, line)| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    });
    let Some(headers) = headers.collect::<Option<Vec<_>>>() else {
        return Err(bad("a header has no colon", "write it `name: value`"));
    };
    ok(&within(PATIENCE, deps.control.route(url.clone(), headers)).await?)
}
