//! Answers of control to admin. Views of upstreams are made by their drivers; the loop does not wait
//! for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method, Request, Uri};
use tokio::sync::oneshot;

use super::Question;
use super::plane::Plane;
use super::reload::{ReloadWish, rejected_files};
use super::sources::LiveRegistry;
use crate::config::types::RegistryKind;
use crate::outlier::driver::Command;
use crate::router::{self, Authority};
use crate::status::{
    Condition, ConfigStatus, ProcessStatus, RegistryStatus, RouteExplanation, UpstreamStatus,
    UpstreamSummary,
};
use crate::worker::DrainPhase;

impl Plane {
    pub(super) fn answer(&mut self, question: Question) {
        match question {
            Question::ClearOverride(id, signed, reply) => self.clear_override(id, signed, reply),
            Question::Breaker(wish, reply) => self.order_breaker(*wish, reply),
            Question::Order(order, reply) => self.order(*order, reply),
            Question::Deregister(reply) => self.deregister(reply),
            Question::Names(reply) => {
                let lists: Vec<_> = self.registries.iter().map(LiveRegistry::list).collect();
                tokio::spawn(async move {
                    let mut all = Vec::new();
                    for list in lists {
                        all.push(list.await);
                    }
                    let _gone = reply.send(all);
                });
            }
            Question::Embedded(reply) => {
                let all = self.registries.iter().filter_map(LiveRegistry::overview);
                let _gone = reply.send(all.collect());
            }
            Question::Process(reply) => {
                let mut status = self.process_status();
                let views = self.ask_drivers(None);
                tokio::spawn(async move {
                    status.upstreams = collect(views)
                        .await
                        .into_iter()
                        .map(|u| u.summary)
                        .collect();
                    let _gone = reply.send(status);
                });
            }
            Question::Upstreams(name, reply) => {
                let views = self.ask_drivers(name.as_deref());
                tokio::spawn(async move {
                    let _gone = reply.send(collect(views).await);
                });
            }
            Question::Reload(asker, reply) => self.wish(ReloadWish {
                asker,
                reply: Some(reply),
            }),
            Question::Route {
                url,
                headers,
                reply,
            } => {
                let _gone = reply.send(self.explain_route(&url, &headers));
            }
        }
    }

    fn ask_drivers(&self, name: Option<&str>) -> Vec<View> {
        let wanted = name.map(|name| {
            let snapshot = self.snapshot();
            let by_host = || snapshot.table.by_host(&Authority::parse(name).ok()?);
            let found = snapshot.table.by_name(name).or_else(by_host);
            found.map(|route| Arc::clone(&route.upstream.name))
        });
        self.upstreams
            .iter()
            .filter(|(name, _)| wanted.as_ref().is_none_or(|w| w.as_ref() == Some(*name)))
            .map(|(name, live)| {
                let (reply, answer) = oneshot::channel();
                let _gone = live.commands.send(Command::View(reply));
                View {
                    aliases: self.aliases(name),
                    answer,
                }
            })
            .collect()
    }

    /// Other names the upstream answers to.
    fn aliases(&self, name: &str) -> Vec<String> {
        let alias = router::alias(name);
        let bare = name.strip_prefix("DEFAULT_GROUP@@").map(str::to_owned);
        let taken = |key: &String| self.conflicts.iter().any(|c| c.key == *key);
        let all = [Some(alias), bare].into_iter().flatten();
        all.filter(|other| !other.eq_ignore_ascii_case(name) && !taken(other))
            .collect()
    }

