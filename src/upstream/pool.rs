//! Connections to instances, per worker: HTTP/1.1 ones are lent to one request at a time and reused
//! last-in first-out, HTTP/2 ones carry many. Only the count of open connections is shared between
//! workers. An ejected or vanished instance keeps what is in flight and loses what is idle.
//! Next: `upstream/connect.rs`, `upstream/multiplexed.rs`.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::sync::Notify;
use tokio::task;

use super::connect;
use super::http1::{Connection, Raw, Receiving};
use super::multiplexed::{self, H2Sender, Multiplexed, STREAMS_PER_CONNECTION};
use super::stream_limit::{StreamLimit, Told};
use crate::clock::{Clock, Timestamp};
use crate::config::types::{Limits, Pool as PoolSettings};
use crate::endpoint::instance::{Instance, Standing};
use crate::metrics::cells::WorkerCells;
use crate::protocol::http1::head::HeadLimits;

/// Pools that are tidied at once; of more than sixteen times as many a sixteenth.
const TIDIED: usize = 64;
/// How often a request that waits for a place looks again, since places also come free in other
/// workers.
const RECHECK: Duration = Duration::from_millis(10);

/// Why no connection was had.
#[derive(Debug)]
pub enum CheckoutError {
    /// The instance has as many connections as are allowed.
    Full,
    /// Refused, unreachable, unknown name.
    Failed(std::io::Error),
    /// The connection was made and its protocol failed at once.
    Handshake(hyper::Error),
}

/// All pools of one worker.
#[derive(Debug)]
pub struct Pools {
    clock: Clock,
    cells: Arc<WorkerCellsRow>,
    workers: u32,
    instances: RefCell<FxHashMap<u64, Rc<InstancePool>>>,
    /// Instances in the order in which they are tidied, and whose turn it is.
    turns: RefCell<(Vec<u64>, usize)>,
}

/// The counters of one worker inside those of all.
#[derive(Debug)]
pub struct WorkerCellsRow {
    /// All workers.
    pub all: Arc<[WorkerCells]>,
    /// Which one is ours.
    pub index: usize,
}

impl WorkerCellsRow {
    /// Our counters.
    pub fn own(&self) -> Option<&WorkerCells> {
        self.all.get(self.index)
    }
}

impl Pools {
    /// Empty pools.
    pub fn new(clock: Clock, cells: Arc<WorkerCellsRow>, workers: usize) -> Self {
        let workers = u32::try_from(workers).unwrap_or(1).max(1);
        Self {
            clock,
            cells,
            workers,
            instances: RefCell::default(),
            turns: RefCell::default(),
        }
    }

    /// The pool of an instance.
    pub fn of(&self, instance: &Arc<Instance>) -> Rc<InstancePool> {
        let mut instances = self.instances.borrow_mut();
        let pool = instances.entry(instance.id).or_insert_with(|| {
            self.turns.borrow_mut().0.push(instance.id);
            Rc::new(InstancePool {
                instance: Arc::clone(instance),
                clock: self.clock,
                cells: Arc::clone(&self.cells),
                workers: self.workers,
                idle: RefCell::default(),
                multiplexed: RefCell::default(),
                connecting: Cell::new(false),
                changed: Notify::new(),
                idle_timeout: Cell::new(Duration::from_secs(60)),
                max_age: Cell::new(Duration::ZERO),
            })
        });
        Rc::clone(pool)
    }

    /// Closes what is idle too long, too old, or belongs to an instance out of rotation; forgets
    /// pools of vanished instances. Called now and then by the worker. Of many pools each call looks at
    /// a part: a walk through all of them would push what requests use out of the caches.
    pub fn tidy(&self) {
        let now = self.clock.now();
        let mut instances = self.instances.borrow_mut();
        let (order, turn) = &mut *self.turns.borrow_mut();
        for _ in 0..order.len().min(TIDIED.max(order.len() / 16)) {
            if *turn >= order.len() {
                *turn = 0;
            }
            let Some(id) = order.get(*turn) else { return };
            let keep = instances.get(id).is_some_and(|pool| {
                pool.tidy(now);
                let gone = pool.instance.standing() == Standing::Gone;
                !(gone && pool.is_unused())
            });
            if keep {
                *turn += 1;
            } else {
                instances.remove(id);
                order.swap_remove(*turn);
            }
        }
    }

