//! Orders of operators: what the detector makes of one, in words; the book of those in force; the
//! event of each that is set, ends by itself or is ended.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::{Driver, report};
use crate::clock::Timestamp;
use crate::endpoint::Address;
use crate::outlier::Input;
use crate::outlier::book::{Entry, Lasting, MOST, Order, Signed};
use crate::outlier::detector::{OverrideKind, Refusal, StateView};
use crate::status::{OverrideDone, OverrideRefused, OverrideStatus};

impl Driver {
    /// Carries an order out, or says why not. When this returns, the next pick obeys it.
    pub(super) fn order(&mut self, order: &Order) -> Result<OverrideDone, OverrideRefused> {
        let lasting = Lasting::of(order.kind);
        if lasting.is_some_and(|what| !self.book.has_room(&order.address, what)) {
            return Err(OverrideRefused {
                cause: "too_many".to_owned(),
                message: format!("{MOST} overrides of {} hold already", self.upstream.name),
                hint: "`outrigger overrides` lists them; end some".to_owned(),
            });
        }
        let now = self.clock.now();
        self.order_answer = None;
        self.signing = Some(order.signed.clone());
        let of_routes =
            order.kind == OverrideKind::Restore && self.restore_for_routes(&order.address);
        let command = (!of_routes).then(|| Input::Override {
            address: order.address.clone(),
            kind: order.kind,
            ttl: order.ttl,
            force: order.force,
        });
        if let Some(command) = command {
            self.detector.handle(command, now);
        }
        self.apply_effects();
        let done = match self.order_answer.take() {
            Some(Err(refusal)) => Err(self.refused(order, refusal)),
            Some(Ok(())) | None => Ok(self.done(order, now)),
        };
        self.carry_out();
        self.signing = None;
        done
    }

    /// Ends an order by its number; `None` when this upstream has none of that number.
    pub(super) fn clear_override(
        &mut self,
        id: u64,
        signed: Signed,
    ) -> Option<Result<OverrideDone, OverrideRefused>> {
        if let Some(done) = self.clear_breaker(id, &signed) {
            return Some(done);
        }
        let found = self.book.iter().find(|(_, _, entry)| entry.id == id);
        let (address, what) = found.map(|(address, what, _)| (address.clone(), what))?;
        let order = Order {
            id,
            address,
            kind: what.undone_by(),
            ttl: None,
            force: false,
            signed,
        };
        // Refused where its instance is away: it waits there for the time of the order.
        Some(self.order(&order))
    }

    fn done(&mut self, order: &Order, now: Timestamp) -> OverrideDone {
        let (address, name) = (&order.address, self.upstream.name.clone());
        let forced = order.force || self.ejected_by_force(order);
        if let (Some(what), Some(ttl)) = (Lasting::of(order.kind), order.ttl) {
            let entry = Entry {
                id: order.id,
                since: now,
                until: now + ttl,
                forced,
                signed: order.signed.clone(),
                ended_by: None,
            };
            self.book.write(address.clone(), what, entry);
        }
        self.settle_book();
        let summary = self.detector.summary();
        let numbers = &summary.numbers;
        let (out, cap, n) = (numbers.out, numbers.cap, numbers.n);
        let what = match order.kind {
            OverrideKind::Eject if order.force => format!("ejected {address} from {name} by force"),
            OverrideKind::Eject if forced => {
                format!("{address} of {name} stays ejected by force, as ordered before")
            }
            OverrideKind::Eject => format!("ejected {address} from {name}"),
            OverrideKind::Restore => format!("{address} is back in {name}"),
            OverrideKind::Hold => format!("{address} of {name} is not ejected by the rules"),
            OverrideKind::Release => format!("{address} of {name} is no longer held in"),
            OverrideKind::Disable => format!("disabled {address} of {name}"),
            OverrideKind::Enable => format!("{address} of {name} is enabled again"),
            OverrideKind::Clear => format!("nothing is ordered for {address} of {name}"),
        };
        let time = order
            .ttl
            .map_or_else(String::new, |ttl| format!(" for {}", report::span(ttl)));
        let message = format!("{what}{time}; {out} of max {cap} of {n} instances ejected");
        let entry = Lasting::of(order.kind).and_then(|what| {
            let entry = self.book.get(address, what)?;
            Some(self.override_status(address, what, entry))
        });
        if Lasting::of(order.kind).is_some() || !self.ends_something(order) {
            let mut fields = vec![
                ("kind", json!(kind_label(order.kind))),
                ("override", json!(entry.as_ref().map(|e| e.id.clone()))),
                ("until", json!(entry.as_ref().map(|e| e.until.clone()))),
                ("ttl_s", json!(order.ttl.map(|ttl| ttl.as_secs_f64()))),
                ("forced", json!(forced)),
            ];
            fields.extend(signature(&order.signed));
            fields.extend(report::numbers_fields(numbers));
            let msg = format!("{message}{}", by(&order.signed));
            report::emit(self, "override_set", Some(address), fields, msg);
        }
        OverrideDone {
            message,
            entry,
            instances: n,
            ejected_now: out,
            ejection_limit: cap,
        }
    }

