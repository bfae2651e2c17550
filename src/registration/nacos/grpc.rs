//! Registration with Nacos by gRPC: the instance lives as long as our connection, there are no beats.
//! The link registers it again on every new connection before anything else; a lost connection is told
//! to the loop, which then looks to it too. Each instance has a connection of its own, since Nacos
//! takes one instance of a service for each connection.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use super::wire::{self, Names};
use crate::config::types::Nacos;
use crate::nacos_client::link::{Link, LinkSettings, State};
use crate::protocol::nacos::message::{DEREGISTER, Naming, REGISTER, kind};
use crate::registration::machine::{Beat, Outcome, Standing};
use crate::registration::record::Record;
use crate::registration::registrar::{Call, Registrar};
use crate::registration::rhythm::Rhythm;

/// Its readers are pushed to.
const DEREGISTER_WAIT: Duration = Duration::from_secs(3);
/// The one registration of its link.
const NUMBER: u64 = 1;

/// One instance there.
#[derive(Debug)]
pub(in crate::registration) struct GrpcRegistrar {
    link: Link,
    names: Names,
    record: Record,
}

impl GrpcRegistrar {
    /// Starts the connection on the current runtime.
    pub(in crate::registration) fn new(
        settings: LinkSettings,
        config: &Nacos,
        record: Record,
    ) -> Self {
        Self {
            link: Link::start(settings),
            names: Names::of(config, &record),
            record,
        }
    }

    fn kind(&self) -> &'static str {
        match self.record.ephemeral {
            true => kind::INSTANCE,
            false => kind::PERSISTENT_INSTANCE,
        }
    }

    async fn put(&self, enabled: bool) -> Outcome {
        let wish = Naming {
            action: Some(REGISTER.to_owned()),
            instance: Some(wire::instance(&self.names, &self.record, enabled)),
            ..wire::named(&self.names)
        };
        match self.link.register(NUMBER, self.kind(), wish).await {
            Ok(_) => Outcome::DONE,
            Err(error) => error.into(),
        }
    }

    async fn take_out(&self) -> Outcome {
        self.link.forget(NUMBER);
        let down = matches!(
            *self.link.state().borrow(),
            State::Down(_) | State::Starting
        );
        if down && self.record.ephemeral {
            // It went with the connection.
            return Outcome::DONE;
        }
        let wish = Naming {
            action: Some(DEREGISTER.to_owned()),
            instance: Some(wire::instance(&self.names, &self.record, false)),
            ..wire::named(&self.names)
        };
        match self.link.call(self.kind(), &wish).await {
            Ok(_) => Outcome::DONE,
            Err(error) => error.into(),
        }
    }

    async fn look(&self) -> Outcome {
        let question = Naming {
            cluster: Some(String::new()),
            healthy_only: Some(false),
            ..wire::named(&self.names)
        };
        let answer = match self.link.call(kind::QUERY, &question).await {
            Ok(answer) => answer,
            Err(error) => return error.into(),
        };
        let hosts = answer.get("serviceInfo").and_then(|info| info.get("hosts"));
        match hosts.and_then(Value::as_array) {
            Some(hosts) if hosts.iter().any(|host| wire::is_ours(&self.names, host)) => {
                Outcome::DONE
            }
            Some(_) => Outcome::Missing,
            None => Outcome::Failed("the answer has no list of hosts".to_owned()),
        }
    }
}

impl Registrar for GrpcRegistrar {
    fn rhythm(&self) -> Rhythm {
        Rhythm {
            beats: None,
            starting: false,
            marks_leaving: true,
        }
    }

    fn deregister_wait(&self) -> Duration {
        DEREGISTER_WAIT
    }

    fn register(self: Arc<Self>, _: Standing) -> Call {
        Box::pin(async move { self.put(true).await })
    }

    fn beat(self: Arc<Self>, _: Beat) -> Call {
        Box::pin(async { Outcome::DONE })
    }

    fn withdraw(self: Arc<Self>) -> Call {
        Box::pin(async move { self.put(false).await })
    }

    fn deregister(self: Arc<Self>) -> Call {
        Box::pin(async move { self.take_out().await })
    }

    fn observe(self: Arc<Self>) -> Call {
        Box::pin(async move { self.look().await })
    }

    fn losses(&self) -> Option<watch::Receiver<u64>> {
        // What is persistent does not go with its connection.
        self.record.ephemeral.then(|| self.link.losses())
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::clock::Clock;
    use crate::http_client::servers::{Server, Servers};
    use crate::http_client::{HttpClient, Target};
    use crate::registration::tests::{Setup, pass, record};
    use crate::testing::nacos_grpc::FakeGrpc;

    fn start() -> (FakeGrpc, Setup) {
        let clock = Clock::new();
        let fake = FakeGrpc::new();
        let (sender, mut connections) = mpsc::unbounded_channel::<tokio::io::DuplexStream>();
        let server = fake.clone();
        tokio::spawn(async move {
            while let Some(stream) = connections.recv().await {
                server.serve(stream);
            }
        });
        let http = HttpClient {
            timeout: Duration::from_secs(3),
            max_body: 1 << 20,
        };
        let list = vec![Server {
            target: Target::Memory(sender),
            prefix: "/nacos".to_owned(),
        }];
        let settings = LinkSettings {
            namespace: "public".into(),
            servers: Arc::new(Servers::new(list, 0, http, 8)),
            http,
            auth: None,
            max_in_flight: 8,
            clock,
            random: fastrand::Rng::with_seed(7),
            optional: false,
        };
        let config = super::super::tests::config();
        let registrar = Arc::new(GrpcRegistrar::new(settings, &config, record()));
        let setup = Setup::start(clock, registrar, Standing::Up);
        (fake, setup)
    }

    fn kinds(fake: &FakeGrpc) -> Vec<String> {
        let calls = fake.calls().into_iter().map(|(_, kind)| kind);
        calls.filter(|kind| kind == kind::INSTANCE).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_registered_once_for_each_connection_and_never_beaten() {
        let (fake, _setup) = start();
        fake.set("DEFAULT_GROUP@@orders", &["10.0.0.1:8080"]);
        pass(30).await;
        assert!(!kinds(&fake).is_empty());
        let registered = kinds(&fake).len();
        pass(50).await;
        assert_eq!(kinds(&fake).len(), registered, "no beats");
        fake.cut();
        pass(10).await;
        let again: Vec<_> = fake
            .calls()
            .into_iter()
            .filter(|(number, _)| *number == 2)
            .collect();
        assert_eq!(again[0].1, kind::SERVER_CHECK);
        assert_eq!(
            again[1].1,
            kind::INSTANCE,
            "before anything else: {again:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_does_not_list_is_registered_again() {
        let (fake, _setup) = start();
        pass(10).await;
        let before = kinds(&fake).len();
        // The fake lists nothing: the look of each minute finds that out.
        pass(90).await;
        assert!(kinds(&fake).len() > before);
    }
}
