//! Replays a recorded history through the detector. Pure: `examples/replay.rs` reads the files.
//!
//! A trace is JSON lines: a header (`version` 2 and the `policy`, with the unit in every name), then
//! events (`t` in milliseconds, `event`) and, where they must follow, expectations (`t`, `expect`).
//! Between two lines the detector's own deadlines and the answers of trials in flight are worked off
//! in time order, a deadline before an answer of the same instant. A field that an expectation
//! leaves out is not compared. Next: `replay/trace.rs` (lines in), `replay/render.rs` (lines out).

mod render;
mod trace;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

use super::classify::OutcomeClass;
use super::detector::{Detector, Effect, Input, LeaseId};
use super::schedule::Jitter;
use crate::clock::Timestamp;
use crate::endpoint::Address;
use trace::{Body, Event, Trace};

/// Why a trace does not pass. Lines count from 1.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The detector did something else.
    #[error("line {line}: expected {expected}, got {actual}")]
    Differs {
        /// Line of the trace.
        line: usize,
        /// What it holds.
        expected: String,
        /// What the detector did.
        actual: String,
    },
    /// The file is no trace.
    #[error("line {line}: {problem}")]
    Malformed {
        /// Line of the trace.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

impl ReplayError {
    /// The line of the trace.
    pub const fn line(&self) -> usize {
        match self {
            Self::Differs { line, .. } | Self::Malformed { line, .. } => *line,
        }
    }
}

/// Feeds the events and compares with the expectations, in order.
///
/// # Errors
/// The first difference, or what makes the text no trace.
pub fn check(text: &str) -> Result<(), ReplayError> {
    let trace = Trace::parse(text)?;
    let mut player = Player::new(&trace);
    let mut last = 1;
    for line in &trace.lines {
        last = line.number;
        match &line.body {
            Body::Event(event) => {
                player.advance(line.at);
                player.nothing_is_left(line.number, &line.text)?;
                player.feed(event, line.at);
            }
            Body::Expectation(expected) => {
                let actual = player.next_effect(line.at);
                let differs = || ReplayError::Differs {
                    line: line.number,
                    expected: line.text.clone(),
                    actual: actual
                        .as_ref()
                        .map_or_else(|| "nothing".to_owned(), to_text),
                };
                match &actual {
                    Some(actual) if render::agrees(expected, actual) => {}
                    Some(_) | None => return Err(differs()),
                }
            }
        }
    }
    player.nothing_is_left(last, "the end")
}

/// Feeds the events and gives every effect that an expectation could name, as a JSON line.
///
/// # Errors
/// What makes the text no trace.
pub fn effects(text: &str) -> Result<Vec<String>, ReplayError> {
    let lines = merged(text)?;
    Ok(lines
        .into_iter()
        .filter(|line| line.is_effect)
        .map(|line| line.text)
        .collect())
}

/// The header and the events of a trace with the expectations that hold now: a new golden trace.
///
/// # Errors
/// What makes the text no trace.
pub fn rewrite(text: &str) -> Result<Vec<String>, ReplayError> {
    let header = text.lines().next().unwrap_or_default().to_owned();
    let lines = merged(text)?.into_iter().map(|line| line.text);
    Ok(std::iter::once(header).chain(lines).collect())
}

struct Merged {
    text: String,
    is_effect: bool,
}

fn merged(text: &str) -> Result<Vec<Merged>, ReplayError> {
    let trace = Trace::parse(text)?;
    let mut player = Player::new(&trace);
    let mut lines = Vec::new();
    let effect = |effect: &Map<String, Value>| Merged {
        text: to_text(effect),
        is_effect: true,
    };
    for line in &trace.lines {
        let Body::Event(event) = &line.body else {
            continue;
        };
        player.advance(line.at);
        lines.extend(player.seen.drain(..).map(|seen| effect(&seen)));
        lines.push(Merged {
            text: line.text.clone(),
            is_effect: false,
        });
        player.feed(event, line.at);
        lines.extend(player.seen.drain(..).map(|seen| effect(&seen)));
    }
    Ok(lines)
}

fn to_text(line: &Map<String, Value>) -> String {
    Value::Object(line.clone()).to_string()
}

/// How trials of an instance are answered.
#[derive(Clone, Copy, Debug)]
struct Answers {
    /// `None`: never.
    class: Option<OutcomeClass>,
    after: Duration,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            class: Some(OutcomeClass::Success),
            after: Duration::from_millis(1),
        }
    }
}

