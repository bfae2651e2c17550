//! The series of circuit breakers and bulkheads: of each upstream, and of its routes that have their
//! own, which carry the label `route`.

use crate::metrics::names::{self, Family};
use crate::metrics::sheet::Sample;
use crate::status::{BreakerStatus, BulkheadStatus, UpstreamStatus};

/// Where samples go: family, labels without the upstream, value.
type Put<'a> = dyn FnMut(&Family, &[&str], Sample) + 'a;

/// Puts those of an upstream down.
pub(super) fn put(upstream: &UpstreamStatus, set: &mut Put<'_>) {
    // No label: Prometheus takes an empty one for none.
    let own = "";
    if let Some(breaker) = &upstream.summary.breaker {
        put_breaker(own, breaker, set);
    }
    put_bulkhead(own, &upstream.summary.bulkhead, set);
    for route in &upstream.routes {
        if let Some(breaker) = &route.breaker {
            put_breaker(&route.name, breaker, set);
        }
        if let Some(bulkhead) = &route.bulkhead {
            put_bulkhead(&route.name, bulkhead, set);
        }
    }
    for ((route, to), count) in &upstream.decisions.transitions {
        let labels = [route.as_deref().unwrap_or(own), to];
        set(&names::BREAKER_TRANSITIONS, &labels, Sample::count(*count));
    }
}

fn put_breaker(route: &str, breaker: &BreakerStatus, set: &mut Put<'_>) {
    for state in BreakerStatus::STATES {
        let is = Sample::flag(breaker.label() == state);
        set(&names::BREAKER_STATE, &[route, state], is);
    }
}

fn put_bulkhead(route: &str, bulkhead: &BulkheadStatus, set: &mut Put<'_>) {
    let in_use = Sample::count(u64::from(bulkhead.in_use));
    set(&names::BULKHEAD_IN_USE, &[route], in_use);
    let limit = Sample::count(u64::from(bulkhead.limit));
    set(&names::BULKHEAD_LIMIT, &[route], limit);
}
