//! Watches of metadata, one per kind and account, shared by all services that use them.
//!
//! The selector is our label. An event is delivered to the service that the label names, which checks in its own
//! inventory whether the object is its own.
//!
//! No watch is trusted for ever. A watch that receives nothing, not even a bookmark, is reopened where it was and
//! covers nothing until it receives something. Now and then a list finds what no event reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use farwater_api::{SERVICE_LABEL, protocol::ServiceAccount};
use farwater_fleet::plan::{LiveObject, ObjectKey, Writer};
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::{
    sync::{Notify, oneshot},
    task::AbortHandle,
    time::{Instant, timeout_at},
};
use tokio_util::{
    codec::{FramedRead, LinesCodec},
    io::StreamReader,
};

use crate::{
    kubernetes::{ApiError, Fault, Kubernetes, Resource, WatchLease},
    live::{last_writer, live_object},
    service::basis::Snapshot,
    sync::{Backoff, jitter, lock},
};

/// Most bytes of an event: an object's metadata has at most 1.5 MiB in etcd.
const MAX_EVENT: usize = 4 << 20;
/// Buffer of an idle watch: there is one for each kind.
const LINE: usize = 512;
/// Pause between two attempts to open a watch. It grows, and except for the first is never longer than the last watch
/// lasted.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// Random share of the time without a list, so that neither kinds nor agents list at the same time.
const SPREAD: f64 = 0.5;

/// How long watches are trusted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest time without any message: API servers send a bookmark about once a minute.
    pub silence: Duration,
    /// Approximate time after which a list checks the events.
    pub unlisted: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(300),
            unlisted: Duration::from_secs(86_400),
        }
    }
}

/// The objects that a service wants events of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Want {
    pub account: ServiceAccount,
    pub resource: Resource,
    /// Namespaces in which the service has objects of this kind.
    pub namespaces: BTreeSet<String>,
}

/// One watch. An empty namespace means all namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WatchKey {
    account: ServiceAccount,
    resource: Resource,
    namespace: String,
}

impl WatchKey {
    fn covers(&self, resource: &Resource, namespace: &str) -> bool {
        self.resource == *resource && (self.namespace.is_empty() || self.namespace == namespace)
    }

    fn key_of(&self, object: &Value) -> Option<ObjectKey> {
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        Some(ObjectKey::new(
            &self.resource.group,
            &self.resource.kind,
            namespace,
            metadata["name"].as_str()?,
        ))
    }
}

#[derive(Clone, Debug)]
pub enum Event {
    /// The present state, and the last other writer.
    Seen(LiveObject, Option<Box<Writer>>),
    /// Deleted, or the label went: only a GET tells. As it was then.
    Left(LiveObject),
}

/// Events since the service last looked; several events of one object count as one.
#[derive(Debug, Default)]
pub struct Pending {
    pub events: BTreeMap<ObjectKey, Event>,
    /// Complete lists: an object of the kind and place that is not in the list has left.
    pub lists: Vec<Listed>,
    /// Something else in the report has changed.
    pub poked: bool,
    /// Another attempt is requested.
    pub retry: bool,
    /// The health rules have changed, so objects may be judged differently.
    pub rules: bool,
    /// Requests for a snapshot of the service's task.
    pub askers: Vec<oneshot::Sender<Snapshot>>,
}

#[derive(Debug)]
pub struct Listed {
    pub group: String,
    pub kind: String,
    /// Empty: all namespaces.
    pub namespace: String,
    pub present: BTreeSet<ObjectKey>,
    /// The list's resourceVersion: objects written later may be missing.
    pub version: String,
}

#[derive(Debug, Default)]
pub struct Mailbox {
    pending: Mutex<Pending>,
    arrived: Notify,
}

impl Mailbox {
    pub fn take(&self) -> Pending {
        std::mem::take(&mut lock(&self.pending))
    }

    pub async fn arrived(&self) {
        self.arrived.notified().await;
    }

    pub fn poke(&self) {
        lock(&self.pending).poked = true;
        self.arrived.notify_one();
    }

    pub fn retry(&self) {
        lock(&self.pending).retry = true;
        self.arrived.notify_one();
    }

    pub fn tell_of_rules(&self) {
        lock(&self.pending).rules = true;
        self.arrived.notify_one();
    }

    /// Requests a snapshot of the service's task, which it sends once no attempt is running.
    pub fn ask(&self) -> oneshot::Receiver<Snapshot> {
        let (asker, answer) = oneshot::channel();
        lock(&self.pending).askers.push(asker);
        self.arrived.notify_one();
        answer
    }

