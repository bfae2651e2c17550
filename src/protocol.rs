//! Wire formats, as pure codecs: bytes in, messages out. No socket, no task, no clock.

pub mod dubbo_registry;
pub mod grpc_health;
pub mod http1;
pub mod nacos;
pub mod zookeeper;
