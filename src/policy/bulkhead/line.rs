//! The queue of a bulkhead: bounded, first come first served, but for those with priority, who go
//! ahead of all without. Pure.

use std::collections::VecDeque;

/// Those who wait, each with what wakes it.
#[derive(Debug)]
pub struct Line<T> {
    urgent: VecDeque<(u64, T)>,
    usual: VecDeque<(u64, T)>,
    next: u64,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            urgent: VecDeque::new(),
            usual: VecDeque::new(),
            next: 0,
        }
    }
}

impl<T> Line<T> {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.urgent.len() + self.usual.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether one more of `most` may join.
    pub fn has_room(&self, most: u32) -> bool {
        usize::try_from(most).is_ok_and(|most| self.len() < most)
    }

    /// Joins; the number to leave with.
    pub fn join(&mut self, who: T, urgent: bool) -> u64 {
        let number = self.next;
        self.next += 1;
        if urgent {
            self.urgent.push_back((number, who));
        } else {
            self.usual.push_back((number, who));
        }
        number
    }

    /// The first one, who waits no more.
    pub fn call(&mut self) -> Option<T> {
        let first = self.urgent.pop_front().or_else(|| self.usual.pop_front());
        first.map(|(_, who)| who)
    }

    /// Leaves without having been called. `None`: it was called before.
    pub fn leave(&mut self, number: u64) -> Option<T> {
        for line in [&mut self.urgent, &mut self.usual] {
            // Numbers grow along a line.
            if let Ok(at) = line.binary_search_by_key(&number, |(n, _)| *n) {
                return line.remove(at).map(|(_, who)| who);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Join(bool),
        Call,
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            any::<bool>().prop_map(Step::Join),
            Just(Step::Call),
            (0_usize..30).prop_map(Step::Leave),
        ]
    }

    proptest! {
        #[test]
        fn first_come_first_served_and_the_urgent_before_all(
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut line = Line::default();
            let mut naive: Vec<(bool, u64)> = Vec::new();
            let mut joined = 0;
            for step in steps {
                match step {
                    Step::Join(urgent) if line.has_room(20) => {
                        let number = line.join(joined, urgent);
                        prop_assert_eq!(number, joined);
                        naive.push((urgent, joined));
                        joined += 1;
                    }
                    Step::Join(_) => prop_assert_eq!(naive.len(), 20),
                    Step::Call => {
                        let at = naive.iter().position(|(urgent, _)| *urgent);
                        let at = at.or_else(|| (!naive.is_empty()).then_some(0));
                        let want = at.map(|at| naive.remove(at).1);
                        prop_assert_eq!(line.call(), want);
                    }
                    Step::Leave(n) => {
                        let number = n as u64;
                        let at = naive.iter().position(|(_, it)| *it == number);
                        let want = at.map(|at| naive.remove(at).1);
                        prop_assert_eq!(line.leave(number), want);
                    }
                }
                prop_assert_eq!(line.len(), naive.len());
            }
        }
    }
}
