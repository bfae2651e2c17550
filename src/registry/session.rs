//! One client's gRPC connection, as a machine: what it subscribed to, which pushes are due and not yet
//! answered, whether it is still there. Pure; time comes in, steps come out.
//!
//! | silence | step |
//! |---|---|
//! | [`IDLE`] | asked whether it is there; without an answer in [`ANSWER`] the connection is closed |
//! | [`UNSET`], before its set-up | the connection is closed |
//!
//! Changes of [`GATHER`] are pushed together. A push without an answer in [`ANSWER`] is sent again
//! [`REPEAT`] later, with what the service is by then. Around it: `registry/grpc.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::model::ServiceKey;
use crate::clock::Timestamp;

/// Silence until a client is asked.
pub const IDLE: Duration = Duration::from_secs(20);
/// Of an answer to what we sent.
pub const ANSWER: Duration = Duration::from_secs(5);
/// Silence of a connection without a set-up.
pub const UNSET: Duration = Duration::from_secs(60);
/// Changes of this time are pushed together.
pub const GATHER: Duration = Duration::from_millis(500);
/// Before a push is sent again.
pub const REPEAT: Duration = Duration::from_secs(1);
/// Subscriptions of one connection.
pub const MAX_SUBSCRIPTIONS: usize = 10_000;

/// Subscriptions of one connection to one service: lists of clusters.
pub const MAX_TOPICS: usize = 16;

/// What is subscribed to: a service, and a list of clusters with commas (empty: all).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Topic {
    /// The service.
    pub service: ServiceKey,
    /// As the client sent it.
    pub clusters: String,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this topic's instances under this number.
    Push(u64, Topic),
    /// Ask whether it is there, under this number.
    Detect(u64),
    /// End the connection.
    Close,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session {
    set_up: bool,
    subscriptions: BTreeSet<Topic>,
    due: BTreeMap<Topic, Timestamp>,
    unanswered: BTreeMap<u64, (Topic, Timestamp)>,
    heard: Timestamp,
    asked: Option<Timestamp>,
    next_id: u64,
}

impl Session {
    /// A connection that was opened just now.
    pub fn new(now: Timestamp) -> Self {
        Self {
            set_up: false,
            subscriptions: BTreeSet::new(),
            due: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            heard: now,
            asked: None,
            next_id: 1,
        }
    }

    /// The client said something.
    pub fn heard(&mut self, now: Timestamp) {
        self.heard = now;
        self.asked = None;
    }

    /// Its set-up came on a stream.
    pub fn set_up(&mut self) {
        self.set_up = true;
    }

    /// Its stream ended: nothing of what it subscribed to holds any more. What it subscribed to.
    pub fn tear_down(&mut self) -> BTreeSet<Topic> {
        self.set_up = false;
        self.due.clear();
        self.unanswered.clear();
        self.asked = None;
        std::mem::take(&mut self.subscriptions)
    }

    /// Subscribes; false when there are too many.
    pub fn subscribe(&mut self, topic: Topic) -> bool {
        let room = self.subscriptions.len() < MAX_SUBSCRIPTIONS
            && self.topics(&topic.service).count() < MAX_TOPICS;
        if !room && !self.subscriptions.contains(&topic) {
            return false;
        }
        self.subscriptions.insert(topic);
        true
    }

    /// Ends a subscription; true when no other one of this connection is about that service.
    pub fn unsubscribe(&mut self, topic: &Topic) -> bool {
        self.subscriptions.remove(topic);
        self.due.remove(topic);
        self.unanswered.retain(|_, (sent, _)| sent != topic);
        self.topics(&topic.service).next().is_none()
    }

    /// A service changed; true when that concerns this client.
    pub fn changed(&mut self, service: &ServiceKey, now: Timestamp) -> bool {
        let topics: Vec<Topic> = self.topics(service).cloned().collect();
        for topic in &topics {
            self.due.entry(topic.clone()).or_insert(now + GATHER);
        }
        !topics.is_empty()
    }

    /// The client answered what was sent under this number.
    pub fn answered(&mut self, id: u64) {
        self.unanswered.remove(&id);
    }

    /// What is to be done at `now`; ask until it is `None`.
    pub fn step(&mut self, now: Timestamp) -> Option<Step> {
        let late = |(_, until): &(Topic, Timestamp)| *until <= now;
        while let Some(id) = self.unanswered.iter().find(|(_, sent)| late(sent)) {
            let id = *id.0;
            if let Some((topic, _)) = self.unanswered.remove(&id) {
                self.due.entry(topic).or_insert(now + REPEAT);
            }
        }
        if !self.set_up {
            return (self.heard + UNSET <= now).then_some(Step::Close);
        }
        let due = self.due.iter().find(|(_, at)| **at <= now);
        if let Some(topic) = due.map(|(topic, _)| topic.clone()) {
            self.due.remove(&topic);
            // An older push of the same is overtaken.
            self.unanswered.retain(|_, (sent, _)| *sent != topic);
            let id = self.id();
            self.unanswered.insert(id, (topic.clone(), now + ANSWER));
            return Some(Step::Push(id, topic));
        }
        match self.asked {
            Some(at) => (at + ANSWER <= now).then_some(Step::Close),
            None if self.heard + IDLE <= now => {
                self.asked = Some(now);
                Some(Step::Detect(self.id()))
            }
            None => None,
        }
    }