    /// Closes all idle connections.
    pub fn close_idle(&self) {
        for pool in self.instances.borrow().values() {
            pool.idle.borrow_mut().clear();
            pool.multiplexed.borrow_mut().clear();
        }
    }
}

#[derive(Debug)]
struct Idle {
    open: Box<Open>,
    since: Timestamp,
}

/// An open HTTP/1.1 connection.
#[derive(Debug)]
struct Open {
    connection: Connection,
    born: Timestamp,
    /// Counted as long as it is open.
    _place: Place,
}

/// The connections of one worker to one instance.
#[derive(Debug)]
pub struct InstancePool {
    /// Which instance.
    pub instance: Arc<Instance>,
    clock: Clock,
    cells: Arc<WorkerCellsRow>,
    workers: u32,
    idle: RefCell<Vec<Idle>>,
    multiplexed: RefCell<Vec<Rc<Multiplexed>>>,
    connecting: Cell<bool>,
    changed: Notify,
    idle_timeout: Cell<Duration>,
    max_age: Cell<Duration>,
}

/// An HTTP/1.1 connection lent to one request. Give it back with [`Lent::release`] once the
/// response is complete; dropping it closes the connection.
#[derive(Debug)]
pub struct Lent {
    open: Box<Open>,
    /// It has carried a request before.
    pub reused: bool,
    max_idle: u32,
    spent: bool,
    pool: Rc<InstancePool>,
}

/// A stream on an HTTP/2 connection. Dropping it gives the place back.
#[derive(Debug)]
pub struct Stream {
    /// Sends the request.
    pub sender: H2Sender,
    /// It has carried a request before.
    pub reused: bool,
    connection: Rc<Multiplexed>,
    /// What had been heard on the connection when this began.
    since: u64,
    timed_out: bool,
    pool: Rc<InstancePool>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        let connection = &self.connection;
        let was_full = !connection.has_room();
        let left = connection.streams.get().saturating_sub(1);
        connection.streams.set(left);
        if connection.heard() == self.since {
            connection.ended_unheard(self.timed_out);
        }
        if connection.is_silent() {
            if left == 0 {
                self.retire();
            }
            self.pool.changed.notify_waiters();
        } else if was_full {
            self.pool.changed.notify_one();
        }
        connection.last_used.set(self.pool.clock.now());
    }
}

impl Stream {
    /// Unique name of the connection.
    pub fn connection(&self) -> u64 {
        self.connection.id
    }

    /// Takes no new streams on this connection.
    pub fn retire(&self) {
        self.pool
            .multiplexed
            .borrow_mut()
            .retain(|c| c.id != self.connection.id);
    }

    /// Its time was over before a head came.
    pub const fn timed_out(&mut self) {
        self.timed_out = true;
    }
}

impl Lent {
    /// The connection itself.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.open.connection
    }

    /// This response is its last, whatever its head says.
    pub fn spend(&mut self) {
        self.spent = true;
    }

    /// Gives the connection back after a complete response, if another request may follow on it.
    pub fn release(self, mut response: Receiving, now: Timestamp) {
        let Self {
            mut open,
            max_idle,
            spent,
            pool,
            ..
        } = self;
        let serving = pool.instance.standing() == Standing::Serving;
        if !response.leaves_reusable(&open.connection) {
            response.outlived_by_request(open);
            return;
        }
        if !serving || spent || pool.instance.is_lacking_elsewhere(pool.cells.index) {
            return;
        }
        open.connection.give_room();
        let mut idle = pool.idle.borrow_mut();
        // The bound is the sidecar's; each worker keeps its share.
        let share = max_idle.div_ceil(pool.workers).max(1);
        if u32::try_from(idle.len()).unwrap_or(u32::MAX) < share {
            idle.push(Idle { open, since: now });
        }
        drop(idle);
        pool.changed.notify_one();
    }

    /// The socket, after a 101; its place in the pool is free again.
    pub fn into_raw(self) -> Option<Raw> {
        self.open.connection.into_raw()
    }
}

