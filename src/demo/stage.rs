//! The running parts of the demo and the loop between them: what the journal and the status say
//! goes to the story, what the story wants is done to the instances, and people are told.

use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;

use super::narrate::{Narrator, Tone};
use super::reading::{happening, state, text};
use super::sample::Sample;
use super::story::{Act, Happening, Part, Plan, Story};
use super::summary::{Seen, Summary};
use super::traffic::Traffic;
use super::{Ports, SERVICE};
use crate::clock::{Clock, Timestamp};
use crate::control::ControlHandle;
use crate::drain::Stop;
use crate::journal::Journal;
use crate::status::UpstreamStatus;

/// Their names; those after the story's roles stand by.
const NAMES: [&str; 5] = ["A", "B", "C", "D", "E"];
const BAD: &str = "B";
const SILENT: &str = "D";
/// Until all instances are registered and listed.
const READY: Duration = Duration::from_secs(10);
/// Between looks at the status.
const LOOK: Duration = Duration::from_millis(200);

/// When a part of the play is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// The story is over.
    End,
    /// Somebody stopped it.
    Stopped,
}

/// Everything that runs beside the proxy; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Stage {
    samples: Vec<Sample>,
    traffic: Traffic,
    story: Story,
    clock: Clock,
    journal: Journal,
    control: ControlHandle,
    last_event: u64,
    next_status: Timestamp,
    unit: Duration,
}

