//! What request tasks count, per upstream and worker. One writer per cell, so a load and a store do;
//! readers sum over the workers. No labels, no look-ups, no formatting here.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::error::Reason;
use crate::outlier::classify::ErrorKind;

/// Upper bounds of the duration histograms, in microseconds: 0.001 and 0.0025 s, then the
/// advisory buckets of OpenTelemetry from 0.005 to 10 s.
pub const BUCKETS_US: [u64; 16] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000,
    1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000,
];

/// The app's side of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppProtocol {
    /// HTTP/1.x.
    Http1,
    /// HTTP/2.
    Http2,
    /// gRPC.
    Grpc,
}

impl AppProtocol {
    /// In the order of the counters.
    pub const ALL: [Self; 3] = [Self::Http1, Self::Http2, Self::Grpc];

    /// The label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
        }
    }
}

/// Why an outcome went into no window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoredCause {
    /// The app went away too early to say anything about the instance.
    ClientCancel,
    /// Our own worker was starved.
    SelfLag,
    /// Another attempt of the same request was faster.
    HedgeLoser,
    /// Sent before the instance's last ejection or restore.
    Stale,
}

impl IgnoredCause {
    /// In the order of the counters.
    pub const ALL: [Self; 4] = [
        Self::ClientCancel,
        Self::SelfLag,
        Self::HedgeLoser,
        Self::Stale,
    ];

    /// The label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClientCancel => "client_cancel",
            Self::SelfLag => "self_lag",
            Self::HedgeLoser => "hedge_loser",
            Self::Stale => "stale",
        }
    }
}

/// Where the answer of a fallback came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackSource {
    /// The last good answer.
    Cache,
    /// A configured text or file.
    Static,
    /// Another upstream.
    Upstream,
}

impl FallbackSource {
    /// In the order of the counters.
    pub const ALL: [Self; 3] = [Self::Cache, Self::Static, Self::Upstream];

    /// The label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Static => "static",
            Self::Upstream => "upstream",
        }
    }
}

/// gRPC codes 0-16 and one slot for all others.
pub const GRPC_CODES: usize = 18;

/// A duration histogram with fixed buckets.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS_US.len() + 1],
    sum_us: AtomicU64,
}

/// A read-out of histograms, summed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramReading {
    /// Not cumulative; the last one is above every bound.
    pub buckets: [u64; BUCKETS_US.len() + 1],
    /// Microseconds.
    pub sum_us: u64,
}

impl HistogramReading {
    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        for (to, from) in self.buckets.iter_mut().zip(&other.buckets) {
            *to = to.wrapping_add(*from);
        }
        self.sum_us = self.sum_us.wrapping_add(other.sum_us);
    }
}

impl Histogram {
    fn record(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let index = BUCKETS_US
            .iter()
            .position(|bound| us <= *bound)
            .unwrap_or(BUCKETS_US.len());
        if let Some(bucket) = self.buckets.get(index) {
            add(bucket, 1);
        }
        add(&self.sum_us, us);
    }

    fn read_into(&self, reading: &mut HistogramReading) {
        for (to, from) in reading.buckets.iter_mut().zip(&self.buckets) {
            *to = to.wrapping_add(from.load(Relaxed));
        }
        reading.sum_us = reading.sum_us.wrapping_add(self.sum_us.load(Relaxed));
    }
}

/// The counters of one upstream in one worker.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell {
    in_flight: AtomicU32,
    http: [[AtomicU64; 5]; 2],
    grpc: [AtomicU64; GRPC_CODES],
    durations: [Histogram; 3],
    attempt_durations: Histogram,
    rejected: [AtomicU64; Reason::ALL.len()],
    errors: [AtomicU64; ErrorKind::ALL.len()],
    ignored: [AtomicU64; IgnoredCause::ALL.len()],
    retries: AtomicU64,
    budget_exhausted: AtomicU64,
    fallbacks: [AtomicU64; FallbackSource::ALL.len()],
    hedges: AtomicU64,
}

/// The counters of one upstream, all workers.
#[derive(Debug)]
pub struct UpstreamCells {
    cells: Box<[Cell]>,
}