impl InstancePool {
    /// An idle HTTP/1.1 connection, if there is a live one. Costs no system call.
    pub fn reuse(self: &Rc<Self>, settings: &PoolSettings) -> Option<Lent> {
        self.idle_timeout.set(settings.idle_timeout);
        self.max_age.set(settings.max_age);
        let mut idle = self.idle.borrow_mut();
        while let Some(entry) = idle.pop() {
            if entry.open.connection.is_usable() {
                return Some(Lent {
                    open: entry.open,
                    reused: true,
                    max_idle: settings.max_idle_per_instance,
                    spent: false,
                    pool: Rc::clone(self),
                });
            }
        }
        None
    }

    /// A new HTTP/1.1 connection.
    ///
    /// # Errors
    /// [`CheckoutError`]; `Full` without trying.
    pub async fn connect(
        self: &Rc<Self>,
        settings: &PoolSettings,
        limits: &Limits,
    ) -> Result<Lent, CheckoutError> {
        let place = self.place(settings)?;
        let stream = connect::tcp(&self.instance)
            .await
            .map_err(CheckoutError::Failed)?;
        let limits = HeadLimits {
            max_headers: limits.max_response_headers,
            max_bytes: limits.max_response_header_bytes,
        };
        Ok(Lent {
            open: Box::new(Open {
                connection: Connection::new(stream, limits),
                born: self.clock.now(),
                _place: place,
            }),
            reused: false,
            max_idle: settings.max_idle_per_instance,
            spent: false,
            pool: Rc::clone(self),
        })
    }

    /// A stream on an open HTTP/2 connection with room, if there is one.
    pub fn reuse_stream(self: &Rc<Self>, settings: &PoolSettings) -> Option<Stream> {
        self.idle_timeout.set(settings.idle_timeout);
        self.max_age.set(settings.max_age);
        let mut connections = self.multiplexed.borrow_mut();
        if connections.iter().any(|c| c.sender.is_closed()) {
            connections.retain(|c| !c.sender.is_closed());
        }
        let usable = |c: &&Rc<Multiplexed>| c.has_room() && !c.is_silent();
        let connection = connections.iter().find(usable)?;
        Some(self.stream_on(connection))
    }

    /// A stream on a connection that may be dead, where no other can be opened.
    fn silent_stream(self: &Rc<Self>) -> Option<Stream> {
        let connections = self.multiplexed.borrow();
        let connection = connections.iter().find(|c| c.has_room())?;
        Some(self.stream_on(connection))
    }

    fn stream_on(self: &Rc<Self>, connection: &Rc<Multiplexed>) -> Stream {
        connection.streams.set(connection.streams.get() + 1);
        Stream {
            sender: connection.sender.clone(),
            reused: true,
            connection: Rc::clone(connection),
            since: connection.heard(),
            timed_out: false,
            pool: Rc::clone(self),
        }
    }

    /// A stream, on a new HTTP/2 connection where none has room. Requests that come while one is
    /// being opened wait for it, and for what it says of its limit.
    ///
    /// # Errors
    /// [`CheckoutError`].
    pub async fn stream(
        self: &Rc<Self>,
        settings: &PoolSettings,
        limits: &Limits,
    ) -> Result<Stream, CheckoutError> {
        loop {
            if let Some(stream) = self.reuse_stream(settings) {
                return Ok(stream);
            }
            let untold = |c: &Rc<Multiplexed>| c.most.get().is_none() && !c.is_silent();
            if !self.connecting.get() && !self.multiplexed.borrow().iter().any(untold) {
                return match self.connect_h2(settings, limits).await {
                    Err(CheckoutError::Full) => self.silent_stream().ok_or(CheckoutError::Full),
                    connected => connected,
                };
            }
            self.changed.notified().await;
        }
    }

