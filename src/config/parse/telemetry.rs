//! `telemetry` and `log`.

use super::reader::{Field, Map};
use super::record::Shape;
use super::value::{fixed, words};
use crate::config::diagnostic::Code;
use crate::config::types::{
    AccessLog, AccessLogMode, Events, Log, LogFormat, PerInstance, Sink, Telemetry,
};

/// `telemetry`.
pub(crate) fn telemetry(map: Map<'_>) -> Telemetry {
    let metrics = map.child("metrics");
    let per_instance = metrics.choice(
        "per_instance",
        PerInstance::Auto,
        &[
            ("auto", PerInstance::Auto),
            ("all", PerInstance::All),
            ("ejected_only", PerInstance::EjectedOnly),
            ("none", PerInstance::None),
        ],
        &[],
    );
    let max_instances = metrics.integer("max_instances", 500, &(0..=100_000));
    let max_upstreams = metrics.integer("max_upstreams", 500, &(1..=100_000));
    metrics.finish();
    tracing_headers(map.child("tracing"));
    let telemetry = Telemetry {
        listen: map.listen_or("listen", "auto", None),
        per_instance,
        max_instances,
        max_upstreams,
        access_log: access_log(map.child("access_log")),
        events: events(map.child("events")),
    };
    map.finish();
    telemetry
}

fn access_log(map: Map<'_>) -> AccessLog {
    let mode = map.choice(
        "mode",
        AccessLogMode::Errors,
        &[
            ("none", AccessLogMode::None),
            ("errors", AccessLogMode::Errors),
            ("all", AccessLogMode::All),
        ],
        &[],
    );
    map.choice("format", (), &[("json", ())], &[]);
    map.declare("sink", || SINK.default("stdout"));
    let log = AccessLog {
        mode,
        sample_success: ratio(&map, "sample_success", 0.01),
        sink: map
            .field("sink")
            .and_then(|f| sink(&f))
            .unwrap_or(Sink::Stdout),
        log_paths: map.boolean("log_paths", false),
    };
    map.finish();
    log
}

fn events(map: Map<'_>) -> Events {
    map.declare("sinks", || SINK.one_or_more().default(vec!["stdout"]));
    let sinks = map.field("sinks").and_then(|f| f.one_or_more());
    let sinks = sinks.map(|items| items.iter().filter_map(sink).collect());
    let events = Events {
        sinks: sinks.unwrap_or_else(|| vec![Sink::Stdout]),
        ring_size: map.integer("ring_size", 5000, &(1..=1_000_000)),
    };
    map.finish();
    events
}

/// Both header formats always pass unchanged; only an export could change that.
fn tracing_headers(map: Map<'_>) {
    let formats = [("tracecontext", ()), ("b3", ())];
    map.declare("propagate", || {
        let all = formats.map(|(word, ())| word).to_vec();
        words(&formats).one_or_more().default(all)
    });
    if let Some(items) = map.field("propagate").and_then(|f| f.one_or_more()) {
        for item in items {
            item.word(&formats, &[]);
        }
    }
    map.choice("export", (), &[("none", ())], &["otlp"]);
    map.finish();
}

/// `stdout`, `stderr` or a file.
const SINK: Shape = Shape::Pattern(r"^(stdout|stderr|.*[/.].*)$");

fn sink(field: &Field<'_>) -> Option<Sink> {
    match field.text()? {
        "stdout" => Some(Sink::Stdout),
        "stderr" => Some(Sink::Stderr),
        "" => {
            field.wrong(
                Code::EMPTY,
                "no place to write to",
                "`stdout`, `stderr` or a file path",
            );
            None
        }
        path if path.contains(['/', '.']) => Some(Sink::File(field.context.folder.join(path))),
        word => {
            let help = format!("`stdout`, `stderr` or a file path such as `./{word}.log`");
            field.wrong(
                Code::UNKNOWN_VALUE,
                &format!("unknown value `{word}`"),
                help,
            );
            None
        }
    }
}

fn ratio(map: &Map<'_>, key: &'static str, default: f64) -> f64 {
    map.declare(key, || Shape::Decimal { most: 1 }.default(default));
    let Some(field) = map.field(key) else {
        return default;
    };
    let read = |text: &str| match text.parse::<f64>() {
        Ok(number) if (0.0..=1.0).contains(&number) && fixed(text, 9).is_some() => Ok(number),
        Ok(number) if number > 1.0 && number <= 100.0 => {
            let help = format!("a ratio from 0 to 1: write {} for {text} %", number / 100.0);
            Err((format!("{text} is out of range"), help))
        }
        Ok(_) => Err((
            format!("{text} is out of range"),
            "a ratio from 0 to 1".to_owned(),
        )),
        Err(_) => Err((
            format!("`{text}` is no number"),
            "a ratio from 0 to 1".to_owned(),
        )),
    };
    field.convert(Code::NUMBER, read).unwrap_or(default)
}

/// `log`.
pub(crate) fn log(map: Map<'_>) -> Log {
    let levels = [
        ("error", tracing::Level::ERROR),
        ("warn", tracing::Level::WARN),
        ("info", tracing::Level::INFO),
        ("debug", tracing::Level::DEBUG),
        ("trace", tracing::Level::TRACE),
    ];
    let formats = [
        ("auto", None),
        ("json", Some(LogFormat::Json)),
        ("text", Some(LogFormat::Text)),
    ];
    let log = Log {
        level: map.choice("level", tracing::Level::INFO, &levels, &[]),
        format: map.choice("format", None, &formats, &[]),
    };
    map.finish();
    log
}