    /// Whether an ejection holds by force, though perhaps ordered again without.
    fn ejected_by_force(&self, order: &Order) -> bool {
        let standing = self.detector.standing(&order.address);
        order.kind == OverrideKind::Eject
            && matches!(
                standing,
                Some((StateView::EjectedByOperator { forced: true, .. }, ..))
            )
    }

    /// Whether the order's event is the end of another one.
    fn ends_something(&self, order: &Order) -> bool {
        self.ended_now.contains(&order.address)
    }

    fn refused(&self, order: &Order, refusal: Refusal) -> OverrideRefused {
        let summary = self.detector.summary();
        let numbers = &summary.numbers;
        let (out, cap, n) = (numbers.out, numbers.cap, numbers.n);
        let (address, name) = (&order.address, &self.upstream.name);
        let (message, hint) = match refusal {
            Refusal::CapFull => (
                format!("{out} of max {cap} of {n} instances of {name} are ejected"),
                "--force (`force: true`) goes beyond the cap".to_owned(),
            ),
            Refusal::LastInstance if order.kind == OverrideKind::Disable => (
                format!("{address} is the last routable instance of {name}"),
                "--force (`force: true`) leaves the upstream empty".to_owned(),
            ),
            Refusal::LastInstance => (
                format!("{address} is the last instance of {name} that serves ({n} in all)"),
                "it stays, also under --force; `outrigger instances` shows the others".to_owned(),
            ),
            Refusal::Unknown => (
                format!("{name} has no instance {address}"),
                "`outrigger instances` lists them".to_owned(),
            ),
            Refusal::NotDisabled => (
                format!("{address} of {name} is not disabled by an operator"),
                "the registry's own flags are changed there".to_owned(),
            ),
            Refusal::NotEjected => (
                format!("{address} of {name} is not ejected"),
                format!(
                    "nothing to restore; `outrigger explain {name}/{address}` says how it stands"
                ),
            ),
            Refusal::NotHeld => (format!("{address} of {name} is not held"), String::new()),
        };
        OverrideRefused {
            cause: refusal.as_str().to_owned(),
            message,
            hint,
        }
    }

    /// Strikes out what does not hold any more, and tells.
    pub(super) fn settle_book(&mut self) {
        self.ended_now.clear();
        if self.book.is_empty() {
            return;
        }
        let now = self.clock.now();
        let detector = &self.detector;
        let struck = self.book.strike(|address, what, entry| match what {
            Lasting::Hold => detector.pins(address).0,
            Lasting::Disable => detector.pins(address).1,
            Lasting::Eject => match detector.standing(address) {
                Some((StateView::EjectedByOperator { .. }, ..)) => true,
                Some((StateView::In | StateView::Ejected { .. }, ..)) => false,
                // Away; its ejection waits for it as long as it lasts.
                None => entry.until > now,
            },
        });
        for (address, what, entry) in struck {
            self.tell_end(&address, what, &entry, "replaced");
            self.ended_now.push(address);
        }
        self.count_overrides();
    }

