//! A registrar by a script, in paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::registration::machine::{Beat, Outcome, Standing};
use crate::registration::registrar::{Call, Registrar};
use crate::registration::rhythm::Rhythm;
use crate::registration::tests::{Setup, health, pass};

#[derive(Debug, Default)]
struct Scripted {
    registers: AtomicU32,
    panics: AtomicBool,
    fails: AtomicBool,
}

impl Registrar for Scripted {
    fn rhythm(&self) -> Rhythm {
        Rhythm {
            beats: None,
            starting: false,
            marks_leaving: false,
        }
    }

    fn deregister_wait(&self) -> Duration {
        Duration::ZERO
    }

    fn register(self: Arc<Self>, _: Standing) -> Call {
        Box::pin(async move {
            self.registers.fetch_add(1, Relaxed);
            assert!(!self.panics.swap(false, Relaxed), "by the script");
            match self.fails.load(Relaxed) {
                true => Outcome::Failed("by the script".to_owned()),
                false => Outcome::DONE,
            }
        })
    }

    fn beat(self: Arc<Self>, _: Beat) -> Call {
        Box::pin(async { Outcome::DONE })
    }

    fn withdraw(self: Arc<Self>) -> Call {
        Box::pin(async { Outcome::DONE })
    }

    fn deregister(self: Arc<Self>) -> Call {
        Box::pin(async { Outcome::DONE })
    }

    fn observe(self: Arc<Self>) -> Call {
        Box::pin(async { Outcome::DONE })
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_panics_is_repeated() {
    let registrar = Arc::new(Scripted::default());
    registrar.panics.store(true, Relaxed);
    let mut setup = Setup::start(Clock::new(), registrar.clone(), Standing::Up);
    setup.up().await;
    assert_eq!(registrar.registers.load(Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn the_old_registrar_lives_until_the_new_one_registered() {
    let (old, new) = (Arc::new(Scripted::default()), Arc::new(Scripted::default()));
    new.fails.store(true, Relaxed);
    let mut setup = Setup::start(Clock::new(), old.clone(), Standing::Up);
    setup.up().await;
    let lives = Arc::downgrade(&old);
    drop(old);
    setup.renew(Some(new.clone()), None);
    pass(1).await;
    assert!(new.registers.load(Relaxed) > 0 && lives.upgrade().is_some());
    new.fails.store(false, Relaxed);
    pass(60).await;
    assert!(lives.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_new_check_takes_over_without_a_call() {
    let registrar = Arc::new(Scripted::default());
    let mut setup = Setup::start(Clock::new(), registrar.clone(), Standing::Up);
    setup.up().await;
    let check = watch::Sender::new(health(Standing::Starting));
    setup.renew(None, Some(&check));
    pass(30).await;
    assert_eq!(registrar.registers.load(Relaxed), 1, "listed as it was");
    assert!(setup.view.borrow().up);
    check.send_replace(health(Standing::Up));
    setup.app(Standing::Down);
    pass(30).await;
    assert!(
        setup.view.borrow().up,
        "the old check says nothing any more"
    );
    check.send_replace(health(Standing::Down));
    setup.until(|view| !view.up).await;
}
