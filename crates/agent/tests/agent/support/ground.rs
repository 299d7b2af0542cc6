//! A plane, a hub and an agent of the test's own: it kills the agent.

use std::path::{Path, PathBuf};

use farwater_api::objects::Outcome;
use farwater_testkit::{Plane, PlaneOptions, Process};

use super::{FakeHub, Service, agent, outcome};

pub struct Ground {
    pub hub: FakeHub,
    pub plane: Plane,
    pub dir: tempfile::TempDir,
    pub agent: Option<Process>,
}

impl Ground {
    pub async fn new() -> Self {
        let plane = Plane::start_with(PlaneOptions::without_nodes()).await.unwrap();
        let mut ground = Self { hub: FakeHub::start(), plane, dir: tempfile::tempdir().unwrap(), agent: None };
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

    /// By another way to the API server.
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