    fn put(&self, key: ObjectKey, event: Event) {
        lock(&self.pending).events.insert(key, event);
        self.arrived.notify_one();
    }

    fn put_list(&self, listed: Listed) {
        lock(&self.pending).lists.push(listed);
        self.arrived.notify_one();
    }
}

/// When a watch last received a list, an event or a bookmark. None: it knows nothing of its objects.
#[derive(Debug, Default)]
struct Heard(Mutex<Option<Instant>>);

impl Heard {
    fn note(&self) {
        *lock(&self.0) = Some(Instant::now());
    }

    fn forget(&self) {
        *lock(&self.0) = None;
    }

    fn is_within(&self, time: Duration) -> bool {
        lock(&self.0).is_some_and(|last| last.elapsed() <= time)
    }
}

/// Where a watch continues.
struct Mark {
    version: String,
    /// From this time on it continues with a list.
    list_at: Instant,
}

struct Running {
    task: AbortHandle,
    heard: Arc<Heard>,
}

#[derive(Default)]
struct State {
    /// Mailbox of each service, by label value.
    mailboxes: BTreeMap<String, Arc<Mailbox>>,
    wants: BTreeMap<String, BTreeSet<Want>>,
    running: BTreeMap<WatchKey, Running>,
    /// Accounts that may not watch a kind in all namespaces; they get one watch per namespace.
    denied: BTreeSet<(ServiceAccount, Resource)>,
}

pub struct Watches {
    kubernetes: Arc<Kubernetes>,
    limits: Limits,
    state: Mutex<State>,
}

impl Watches {
    pub fn new(kubernetes: Arc<Kubernetes>, limits: Limits) -> Self {
        Self {
            kubernetes,
            limits,
            state: Mutex::default(),
        }
    }

    pub fn register(&self, label: &str, mailbox: Arc<Mailbox>) {
        lock(&self.state).mailboxes.insert(label.to_owned(), mailbox);
    }

    pub fn mailbox(&self, label: &str) -> Option<Arc<Mailbox>> {
        lock(&self.state).mailboxes.get(label).cloned()
    }

    pub fn mailboxes(&self) -> Vec<Arc<Mailbox>> {
        lock(&self.state).mailboxes.values().cloned().collect()
    }

    pub fn unregister(self: &Arc<Self>, label: &str) {
        {
            let mut state = lock(&self.state);
            state.mailboxes.remove(label);
            state.wants.remove(label);
        }
        self.balance();
    }

    /// Starts watches that the service newly wants, and stops those that no service wants.
    pub fn set_wants(self: &Arc<Self>, label: &str, wants: BTreeSet<Want>) {
        {
            let mut state = lock(&self.state);
            if state.wants.get(label) == Some(&wants) {
                return;
            }
            state.wants.insert(label.to_owned(), wants);
        }
        self.balance();
    }

    /// Whether changes of such objects are observed. A watch that has received nothing for too long does not count.
    pub fn covers(&self, account: &ServiceAccount, resource: &Resource, namespace: &str) -> bool {
        lock(&self.state).running.iter().any(|(key, running)| {
            key.account == *account && key.covers(resource, namespace) && running.heard.is_within(self.limits.silence)
        })
    }

    fn balance(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let mut wanted = BTreeSet::new();
        for want in state.wants.values().flatten() {
            let denied = state.denied.contains(&(want.account.clone(), want.resource.clone()));
            let key = |namespace: &str| WatchKey {
                account: want.account.clone(),
                resource: want.resource.clone(),
                namespace: namespace.to_owned(),
            };
            if want.resource.namespaced && denied {
                wanted.extend(want.namespaces.iter().map(|n| key(n)));
            } else {
                wanted.insert(key(""));
            }
        }

        state.running.retain(|key, running| {
            let keep = wanted.contains(key);
            if !keep {
                running.task.abort();
            }
            keep
        });

        for key in wanted {
            if state.running.contains_key(&key) {
                continue;
            }
            let heard = Arc::new(Heard::default());
            let task = tokio::spawn(self.clone().watch(key.clone(), heard.clone())).abort_handle();
            state.running.insert(key, Running { task, heard });
        }
    }

