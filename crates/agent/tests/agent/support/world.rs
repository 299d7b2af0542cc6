//! One plane, hub and agent for all tests of a program: each test brings services and namespaces of its own.

use std::{path::PathBuf, sync::Mutex};

use farwater_api::objects::Outcome;
use farwater_testkit::{Plane, PlaneOptions, Process};
use kube::Client;
use tokio::sync::OnceCell;

use super::{FakeHub, Service, agent, outcome};

pub struct World {
    pub hub: FakeHub,
    pub plane: Plane,
    agent: Mutex<Process>,
    dir: tempfile::TempDir,
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
        let agent = Mutex::new(start_agent(&hub, &plane, &dir, true));
        Self { hub, plane, agent, dir }
    }

    /// Kills the agent, and starts it again with what it has kept.
    pub fn restart_agent(&self) {
        let mut agent = self.agent.lock().unwrap();
        agent.kill9();
        *agent = start_agent(&self.hub, &self.plane, &self.dir, false);
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

fn start_agent(hub: &FakeHub, plane: &Plane, dir: &tempfile::TempDir, token: bool) -> Process {
    let log = std::env::var_os("AGENT_TEST_LOG").map_or_else(|| dir.path().join("agent.log"), PathBuf::from);
    agent(hub, plane.kubeconfig(), &dir.path().join("state"), &log, token)
}
