//! The bulkhead of an upstream or a route, shared by all workers: so many requests at a time, from
//! their head to the end of their answer, and a bounded queue. One atomic while there is a place; a
//! short lock only when somebody has to wait. A place is a guard that gives itself back, whatever way
//! the request ends; those who wait live on other threads' runtimes and are woken by a channel.
//! The rules are in `bulkhead/places.rs` and `bulkhead/line.rs`; the caller is `policy/stack.rs`.

pub mod line;
pub mod places;

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use self::line::Line;
use self::places::{Back, Places};
use crate::config::types::Bulkhead as Settings;

/// A bulkhead.
#[derive(Debug)]
pub struct Bulkhead {
    places: AtomicU64,
    limit: AtomicU32,
    max_queue: AtomicU32,
    // A short section, taken only when a request has to wait or one that waits is to be woken. The
    // number of those in it changes together with that in `places`, under this lock.
    line: Mutex<Line<oneshot::Sender<Place>>>,
}

/// A place; gives itself back when dropped.
#[derive(Debug)]
pub struct Place(Option<Arc<Bulkhead>>);

/// All places are taken and so is the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Places taken.
    pub in_use: u32,
    /// The limit.
    pub limit: u32,
    /// Requests that wait.
    pub waiting: u32,
}

/// A wait for a place. Dropped before its end it leaves the queue.
#[derive(Debug)]
pub struct Waiting {
    bulkhead: Arc<Bulkhead>,
    number: u64,
    called: oneshot::Receiver<Place>,
}

impl Bulkhead {
    /// An empty one.
    pub fn new(settings: &Settings) -> Arc<Self> {
        Arc::new(Self {
            places: AtomicU64::new(0),
            limit: AtomicU32::new(settings.max_concurrent_calls),
            max_queue: AtomicU32::new(settings.max_queue),
            line: Mutex::default(),
        })
    }

    /// Takes a place, if one is free and nobody waits.
    pub fn take(self: &Arc<Self>) -> Option<Place> {
        let limit = self.limit.load(Relaxed);
        self.change(|places| places.take(limit))
            .then(|| Place(Some(Arc::clone(self))))
    }

    /// Takes a place or begins to wait; `urgent` before all who are not.
    ///
    /// # Errors
    /// The queue is full too.
    pub fn queue(self: &Arc<Self>, urgent: bool) -> Result<Result<Place, Waiting>, Full> {
        let mut line = self.line();
        // Under the lock: whoever gives a place back after this sees that somebody waits.
        if let Some(place) = self.take() {
            return Ok(Ok(place));
        }
        if !line.has_room(self.max_queue.load(Relaxed)) {
            drop(line);
            return Err(self.full());
        }
        let mut taken = false;
        let limit = self.limit.load(Relaxed);
        self.change(|places| {
            let place = places.take(limit);
            taken = place.is_some();
            Some(place.unwrap_or_else(|| places.queue()))
        });
        if taken {
            return Ok(Ok(Place(Some(Arc::clone(self)))));
        }
        let (call, called) = oneshot::channel();
        let number = line.join(call, urgent);
        Ok(Err(Waiting {
            bulkhead: Arc::clone(self),
            number,
            called,
        }))
    }

    /// New settings after a reload: more places go to those who wait, fewer are waited for.
    pub fn configure(self: &Arc<Self>, settings: &Settings) {
        self.limit.store(settings.max_concurrent_calls, Relaxed);
        self.max_queue.store(settings.max_queue, Relaxed);
        loop {
            let mut line = self.line();
            if line.is_empty() || !self.change(|p| p.promote(settings.max_concurrent_calls)) {
                return;
            }
            let call = line.call();
            drop(line);
            // To one that has just left: it gives itself back.
            if let Some(call) = call {
                let _left = call.send(Place(Some(Arc::clone(self))));
            }
        }
    }

    /// Places taken.
    pub fn in_use(&self) -> u32 {
        self.places().in_use()
    }

    /// Places there are.
    pub fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }

    /// Requests that may wait.
    pub fn max_queue(&self) -> u32 {
        self.max_queue.load(Relaxed)
    }

    /// Requests that wait.
    pub fn waiting(&self) -> u32 {
        self.places().waiting()
    }

    /// How full it is.
    pub fn full(&self) -> Full {
        let places = self.places();
        Full {
            in_use: places.in_use(),
            limit: self.limit(),
            waiting: places.waiting(),
        }
    }

    /// A place comes back: to the first one that waits, unless there are fewer places now.
    fn give_back(self: &Arc<Self>) {
        loop {
            let freed = self.change(|places| match places.give_back() {
                Back::Free(places) => Some(places),
                Back::HandOn => None,
            });
            if freed {
                return;
            }
            let mut line = self.line();
            if self.in_use() > self.limit() {
                self.change(|places| Some(places.freed()));
                return;
            }
            let Some(call) = line.call() else {
                // They left between the look and the lock.
                continue;
            };
            self.change(|places| Some(places.unqueue()));
            drop(line);
            match call.send(Place(Some(Arc::clone(self)))) {
                Ok(()) => return,
                // It left at this moment; not by its drop, which would come back here.
                Err(mut place) => place.0 = None,
            }
        }
    }

    /// One step of the word; false when it is not possible.
    fn change(&self, mut step: impl FnMut(Places) -> Option<Places>) -> bool {
        let step = |word| step(Places(word)).map(|places| places.0);
        self.places.fetch_update(AcqRel, Acquire, step).is_ok()
    }

    fn places(&self) -> Places {
        Places(self.places.load(Acquire))
    }

    fn line(&self) -> MutexGuard<'_, Line<oneshot::Sender<Place>>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(bulkhead) = self.0.take() {
            bulkhead.give_back();
        }
    }
}

impl Waiting {
    /// Resolves with the place.
    pub async fn called(&mut self) -> Option<Place> {
        (&mut self.called).await.ok()
    }

    /// The place, if it came.
    pub fn try_called(&mut self) -> Option<Place> {
        self.called.try_recv().ok()
    }

    /// Its time is over: a place that was handed on at this very moment is taken all the same.
    pub fn give_up(mut self) -> Option<Place> {
        self.try_called()
    }

    #[cfg(test)]
    fn blocking(&mut self) -> Place {
        loop {
            match self.try_called() {
                Some(place) => return place,
                None => std::thread::yield_now(),
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut line = self.bulkhead.line();
        if line.leave(self.number).is_some() {
            self.bulkhead.change(|places| Some(places.unqueue()));
        }
        drop(line);
        // A place that came meanwhile goes on: it is inside of the channel, which ends here.
    }
}

#[cfg(test)]
mod tests;
