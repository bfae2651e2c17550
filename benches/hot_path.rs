//! What every request passes, each step by itself: the route, the pick, the headers, the budget of
//! retries, the classification of an answer, the detector. `cargo bench --bench hot_path [-- NAME]`.
//! `benches/instructions` runs route, picks and window once each under callgrind instead and counts
//! their instructions, for several sizes: what a request costs must not grow with the set-up.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark that cannot be set up ends"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use criterion::{BatchSize, BenchmarkId, Criterion};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, request};
use outrigger::balancer::hash::Key;
use outrigger::balancer::hashing::{Level, Owner, Table};
use outrigger::balancer::{PickContext, RoundRobinState, pick};
use outrigger::clock::Timestamp;
use outrigger::config::types::{Config, LoadBalancer};
use outrigger::endpoint::Address;
use outrigger::endpoint::instance::Instance;
use outrigger::endpoint::selectable::{Availability, Entry, Selectable};
use outrigger::listener::head::{HeadLimits, check};
use outrigger::outlier::classify::classify_http;
use outrigger::outlier::detector::Outcome;
use outrigger::outlier::policy::Policy;
use outrigger::outlier::window::{BucketIndex, Sample, Window};
use outrigger::outlier::{Detector, Input, Jitter, OutcomeClass, RoutableEndpoint, UpstreamFacts};
use outrigger::protocol::http1::chunked::ChunkReader;
use outrigger::protocol::http1::head::{HeadLimits as ResponseLimits, take};
use outrigger::protocol::http1::request::{BodyLength, RequestLine, write_head};
use outrigger::router::{Authority, Route, RouteTable, Settings, TableBuilder, route};
use outrigger::upstream::Upstream;
use outrigger::upstream::headers::{Seen, clean_request, clean_response};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|a| a == "once") {
        let size = arguments[at + 2].parse().expect("a number");
        return once(&arguments[at + 1], size);
    }
    let mut criterion = Criterion::default().configure_from_args();
    routes(&mut criterion);
    picks(&mut criterion);
    tables(&mut criterion);
    headers(&mut criterion);
    windows(&mut criterion);
    codec(&mut criterion);
    detector(&mut criterion);
    criterion.final_summary();
}

/// Calls that are counted.
const CALLS: usize = 10_000;

/// One step, [`CALLS`] times, after its set-up. callgrind counts what is below [`counted`].
fn once(step: &str, size: usize) {
    match step {
        "route" => {
            let table = route_table(size);
            let host = format!("service-{:05}.shop.internal", size / 2);
            let parts = head(&host, "/v1/orders");
            let authority = Authority::parse(&host).expect("a host");
            counted(|_| {
                let found = route(&table, black_box(&parts), Some(&authority));
                assert!(found.is_ok());
            });
        }
        "pick" | "ewma" | "ring" | "maglev" => {
            let algorithm = match step {
                "pick" => LoadBalancer::P2cLeastRequest,
                "ewma" => LoadBalancer::PeakEwma,
                "ring" => LoadBalancer::RingHash,
                _ => LoadBalancer::Maglev,
            };
            let set = selectable(size, algorithm, |_| 1_000);
            let mut rng = fastrand::Rng::with_seed(7);
            let mut turn = RoundRobinState::default();
            let now = Timestamp::from_millis(1_000);
            counted(|_| {
                let context = context(algorithm, now, &mut rng);
                let entry = pick(algorithm, &set, &context, &mut rng, &mut turn);
                black_box(entry.is_some());
            });
        }
        "window" => {
            let mut windows: Vec<Window> = (0..size).map(|_| Window::default()).collect();
            let sample = Sample {
                class: OutcomeClass::Success,
                count: 20,
                own_timeout: false,
                death: None,
                kind: None,
            };
            // The first call opens a bucket; it is not what a request costs.
            for window in &mut windows {
                window.add(&sample, BucketIndex(0));
            }
            counted(|call| windows[call % size].add(black_box(&sample), BucketIndex(0)));
        }
        other => unreachable!("there is no step {other}"),
    }
}

#[inline(never)]
fn counted(mut step: impl FnMut(usize)) {
    for call in 0..CALLS {
        step(call);
    }
}

