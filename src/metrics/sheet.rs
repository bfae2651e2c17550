//! A scrape being written: samples by family and labels, each series once, in a stable order.
//! Next: `metrics/collect.rs` fills it.

use std::collections::{BTreeMap, BTreeSet};

use prometheus::proto;
use prometheus::{Encoder, TextEncoder};

use super::names::{ALL, Family, Kind};

/// A value of a series.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sample {
    /// Of a counter or gauge.
    Value(f64),
    /// Of a histogram.
    Histogram {
        /// Not cumulative; the last one is above every bound.
        buckets: Vec<u64>,
        /// Upper bounds, one less than buckets.
        bounds: Vec<f64>,
        /// Of all values.
        sum: f64,
    },
}

impl Sample {
    pub(super) fn count(n: u64) -> Self {
        Self::Value(n as f64)
    }

    pub(super) fn flag(on: bool) -> Self {
        Self::Value(if on { 1.0 } else { 0.0 })
    }

    /// Adds `other`; of different shapes only the first one's count.
    pub(super) fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Value(value), Self::Value(more)) => *value += more,
            (
                Self::Histogram { buckets, sum, .. },
                Self::Histogram {
                    buckets: more,
                    sum: more_sum,
                    ..
                },
            ) => {
                for (to, from) in buckets.iter_mut().zip(more) {
                    *to = to.saturating_add(*from);
                }
                *sum += more_sum;
            }
            (Self::Value(_), Self::Histogram { .. }) | (Self::Histogram { .. }, Self::Value(_)) => {
            }
        }
    }

    /// What was added since `earlier`. A source that began anew added all it has.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        match (self, earlier) {
            (Self::Value(now), Self::Value(then)) if now >= then => Self::Value(now - then),
            (
                Self::Histogram {
                    buckets,
                    bounds,
                    sum,
                },
                Self::Histogram {
                    buckets: then,
                    sum: then_sum,
                    ..
                },
            ) if buckets.iter().zip(then).all(|(now, then)| now >= then) => Self::Histogram {
                buckets: buckets
                    .iter()
                    .zip(then)
                    .map(|(now, then)| now.saturating_sub(*then))
                    .collect(),
                bounds: bounds.clone(),
                sum: (sum - then_sum).max(0.0),
            },
            (Self::Value(_) | Self::Histogram { .. }, _) => self.clone(),
        }
    }
}

/// A series: its family and label values.
pub(super) type Key = (&'static str, Vec<String>);

/// The samples of a scrape.
#[derive(Debug, Default)]
pub(super) struct Sheet {
    samples: BTreeMap<&'static str, BTreeMap<Vec<String>, Sample>>,
}

impl Sheet {
    /// Sets a series. Its last value holds.
    pub(super) fn put(&mut self, family: &Family, labels: Vec<String>, sample: Sample) {
        debug_assert_eq!(family.labels.len(), labels.len(), "{}", family.name);
        self.samples
            .entry(family.name)
            .or_default()
            .insert(labels, sample);
    }

    /// A series with these label values.
    pub(super) fn set(&mut self, family: &Family, labels: &[&str], sample: Sample) {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        self.put(family, labels, sample);
    }

    /// The text format; with `only` just these families.
    pub(super) fn encode(self, only: Option<&BTreeSet<String>>) -> prometheus::Result<String> {
        let Self { mut samples } = self;
        let mut families = Vec::new();
        for family in ALL {
            let wanted = only.is_none_or(|names| names.contains(family.name));
            if let Some(series) = samples.remove(family.name).filter(|_| wanted) {
                families.push(to_proto(family, series));
            }
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

fn to_proto(family: &Family, series: BTreeMap<Vec<String>, Sample>) -> proto::MetricFamily {
    let mut out = proto::MetricFamily::default();
    out.set_name(family.name.to_owned());
    out.set_help(family.help.to_owned());
    out.set_field_type(match family.kind {
        Kind::Counter => proto::MetricType::COUNTER,
        Kind::Gauge => proto::MetricType::GAUGE,
        Kind::Histogram => proto::MetricType::HISTOGRAM,
    });
    let metrics = series.into_iter().map(|(values, sample)| {
        let pairs = family.labels.iter().zip(values).map(|(name, value)| {
            let mut pair = proto::LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value(value);
            pair
        });
        let mut metric = proto::Metric::from_label(pairs.collect());
        match sample {
            Sample::Value(value) if family.kind == Kind::Counter => {
                let mut counter = proto::Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            Sample::Value(value) => {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            Sample::Histogram {
                buckets,
                bounds,
                sum,
            } => metric.set_histogram(histogram(&buckets, &bounds, sum)),
        }
        metric
    });
    out.set_metric(metrics.collect());
    out
}

fn histogram(buckets: &[u64], bounds: &[f64], sum: f64) -> proto::Histogram {
    let mut so_far = 0_u64;
    let mut cumulative = Vec::with_capacity(bounds.len());
    for (count, bound) in buckets.iter().zip(bounds) {
        so_far = so_far.saturating_add(*count);
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(*bound);
        bucket.set_cumulative_count(so_far);
        cumulative.push(bucket);
    }
    let mut out = proto::Histogram::default();
    out.set_sample_count(buckets.iter().sum());
    out.set_sample_sum(sum);
    out.set_bucket(cumulative);
    out
}
