//! What a pipeline promotes beside a commit.

use std::{collections::BTreeSet, time::Duration};

use farwater_api::{
    ADMIN_NAMESPACE,
    objects::{Health, Outcome},
    protocol::Entry,
};
use farwater_testkit::git::GitServer;
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::Instant};

use super::{Subject, check};
use crate::{
    agent::{Agent, said},
    rig::{PATIENCE, Rig, repository},
    shop::{service, start, wait_files},
};

struct World {
    subject: Subject,
    before: Mutex<Before>,
    _server: GitServer,
}

/// The service of the stage before, on a cluster of its own.
struct Before {
    uid: String,
    agent: Agent,
    last: Option<Entry>,
}

impl Before {
    /// Says that it is healthy with all that it is told, until what is stated now is known to be.
    async fn get_well(&mut self, rig: &Rig) {
        let is_well = |service: &Value| {
            let ready = service["status"]["conditions"]
                .as_array()?
                .iter()
                .find(|one| one["type"] == "Ready")?;
            Some(ready["status"] == "True" && ready["observedGeneration"] == service["metadata"]["generation"])
        };
        let begun = Instant::now();
        while !is_well(&rig.get("ServiceDeployment", ADMIN_NAMESPACE, "first").await.unwrap()).unwrap_or(false) {
            assert!(
                begun.elapsed() < PATIENCE,
                "the service of the stage before does not get healthy"
            );
            let Some(entry) = self.agent.news(rig, self.last.as_ref()).await else {
                tokio::time::sleep(Duration::from_millis(30)).await;
                continue;
            };
            self.agent
                .say(
                    rig,
                    &self.uid,
                    said(&entry, Outcome::Applied, &[("web", Health::Current)]),
                )
                .await;
            self.last = Some(entry);
        }
    }
}

impl AsRef<Subject> for World {
    fn as_ref(&self) -> &Subject {
        &self.subject
    }
}

impl World {
    /// A service for each of two stages; the first states a text that goes with its commit.
    async fn new() -> Self {
        let (server, _) = repository().await;
        let rig = start().await;
        rig.create("Namespace", "", ADMIN_NAMESPACE, json!({})).await;
        rig.create(
            "Cluster",
            ADMIN_NAMESPACE,
            "west",
            json!({"spec": {"pollInterval": "30s"}}),
        )
        .await;
        rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
        let promoted = json!({"url": server.url("infra.git"), "interval": "10m", "ref": {"pipeline": "web"}});
        rig.create(
            "GitRepository",
            ADMIN_NAMESPACE,
            "infra-prod",
            json!({"spec": promoted}),
        )
        .await;
        let first = json!({
            "clusterRef": {"name": "west"}, "sourceRef": {"name": "infra"}, "path": "apps/web",
            "configuration": {"imageTag": "1"},
        });
        let first = service(&rig, "first", first).await;
        let uid = service(
            &rig,
            "web",
            json!({"sourceRef": {"name": "infra-prod"}, "path": "apps/web"}),
        )
        .await;
        let pipeline = json!({
            "promotes": {"configuration": ["imageTag"]},
            "stages": [
                {"name": "first", "sourceRef": {"name": "infra"}, "services": ["first"]},
                {"name": "second", "sourceRef": {"name": "infra-prod"}, "services": ["web"]},
            ],
        });
        rig.create("Pipeline", ADMIN_NAMESPACE, "web", json!({"spec": pipeline}))
            .await;
        let mut before = Before {
            uid: first,
            agent: Agent::join(&rig, "west").await,
            last: None,
        };
        let agent = Agent::join(&rig, "east").await;
        before.get_well(&rig).await;
        wait_files(&rig, &agent, &uid, |_| true).await;
        let subject = Subject {
            rig,
            agent,
            namespace: ADMIN_NAMESPACE,
            uid,
            sources: &[],
            changed: Default::default(),
        };
        Self {
            subject,
            before: Mutex::new(before),
            _server: server,
        }
    }

    async fn state(&self, tag: &str) {
        let edited = |service: &mut Value| service["spec"]["configuration"] = json!({"imageTag": tag});
        self.subject
            .rig
            .edit("ServiceDeployment", ADMIN_NAMESPACE, "first", edited)
            .await;
        self.before.lock().await.get_well(&self.subject.rig).await;
    }
}

/// The inputs that have changed.
pub async fn of_promotions() -> BTreeSet<String> {
    let world = World::new().await;
    check(
        &world,
        "a text that is promoted",
        Some(&["configuration", "turn"]),
        async |w| w.state("2").await,
    )
    .await;
    world.subject.changed()
}
