//! Where the app connects: bound sockets, accepted connections, their protocol. No routing here.
//! Next: `listener/accept.rs`, `listener/detect.rs`, `listener/http.rs`.

pub mod accept;
pub mod bind;
pub mod connection;
pub mod detect;
mod dress;
mod facts;
mod first_frame;
pub mod head;
pub mod http;
pub(crate) mod lookup;
pub mod reply;
pub mod request;
mod served;