    fn tell_end(&self, address: &Address, what: Lasting, entry: &Entry, otherwise: &str) {
        let now = self.clock.now();
        let name = &self.upstream.name;
        let mut fields = vec![
            ("kind", json!(what.as_str())),
            ("override", json!(id_text(entry.id))),
            ("held_for_s", json!(now.since(entry.since).as_secs_f64())),
        ];
        let story = format!("{} of {address} of {name}", what.as_str());
        let length = report::span(now.since(entry.since));
        if entry.until <= now {
            fields.extend(signature(&entry.signed));
            let msg = format!(
                "{story} ended after {length}, its time{}",
                by(&entry.signed)
            );
            report::emit(self, "override_expired", Some(address), fields, msg);
            return;
        }
        let cause = match entry.ended_by {
            Some(by) => by.as_str(),
            None if self.signing.is_some() => "operator",
            None => otherwise,
        };
        fields.push(("cause", json!(cause)));
        let auto = || Signed {
            actor: "auto".to_owned(),
            note: None,
        };
        let signed = self.signing.clone().unwrap_or_else(auto);
        fields.extend(signature(&signed));
        let msg = format!("{story} was ended after {length} ({cause}){}", by(&signed));
        report::emit(self, "override_cleared", Some(address), fields, msg);
    }

    /// The upstream is no more, nor are its overrides.
    pub(super) fn close_book(&mut self) {
        for (address, what, entry) in self.book.strike(|_, _, _| false) {
            self.tell_end(&address, what, &entry, "upstream_gone");
        }
        self.overrides.store(0, Ordering::Relaxed);
    }

    /// All in force.
    pub(super) fn override_statuses(&self) -> Vec<OverrideStatus> {
        let all = self.book.iter();
        all.map(|(address, what, entry)| self.override_status(address, what, entry))
            .chain(self.breaker_overrides())
            .collect()
    }

    fn override_status(&self, address: &Address, what: Lasting, entry: &Entry) -> OverrideStatus {
        let wall = |at| humantime::format_rfc3339_millis(self.wall(at)).to_string();
        OverrideStatus {
            id: id_text(entry.id),
            upstream: self.upstream.name.to_string(),
            instance: Some(address.to_string()),
            route: None,
            kind: what.as_str().to_owned(),
            since: wall(entry.since),
            until: wall(entry.until),
            left_s: entry.until.since(self.clock.now()).as_secs_f64(),
            forced: entry.forced,
            actor: entry.signed.actor.clone(),
            note: entry.signed.note.clone(),
        }
    }

    /// An override in words: ` by ann (deploy), 9m 58s left`.
    pub(super) fn override_words(&self, address: &Address, what: Lasting) -> String {
        let Some(entry) = self.book.get(address, what) else {
            return String::new();
        };
        let left = report::span(entry.until.since(self.clock.now()));
        format!("{}, {left} left", by(&entry.signed))
    }
}

/// How a number is written.
pub(super) fn id_text(id: u64) -> String {
    format!("ov-{id}")
}

pub(super) fn signature(signed: &Signed) -> Vec<(&'static str, serde_json::Value)> {
    vec![("actor", json!(signed.actor)), ("note", json!(signed.note))]
}

/// ` by ann (deploy)`.
pub(super) fn by(signed: &Signed) -> String {
    match &signed.note {
        Some(note) => format!(" by {} ({note})", signed.actor),
        None => format!(" by {}", signed.actor),
    }
}

const fn kind_label(kind: OverrideKind) -> &'static str {
    match kind {
        OverrideKind::Clear => "clear",
        OverrideKind::Disable => "disable",
        OverrideKind::Enable => "enable",
        OverrideKind::Eject => "eject",
        OverrideKind::Hold => "hold",
        OverrideKind::Release => "release",
        OverrideKind::Restore => "restore",
    }
}
