//! A hub without its API server: what people would write is written to the store as the API server does it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body};
use farwater_api::{ADMIN_NAMESPACE, GROUP, VERSION};
use farwater_hub::{
    DataDir, Identity,
    controllers::{self, resume},
    memory::{clock::SteadyClock, connections::Connections, mirrors::SourceSettings, windows::Windows},
    replica::Replica,
    secret_backends::SecretBackends,
};
use farwater_sources::Links;
use farwater_store::{
    Change, Key, Kind, ListQuery, Location, OpenOptions, PostgresUrl, Store, Write, WriteError,
    delivery::{Bundle, MarkClusters, bundle_of_content, load_assignment, load_dirty, save_bundle},
};
use farwater_testkit::{
    git::{GitServer, Repository},
    postgres,
};
use http::{Request, Response};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::agent::Agent;

/// Far above what anything here takes on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// A queue with nothing due for so long is idle. What is looked at again by itself is so within a minute, or much later.
const IDLE: Duration = Duration::from_secs(30);
/// The same, where a set that soaks is to count as idle between two looks, which are half a second apart at least.
const AT_REST: Duration = Duration::from_millis(100);

/// Agents that may be connected.
pub const CONNECTIONS: usize = 2;

const BACKENDS: &str = "backends.yaml";
/// A rule a line, as `--credential-program` takes them.
const PROGRAMS: &str = "programs";

pub struct Rig {
    data: tempfile::TempDir,
    directory: DataDir,
    pub store: Store,
    pub identity: Arc<Identity>,
    pub replica: Arc<Replica>,
    router: Router,
    shutdown: CancellationToken,
    controllers: JoinHandle<()>,
    /// Seconds that the clock by which change windows go is ahead.
    ahead: Arc<AtomicI64>,
    /// Seconds that have passed for soaks, deadlines and silence beside those that really have. Kept over restarts.
    passed: Arc<AtomicU64>,
    tune: fn(&mut Replica),
}

fn plural(kind: &str) -> Kind {
    let plural = match (kind, kind.strip_suffix('y')) {
        ("Secret", _) => return Kind::new("secrets", ""),
        ("ConfigMap", _) => return Kind::new("configmaps", ""),
        ("Namespace", _) => return Kind::new("namespaces", ""),
        (_, Some(stem)) => format!("{}ies", stem.to_lowercase()),
        (kind, None) => format!("{}s", kind.to_lowercase()),
    };
    Kind::new(&plural, GROUP)
}

