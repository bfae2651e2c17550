//! Nacos by gRPC, as a client.
//!
//! Nacos knows a client by its transport connection, so everything of a namespace goes over one HTTP/2
//! connection: unary calls, and one stream on which the server pushes and we answer.
//!
//! Next: `nacos_client/channel.rs` (the connection).

pub mod channel;