/// A sum over the workers.
#[derive(Clone, Debug, Default)]
pub struct UpstreamReading {
    /// Requests in flight.
    pub in_flight: u64,
    /// Finished requests of HTTP/1 and HTTP/2 by status class 1xx-5xx.
    pub http: [[u64; 5]; 2],
    /// Finished gRPC requests by code; the last slot for codes above 16.
    pub grpc: [u64; GRPC_CODES],
    /// Durations by [`AppProtocol`].
    pub durations: [HistogramReading; 3],
    /// Until the response head.
    pub attempt_durations: HistogramReading,
    /// Own answers by [`Reason::index`].
    pub rejected: [u64; Reason::ALL.len()],
    /// Failed attempts by [`ErrorKind`].
    pub errors: [u64; ErrorKind::ALL.len()],
    /// By [`IgnoredCause`].
    pub ignored: [u64; IgnoredCause::ALL.len()],
    /// Second and further tries.
    pub retries: u64,
    /// Retries that the budget refused.
    pub budget_exhausted: u64,
    /// By [`FallbackSource`].
    pub fallbacks: [u64; FallbackSource::ALL.len()],
    /// Second attempts beside a slow first one.
    pub hedges: u64,
}

impl UpstreamCells {
    /// Counters for this many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            cells: (0..workers.max(1)).map(|_| Cell::default()).collect(),
        }
    }

    fn with(&self, worker: usize, f: impl FnOnce(&Cell)) {
        if let Some(cell) = self.cells.get(worker) {
            f(cell);
        }
    }

    /// A request begins.
    pub fn begin(&self, worker: usize) {
        self.with(worker, |c| {
            c.in_flight
                .store(c.in_flight.load(Relaxed).wrapping_add(1), Relaxed);
        });
    }

    /// A request is over: its status, its gRPC code where it is a gRPC request.
    pub fn finish(
        &self,
        worker: usize,
        protocol: AppProtocol,
        status: u16,
        grpc_code: Option<u16>,
        duration: Duration,
    ) {
        self.with(worker, |c| {
            c.in_flight
                .store(c.in_flight.load(Relaxed).saturating_sub(1), Relaxed);
            let counter = match protocol {
                AppProtocol::Grpc => {
                    let code = usize::from(grpc_code.unwrap_or(2)).min(GRPC_CODES - 1);
                    c.grpc.get(code)
                }
                AppProtocol::Http1 | AppProtocol::Http2 => {
                    let class = usize::from(status / 100).clamp(1, 5) - 1;
                    c.http.get(protocol as usize).and_then(|row| row.get(class))
                }
            };
            if let Some(counter) = counter {
                add(counter, 1);
            }
            if let Some(histogram) = c.durations.get(protocol as usize) {
                histogram.record(duration);
            }
        });
    }

    /// A response head of an attempt came.
    pub fn attempt(&self, worker: usize, duration: Duration) {
        self.with(worker, |c| c.attempt_durations.record(duration));
    }

    /// Outrigger answered itself.
    pub fn rejected(&self, worker: usize, reason: Reason) {
        self.with(worker, |c| add_at(&c.rejected, reason.index()));
    }

    /// An attempt failed.
    pub fn error(&self, worker: usize, kind: ErrorKind) {
        self.with(worker, |c| add_at(&c.errors, kind as usize));
    }

    /// An outcome went into no window.
    pub fn ignored(&self, worker: usize, cause: IgnoredCause) {
        self.with(worker, |c| add_at(&c.ignored, cause as usize));
    }

    /// One more try.
    pub fn retry(&self, worker: usize) {
        self.with(worker, |c| add(&c.retries, 1));
    }

    /// The budget refused a try.
    pub fn budget_exhausted(&self, worker: usize) {
        self.with(worker, |c| add(&c.budget_exhausted, 1));
    }

    /// A second attempt began beside a slow first one.
    pub fn hedge(&self, worker: usize) {
        self.with(worker, |c| add(&c.hedges, 1));
    }

    /// A fallback answered.
    pub fn fallback(&self, worker: usize, source: FallbackSource) {
        self.with(worker, |c| add_at(&c.fallbacks, source as usize));
    }

    /// Requests that began, all workers; for the retry budget.
    pub fn requests(&self) -> u64 {
        let of = |c: &Cell| {
            let http: u64 = c.http.iter().flatten().map(|n| n.load(Relaxed)).sum();
            let grpc: u64 = c.grpc.iter().map(|n| n.load(Relaxed)).sum();
            http + grpc + u64::from(c.in_flight.load(Relaxed))
        };
        self.cells.iter().map(of).sum()
    }

    /// The sum over the workers.
    pub fn read(&self) -> UpstreamReading {
        let mut reading = UpstreamReading::default();
        for cell in &self.cells {
            reading.in_flight += u64::from(cell.in_flight.load(Relaxed));
            for (to, from) in reading.http.iter_mut().zip(&cell.http) {
                add_all(to, from);
            }
            add_all(&mut reading.grpc, &cell.grpc);
            for (to, from) in reading.durations.iter_mut().zip(&cell.durations) {
                from.read_into(to);
            }
            cell.attempt_durations
                .read_into(&mut reading.attempt_durations);
            add_all(&mut reading.rejected, &cell.rejected);
            add_all(&mut reading.errors, &cell.errors);
            add_all(&mut reading.ignored, &cell.ignored);
            reading.retries += cell.retries.load(Relaxed);
            reading.budget_exhausted += cell.budget_exhausted.load(Relaxed);
            add_all(&mut reading.fallbacks, &cell.fallbacks);
            reading.hedges += cell.hedges.load(Relaxed);
        }
        reading
    }
}

