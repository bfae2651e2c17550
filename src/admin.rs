//! The admin and the telemetry listener, both on a thread of their own beside the data plane: what
//! they need they ask control for.
