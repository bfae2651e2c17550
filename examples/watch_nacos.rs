//! Follows services of a Nacos registry and prints every change.
//!
//! ```text
//! cargo run --example watch_nacos -- 127.0.0.1:8848 orders billing
//! ```

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use outrigger::clock::Clock;
use outrigger::config::types::{
    EmptyPolicy, Nacos, NacosProtocol, OnEmpty, Registry, RegistryKind, RegistryTls, Secret,
};
use outrigger::discovery::{self, Cache, Deps, NoEvents, ServiceQuery};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let mut arguments = std::env::args().skip(1);
    let servers = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:8848".to_owned());
    let nacos = Nacos {
        servers: servers.split(',').map(str::to_owned).collect(),
        endpoint: None,
        protocol: NacosProtocol::Auto,
        udp_push: false,
        namespace: "public".into(),
        group: "DEFAULT_GROUP".into(),
        clusters: Vec::new(),
        username: std::env::var("NACOS_USERNAME").ok(),
        password_file: None,
        password: std::env::var("NACOS_PASSWORD").ok().map(Secret),
    };
    let config = Registry {
        name: "nacos".into(),
        kind: RegistryKind::Nacos(nacos),
        empty: EmptyPolicy {
            on_empty: OnEmpty::Hold,
            grace: Duration::from_secs(30),
            answers: 3,
            shrink_percent: 50,
        },
        max_in_flight: 8,
        timeout: Duration::from_secs(5),
        tls: RegistryTls::default(),
    };
    let deps = Deps {
        embedded: None,
        cache: Cache::default(),
        parser: |_, _| Ok(BTreeMap::new()),
        clock: Clock::new(),
        events: Arc::new(NoEvents),
        seed: 0,
    };
    let handle = discovery::start(&config, deps);
    let mut tasks = tokio::task::JoinSet::new();
    for name in arguments {
        let mut view = handle.subscribe(ServiceQuery::named(&name));
        tasks.spawn(async move {
            while view.changed().await.is_ok() {
                let now = view.borrow_and_update().clone();
                let set = now.set.as_ref().map(|set| {
                    let shown = |e: &outrigger::endpoint::Endpoint| {
                        format!(
                            "{} w={} healthy={}",
                            e.address,
                            e.weight.thousandths(),
                            e.healthy
                        )
                    };
                    set.endpoints.iter().map(shown).collect::<Vec<_>>()
                });
                let held = now.held.map(|held| held.cause);
                let line = format!(
                    "{name} v{} {set:?} held={held:?} error={:?}",
                    now.version, now.error
                );
                if writeln!(std::io::stdout(), "{line}").is_err() {
                    return;
                }
            }
        });
    }
    let mut names = handle.names();
    tasks.spawn(async move {
        while names.changed().await.is_ok() {
            let now = names.borrow_and_update().clone();
            tracing::info!(names = ?now.names, error = ?now.error, "names");
        }
    });
    tokio::signal::ctrl_c().await?;
    tracing::info!(stats = ?handle.stats(), "stopping");
    Ok(())
}