/// Counters of one worker that belong to no upstream, and of the listeners.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerCells {
    /// Open connections of the app.
    pub app_connections: AtomicU64,
    /// Open connections to instances.
    pub upstream_connections: AtomicU64,
    /// The last loop lag, in microseconds.
    pub lag_us: AtomicU64,
    /// Own answers to requests that found no upstream, by [`Reason::index`].
    pub rejected: [AtomicU64; Reason::ALL.len()],
    /// By [`Limit`].
    pub limit_hits: [AtomicU64; Limit::ALL.len()],
}

impl WorkerCells {
    /// Counts an own answer without an upstream.
    pub fn rejected(&self, reason: Reason) {
        add_at(&self.rejected, reason.index());
    }

    /// Counts a limit that bit.
    pub fn limit_hit(&self, limit: Limit) {
        add_at(&self.limit_hits, limit as usize);
    }
}

/// The limits of `limits` that count when they bite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `body_idle_timeout`.
    BodyIdleTimeout,
    /// `header_timeout`.
    HeaderTimeout,
    /// `keep_alive_timeout`.
    KeepAliveTimeout,
    /// `max_body_bytes`.
    MaxBodyBytes,
    /// `max_connections`.
    MaxConnections,
    /// `max_header_bytes`.
    MaxHeaderBytes,
    /// `max_headers`.
    MaxHeaders,
    /// `max_response_header_bytes` and `max_response_headers`.
    MaxResponseHeaderBytes,
    /// `max_target_bytes`.
    MaxTargetBytes,
    /// Open files of the process.
    OpenFiles,
    /// `pool.max_connections_per_instance`.
    PoolConnections,
}

impl Limit {
    /// In the order of the counters.
    pub const ALL: [Self; 11] = [
        Self::BodyIdleTimeout,
        Self::HeaderTimeout,
        Self::KeepAliveTimeout,
        Self::MaxBodyBytes,
        Self::MaxConnections,
        Self::MaxHeaderBytes,
        Self::MaxHeaders,
        Self::MaxResponseHeaderBytes,
        Self::MaxTargetBytes,
        Self::OpenFiles,
        Self::PoolConnections,
    ];

    /// The label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BodyIdleTimeout => "body_idle_timeout",
            Self::HeaderTimeout => "header_timeout",
            Self::KeepAliveTimeout => "keep_alive_timeout",
            Self::MaxBodyBytes => "max_body_bytes",
            Self::MaxConnections => "max_connections",
            Self::MaxHeaderBytes => "max_header_bytes",
            Self::MaxHeaders => "max_headers",
            Self::MaxResponseHeaderBytes => "max_response_header_bytes",
            Self::MaxTargetBytes => "max_target_bytes",
            Self::OpenFiles => "open_files",
            Self::PoolConnections => "pool_connections",
        }
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

fn add_at(counters: &[AtomicU64], index: usize) {
    if let Some(counter) = counters.get(index) {
        add(counter, 1);
    }
}

fn add_all(to: &mut [u64], from: &[AtomicU64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = to.wrapping_add(from.load(Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_summed_and_codes_find_their_slot() {
        let cells = UpstreamCells::new(2);
        for worker in 0..2 {
            cells.begin(worker);
            cells.finish(
                worker,
                AppProtocol::Http2,
                503,
                None,
                Duration::from_millis(2),
            );
        }
        cells.begin(0);
        cells.finish(0, AppProtocol::Grpc, 200, Some(99), Duration::from_secs(60));
        let reading = cells.read();
        assert_eq!(reading.http[1], [0, 0, 0, 0, 2]);
        assert_eq!(reading.grpc[GRPC_CODES - 1], 1);
        assert_eq!(reading.durations[1].buckets[1], 2);
        assert_eq!(reading.durations[2].buckets[BUCKETS_US.len()], 1);
        assert_eq!((reading.in_flight, cells.requests()), (0, 3));
    }
}
