//! Change windows, parsed, and whether changes may start now.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use farwater_api::ChangeWindowSpec;
use farwater_fleet::windows::{Closed, Subject, Window, decide};
use jiff::Timestamp;
use tokio::sync::Notify;

/// A window, as it is stated and as it is parsed.
#[derive(Clone)]
pub struct Known {
    pub namespace: String,
    pub name: String,
    pub spec: ChangeWindowSpec,
    pub window: Window,
}

/// All windows, in memory.
pub struct Windows {
    all: Mutex<Arc<[Known]>>,
    /// Counts the reads.
    edition: AtomicU64,
    /// A window was written or deleted, and no service was requeued for that yet.
    pub edited: AtomicBool,
    pub woken: Notify,
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Default for Windows {
    fn default() -> Self {
        Self::by(Timestamp::now)
    }
}

impl Windows {
    pub fn by(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self {
            all: Mutex::new(Arc::new([])),
            edition: AtomicU64::new(0),
            edited: AtomicBool::new(false),
            woken: Notify::new(),
            clock: Box::new(clock),
        }
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub fn all(&self) -> Arc<[Known]> {
        Arc::clone(&self.all.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces all windows and returns the earlier ones.
    pub fn set(&self, windows: Vec<Known>) -> Arc<[Known]> {
        let before = std::mem::replace(
            &mut *self.all.lock().unwrap_or_else(PoisonError::into_inner),
            windows.into(),
        );
        self.edition.fetch_add(1, Ordering::AcqRel);
        before
    }

    /// A decision made under one edition is made again under the next.
    pub fn edition(&self) -> u64 {
        self.edition.load(Ordering::Acquire)
    }

    /// The window that keeps changes of `subject` from starting now; None: they may start.
    pub fn closed(&self, subject: Subject<'_>) -> Option<Closed> {
        let all = self.all();
        let windows = all.iter().map(|known| &known.window);
        decide(windows.filter(|window| window.concerns(subject)), self.now()).closed()
    }

    /// Evaluates all windows again: the clock may have been set.
    pub fn look_again(&self) {
        self.woken.notify_one();
    }
}
