//! A hub, an agent and an API server that behaves like a hostile or overloaded one.

use farwater_api::{objects::Outcome, protocol::Entry};
use farwater_testkit::{Plane, Process, api_faults::ApiFaults, wait_for};

use super::{FakeHub, PATIENCE, Service, turn::Turn};

/// A test's own hub and agent, which reaches its plane through a proxy with faults. Fields are dropped in order.
pub struct Ground {
    /// None: the agent was killed.
    agent: Option<Process>,
    pub server: ApiFaults,
    pub plane: &'static Plane,
    pub hub: FakeHub,
    dir: tempfile::TempDir,
    _turn: Turn,
}

impl Ground {
    /// `interval`: seconds between polls.
    pub async fn new(interval: f64) -> Self {
        let turn = Turn::take().await;
        let (hub, dir) = (FakeHub::start(), tempfile::tempdir().unwrap());
        hub.poll_every(interval);
        let server = ApiFaults::start(turn.plane, dir.path(), 1).await.unwrap();
        let mut ground = Self {
            agent: None,
            server,
            plane: turn.plane,
            hub,
            dir,
            _turn: turn,
        };
        ground.start(true);
        ground
    }

    fn start(&mut self, token: bool) {
        let (state, log) = (self.dir.path().join("state"), self.dir.path().join("agent.log"));
        self.agent = Some(super::agent(&self.hub, self.server.kubeconfig(), &state, &log, token));
    }

    pub fn kill(&mut self) {
        self.agent.take().unwrap().kill9();
    }

    pub fn restart(&mut self) {
        self.start(false);
    }

    /// Waits until the agent reported the entry as superseded. No other final report may have come.
    pub async fn superseded(&self, entry: &Entry) {
        let outcomes = || -> Vec<Outcome> {
            let history = self.hub.history(&entry.service.uid).into_iter();
            history
                .filter(|report| report.entry == entry.digest())
                .map(|report| report.outcome)
                .collect()
        };
        wait_for("the older version to be superseded", PATIENCE, || async {
            Ok(outcomes().contains(&Outcome::Superseded).then_some(()))
        })
        .await
        .unwrap();
        let ended = |outcome: &Outcome| matches!(outcome, Outcome::Applied | Outcome::Failed);
        assert!(!outcomes().iter().any(ended), "{:?}", outcomes());
    }

    /// A service that is not pruned: objects that a newer version lacks stay in the cluster.
    pub fn service(&self, name: &str, files: &[(&str, &str)]) -> Service {
        let mut service = Service::new(&self.hub, name, files);
        service.deployment.prune = false;
        service
    }
}
