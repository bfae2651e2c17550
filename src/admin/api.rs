//! The admin API: who comes in is checked by `admin/guard.rs`, the page is found by
//! `admin/routes.rs`; here are the pages that show what control knows.

use bytes::Bytes;
use http::{Request, StatusCode};
use hyper::body::Body;
use tokio::sync::watch;

use super::answer::{Answer, Fault, html, ok};
use super::call::{Call, read_body};
use super::routes::{self, Param, Route};
use super::server::Local;
use super::views::{Instances, Registries, UpstreamDetail, Upstreams, hosts};
use super::{Deps, PATIENCE, guard, resolve, within};
use crate::config::suggest::nearest;
use crate::control::NoAnswer;
use crate::status::{ProcessStatus, UpstreamStatus};

pub(super) const ROUTES: &[Route] = &[
    Route::get("/", "this list", |_| {
        Box::pin(async { Ok(html(routes::page())) })
    })
    .answers("text/html"),
    Route::get(
        "/api/v1/status",
        "the process, its configuration, readiness",
        |call| Box::pin(async move { ok(&process(&call.deps).await?) }),
    ),
    Route::get("/api/v1/upstreams", "all upstreams, briefly", |call| {
        Box::pin(upstreams(call))
    }),
    Route::get(
        "/api/v1/upstreams/{u}",
        "one upstream with its instances",
        |call| Box::pin(one_upstream(call)),
    ),
    Route::get(
        "/api/v1/upstreams/{u}/instances",
        "its instances, each with its why",
        |call| Box::pin(instances(call)),
    ),
    Route::get(
        "/api/v1/upstreams/{u}/instances/{i}",
        "one instance, ip:port or a part of it",
        |call| Box::pin(one_instance(call)),
    ),
    Route::get(
        "/api/v1/hosts/{service}",
        "instances to be used, for apps that want discovery only",
        |call| Box::pin(host_list(call)),
    )
    .query(&[Param::new("state", "any: those that are out too")]),
    Route::get("/api/v1/registries", "where instances come from", |call| {
        Box::pin(registries(call))
    }),
    Route::get(
        "/api/v1/route",
        "which rule and upstream a request would find",
        |call| Box::pin(explain(call)),
    )
    .query(&[
        Param::new("url", "as an app would write it"),
        Param::new("method", "GET where it is not given"),
        Param::new("header", "a line `name: value`; may be repeated"),
    ]),
];

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

pub(super) async fn answer<B>(
    deps: Deps,
    request: Request<B>,
    local: Local,
    stop: watch::Receiver<bool>,
) -> Answer
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let answered = dispatch(deps, request, local, stop).await;
    answered.unwrap_or_else(|fault| fault.answer())
}

async fn dispatch<B>(
    deps: Deps,
    request: Request<B>,
    local: Local,
    stop: watch::Receiver<bool>,
) -> Result<Answer, Fault>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    let token_file = deps.settings.borrow().token_file.clone();
    guard::check(&head, local, token_file.as_deref())?;
    let (route, names) = routes::find(&head.method, head.uri.path())?;
    let query = routes::query(route, head.uri.query().unwrap_or_default())?;
    let body = match guard::is_write(&head.method) {
        true => read_body(&head, body).await?,
        false => Bytes::new(),
    };
    let call = Call {
        deps,
        names,
        query,
        headers: head.headers,
        body,
        stop,
    };
    (route.handler)(call).await
}

pub(super) async fn process(deps: &Deps) -> Result<ProcessStatus, Fault> {
    Ok(within(PATIENCE, deps.control.process()).await?)
}

pub(super) async fn upstream(deps: &Deps, name: &str) -> Result<UpstreamStatus, Fault> {
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

async fn upstreams(call: Call) -> Result<Answer, Fault> {
    let upstreams = process(&call.deps).await?.upstreams;
    ok(&Upstreams { upstreams })
}

async fn one_upstream(call: Call) -> Result<Answer, Fault> {
    ok(&UpstreamDetail::from(
        upstream(&call.deps, call.name("u")).await?,
    ))
}

async fn instances(call: Call) -> Result<Answer, Fault> {
    let status = upstream(&call.deps, call.name("u")).await?;
    ok(&Instances {
        upstream: status.summary.name,
        instances: status.instances,
    })
}

async fn one_instance(call: Call) -> Result<Answer, Fault> {
    let status = upstream(&call.deps, call.name("u")).await?;
    let address = call.name("i");
    let known = status.instances.iter().map(|i| &*i.instance);
    let found = resolve::instance(address, known).map_err(|unclear| {
        let message = format!("{}: {}", status.summary.name, unclear.message);
        Fault::new(StatusCode::NOT_FOUND, unclear.word, message, unclear.hint)
    })?;
    ok(&status.instances.iter().find(|i| i.instance == found))
}

async fn host_list(call: Call) -> Result<Answer, Fault> {
    let all = match call.value("state") {
        None => false,
        Some("any") => true,
        Some(other) => {
            let message = format!("`{other}` is no value of `state`");
            return Err(Fault::bad_query(message, "write `any` or leave it out"));
        }
    };
    ok(&hosts(
        upstream(&call.deps, call.name("service")).await?,
        all,
    ))
}

async fn registries(call: Call) -> Result<Answer, Fault> {
    let registries = process(&call.deps).await?.registries;
    ok(&Registries { registries })
}

async fn explain(call: Call) -> Result<Answer, Fault> {
    let Some(url) = call.value("url") else {
        let hint = "/api/v1/route?url=http%3A%2F%2Forders%2Fv1&header=x-a%3A%20b";
        return Err(Fault::bad_query("`url` is missing", hint));
    };
    let headers = call.values("header").map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    });
    let Some(headers) = headers.collect::<Option<Vec<_>>>() else {
        let message = "a header has no colon";
        return Err(Fault::bad_query(message, "write it `name: value`"));
    };
    let mut headers = headers;
    // As HTTP/2 writes it: no header can have this name.
    let method = call
        .value("method")
        .map(|m| (":method".to_owned(), m.to_owned()));
    headers.extend(method);
    let route = call.deps.control.route(url.to_owned(), headers);
    ok(&within(PATIENCE, route).await?)
}