fn route_table(services: usize) -> RouteTable {
    let defaults = Config::builtin().defaults;
    let mut builder = TableBuilder::default();
    for number in 0..services {
        let name: Arc<str> = format!("service-{number:05}").into();
        let mut service = (*defaults).clone();
        service.name = Arc::clone(&name);
        service.hosts = vec![format!("service-{number:05}.shop.internal").into()];
        let settings = Settings::new(Arc::new(service), &name);
        let upstream = Arc::new(Upstream::new(name, 2));
        builder.add(Arc::new(Route::new(upstream, settings)));
    }
    let (table, conflicts) = builder.build();
    assert!(conflicts.is_empty());
    table
}

fn head(host: &str, path: &str) -> request::Parts {
    let request = Request::get(path).header("host", host).body(()).unwrap();
    request.into_parts().0
}

fn routes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("route");
    for services in [10, 2_000] {
        let table = route_table(services);
        let last = services - 1;
        for (rule, host, path) in [
            (
                "host",
                format!("service-{last:05}.shop.internal"),
                "/v1/orders".to_owned(),
            ),
            (
                "host_name",
                format!("Service-{last:05}:8080"),
                "/v1/orders".to_owned(),
            ),
            (
                "path",
                "localhost:15001".to_owned(),
                format!("/service-{last:05}/v1/orders"),
            ),
        ] {
            let parts = head(&host, &path);
            let authority = Authority::parse(&host).expect("a host");
            assert!(route(&table, &parts, Some(&authority)).is_ok(), "{rule}");
            group.bench_function(BenchmarkId::new(rule, services), |b| {
                b.iter(|| route(&table, black_box(&parts), Some(&authority)));
            });
        }
    }
    group.finish();
}

fn address(number: usize) -> Address {
    Address::parse(&format!("10.{}.{}.1:8080", number / 250, number % 250)).expect("an address")
}

/// Every request has a key of its own.
fn context(
    algorithm: LoadBalancer,
    now: Timestamp,
    rng: &mut fastrand::Rng,
) -> PickContext<'static> {
    let key = algorithm.hashes().then(|| Key(rng.u64(..)));
    let tried = &[];
    PickContext { now, tried, key }
}

fn selectable(
    instances: usize,
    algorithm: LoadBalancer,
    weight: impl Fn(usize) -> u32,
) -> Selectable {
    let entry = |number| Entry {
        instance: Arc::new(Instance::new(address(number), 2).expect("an address")),
        weight: weight(number),
        ramp: None,
        http2: None,
    };
    let entries: Vec<Entry> = (0..instances).map(entry).collect();
    for entry in &entries {
        let took = Duration::from_millis(3);
        entry.instance.latency.observe(took, Timestamp::ZERO);
    }
    let levels = table(algorithm, &entries).map(|table| {
        let places: Vec<Option<usize>> = (0..instances).map(Some).collect();
        Level::new(10_000, Arc::new(table), &places)
    });
    let policy = Arc::new(Policy::builtin(false));
    Selectable::new(1, entries, Availability::Ready, policy, Vec::new(), false)
        .hashed(levels.into_iter().collect())
}

fn table(algorithm: LoadBalancer, entries: &[Entry]) -> Option<Table> {
    let owner = |entry: &Entry| Owner::new(&entry.instance.address, entry.weight);
    Table::new(algorithm, entries.iter().map(owner).collect())
}

/// What a change of the set of instances costs the control thread.
fn tables(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("table");
    group.sample_size(10);
    for (name, algorithm) in [
        ("ring_hash", LoadBalancer::RingHash),
        ("maglev", LoadBalancer::Maglev),
    ] {
        for instances in [10, 1_000, 10_000] {
            let set = selectable(instances, LoadBalancer::Random, |_| 1_000);
            let id = BenchmarkId::new(name, instances);
            group.bench_function(id, |b| b.iter(|| table(algorithm, &set.entries)));
        }
    }
    group.finish();
}

fn picks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pick");
    for (name, algorithm) in [
        ("p2c_least_request", LoadBalancer::P2cLeastRequest),
        ("peak_ewma", LoadBalancer::PeakEwma),
        ("ring_hash", LoadBalancer::RingHash),
        ("maglev", LoadBalancer::Maglev),
        ("round_robin", LoadBalancer::RoundRobin),
        ("random", LoadBalancer::Random),
    ] {
        for instances in [10, 1_000, 10_000] {
            let equal = selectable(instances, algorithm, |_| 1_000);
            let weight = |n| if n % 3 == 0 { 3_000 } else { 1_000 };
            let varied = selectable(instances, algorithm, weight);
            for (weights, set) in [("equal", equal), ("weighted", varied)] {
                let mut rng = fastrand::Rng::with_seed(7);
                let mut turn = RoundRobinState::default();
                let now = Timestamp::ZERO;
                let id = BenchmarkId::new(format!("{name}/{weights}"), instances);
                group.bench_function(id, |b| {
                    b.iter(|| {
                        let context = context(algorithm, now, &mut rng);
                        pick(algorithm, &set, &context, &mut rng, &mut turn)
                            .map(|entry| entry.instance.id)
                    });
                });
            }
        }
    }
    group.finish();
}