    /// Its subscriptions.
    pub fn count(&self) -> usize {
        self.subscriptions.len()
    }

    /// Whether its set-up was made.
    pub fn is_set_up(&self) -> bool {
        self.set_up
    }

    /// When there is a step next.
    pub fn next_deadline(&self) -> Timestamp {
        if !self.set_up {
            return self.heard + UNSET;
        }
        let quiet = self.asked.map_or(self.heard + IDLE, |at| at + ANSWER);
        let due = self.due.values().copied();
        let late = self.unanswered.values().map(|(_, until)| *until);
        due.chain(late).min().map_or(quiet, |at| at.min(quiet))
    }

    fn topics(&self, service: &ServiceKey) -> impl Iterator<Item = &Topic> + use<'_> {
        let first = Topic {
            service: service.clone(),
            clusters: String::new(),
        };
        let service = service.clone();
        self.subscriptions
            .range(first..)
            .take_while(move |topic| topic.service == service)
    }

    fn id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id = self.next_id.saturating_add(1);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn topic(name: &str, clusters: &str) -> Topic {
        Topic {
            service: ServiceKey::new(None, None, name).unwrap(),
            clusters: clusters.to_owned(),
        }
    }

    fn ready() -> Session {
        let mut session = Session::new(at(0));
        session.set_up();
        session
    }

    #[test]
    fn changes_are_gathered_and_repeated_until_they_are_answered() {
        let mut session = ready();
        let (all, some) = (topic("a", ""), topic("a", "c"));
        assert!(session.subscribe(all.clone()) && session.subscribe(some.clone()));
        assert!(!session.changed(&topic("b", "").service, at(0)));
        assert!(session.changed(&all.service, at(0)));
        assert!(session.changed(&all.service, at(400)));
        assert_eq!(
            (session.step(at(499)), session.next_deadline()),
            (None, at(500))
        );
        assert_eq!(session.step(at(500)), Some(Step::Push(1, all.clone())));
        assert_eq!(session.step(at(500)), Some(Step::Push(2, some.clone())));
        assert_eq!(session.step(at(500)), None);
        session.answered(2);
        session.heard(at(600));
        assert_eq!(
            (session.step(at(5499)), session.next_deadline()),
            (None, at(5500))
        );
        assert_eq!(
            (session.step(at(5500)), session.next_deadline()),
            (None, at(6500))
        );
        assert_eq!(session.step(at(6500)), Some(Step::Push(3, all)));
        session.answered(3);
        assert_eq!(
            (session.step(at(20_599)), session.next_deadline()),
            (None, at(20_600))
        );
    }

    #[test]
    fn a_newer_push_overtakes_one_that_is_not_answered() {
        let mut session = ready();
        let all = topic("a", "");
        session.subscribe(all.clone());
        session.changed(&all.service, at(0));
        assert_eq!(session.step(at(500)), Some(Step::Push(1, all.clone())));
        session.changed(&all.service, at(600));
        assert_eq!(session.step(at(1100)), Some(Step::Push(2, all.clone())));
        session.answered(1);
        session.heard(at(1200));
        assert_eq!(
            (session.step(at(6100)), session.next_deadline()),
            (None, at(7100))
        );
        assert!(session.unsubscribe(&all));
        assert_eq!(
            (session.step(at(7100)), session.next_deadline()),
            (None, at(21_200))
        );
    }

    #[test]
    fn a_silent_client_is_asked_and_then_closed() {
        let mut session = ready();
        assert_eq!(
            (session.step(at(19_999)), session.next_deadline()),
            (None, at(20_000))
        );
        assert_eq!(session.step(at(20_000)), Some(Step::Detect(1)));
        assert_eq!(
            (session.step(at(24_999)), session.next_deadline()),
            (None, at(25_000))
        );
        session.heard(at(24_999));
        assert_eq!(session.next_deadline(), at(44_999));
        assert_eq!(session.step(at(44_999)), Some(Step::Detect(2)));
        assert_eq!(session.step(at(49_999)), Some(Step::Close));
    }

    #[test]
    fn without_a_set_up_there_are_no_pushes_and_an_end() {
        let mut session = ready();
        let (a, b) = (topic("a", ""), topic("b", ""));
        session.subscribe(a.clone());
        session.subscribe(b);
        session.changed(&a.service, at(0));
        assert_eq!(session.tear_down().len(), 2);
        assert_eq!(
            (session.step(at(59_999)), session.next_deadline()),
            (None, at(60_000))
        );
        assert_eq!(session.step(at(60_000)), Some(Step::Close));
        assert!(!session.changed(&a.service, at(60_000)));
    }

    #[test]
    fn subscriptions_are_bounded() {
        let mut session = ready();
        for n in 0..MAX_TOPICS {
            assert!(session.subscribe(topic("a", &n.to_string())));
        }
        assert!(!session.subscribe(topic("a", "x")) && session.subscribe(topic("a", "0")));
        session.tear_down();
        session.set_up();
        for n in 0..MAX_SUBSCRIPTIONS {
            assert!(session.subscribe(topic(&n.to_string(), "")));
        }
        assert!(!session.subscribe(topic("x", "")) && session.subscribe(topic("0", "")));
        session.unsubscribe(&topic("0", ""));
        assert!(session.subscribe(topic("x", "")));
    }
}