    /// Watches for ever, from list to list.
    async fn watch(self: Arc<Self>, key: WatchKey, heard: Arc<Heard>) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let (mut mark, mut paused) = (None, Duration::ZERO);
        loop {
            let mut opened = None;
            let ended = self.watch_once(&key, &heard, &mut mark, &mut opened).await;
            // If watches are cut off after a while, the pauses must stay short compared with the time that they last.
            let lasted = opened.map(|opened: Instant| opened.elapsed());
            if lasted.is_some_and(|lasted| lasted >= paused * 4) {
                backoff.reset();
            }
            let longest = lasted.map_or(LONGEST_PAUSE, |lasted| lasted.max(FIRST_PAUSE));
            match ended {
                // The server ends watches after a while: continue where it ended.
                Ok(()) => backoff.reset(),
                Err(error) if error.is_forbidden() && key.namespace.is_empty() && key.resource.namespaced => {
                    lock(&self.state)
                        .denied
                        .insert((key.account.clone(), key.resource.clone()));
                    // Stops this very task at its next await.
                    self.balance();
                }
                Err(error) => {
                    if error.code() == 410 {
                        mark = None;
                    } else if error.code() != 0 {
                        heard.forget();
                        tracing::warn!(kind = key.resource.kind, %error, "can't watch; drift is not seen at once");
                    }
                    // A longer pause that the API server asked for is kept.
                    paused = backoff
                        .advance()
                        .min(longest)
                        .max(error.retry_after().unwrap_or_default());
                    tokio::time::sleep(paused).await;
                    continue;
                }
            }
            // A server that ends each watch at once must not make this loop spin.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Reads one stream until it ends, is silent for too long, or a list is due. `opened`: set once it is open.
    async fn watch_once(
        &self,
        key: &WatchKey,
        heard: &Heard,
        mark: &mut Option<Mark>,
        opened: &mut Option<Instant>,
    ) -> Result<(), ApiError> {
        let collection = key.resource.collection(&key.namespace);
        if mark.as_ref().is_some_and(|mark| mark.list_at <= Instant::now()) {
            *mark = None;
        }
        let mark = match mark {
            Some(mark) => mark,
            None => {
                let version = self.list(key, &collection).await?;
                heard.note();
                mark.insert(Mark {
                    version,
                    list_at: Instant::now() + jitter(self.limits.unlisted, SPREAD),
                })
            }
        };

        let lease: WatchLease = self.kubernetes.lease_watch();
        let body = lease
            .open(Some(&key.account), &collection, SERVICE_LABEL, &mark.version)
            .await?;
        *opened = Some(Instant::now());
        let bytes = body.into_data_stream().map(|part| part.map_err(std::io::Error::other));
        let codec = LinesCodec::new_with_max_length(MAX_EVENT);
        let mut lines = FramedRead::with_capacity(StreamReader::new(bytes), codec, LINE);
        while let Ok(Some(line)) = timeout_at(self.patience(mark), lines.next()).await {
            let line = line.map_err(|e| ApiError::Lost(crate::hub::chain(&e)))?;
            let event: Value = serde_json::from_str(&line).map_err(|e| ApiError::Unusable(e.to_string()))?;
            let version = self.deliver(key, &event)?;
            heard.note();
            if let Some(version) = version {
                mark.version = version;
            }
        }
        Ok(())
    }

    /// Deadline for the next line.
    fn patience(&self, mark: &Mark) -> Instant {
        mark.list_at.min(Instant::now() + self.limits.silence)
    }

    async fn list(&self, key: &WatchKey, collection: &str) -> Result<String, ApiError> {
        let mut present: BTreeMap<String, BTreeSet<ObjectKey>> = BTreeMap::new();
        let version = self
            .kubernetes
            .list(Some(&key.account), collection, SERVICE_LABEL, true, |object| {
                let Some(object_key) = key.key_of(&object) else { return };
                let live = live_object(&object);
                let Some(label) = live.service_label.clone() else {
                    return;
                };
                present.entry(label.clone()).or_default().insert(object_key.clone());
                if let Some(mailbox) = self.mailbox(&label) {
                    mailbox.put(object_key, Event::Seen(live, last_writer(&object["metadata"])));
                }
            })
            .await?;

        let interested: Vec<(String, Arc<Mailbox>)> = {
            let state = lock(&self.state);
            let wanting = state.wants.iter().filter(|(_, wants)| {
                wants
                    .iter()
                    .any(|w| w.account == key.account && w.resource == key.resource)
            });
            wanting
                .filter_map(|(label, _)| Some((label.clone(), state.mailboxes.get(label)?.clone())))
                .collect()
        };
        for (label, mailbox) in interested {
            mailbox.put_list(Listed {
                group: key.resource.group.clone(),
                kind: key.resource.kind.clone(),
                namespace: key.namespace.clone(),
                present: present.remove(&label).unwrap_or_default(),
                version: version.clone(),
            });
        }
        Ok(version)
    }

    /// Delivers an event to its service. Returns the version to continue from.
    fn deliver(&self, key: &WatchKey, event: &Value) -> Result<Option<String>, ApiError> {
        let object = &event["object"];
        let kind = event["type"].as_str().unwrap_or_default();
        if kind == "ERROR" {
            let code = object["code"]
                .as_u64()
                .and_then(|c| u16::try_from(c).ok())
                .unwrap_or(500);
            let message = crate::messages::explain_status(object, false);
            return Err(ApiError::Status {
                code,
                reason: String::new(),
                message,
                retry_after: None,
                fault: Fault::Other,
            });
        }
        let version = object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        if kind == "BOOKMARK" {
            return Ok(version);
        }

        let live = live_object(object);
        if let (Some(object_key), Some(label)) = (key.key_of(object), live.service_label.as_ref())
            && let Some(mailbox) = self.mailbox(label)
        {
            let event = match kind {
                "DELETED" => Event::Left(live),
                _ => Event::Seen(live, last_writer(&object["metadata"])),
            };
            mailbox.put(object_key, event);
        }
        Ok(version)
    }
}

#[cfg(test)]
mod tests {
    use farwater_testkit::{
        api_faults::{ApiFaults, Faults},
        wait_for,
    };
    use k8s_openapi::api::{core::v1::ConfigMap, rbac::v1::ClusterRoleBinding};
    use kube::{
        Api, Client,
        api::{Patch, PatchParams, PostParams},
    };
    use serde_json::json;