/// What a browser or an HTTP library sends, and a service answers.
fn fields(more: &[(&'static str, &'static str)]) -> HeaderMap {
    let usual = [
        ("host", "orders"),
        ("user-agent", "okhttp/4.12.0"),
        ("accept", "application/json"),
        ("accept-encoding", "gzip, br"),
        ("accept-language", "en"),
        ("content-type", "application/json"),
        ("content-length", "128"),
        ("x-request-id", "4f0c9c1e-8a52-4f3b-9a30-0c7a3b8d6f11"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
    ];
    let pairs = usual.iter().chain(more);
    pairs
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        })
        .collect()
}

fn headers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("headers");
    let plain = fields(&[]);
    let hops = fields(&[
        ("connection", "keep-alive, x-trace"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("x-trace", "1"),
        ("x-outrigger-upstream", "orders"),
    ]);
    for (name, map) in [("plain", plain), ("hop_by_hop", hops)] {
        group.bench_function(BenchmarkId::new("scan", name), |b| {
            b.iter(|| Seen::scan(black_box(&map)));
        });
        let seen = Seen::scan(&map);
        group.bench_function(BenchmarkId::new("clean_request", name), |b| {
            let clean = |map: &mut HeaderMap| clean_request(map, seen, false);
            b.iter_batched_ref(|| map.clone(), clean, BatchSize::SmallInput);
        });
        group.bench_function(BenchmarkId::new("clean_response", name), |b| {
            let clean = |map: &mut HeaderMap| clean_response(map, false, false);
            b.iter_batched_ref(|| map.clone(), clean, BatchSize::SmallInput);
        });
    }
    let mut parts = head("orders", "/v1/orders?page=2");
    parts.headers = fields(&[]);
    let seen = Seen::scan(&parts.headers);
    let limits = HeadLimits {
        max_target_bytes: 16 * 1024,
        max_header_bytes: None,
        browser_guard: true,
        hop: b"0123456789abcdef",
    };
    group.bench_function("check", |b| {
        b.iter(|| check(black_box(&parts), seen, &limits).is_ok());
    });
    let policy = Policy::builtin(false);
    group.bench_function("classify", |b| {
        b.iter(|| classify_http(black_box(503), &policy));
    });
    group.finish();
}

fn windows(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("window");
    for (name, class, count) in [
        ("success_batch", OutcomeClass::Success, 20),
        ("failure", OutcomeClass::NetworkError, 1),
    ] {
        let sample = Sample {
            class,
            count,
            own_timeout: false,
            death: None,
            kind: None,
        };
        let mut window = Window::default();
        let mut calls = 0_u64;
        group.bench_function(name, |b| {
            b.iter(|| {
                calls += 1;
                // A bucket is open for a thousand calls.
                window.add(black_box(&sample), BucketIndex(calls / 1_000));
                // Its streak stays as short as one that leads to an ejection.
                if calls.is_multiple_of(8) {
                    window.clear();
                }
            });
        });
    }
    group.finish();
}

