//! The whole story on this machine: registry, instances that register and beat, traffic through the
//! data port, an instance that turns bad, one that falls silent. Everything goes over real sockets;
//! what is told comes from the journal.
//! Next: `demo/story.rs` (what happens when), `demo/stage.rs` (the running parts), `demo/sample.rs`,
//! `demo/traffic.rs`, `demo/summary.rs`.

pub mod narrate;
mod reading;
mod sample;
mod setup;
mod stage;
pub mod story;
pub mod summary;
mod traffic;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;

use crate::app::{App, Controls};
use crate::config::types::Listen;
use crate::control::plane::ConfigInputs;
use crate::control::watch::WatchList;
use crate::drain::{Asked, Lifecycle, Stop};
use crate::log::init_log;
use narrate::Narrator;
use stage::{Stage, Until};
use story::Plan;

/// The service of the sample instances.
const SERVICE: &str = "orders";

/// What the command line decides.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pace and length.
    pub plan: Plan,
    /// Stays when the story is over.
    pub keep: bool,
    /// Data port; `None`: `localhost:15001`.
    pub listen: Option<Listen>,
    /// Admin; `None`: port 15002, or a free one.
    pub admin: Option<Listen>,
    /// Telemetry; `None`: port 15003, or a free one.
    pub telemetry: Option<Listen>,
    /// Registry; `None`: port 15005, or a free one.
    pub registry: Option<Listen>,
}

/// Runs the demo; whether everything was seen.
///
/// # Errors
/// When a port cannot be had, or the proxy cannot run.
pub fn run(
    settings: &Settings,
    mut stop: watch::Receiver<Stop>,
    narrator: &mut Narrator<'_>,
) -> anyhow::Result<bool> {
    let listens = setup::listens(settings)?;
    let config = setup::config(&listens, settings.plan.unit())?;
    let log = init_log(&config);
    let app = App::bind(config, ConfigInputs::default(), WatchList::default())?;
    let ports = Ports::of(&app)?;
    introduce(narrator, settings, &ports);
    for moved in &listens.moved {
        narrator.say(&format!("  note: {moved}"));
    }
    narrator.say("");
    let (journal, control) = (app.journal(), app.control());
    let lifecycle = Lifecycle::new();
    let ends = lifecycle.clone();
    // Nothing to reload: there is no file.
    let reloads = tokio::sync::mpsc::channel(1);
    let proxy = std::thread::Builder::new()
        .name("proxy".into())
        .spawn(move || {
            app.run(Controls {
                lifecycle,
                reloads,
                log,
            })
        })
        .context("cannot start the proxy's thread")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let complete = runtime.block_on(async {
        let told = async {
            let mut stage = Stage::set(settings.plan, &ports, journal, control).await?;
            let ended = stage.play(narrator, &mut stop, Until::End).await?;
            let complete = stage.sum_up(narrator);
            if settings.keep && ended == Until::End {
                look_around(narrator, &ports);
                stage.play(narrator, &mut stop, Until::Stopped).await?;
            }
            narrator.clear_status();
            anyhow::Ok(complete && ended == Until::End)
        };
        Box::pin(told).await
    });
    // Instances and traffic are gone with the stage: the drain has nothing to wait for.
    let by = Asked {
        actor: "demo".to_owned(),
        note: None,
    };
    ends.ask(Stop::Quit, by);
    let ended = proxy.join();
    let complete = complete?;
    match ended {
        Ok(ended) => ended.map(|_| complete),
        Err(_) => anyhow::bail!("the proxy's thread panicked"),
    }
}

/// Where everything listens.
#[derive(Clone, Copy, Debug)]
struct Ports {
    data: SocketAddr,
    admin: SocketAddr,
    telemetry: SocketAddr,
    registry: SocketAddr,
}

impl Ports {
    fn of(app: &App) -> anyhow::Result<Self> {
        let address = |name: &str| {
            let addresses = app.listeners().get(name);
            let first = addresses.and_then(|all| all.first());
            first
                .and_then(|text| text.parse().ok())
                .with_context(|| format!("{name} has no TCP address"))
        };
        Ok(Self {
            data: address("data")?,
            admin: address("admin")?,
            telemetry: address("telemetry")?,
            registry: address(&format!("registry:{}", setup::REGISTRY))?,
        })
    }
}

fn introduce(narrator: &mut Narrator<'_>, settings: &Settings, ports: &Ports) {
    let shown = |duration: Duration| humantime::format_duration(duration).to_string();
    let (unit, duration) = (settings.plan.unit(), settings.plan.duration());
    narrator.say(&format!(
        "Outrigger demo: service `{SERVICE}`, {} requests a second for {}, recovery unit {}",
        traffic::RATE,
        shown(duration),
        shown(unit)
    ));
    for (what, address) in [
        ("data", ports.data),
        ("admin", ports.admin),
        ("telemetry", ports.telemetry),
        ("registry", ports.registry),
    ] {
        narrator.say(&format!("  {what:<10} http://{address}"));
    }
}

fn look_around(narrator: &mut Narrator<'_>, ports: &Ports) {
    let Ports {
        data,
        admin,
        telemetry,
        registry,
    } = ports;
    narrator.say(&format!(
        "
It stays, with its traffic, until Ctrl-C. To look around:
  curl http://{data}/{SERVICE}/hello
  curl 'http://{registry}/nacos/v1/ns/instance/list?serviceName={SERVICE}'
  curl http://{telemetry}/metrics
  outrigger status --admin {admin}
  outrigger explain {SERVICE} --admin {admin}
"
    ));
}