pub fn key(kind: &str, namespace: &str, name: &str) -> Key {
    Key {
        kind: plural(kind),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

impl Rig {
    pub async fn start() -> Self {
        Self::start_tuned(|_| {}).await
    }

    /// With other settings than a hub has.
    pub async fn start_tuned(tune: fn(&mut Replica)) -> Self {
        let data = tempfile::tempdir().unwrap();
        let location = Self::location(&data).await;
        Self::open(data, location, Arc::default(), tune).await
    }

    async fn location(data: &tempfile::TempDir) -> Location {
        match postgres::chosen().await.unwrap() {
            Some(url) => PostgresUrl::parse(&url).unwrap().into(),
            None => data.path().join("hub.db").into(),
        }
    }

    /// With other places that secrets may come from, as a file of the hub's configuration names them.
    pub async fn start_with_backends(configuration: &str) -> Self {
        let data = tempfile::tempdir().unwrap();
        std::fs::write(data.path().join(BACKENDS), configuration).unwrap();
        let location = data.path().join("hub.db").into();
        Self::open(data, location, Arc::default(), |_| {}).await
    }

    /// The same from the next start on.
    pub fn configure_backends(&self, configuration: &str) {
        std::fs::write(self.data.path().join(BACKENDS), configuration).unwrap();
    }

    /// With a program that says credentials.
    pub async fn start_with_program(rule: &str) -> Self {
        let data = tempfile::tempdir().unwrap();
        std::fs::write(data.path().join(PROGRAMS), rule).unwrap();
        let location = data.path().join("hub.db").into();
        Self::open(data, location, Arc::default(), |_| {}).await
    }

    async fn open(data: tempfile::TempDir, location: Location, passed: Arc<AtomicU64>, tune: fn(&mut Replica)) -> Self {
        let directory = DataDir::open(data.path()).unwrap();
        let identity = Arc::new(Identity::open(&directory, None, Timestamp::now()).unwrap());
        let mut options = OpenOptions::new(location, *identity.seal_key().bytes());
        options.on_change = Some(Arc::new(MarkClusters));
        let store = Store::open(options).await.unwrap();
        identity.note_successions(&store).await.unwrap();
        let url = "https://hub.test:8443".to_owned();
        let left = resume::take_left(&store, &identity).await.unwrap();
        let connections = Connections::new(CONNECTIONS);
        let directory_of_data = data.path().to_owned();
        // All servers of tests are on this machine.
        let links = Links::new(["127.0.0.0/8".parse().unwrap()]);
        let rules = std::fs::read_to_string(data.path().join(PROGRAMS)).unwrap_or_default();
        let programs = rules.lines().map(|rule| rule.parse().unwrap()).collect();
        let sources = SourceSettings { links, programs };
        let replica = Replica::open(
            store.clone(),
            Arc::clone(&identity),
            directory_of_data,
            url,
            connections,
            sources,
        )
        .await;
        let mut replica = replica.unwrap();
        let backends = data.path().join(BACKENDS);
        if backends.exists() {
            replica.secret_backends = Arc::new(SecretBackends::open(&backends, store.clone()).unwrap());
        }
        let more = Arc::clone(&passed);
        replica.clock = SteadyClock::ahead_by(move || Duration::from_secs(more.load(Ordering::Acquire)));
        let ahead = Arc::new(AtomicI64::new(0));
        let seconds = Arc::clone(&ahead);
        replica.memory.windows =
            Windows::by(move || Timestamp::now() + SignedDuration::from_secs(seconds.load(Ordering::Acquire)));
        tune(&mut replica);
        let replica = Arc::new(replica);
        let shutdown = CancellationToken::new();
        let controllers = tokio::spawn(controllers::run(Arc::clone(&replica), left, shutdown.clone()));
        let hosts = farwater_hub::receivers::router(Arc::clone(&replica));
        let router = farwater_hub::delivery::router(Arc::clone(&replica)).merge(hosts);
        Self {
            data,
            directory,
            store,
            identity,
            replica,
            router,
            shutdown,
            controllers,
            ahead,
            passed,
            tune,
        }
    }

    /// Stops the hub and starts it again on the same data.
    pub async fn restart(self) -> Self {
        self.restart_after(async |_, _| {}).await
    }

    /// The same, with something done to its database meanwhile.
    pub async fn restart_after(self, work: impl AsyncFnOnce(&Location, &[u8; 32])) -> Self {
        self.shutdown.cancel();
        let controllers = self.controllers.await;
        // Nothing is left by one that crashed.
        if controllers.is_ok() {
            resume::leave(&self.replica).await.unwrap();
        }
        drop((self.router, self.replica, self.directory));
        let location = self.store.location().clone();
        self.store.close().await;
        drop(self.store);
        work(&location, self.identity.seal_key().bytes()).await;
        drop(self.identity);
        Self::open(self.data, location, self.passed, self.tune).await
    }

    /// The same, without an orderly end.
    pub async fn crash_before(self, work: impl AsyncFnOnce(&Location, &[u8; 32])) -> Self {
        self.controllers.abort();
        self.restart_after(work).await
    }

    /// The hub is killed and started again, and these agents know it.
    pub async fn crash(self, agents: impl IntoIterator<Item = &mut Agent>) -> Self {
        self.kill_controllers().await;
        let rig = self.crash_before(async |_, _| {}).await;
        rig.wait_loaded().await;
        for agent in agents {
            agent.renew(&rig).await;
        }
        rig
    }

    /// Sets the clock by which change windows go, so many hours ahead of what it is.
    pub fn set_clock(&self, hours: f64) {
        self.ahead.store((hours * 3600.0) as i64, Ordering::Release);
        self.replica.memory.windows.look_again();
    }

    /// Time passes by which soaks, deadlines and the silence of agents are judged, and clusters are looked at. Whoever wants something
    /// else looked at adds it to its queue.
    pub fn pass(&self, seconds: u64) {
        self.passed.fetch_add(seconds, Ordering::AcqRel);
        for cluster in self.replica.memory.clusters.all() {
            self.replica.queues.clusters.add(cluster.uid.to_string());
        }
    }

    /// Whether all that could be done at this time is done.
    pub async fn is_at_rest(&self) -> bool {
        let Replica {
            queues,
            memory,
            signals,
            ..
        } = &*self.replica;
        signals.routed.load(Ordering::Acquire) == self.store.position()
            && queues.services.is_idle_for(AT_REST)
            && queues.summaries.is_idle_for(AT_REST)
            && memory.sets.queue.is_idle_for(AT_REST)
            && memory.pipelines.queue.is_idle_for(AT_REST)
            && queues.clusters.is_idle_for(AT_REST)
            && self.is_computed().await
    }

    async fn is_computed(&self) -> bool {
        // A Cluster whose status was written is marked, and nobody is in a hurry about that.
        self.replica.signals.dirty.notify_one();
        load_dirty(&mut self.store.tables().await.unwrap(), 1)
            .await
            .unwrap()
            .is_empty()
    }

    pub fn path(&self) -> &std::path::Path {
        self.data.path()
    }

    pub async fn wait_loaded(&self) {
        self.wait_until("the hub has loaded", async || self.replica.memory.clusters.is_loaded())
            .await;
    }

    /// How often any service was looked at.
    pub fn looks(&self) -> u64 {
        let (_, counts) = self.replica.controller_work()[1];
        counts.done
    }

    /// Has the bundles' rows name a commit that no mirror has.
    pub async fn forget_commit(&self, service_uid: &str) {
        let row = load_assignment(&mut self.store.tables().await.unwrap(), service_uid)
            .await
            .unwrap()
            .unwrap();
        let candidate: serde_json::Value = serde_json::from_str(&row.assigned.unwrap()).unwrap();
        let content_id = serde_json::from_value(candidate["contentId"].clone()).unwrap();
        let known = bundle_of_content(&mut self.store.tables().await.unwrap(), &content_id)
            .await
            .unwrap()
            .unwrap();
        let lost = Bundle {
            commit: "0".repeat(40),
            ..known
        };
        self.store
            .transact(move |tx| Box::pin(async move { save_bundle(tx, &lost).await }))
            .await
            .unwrap();
    }

    /// Until every change is routed and nothing of it left to do. An approval that will end is nothing to do yet.
    pub async fn wait_idle(&self) {
        let is_idle = async || {
            let Replica {
                queues,
                memory,
                signals,
                ..
            } = &*self.replica;
            signals.routed.load(Ordering::Acquire) == self.store.position()
                && queues.services.is_idle_for(IDLE)
                && queues.summaries.is_idle_for(IDLE)
                && memory.sets.queue.is_idle_for(IDLE)
        };
        self.wait_until("the controllers are idle", is_idle).await;
    }

    /// Until no cluster's desired state is older than what it comes of.
    pub async fn wait_computed(&self) {
        self.wait_until("the clusters' states are computed", async || self.is_computed().await)
            .await;
    }

    pub async fn stop_controllers(&self) {
        self.shutdown.cancel();
        self.wait_until("the controllers have stopped", async || self.controllers.is_finished())
            .await;
    }

    /// As a crash ends them: nothing that they were about to do is known afterwards.
    pub async fn kill_controllers(&self) {
        self.controllers.abort();
        self.wait_until("the controllers are gone", async || self.controllers.is_finished())
            .await;
    }

    pub async fn wait_until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let started = tokio::time::Instant::now();
        while !holds().await {
            assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The doors of agents and of Git hosts on a socket, as plain HTTP.
    pub async fn serve(&self) -> std::net::SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = self.router.clone();
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    pub async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub async fn create(&self, kind: &str, namespace: &str, name: &str, object: Value) -> String {
        let uid = uuid::Uuid::new_v4().to_string();
        self.create_as(&uid, kind, namespace, name, object).await;
        uid
    }

    /// With this uid.
    pub async fn create_as(&self, uid: &str, kind: &str, namespace: &str, name: &str, object: Value) {
        let mut metadata = json!({
            "name": name, "uid": uid, "generation": 1, "creationTimestamp": Timestamp::now().to_string(),
        });
        if !namespace.is_empty() {
            metadata["namespace"] = namespace.into();
        }
        for field in ["labels", "annotations"] {
            if let Some(value) = object.get(field) {
                metadata[field] = value.clone();
            }
        }
        let is_core = matches!(kind, "ConfigMap" | "Secret" | "Namespace");
        let api_version = if is_core {
            "v1".to_owned()
        } else {
            format!("{GROUP}/{VERSION}")
        };
        let mut full = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
        for field in ["spec", "data", "type"] {
            if let Some(value) = object.get(field) {
                full[field] = value.clone();
            }
        }
        self.store
            .write(Write {
                key: key(kind, namespace, name),
                change: Change::Create(full),
            })
            .await
            .unwrap();
    }

    pub async fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.store
            .get(&key(kind, namespace, name))
            .await
            .unwrap()
            .map(|resource| (*resource.object).clone())
    }

    /// All Events.
    pub async fn events(&self) -> Vec<Value> {
        let found = self.store.list(&ListQuery::all(Kind::new("events", ""))).await.unwrap();
        found
            .items
            .into_iter()
            .map(|resource| (*resource.object).clone())
            .collect()
    }

    /// Changes an object as a person would: a changed spec is a new generation.
    pub async fn edit(&self, kind: &str, namespace: &str, name: &str, edit: impl Fn(&mut Value)) {
        let key = key(kind, namespace, name);
        loop {
            let current = self.store.get(&key).await.unwrap().unwrap();
            let mut object = (*current.object).clone();
            edit(&mut object);
            if object["spec"] != current.object["spec"] {
                object["metadata"]["generation"] = (object["metadata"]["generation"].as_i64().unwrap() + 1).into();
            }
            let change = Change::Replace {
                uid: current.uid,
                version: current.version,
                object,
            };
            match self
                .store
                .write(Write {
                    key: key.clone(),
                    change,
                })
                .await
            {
                Err(WriteError::Conflict { .. }) => {}
                other => return drop(other.unwrap()),
            }
        }
    }

    /// As the API server deletes: an object with finalizers is marked and stays.
    pub async fn delete(&self, kind: &str, namespace: &str, name: &str) {
        let key = key(kind, namespace, name);
        loop {
            let current = self.store.get(&key).await.unwrap().unwrap();
            let mut object = (*current.object).clone();
            let held = object["metadata"]["finalizers"]
                .as_array()
                .is_some_and(|all| !all.is_empty());
            let (uid, version) = (current.uid, current.version);
            let change = if held {
                object["metadata"]["deletionTimestamp"] = Timestamp::now().to_string().into();
                object["metadata"]["generation"] = (object["metadata"]["generation"].as_i64().unwrap() + 1).into();
                Change::Replace { uid, version, object }
            } else {
                Change::Delete { uid, version }
            };
            match self
                .store
                .write(Write {
                    key: key.clone(),
                    change,
                })
                .await
            {
                Err(WriteError::Conflict { .. }) => {}
                other => return drop(other.unwrap()),
            }
        }
    }

    pub async fn repository(&self, namespace: &str, name: &str, url: &str) -> String {
        self.create(
            "GitRepository",
            namespace,
            name,
            json!({"spec": {"url": url, "interval": "10m"}}),
        )
        .await
    }

    pub async fn cluster(&self, name: &str) -> String {
        let spec = json!({"spec": {"pollInterval": "30s"}, "labels": {"env": "test"}});
        self.create("Cluster", ADMIN_NAMESPACE, name, spec).await
    }

    pub async fn service(&self, namespace: &str, name: &str, cluster: &str, path: &str) -> String {
        let spec = json!({
            "clusterRef": {"name": cluster}, "targetNamespace": name, "path": path,
            "sourceRef": {"kind": "GitRepository", "name": "infra"}, "deletionPolicy": "Delete",
        });
        self.create("ServiceDeployment", namespace, name, json!({"spec": spec}))
            .await
    }

    /// Has a source asked now, as `farwater.dev/requestedAt` does; returns when it is acknowledged.
    pub async fn ask(&self, namespace: &str, name: &str) {
        let requested = Timestamp::now().to_string();
        self.edit("GitRepository", namespace, name, |object| {
            object["metadata"]["annotations"]["farwater.dev/requestedAt"] = requested.clone().into();
        })
        .await;
        self.wait_for("GitRepository", namespace, name, |object| {
            object["status"]["lastHandledReconcileAt"] == requested.as_str()
        })
        .await;
    }

    pub async fn wait_for(&self, kind: &str, namespace: &str, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let started = tokio::time::Instant::now();
        loop {
            let object = self.get(kind, namespace, name).await.unwrap_or(Value::Null);
            if holds(&object) {
                return object;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "waited in vain; {kind} {namespace}/{name} is {object:#}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn wait_gone(&self, kind: &str, namespace: &str, name: &str) {
        self.wait_for(kind, namespace, name, Value::is_null).await;
    }
}

/// `status/reason` of a condition.
pub fn condition(object: &Value, kind: &str) -> String {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.iter().find(|c| c["type"] == kind).map_or_else(
        || "absent".to_owned(),
        |c| format!("{}/{}", c["status"].as_str().unwrap(), c["reason"].as_str().unwrap()),
    )
}

pub fn message(object: &Value, kind: &str) -> String {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.iter()
        .find(|c| c["type"] == kind)
        .map_or_else(String::new, |c| c["message"].as_str().unwrap().to_owned())
}

pub const WEB: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n";

/// A repository with two services' folders and one of neither.
pub async fn repository() -> (GitServer, Repository) {
    let server = GitServer::start().await.unwrap();
    let repository = server.create("infra.git").unwrap();
    repository
        .commit(
            "main",
            &[
                ("apps/web/web.yaml", WEB),
                ("apps/db/db.yaml", &WEB.replace("web", "db")),
                ("README", "x"),
            ],
        )
        .unwrap();
    (server, repository)
}
