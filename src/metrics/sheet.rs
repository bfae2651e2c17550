//! A scrape being written: samples by family and labels, each series once, in a stable order.
//! Next: `metrics/collect.rs` fills it, `metrics/exposition.rs` writes it.

use std::collections::{BTreeMap, BTreeSet};

use super::exposition::Format;
use super::names::{ALL, Family};

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

    /// The whole text; with `only` just these families, by their names in either format.
    pub(super) fn encode(mut self, only: Option<&BTreeSet<String>>, format: Format) -> String {
        let mut out = String::new();
        for family in ALL {
            let wanted = only
                .is_none_or(|names| names.contains(family.name) || names.contains(family.stem()));
            if let Some(series) = self.samples.remove(family.name).filter(|_| wanted) {
                format.family(&mut out, family, &series);
            }
        }
        format.end(&mut out);
        out
    }
}