    fn process_status(&self) -> ProcessStatus {
        let conditions = self.conditions();
        let phase = match *self.drain.borrow() {
            DrainPhase::Serving => "serving",
            DrainPhase::Draining => "draining",
            DrainPhase::Cut => "cut",
        };
        ProcessStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.clock.now().since(self.started).as_secs(),
            pid: std::process::id(),
            phase: phase.to_owned(),
            ready: conditions.iter().all(|c| !c.failing),
            conditions,
            listeners: self.listeners.clone(),
            config: self.config_status(),
            registries: self
                .registries
                .iter()
                .map(|live| registry_status(&live.handle))
                .collect(),
            app: self.app_status(),
            registrations: self.registration_status(),
            heartbeats: self.heartbeats(),
            upstreams: Vec::<UpstreamSummary>::new(),
            alias_conflicts: self.conflicts.iter().map(|c| c.key.clone()).collect(),
        }
    }

    fn config_status(&self) -> ConfigStatus {
        let set = &self.config.policies;
        ConfigStatus {
            file: self
                .reload
                .main_file
                .as_ref()
                .map(|f| f.display().to_string()),
            hash: self.reload.hash.clone(),
            loaded_at: humantime::format_rfc3339_millis(self.reload.loaded_at).to_string(),
            last_reload_ok: self.reload.last_ok,
            last_problems: self.reload.problems.clone(),
            policy_files: set
                .active_files
                .iter()
                .map(|f| f.display().to_string())
                .collect(),
            rejected_files: rejected_files(&self.config),
            restart_required: self.reload.restart_required.clone(),
        }
    }

    /// What readiness depends on: listeners are bound before this runs; the first answer of each
    /// registry, for `startup.registry_wait` only.
    fn conditions(&self) -> Vec<Condition> {
        let mut conditions = Vec::new();
        let waited = self.clock.now().since(self.started) >= self.config.registry_wait;
        for live in self.registries.iter() {
            let stats = live.handle.stats();
            if stats.last_success.is_some() || stats.cached > 0 {
                continue;
            }
            if stats.subscriptions == 0 && !live.handle.can_list() {
                // Nothing was asked of it.
                continue;
            }
            let in_process = matches!(
                self.config
                    .registries
                    .get(live.handle.name())
                    .map(|r| &r.kind),
                Some(RegistryKind::Embedded(_))
            );
            if in_process {
                continue;
            }
            let error = stats.last_error.as_deref().unwrap_or("no answer yet");
            conditions.push(Condition {
                name: format!("registry:{}", live.handle.name()),
                failing: !waited,
                message: format!("registry {} has not answered: {error}", live.handle.name()),
            });
        }
        for file in &self.config.policies.rejected {
            conditions.push(Condition {
                name: format!("policy:{}", file.path.display()),
                failing: false,
                message: format!("policy file left out: {}", file.problems.join("; ")),
            });
        }
        if *self.drain.borrow() != DrainPhase::Serving {
            conditions.push(Condition {
                name: "draining".to_owned(),
                failing: true,
                message: "Outrigger is shutting down".to_owned(),
            });
        }
        conditions
    }

    fn explain_route(&self, url: &str, headers: &[(String, String)]) -> RouteExplanation {
        let snapshot = self.snapshot();
        let mut explanation = RouteExplanation {
            rule: String::new(),
            upstream: None,
            route: None,
            target: None,
            host: None,
            refusal: None,
            nearest: Vec::new(),
        };
        let Ok(uri) = url.parse::<Uri>() else {
            explanation.refusal = Some("400 bad_request: that is no URL".to_owned());
            return explanation;
        };
        let mut request = Request::new(());
        *request.uri_mut() = uri;
        for (name, value) in headers {
            if name == ":method" {
                if let Ok(method) = Method::from_bytes(value.as_bytes()) {
                    *request.method_mut() = method;
                }
                continue;
            }
            let name = HeaderName::try_from(name.as_str());
            let value = HeaderValue::from_str(value);
            if let (Ok(name), Ok(value)) = (name, value) {
                request.headers_mut().append(name, value);
            }
        }
        let (parts, ()) = request.into_parts();
        let host = parts
            .headers
            .get(http::header::HOST)
            .and_then(|h| h.to_str().ok());
        // `curl localhost:15001/x` shows as a URL with our own address: Host is what it says.
        let text = host.or_else(|| parts.uri.authority().map(http::uri::Authority::as_str));
        let Ok(authority) = text.map(Authority::parse).transpose() else {
            explanation.refusal = Some("400 bad_request: the Host is malformed".to_owned());
            return explanation;
        };
        match router::route(&snapshot.table, &parts, authority.as_ref()) {
            Ok(found) => {
                explanation.rule = found.rule.describe().to_owned();
                explanation.upstream = Some(found.route.upstream.name.to_string());
                let target = parts.uri.path_and_query().map_or("/", |p| p.as_str());
                let rest = target
                    .split_at_checked(found.strip)
                    .map_or(target, |(_, rest)| rest);
                let slash = if rest.starts_with('/') { "" } else { "/" };
                let target = format!("{slash}{rest}");
                let path = target.split('?').next().unwrap_or_default();
                let rule = found.route.rule(&parts.method, path, &parts.headers);
                explanation.route = found.route.state(rule).name.as_deref().map(str::to_owned);
                explanation.target = Some(target);
                explanation.host = Some(match &authority {
                    Some(authority) if !authority.is_loopback() => authority.text().to_owned(),
                    Some(_) | None => {
                        String::from_utf8_lossy(found.route.settings.host.as_bytes()).into_owned()
                    }
                });
            }
            Err(missed) => self.explain_missed(&snapshot, &missed, &mut explanation),
        }
        explanation
    }

    fn explain_missed(
        &self,
        snapshot: &crate::worker::Snapshot,
        missed: &router::Missed,
        explanation: &mut RouteExplanation,
    ) {
        if missed.name.is_empty() {
            explanation.rule = "none".to_owned();
            explanation.refusal = Some(
                "404 no_route: the request names no service: put its name into Host, the first \
                 path segment or x-outrigger-upstream"
                    .to_owned(),
            );
            return;
        }
        let host = missed.host.as_deref();
        if let Some(target) = host.and_then(|h| self.config.passthrough.target(h)) {
            explanation.rule = router::Rule::Passthrough.describe().to_owned();
            explanation.upstream = Some(target.to_string());
            return;
        }
        explanation.rule = missed.rule.would_be().to_owned();
        let names = self.config.default_registries.iter();
        let lists: Vec<_> = names
            .filter(|_| self.config.auto_discover)
            .filter_map(|name| self.names.get(name))
            .collect();
        let known = if lists.is_empty() {
            None
        } else {
            super::lookup::find_in(lists.iter().copied(), &missed.name)
        };
        match known {
            Some(super::lookup::Known::As(name)) => explanation.upstream = Some(name.to_string()),
            Some(super::lookup::Known::Unknown) => {
                explanation.refusal = Some(format!("404 no_route: no service {}", missed.name));
            }
            None if !lists.is_empty() => {
                explanation.refusal =
                    Some("503 no_instances: the registry has not answered its list".to_owned());
            }
            None => {
                explanation.refusal = Some(format!("404 no_route: no service {}", missed.name));
            }
        }
        explanation.nearest = snapshot
            .table
            .nearest(&missed.name)
            .iter()
            .map(ToString::to_string)
            .collect();
    }
}