    use super::*;

    /// Long enough that a busy machine receives what was just written.
    const SILENCE: Duration = Duration::from_secs(3);
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn bind(client: &Client, account: &ServiceAccount) {
        let binding = json!({
            "metadata": {"name": account.namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "namespace": account.namespace, "name": account.name}],
        });
        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        bindings
            .create(&PostParams::default(), &serde_json::from_value(binding).unwrap())
            .await
            .unwrap();
    }

    /// Writes an object that the watch reports.
    async fn touch(maps: &Api<ConfigMap>) -> anyhow::Result<()> {
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "touched", "labels": {SERVICE_LABEL: "nobody"}},
            "data": {"value": rand::random::<u64>().to_string()},
        });
        maps.patch("touched", &PatchParams::apply("test").force(), &Patch::Apply(map))
            .await?;
        Ok(())
    }

    fn is_covered(watches: &Watches, want: &Want) -> bool {
        want.namespaces
            .iter()
            .all(|namespace| watches.covers(&want.account, &want.resource, namespace))
    }

    async fn until_covered(watches: &Watches, want: &Want, maps: &Api<ConfigMap>) {
        wait_for("a change to be heard of", PATIENCE, || async {
            touch(maps).await?;
            Ok(is_covered(watches, want).then_some(()))
        })
        .await
        .unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_watch_that_says_nothing_covers_nothing_until_it_is_heard_again() {
        let plane = farwater_testkit::shared(1).await.unwrap();
        let client = plane.client().await.unwrap();
        let namespace = plane.namespace("watched").await.unwrap();
        let account = ServiceAccount {
            namespace: namespace.clone(),
            name: "watcher".to_owned(),
        };
        bind(&client, &account).await;
        let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);

        let folder = tempfile::tempdir().unwrap();
        let way = ApiFaults::start(plane, folder.path(), 1).await.unwrap();
        let kubernetes = Arc::new(Kubernetes::connect(Some(way.kubeconfig())).unwrap());
        let watches = Arc::new(Watches::new(
            kubernetes,
            Limits {
                silence: SILENCE,
                ..Limits::default()
            },
        ));
        let resource = Resource {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            plural: "configmaps".to_owned(),
            namespaced: true,
        };
        let want = Want {
            account,
            resource,
            namespaces: BTreeSet::from([namespace]),
        };
        watches.set_wants("nobody", BTreeSet::from([want.clone()]));
        until_covered(&watches, &want, &maps).await;

        let lists = way.seen().lists;
        way.set(Faults {
            stall: true,
            ..Faults::default()
        });
        wait_for("the watch not to be relied upon", PATIENCE, || async {
            touch(&maps).await?;
            Ok((!is_covered(&watches, &want)).then_some(()))
        })
        .await
        .unwrap();
        way.set(Faults::default());
        until_covered(&watches, &want, &maps).await;
        assert_eq!(way.seen().lists, lists, "it goes on where it was");
    }
}
