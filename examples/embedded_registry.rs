//! The embedded registry alone, on 127.0.0.1:15005 or the address given as argument; the second
//! argument is a folder for its snapshot.
//!
//! ```text
//! cargo run --example embedded_registry -- 127.0.0.1:15005
//! curl -X POST 'localhost:15005/nacos/v1/ns/instance?serviceName=orders&ip=10.0.0.1&port=80'
//! curl 'localhost:15005/nacos/v1/ns/instance/list?serviceName=orders'
//! ```

use std::time::Duration;

use outrigger::clock::Clock;
use outrigger::config::types::Embedded;
use outrigger::registry::EmbeddedRegistry;
use tokio::net::TcpListener;
use tokio::sync::watch;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let mut arguments = std::env::args().skip(1);
    let listen = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:15005".to_owned());
    let config = Embedded {
        listen: None,
        data: arguments.next().map(Into::into),
        unhealthy_after: Duration::from_secs(15),
        remove_after: Duration::from_secs(30),
        beat_interval: Duration::from_secs(5),
        max_services: 10_000,
        max_instances: 100_000,
        max_metadata_bytes: 4096,
        max_connections: 100,
        users_file: None,
    };
    let listener = TcpListener::bind(&listen).await?;
    tracing::info!(address = %listener.local_addr()?, "listening");
    let registry = EmbeddedRegistry::new(&config, Clock::new());
    let (stop, stopped) = watch::channel(false);
    let maintenance = tokio::spawn(registry.clone().maintain(stopped.clone()));
    let server = tokio::spawn(registry.serve(listener, stopped));
    tokio::signal::ctrl_c().await?;
    stop.send(true)?;
    server.await?;
    maintenance.await?;
    Ok(())
}
