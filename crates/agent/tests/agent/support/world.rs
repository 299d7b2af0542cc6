//! One plane, hub and agent for all tests of a process. Each test brings its own services and namespaces. Pods run on
//! the plane's nodes. Pods with another scheduler's name wait, and their tests set their status.

use std::{path::PathBuf, sync::Mutex};

use farwater_api::objects::Outcome;
use farwater_testkit::{Plane, Process};
use kube::Client;
use tokio::sync::OnceCell;

use super::{FakeHub, Service, agent, outcome, turn::Turn};

pub struct World {
    pub hub: FakeHub,
    pub plane: &'static Plane,
    agent: Mutex<Process>,
    dir: tempfile::TempDir,
    _turn: Turn,
}

pub async fn world() -> &'static World {
    static WORLD: OnceCell<World> = OnceCell::const_new();
    WORLD.get_or_init(World::start).await
}

impl World {
    async fn start() -> Self {
        let turn = Turn::take_for_world().await;
        let hub = FakeHub::start();
        let dir = tempfile::tempdir().unwrap();
        let agent = Mutex::new(start_agent(&hub, turn.plane, &dir, true));
        Self {
            hub,
            plane: turn.plane,
            agent,
            dir,
            _turn: turn,
        }
    }

    /// Kills the agent, and starts it again with its stored state.
    pub fn restart_agent(&self) {
        let mut agent = self.agent.lock().unwrap();
        agent.kill9();
        *agent = start_agent(&self.hub, self.plane, &self.dir, false);
    }

    pub async fn client(&self) -> Client {
        self.plane.client().await.unwrap()
    }

    /// Sets a service with these files, and waits until all of it is applied.
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
