//! A test's own hub and an agent that the test kills. Pods with another scheduler's name don't run.

use std::path::{Path, PathBuf};

use farwater_api::objects::Outcome;
use farwater_testkit::{Plane, Process};

use super::{FakeHub, Service, agent, outcome, turn::Turn};

/// Fields are dropped in order: the agent ends before the next one may start.
pub struct Ground {
    pub agent: Option<Process>,
    pub hub: FakeHub,
    pub plane: &'static Plane,
    pub dir: tempfile::TempDir,
    _turn: Turn,
}

impl Ground {
    pub async fn new() -> Self {
        let turn = Turn::take().await;
        let dir = tempfile::tempdir().unwrap();
        let mut ground = Self {
            agent: None,
            hub: FakeHub::start(),
            plane: turn.plane,
            dir,
            _turn: turn,
        };
        ground.start(true);
        ground
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub fn start(&mut self, token: bool) {
        let kubeconfig = self.plane.kubeconfig().to_owned();
        self.start_by(&kubeconfig, token);
    }

    /// Starts the agent with another kubeconfig.
    pub fn start_by(&mut self, kubeconfig: &Path, token: bool) {
        let log = self.dir.path().join("agent.log");
        self.agent = Some(agent(&self.hub, kubeconfig, &self.state_dir(), &log, token));
    }

    pub fn kill(&mut self) {
        self.agent.take().unwrap().kill9();
    }

    pub async fn applied(&self, service: &Service) {
        let entry = self.hub.set(service.entry());
        outcome(&self.hub, &entry, Outcome::Applied).await;
    }
}