impl Stage {
    /// Starts the instances, waits until the proxy has them, starts the traffic.
    pub(super) async fn set(
        plan: Plan,
        ports: &Ports,
        journal: Journal,
        control: ControlHandle,
    ) -> anyhow::Result<Self> {
        let clock = Clock::new();
        let unit = plan.unit();
        let mut samples = Vec::new();
        for name in NAMES {
            let sample = Sample::start(name, ports.registry.to_string(), unit).await;
            samples.push(sample.context("cannot start a sample instance")?);
        }
        let all = async {
            loop {
                let status = control.upstream(SERVICE).await?;
                if status.is_some_and(|s| s.summary.selectable == NAMES.len()) {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ready = tokio::time::timeout(READY, all).await;
        ready.context("the instances did not show up in time")??;
        let traffic = Traffic::start(ports.data, clock);
        let begun = clock.now();
        Ok(Self {
            samples,
            traffic,
            story: Story::new(plan, NAMES.len(), begun),
            clock,
            journal,
            control,
            last_event: 0,
            next_status: begun,
            unit,
        })
    }

    /// Plays until the story is over (with [`Until::End`]) or somebody stops it.
    pub(super) async fn play(
        &mut self,
        narrator: &mut Narrator<'_>,
        stop: &mut watch::Receiver<Stop>,
        until: Until,
    ) -> anyhow::Result<Until> {
        if until == Until::End {
            self.tell(narrator, Tone::Plain, "registered", &self.registered());
        }
        let mut news = self.journal.follow();
        let mut looks = tokio::time::interval(LOOK.min(self.unit / 2));
        loop {
            let next = self.story.next();
            let due = next.map_or(Timestamp::MAX, |(at, _)| at);
            tokio::select! {
                changed = news.changed() => {
                    changed.context("the journal is gone")?;
                    self.read_journal(narrator);
                }
                () = tokio::time::sleep_until(self.clock.instant(due)) => {
                    let Some((_, act)) = next else { continue };
                    self.carry_out(act, narrator);
                    if act == Act::End {
                        return Ok(Until::End);
                    }
                }
                _ = looks.tick() => self.look(narrator).await?,
                asked = stop.wait_for(|s| *s != Stop::No) => {
                    asked.context("nobody can stop us")?;
                    return Ok(Until::Stopped);
                }
            }
        }
    }

    /// Prints the summary; whether it has everything.
    pub(super) fn sum_up(&self, narrator: &mut Narrator<'_>) -> bool {
        let (requests, failed) = self.traffic.totals();
        let found = self.story.findings();
        let never = Timestamp::MAX;
        let (broken, silenced) = (
            found.broken.unwrap_or(never),
            found.silenced.unwrap_or(never),
        );
        let summary = Summary {
            findings: found,
            requests,
            failed,
            seen: Seen {
                bad: self.traffic.failures(broken, silenced),
                silent: self.traffic.failures(silenced, never),
            },
            instances: NAMES.len(),
            names: (BAD, SILENT),
        };
        narrator.say(&format!("\n{summary}"));
        summary.faults().is_empty()
    }

    fn carry_out(&mut self, act: Act, narrator: &mut Narrator<'_>) {
        let now = self.clock.now();
        let sample = |name: &str| self.samples.iter().find(|s| s.name == name);
        let (what, text) = match act {
            Act::Break => {
                sample(BAD).inspect(|s| s.turn_bad());
                let text = format!("{BAD} answers 500 to everything from now on");
                ("broken", text)
            }
            Act::Repair => {
                sample(BAD).inspect(|s| s.repair());
                let text = format!("{BAD} is well again; the proxy learns it at its next probe");
                ("repaired", text)
            }
            Act::Silence => {
                sample(SILENT).inspect(|s| s.fall_silent());
                let text = format!("{SILENT} stops its beats and answers nobody");
                ("silent", text)
            }
            Act::End => ("end", "the time is over".to_owned()),
        };
        self.story.done(act, now);
        self.tell(narrator, Tone::Act, what, &text);
    }

    fn read_journal(&mut self, narrator: &mut Narrator<'_>) {
        for entry in self.journal.after(self.last_event) {
            self.last_event = entry.id;
            let Some(address) = text(&entry, "instance") else {
                continue;
            };
            let Some(sample) = self.sample_at(address) else {
                continue;
            };
            let (part, name) = (part(sample.name), sample.name);
            let Some((happening, tone, what)) = happening(&entry) else {
                continue;
            };
            let msg = text(&entry, "msg").unwrap_or_default();
            let msg = msg.replace(address, name);
            self.story.see(part, happening, self.clock.now());
            self.tell(narrator, tone, what, &msg);
        }
    }

    async fn look(&mut self, narrator: &mut Narrator<'_>) -> anyhow::Result<()> {
        let status = self.control.upstream(SERVICE).await?;
        let Some(status) = status else { return Ok(()) };
        let now = self.clock.now();
        let summary = &status.summary;
        if summary.selectable == 0 || summary.ejected >= summary.routable {
            self.story.see_nothing_selectable();
        }
        let silent = status.instances.iter().find(|instance| {
            let sample = self.sample_at(&instance.instance);
            sample.is_some_and(|s| s.name == SILENT) && !instance.registry_healthy
        });
        if silent.is_some() && self.story.findings().unhealthy.is_none() {
            self.story.see(Part::Silent, Happening::Unhealthy, now);
            let text = format!("the registry misses the beats of {SILENT}");
            self.tell(narrator, Tone::Bad, "unhealthy", &text);
        }
        if narrator.is_live() || now >= self.next_status {
            self.next_status = now + (self.unit * 2).max(Duration::from_secs(2));
            let text = self.standing(&status);
            narrator.status(now.since(self.story.begun()), &text);
        }
        Ok(())
    }

    /// `744 requests, 5 failed | A ok  B out k=2  C ok  D ok  E ok`.
    fn standing(&self, status: &UpstreamStatus) -> String {
        let (requests, failed) = self.traffic.totals();
        let instances = self.samples.iter().map(|sample| {
            let address = sample.address.to_string();
            let mut all = status.instances.iter();
            let found = all.find(|instance| instance.instance == address);
            let state = found.map_or_else(|| "gone".to_owned(), state);
            format!("{} {state}", sample.name)
        });
        let instances: Vec<String> = instances.collect();
        format!(
            "{requests} requests, {failed} failed | {}",
            instances.join("  ")
        )
    }

    fn registered(&self) -> String {
        let all: Vec<String> = self
            .samples
            .iter()
            .map(|sample| format!("{} {}", sample.name, sample.address))
            .collect();
        all.join("  ")
    }

    fn sample_at(&self, address: &str) -> Option<&Sample> {
        let mut all = self.samples.iter();
        all.find(|sample| sample.address.to_string() == address)
    }

    fn tell(&self, narrator: &mut Narrator<'_>, tone: Tone, what: &str, text: &str) {
        let after = self.clock.now().since(self.story.begun());
        narrator.tell(after, tone, what, text);
    }
}

fn part(name: &str) -> Part {
    match name {
        BAD => Part::Bad,
        SILENT => Part::Silent,
        _ => Part::Good(NAMES.iter().position(|n| *n == name).unwrap_or(0)),
    }
}