struct View {
    aliases: Vec<String>,
    answer: oneshot::Receiver<UpstreamStatus>,
}

async fn collect(views: Vec<View>) -> Vec<UpstreamStatus> {
    let mut all = Vec::with_capacity(views.len());
    for View { aliases, answer } in views {
        // A driver that ended meanwhile has nothing to show.
        if let Ok(mut status) = answer.await {
            status.summary.aliases = aliases;
            all.push(status);
        }
    }
    all
}

fn registry_status(handle: &crate::discovery::RegistryHandle) -> RegistryStatus {
    let stats = handle.stats();
    let updates = BTreeMap::from([
        ("applied".to_owned(), stats.updates.applied),
        ("unchanged".to_owned(), stats.updates.unchanged),
        ("ignored_empty".to_owned(), stats.updates.ignored_empty),
        ("ignored_shrink".to_owned(), stats.updates.ignored_shrink),
        ("partial".to_owned(), stats.updates.partial),
        ("failed".to_owned(), stats.updates.failed),
    ]);
    let unix = |at: std::time::SystemTime| {
        at.duration_since(std::time::SystemTime::UNIX_EPOCH)
            .map_or(0.0, |d| d.as_secs_f64())
    };
    RegistryStatus {
        name: handle.name().to_string(),
        kind: handle.kind().to_owned(),
        up: stats.up,
        stale: stats.stale,
        cached: stats.cached,
        protected: stats.protected,
        age_s: stats.age.map(|age| age.as_secs_f64()),
        last_success_unix_s: stats.last_success_wall.map(unix),
        subscriptions: stats.subscriptions,
        updates,
        last_error: stats.last_error.map(|e| e.to_string()),
    }
}
