//! A ground whose API server does what a hostile or overloaded one does.

use farwater_testkit::{Plane, PlaneOptions, Process, api_faults::ApiFaults};

use super::{FakeHub, Service};

/// A hub and an agent of the test's own, which reaches its plane through faults. Dropped in order.
pub struct Ground {
    _agent: Process,
    pub server: ApiFaults,
    pub plane: Plane,
    pub hub: FakeHub,
    _dir: tempfile::TempDir,
}

impl Ground {
    /// `interval`: seconds between polls.
    pub async fn new(interval: f64) -> Self {
        let plane = Plane::start_with(PlaneOptions::without_nodes()).await.unwrap();
        let (hub, dir) = (FakeHub::start(), tempfile::tempdir().unwrap());
        hub.poll_every(interval);
        let server = ApiFaults::start(&plane, dir.path(), 1).await.unwrap();
        let log = dir.path().join("agent.log");
        let agent = super::agent(&hub, server.kubeconfig(), &dir.path().join("state"), &log, true);
        Self { _agent: agent, server, plane, hub, _dir: dir }
    }

    /// A service that leaves in the cluster what a newer version lacks.
    pub fn service(&self, name: &str, files: &[(&str, &str)]) -> Service {
        let mut service = Service::new(&self.hub, name, files);
        service.deployment.prune = false;
        service
    }
}
