//! Families of the app's registrations; nothing where none is configured.

use std::collections::BTreeMap;

use crate::metrics::names;
use crate::metrics::sheet::{Sample, Sheet};
use crate::status::ProcessStatus;

pub(super) fn put(sheet: &mut Sheet, process: &ProcessStatus) {
    let mut up: BTreeMap<&str, bool> = BTreeMap::new();
    for registration in &process.registrations {
        *up.entry(&registration.registry).or_insert(true) &= registration.up;
    }
    for (registry, up) in &up {
        sheet.set(&names::REGISTRATION_UP, &[registry], Sample::flag(*up));
    }
    if !up.is_empty() {
        let healthy = Sample::flag(process.app.is_up());
        sheet.set(&names::APP_HEALTHY, &[], healthy);
    }
    for (registry, beats) in &process.heartbeats {
        for (result, count) in [("ok", beats.ok), ("failed", beats.failed)] {
            let labels = [registry.as_str(), result];
            sheet.set(&names::HEARTBEATS, &labels, Sample::count(count));
        }
    }
}