    /// A stream on a connection opened for it, whatever is open.
    ///
    /// # Errors
    /// [`CheckoutError`].
    pub async fn connect_h2(
        self: &Rc<Self>,
        settings: &PoolSettings,
        limits: &Limits,
    ) -> Result<Stream, CheckoutError> {
        struct Connecting<'a>(&'a InstancePool);
        impl Drop for Connecting<'_> {
            fn drop(&mut self) {
                self.0.connecting.set(false);
                self.0.changed.notify_waiters();
            }
        }
        thread_local! {
            static NEXT: Cell<u64> = const { Cell::new(1) };
        }
        self.connecting.set(true);
        let _connecting = Connecting(self);
        let place = self.place(settings)?;
        let stream = connect::tcp(&self.instance)
            .await
            .map_err(CheckoutError::Failed)?;
        connect::watch_peer(&stream);
        let most = Rc::new(StreamLimit::default());
        let stream = Told {
            stream,
            limit: Rc::clone(&most),
        };
        let (sender, mut connection) =
            multiplexed::handshake(stream, limits.max_response_header_bytes)
                .await
                .map_err(CheckoutError::Handshake)?;
        let told = Rc::clone(&most);
        task::spawn_local(async move {
            let _ended = std::future::poll_fn(|cx| {
                let polled = Pin::new(&mut connection).poll(cx);
                let now = connection.current_max_send_streams();
                if told.update(now, STREAMS_PER_CONNECTION, cx) {
                    place.pool.changed.notify_waiters();
                }
                polled
            })
            .await;
            place.pool.changed.notify_waiters();
            drop(place);
        });
        let now = self.clock.now();
        let serial = NEXT.with(|next| next.replace(next.get().wrapping_add(1)));
        let worker = u64::try_from(self.cells.index).unwrap_or(0);
        let id = (worker << 48) | serial;
        let connection = Rc::new(Multiplexed::new(id, sender.clone(), most, now));
        self.multiplexed.borrow_mut().push(Rc::clone(&connection));
        Ok(Stream {
            sender,
            reused: false,
            connection,
            since: 0,
            timed_out: false,
            pool: Rc::clone(self),
        })
    }

    /// Waits until a place may have come free. The caller bounds the time.
    pub async fn freed(&self) {
        // A place may also come free in another worker, unseen.
        let _looked_again = tokio::time::timeout(RECHECK, self.changed.notified()).await;
    }

    fn place(self: &Rc<Self>, settings: &PoolSettings) -> Result<Place, CheckoutError> {
        if !self
            .instance
            .take_connection(settings.max_connections_per_instance)
        {
            self.instance.lack_connection(self.cells.index);
            return Err(CheckoutError::Full);
        }
        if let Some(cells) = self.cells.own() {
            cells.upstream_connections.fetch_add(1, Relaxed);
        }
        Ok(Place {
            pool: Rc::clone(self),
        })
    }

    fn tidy(&self, now: Timestamp) {
        let serving = self.instance.standing() == Standing::Serving;
        let (idle_timeout, max_age) = (self.idle_timeout.get(), self.max_age.get());
        let old = |born: Timestamp| !max_age.is_zero() && now.since(born) >= max_age;
        self.idle.borrow_mut().retain(|idle| {
            serving
                && idle.open.connection.is_usable()
                && now.since(idle.since) < idle_timeout
                && !old(idle.open.born)
        });
        self.multiplexed.borrow_mut().retain(|c| {
            let idle = c.streams.get() == 0 && now.since(c.last_used.get()) >= idle_timeout;
            serving && !c.sender.is_closed() && !idle && !old(c.born)
        });
        if self.instance.is_lacking_elsewhere(self.cells.index) {
            self.close_one_idle();
        }
    }

    /// The one that was idle for the longest time, for a worker that has no place.
    fn close_one_idle(&self) {
        let mut idle = self.idle.borrow_mut();
        let mut multiplexed = self.multiplexed.borrow_mut();
        if !idle.is_empty() {
            idle.remove(0);
        } else if let Some(unused) = multiplexed.iter().position(|c| c.streams.get() == 0) {
            multiplexed.remove(unused);
        }
    }

    fn is_unused(&self) -> bool {
        self.idle.borrow().is_empty() && self.multiplexed.borrow().is_empty()
    }
}

/// The place of one open connection; dropped with it.
#[derive(Debug)]
struct Place {
    pool: Rc<InstancePool>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pool.instance.return_connection();
        if let Some(cells) = self.pool.cells.own() {
            cells.upstream_connections.fetch_sub(1, Relaxed);
        }
        self.pool.changed.notify_one();
    }
}
