//! One plane, hub and agent for all tests of a program: each test brings services and namespaces of its own.

use std::path::PathBuf;

use farwater_api::objects::Outcome;
use farwater_testkit::{Plane, PlaneOptions, Process};
use kube::Client;
use tokio::sync::OnceCell;

use super::{FakeHub, Service, agent, outcome};

pub struct World {
    pub hub: FakeHub,
    pub plane: Plane,
    _agent: Process,
    _dir: tempfile::TempDir,
}

pub async fn world() -> &'static World {
    static WORLD: OnceCell<World> = OnceCell::const_new();
    WORLD.get_or_init(|| World::start(PlaneOptions::default())).await
}

/// The same where no pod runs: Jobs end when a test says so.
pub async fn world_without_nodes() -> &'static World {
    static WORLD: OnceCell<World> = OnceCell::const_new();
    WORLD.get_or_init(|| World::start(PlaneOptions::without_nodes())).await
}

impl World {
    async fn start(options: PlaneOptions) -> Self {
        let plane = Plane::start_with(options).await.unwrap();
        let hub = FakeHub::start();
        let dir = tempfile::tempdir().unwrap();
        let log = std::env::var_os("AGENT_TEST_LOG").map_or_else(|| dir.path().join("agent.log"), PathBuf::from);
        let agent = agent(&hub, plane.kubeconfig(), &dir.path().join("state"), &log, true);
        Self { hub, plane, _agent: agent, _dir: dir }
    }

    pub async fn client(&self) -> Client {
        self.plane.client().await.unwrap()
    }

    /// Sets a service with these files and waits until all of it is applied.
    pub async fn applied(&self, name: &str, files: &[(&str, &str)]) -> Service {
        let service = Service::new(&self.hub, name, files);
        let entry = self.hub.set(service.entry());
        outcome(&self.hub, &entry, Outcome::Applied).await;
        service
    }
}