/// HTTP/1.1 towards an instance: a request's head out, a response's head and chunks in.
fn codec(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("http1");
    let fields = fields(&[]);
    let target = PathAndQuery::from_static("/v1/orders?page=2");
    let line = RequestLine {
        method: &Method::GET,
        target: &target,
        headers: &fields,
        host: None,
        instead: None,
    };
    let mut out = Vec::new();
    group.bench_function("write_head", |b| {
        b.iter(|| {
            out.clear();
            write_head(&mut out, black_box(&line), BodyLength::Absent);
            out.len()
        });
    });
    let limits = ResponseLimits {
        max_headers: 256,
        max_bytes: 256 * 1024,
    };
    let head = "HTTP/1.1 200 OK\r\nserver: nginx\r\ndate: Mon, 30 Nov 2026 12:00:00 GMT\r\n\
                content-type: application/json\r\ncontent-length: 1024\r\netag: \"5f\"\r\n\r\n";
    let mut spare = HeaderMap::new();
    group.bench_function("take_head", |b| {
        b.iter_batched_ref(
            || BytesMut::from(head),
            |buf| {
                let taken = take(buf, limits, &Method::GET, &mut spare)
                    .unwrap()
                    .unwrap();
                let status = taken.status;
                spare = taken.headers;
                status
            },
            BatchSize::SmallInput,
        );
    });
    let chunks = format!("{}0\r\n\r\n", "10\r\n0123456789abcdef\r\n".repeat(16));
    group.bench_function("sixteen_chunks", |b| {
        b.iter_batched_ref(
            || (ChunkReader::new(1024, 8), BytesMut::from(chunks.as_str())),
            |(reader, buf)| {
                while !reader.is_done() {
                    black_box(reader.step(buf).unwrap());
                }
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn outcome(address: &Address, class: OutcomeClass, count: u32, now: Timestamp) -> Input {
    Input::Outcome(Outcome {
        count,
        ..Outcome::new(address.clone(), class, now)
    })
}

/// `instances`, each with a hundred good calls in the window; returns the time too.
fn busy(instances: usize) -> (Detector, Timestamp) {
    let policy = Arc::new(Policy::builtin(false));
    let facts = UpstreamFacts::default();
    let mut detector = Detector::new(policy, facts, Jitter::none(), Timestamp::ZERO);
    let list = (0..instances).map(|n| RoutableEndpoint::new(address(n)));
    detector.handle(Input::Endpoints(list.collect()), Timestamp::ZERO);
    for step in 0..10 {
        for number in 0..instances {
            let now = Timestamp::from_millis(step * 500);
            detector.handle(
                outcome(&address(number), OutcomeClass::Success, 10, now),
                now,
            );
        }
    }
    let now = Timestamp::from_millis(5_000);
    while detector.poll_effect().is_some() {}
    (detector, now)
}

fn drain(detector: &mut Detector) -> u32 {
    let mut effects = 0;
    while detector.poll_effect().is_some() {
        effects += 1;
    }
    effects
}

fn detector(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("detector");
    for instances in [10, 1_000] {
        let addresses: Vec<Address> = (0..instances).map(address).collect();
        let first = address(0);
        let (mut machine, now) = on_the_brink(instances);
        machine.handle(outcome(&first, OutcomeClass::NetworkError, 1, now), now);
        assert!(drain(&mut machine) > 0, "the brink is one");

        let (mut machine, mut now) = busy(instances);
        let mut turn = 0;
        group.bench_function(BenchmarkId::new("success_batch", instances), |b| {
            b.iter(|| {
                turn = (turn + 1) % instances;
                now = now + Duration::from_micros(100);
                machine.handle(
                    outcome(&addresses[turn], OutcomeClass::Success, 20, now),
                    now,
                );
                drain(&mut machine)
            });
        });

        // Judged each time, never bad enough: one failure among twenty-one calls.
        let (mut machine, mut now) = busy(instances);
        let mut turn = 0;
        group.bench_function(BenchmarkId::new("failure_judged", instances), |b| {
            b.iter(|| {
                turn = (turn + 1) % instances;
                now = now + Duration::from_micros(100);
                machine.handle(
                    outcome(&addresses[turn], OutcomeClass::Success, 20, now),
                    now,
                );
                machine.handle(
                    outcome(&addresses[turn], OutcomeClass::NetworkError, 1, now),
                    now,
                );
                drain(&mut machine)
            });
        });

        // The last failure of a dead instance: judged, ejected, its probe planned.
        group.bench_function(BenchmarkId::new("ejection", instances), |b| {
            b.iter_batched_ref(
                || on_the_brink(instances),
                |(machine, now)| {
                    machine.handle(outcome(&first, OutcomeClass::NetworkError, 1, *now), *now);
                    drain(machine)
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

/// One failure of instance 0 is missing until it is ejected for the rate of its errors.
fn on_the_brink(instances: usize) -> (Detector, Timestamp) {
    let (mut detector, now) = busy(instances);
    let first = address(0);
    for _ in 0..50 {
        detector.handle(outcome(&first, OutcomeClass::Success, 1, now), now);
        for _ in 0..3 {
            detector.handle(outcome(&first, OutcomeClass::NetworkError, 1, now), now);
        }
    }
    assert_eq!(
        drain(&mut detector),
        0,
        "150 of 300 calls failed: not above 50 %"
    );
    (detector, now)
}
