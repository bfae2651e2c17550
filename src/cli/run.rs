//! `outrigger run` and `outrigger registry`: load, bind, serve until a signal.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::app::{App, Controls, Ended};
use crate::clock::Clock;
use crate::config::environment::{Environment, Overrides};
use crate::config::types::{Config, Embedded, Listen};
use crate::config::{LoadRequest, load};
use crate::control::plane::ConfigInputs;
use crate::control::watch::WatchList;
use crate::drain::Stop;
use crate::listener::bind;
use crate::log::init_log;
use crate::registry::EmbeddedRegistry;
use crate::signal;

/// Start the proxy.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RunArgs {
    /// The main file; else OUTRIGGER_CONFIG, ./outrigger.yaml, ./config/outrigger.yaml,
    /// /etc/outrigger/outrigger.yaml, else the defaults.
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the app connects (key `listen`); may be repeated.
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<String>,
    /// Refuse to start when a policy file is bad.
    #[arg(long)]
    pub strict: bool,
}

/// Runs the proxy; returns the exit code.
pub fn run(args: &RunArgs, env: &dyn Environment, err: &mut dyn Write) -> u8 {
    let mut flags = Overrides::default();
    if !args.listen.is_empty() {
        flags.flag("--listen", "listen", &args.listen);
    }
    let mut request = LoadRequest::new(args.config.clone(), env);
    request.flags = flags.clone();
    let loaded = load(request);
    if !loaded.diagnostics.is_empty() {
        say(err, &loaded.diagnostics.to_string());
    }
    let Some(config) = loaded.config else {
        return 3;
    };
    if args.strict && !config.policies.rejected.is_empty() {
        say(err, "a policy file was rejected, and --strict is given");
        return 3;
    }
    let main_file = loaded.main_file;
    if main_file.is_none() {
        say(
            err,
            "no configuration file found: starting with the defaults, the embedded registry and \
             auto_discover",
        );
    }
    let log = init_log(&config);
    let files = WatchList {
        main: main_file.clone(),
        globs: loaded.policy_globs,
        contents: loaded.contents,
        loaded: loaded.digests,
    };
    let inputs = ConfigInputs {
        path: main_file,
        flags,
    };
    let (lifecycle, reloads) = match signal::listen() {
        Ok(signals) => signals,
        Err(error) => return fail(err, &error.to_string()),
    };
    let ended = App::bind(config, inputs, files).and_then(|app| {
        app.run(Controls {
            lifecycle,
            reloads,
            log,
        })
    });
    match ended {
        Ok(Ended::Drained) => 0,
        Ok(Ended::Forced) => 1,
        Err(error) => fail(err, &format!("{error:#}")),
    }
}

/// Start the embedded registry by itself.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RegistryArgs {
    /// Where it listens.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Folder of its snapshot, so that a restart loses nothing.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// A main file whose embedded registry is meant.
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Runs the registry; returns the exit code.
pub fn registry(
    args: &RegistryArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let config = match &args.config {
        None => Config::builtin(),
        Some(path) => {
            let loaded = load(LoadRequest::new(Some(path.clone()), env));
            if !loaded.diagnostics.is_empty() {
                say(err, &loaded.diagnostics.to_string());
            }
            let Some(config) = loaded.config else {
                return 3;
            };
            config
        }
    };
    let _log = init_log(&config);
    let Some(mut settings) = embedded_of(&config) else {
        say(err, "the configuration has no registry of kind embedded");
        return 3;
    };
    if let Some(text) = &args.listen {
        let Ok(listen) = parse_listen(text) else {
            say(
                err,
                &format!("--listen {text}: write an address as 127.0.0.1:15005"),
            );
            return 2;
        };
        settings.listen = Some(listen);
    }
    if args.data.is_some() {
        settings.data.clone_from(&args.data);
    }
    match serve_registry(&settings, out) {
        Ok(code) => code,
        Err(error) => fail(err, &format!("{error:#}")),
    }
}

fn serve_registry(settings: &Embedded, out: &mut dyn Write) -> anyhow::Result<u8> {
    let listen = settings
        .listen
        .clone()
        .unwrap_or_else(|| Listen::Tcp(([127, 0, 0, 1], 15005).into()));
    let (bound, grpc) = bind::bind_registry(&listen, "--listen")?;
    let (lifecycle, _reloads) = signal::listen()?;
    let mut stop = lifecycle.wishes();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let registry = EmbeddedRegistry::new(settings, Clock::new());
        let (end, ended) = tokio::sync::watch::channel(false);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(registry.clone().maintain(ended.clone()));
        for (path, listener) in bound.unix {
            writeln!(out, "registry listens on unix:{}", path.display())?;
            let listener = tokio::net::UnixListener::from_std(listener)?;
            tasks.spawn(registry.clone().serve(listener, ended.clone()));
        }
        for address in bound.tcp {
            writeln!(out, "registry listens on {}", address.address)?;
            for socket in address.sockets {
                let listener = tokio::net::TcpListener::from_std(socket)?;
                tasks.spawn(registry.clone().serve(listener, ended.clone()));
            }
        }
        for address in grpc.tcp {
            writeln!(out, "registry listens on {} for gRPC", address.address)?;
            for socket in address.sockets {
                let listener = tokio::net::TcpListener::from_std(socket)?;
                tasks.spawn(registry.clone().serve_grpc(listener, ended.clone()));
            }
        }
        out.flush()?;
        stop.wait_for(|s| *s != Stop::No).await?;
        end.send_replace(true);
        tokio::select! {
            () = async { while tasks.join_next().await.is_some() {} } => Ok(0),
            _second = stop.wait_for(|s| *s == Stop::Now) => Ok(1),
        }
    })
}

fn embedded_of(config: &Config) -> Option<Embedded> {
    config
        .registries
        .values()
        .find_map(|registry| registry.kind.embedded().cloned())
}

pub(crate) fn parse_listen(text: &str) -> Result<Listen, std::net::AddrParseError> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Listen::Unix(path.into()));
    }
    if let Some(port) = text.strip_prefix("localhost:").and_then(|p| p.parse().ok()) {
        return Ok(Listen::Localhost(port));
    }
    text.parse::<SocketAddr>().map(Listen::Tcp)
}

fn say(err: &mut dyn Write, text: &str) {
    // Standard error is gone: nobody reads.
    let _closed = writeln!(err, "{}", text.trim_end());
}

fn fail(err: &mut dyn Write, text: &str) -> u8 {
    say(err, &format!("error: {text}"));
    1
}
