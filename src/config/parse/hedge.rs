//! `hedge` of a service; `none` switches that of the defaults off.

use std::time::Duration;

use super::reader::Map;
use super::record::Shape;
use super::retry::{METHOD, method_words, methods};
use super::value::{Span, duration, show};
use crate::config::diagnostic::Code;
use crate::config::types::{Hedge, HedgeAfter, RetryMethods};

/// What is not written comes from `base`, that of the defaults.
pub(crate) fn hedge(parent: &Map<'_>, base: Option<&Hedge>) -> Option<Box<Hedge>> {
    parent.declare("hedge", || {
        let default = if base.is_none() { Some("none") } else { None };
        Shape::word("none").or(Shape::Map).default(default)
    });
    let field = parent.field("hedge");
    match &field {
        None => {
            base?;
        }
        Some(field) if field.scalar() == Some("none") => return None,
        Some(field) if field.scalar().is_some() => {
            field.map();
            return base.cloned().map(Box::new);
        }
        Some(_) => {}
    }
    let builtin = || RetryMethods {
        idempotent: true,
        ..RetryMethods::default()
    };
    let map = parent.child("hedge");
    map.declare("after", || {
        let time = Shape::Duration(Span::POSITIVE);
        let after = base.map(|base| match base.after {
            HedgeAfter::Time(time) => show(time),
            HedgeAfter::P95 => "p95".to_owned(),
        });
        let shape = Shape::word("p95").or(time);
        match after {
            Some(after) => shape.default(after),
            None => shape.required(),
        }
    });
    map.declare("methods", || {
        let methods = base.map_or_else(builtin, |base| base.methods.clone());
        METHOD.list().default(method_words(&methods))
    });
    let field = map.field("after");
    let after = field.as_ref().and_then(|field| {
        if field.text()? == "p95" {
            return Some(HedgeAfter::P95);
        }
        let time = field.convert(Code::DURATION, |text| duration(text, Span::POSITIVE))?;
        Some(HedgeAfter::Time(time))
    });
    if field.is_none() && base.is_none() {
        let message = format!("`{}` has no `after`", map.path);
        let help = "write `after: p95`, or a time such as `200ms`";
        map.context.report(Code::MISSING, &map.place, message, help);
    }
    let methods = map.field("methods").and_then(|field| methods(&field));
    let hedge = Hedge {
        after: after
            .or_else(|| base.map(|base| base.after))
            .unwrap_or(HedgeAfter::Time(Duration::from_secs(1))),
        methods: methods.unwrap_or_else(|| base.map_or_else(builtin, |base| base.methods.clone())),
    };
    map.finish();
    Some(Box::new(hedge))
}
