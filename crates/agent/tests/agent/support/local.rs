//! An agent in the test's own process, for limits that no option sets.

use std::thread::JoinHandle;

use clap::Parser as _;
use farwater_agent::{Options, run};
use tokio_util::sync::CancellationToken;

use super::{FakeHub, fake_hub::TOKEN};

/// The agent runs in its own thread, as in its program. It has ended when this is dropped.
pub struct LocalAgent {
    shutdown: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl LocalAgent {
    /// `change` modifies the usual options of this hub's agents.
    pub fn start(hub: &FakeHub, change: impl FnOnce(&mut Options)) -> Self {
        let (url, pin) = (hub.url(), hub.ca_pin());
        let arguments = ["farwater-agent", "--hub", &url, "--ca-pin", &pin, "--join-token", TOKEN];
        let mut options = Options::parse_from(arguments);
        change(&mut options);
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(run(options, stop)).unwrap();
        });
        Self {
            shutdown,
            thread: Some(thread),
        }
    }
}

impl Drop for LocalAgent {
    fn drop(&mut self) {
        self.shutdown.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
