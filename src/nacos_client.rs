//! Nacos by gRPC, as a client: for the source of endpoints and for the registration of the app.
//!
//! Nacos knows a client by its transport connection, so everything of a namespace goes over one HTTP/2
//! connection: unary calls, and one stream on which the server pushes and we answer.
//!
//! Next: `nacos_client/link.rs` (keeps a connection up), `nacos_client/live.rs` (one that has made its
//! set-up), `nacos_client/channel.rs` (HTTP/2).

pub mod channel;
pub mod link;
pub mod live;