/// The detector with the world around it: trials in flight and their answers.
struct Player {
    detector: Detector,
    answers: BTreeMap<Address, Answers>,
    /// Answers under way, the earliest first; those of one instant in the order of their trials.
    coming: BTreeMap<(Timestamp, u64), (LeaseId, OutcomeClass)>,
    trials: u64,
    seen: VecDeque<Map<String, Value>>,
}

impl Player {
    fn new(trace: &Trace) -> Self {
        let policy = trace.policy.clone();
        Self {
            detector: Detector::new(policy, trace.facts, Jitter::none(), Timestamp::ZERO),
            answers: BTreeMap::new(),
            coming: BTreeMap::new(),
            trials: 0,
            seen: VecDeque::new(),
        }
    }

    fn feed(&mut self, event: &Event, at: Timestamp) {
        match event {
            Event::Answers {
                address,
                class,
                after,
            } => {
                self.answers.insert(
                    address.clone(),
                    Answers {
                        class: *class,
                        after: *after,
                    },
                );
            }
            Event::Request { retryable } => {
                self.handle(
                    Input::RequestSeen {
                        retryable: *retryable,
                    },
                    at,
                );
                let offer = self
                    .detector
                    .offers()
                    .into_iter()
                    .next()
                    .filter(|_| *retryable);
                if let Some(offer) = offer {
                    let (address, lease) = (offer.address, offer.lease);
                    self.handle(
                        Input::TrialTaken {
                            address,
                            lease,
                            latest: None,
                        },
                        at,
                    );
                }
            }
            Event::Policy { policy, facts } => {
                if let Some(facts) = facts {
                    self.handle(Input::Facts(*facts), at);
                }
                self.handle(Input::Policy(policy.clone()), at);
            }
            Event::Input(input) => self.handle(input.clone(), at),
        }
    }

    /// Works off deadlines and answers up to `at`; a deadline comes before an answer.
    fn advance(&mut self, at: Timestamp) {
        while self.advance_one(at) {}
    }

    fn advance_one(&mut self, at: Timestamp) -> bool {
        let deadline = self.detector.next_deadline().filter(|due| *due <= at);
        let answer = self
            .coming
            .keys()
            .next()
            .copied()
            .filter(|(due, _)| *due <= at);
        match (deadline, answer) {
            (None, None) => return false,
            (Some(due), None) => self.handle(Input::Tick, due),
            (Some(due), Some((answered, _))) if due <= answered => self.handle(Input::Tick, due),
            (_, Some(key)) => {
                if let Some((lease, class)) = self.coming.remove(&key) {
                    self.handle(Input::TrialFinished { lease, class }, key.0);
                }
            }
        }
        true
    }

    /// The next effect that happens by itself until `at`.
    fn next_effect(&mut self, at: Timestamp) -> Option<Map<String, Value>> {
        while self.seen.is_empty() && self.advance_one(at) {}
        self.seen.pop_front()
    }

    fn nothing_is_left(&mut self, line: usize, expected: &str) -> Result<(), ReplayError> {
        match self.seen.pop_front() {
            None => Ok(()),
            Some(actual) => Err(ReplayError::Differs {
                line,
                expected: expected.to_owned(),
                actual: to_text(&actual),
            }),
        }
    }

    fn handle(&mut self, input: Input, at: Timestamp) {
        self.detector.handle(input, at);
        while let Some(effect) = self.detector.poll_effect() {
            if let Effect::StartTrial(started) = &effect {
                let answers = self
                    .answers
                    .get(&started.address)
                    .copied()
                    .unwrap_or_default();
                if let Some(class) = answers.class {
                    self.trials += 1;
                    let key = (at + answers.after, self.trials);
                    self.coming.insert(key, (started.lease, class));
                }
            }
            self.seen.extend(render::line(&effect, at));
        }
    }
}

impl fmt::Debug for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Player")
            .field("coming", &self.coming)
            .finish_non_exhaustive()
    }
}
