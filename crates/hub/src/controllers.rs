//! Runs the controllers. A controller is woken by a timer or a change, reads again, acts so that acting twice changes
//! nothing, and writes a status.
//!
//! A file named `verb_object` in the folder of its subject (`sources`, `services`, `sets`, `promotion`, `clusters`,
//! `guards`, `notify`, `receivers`) is one controller; it gets only a key and keeps no objects.

pub mod resume;
pub mod route_changes;

use std::{fmt::Debug, hash::Hash, sync::Arc};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    clusters::{advance_agents, track_clusters},
    guards::follow_windows,
    notify::{check_rules, send_notifications},
    promotion::{advance_promotions, ask_gates, propose_promotions},
    queue::{self, Counts, Next, WorkQueue},
    receivers::serve_receivers,
    replica::Replica,
    services::{assign_revisions, compute_desired, refresh_secrets, summarize_reports},
    sets::{make_sets, stamp_services},
    sources::{ask_sources, collect_mirrors, fetch_sources},
};
use resume::Resume;

/// Sources that are fetched at the same time: most of them wait for an answer. Git has a lower limit of its own.
const SOURCES_AT_ONCE: usize = 128;
/// Services that are decided at the same time: their writes are committed together, so many cost little more than few.
const SERVICES_AT_ONCE: usize = 32;
const SUMMARIES_AT_ONCE: usize = 32;
const CLUSTERS_AT_ONCE: usize = 2;
const RECEIVERS_AT_ONCE: usize = 2;
/// Sets whose services are written at the same time: each writes many.
const SETS_AT_ONCE: usize = 4;
const NAMESPACES_AT_ONCE: usize = 2;

/// Providers that are sent to at the same time: most of them wait for an answer.
const PROVIDERS_AT_ONCE: usize = 32;
const RULES_AT_ONCE: usize = 2;
const PIPELINES_AT_ONCE: usize = 2;
/// Gates that ask external systems at the same time: they wait for an answer.
const GATES_AT_ONCE: usize = 16;
/// Proposals that are pushed at the same time: they wait for Git hosts.
const PROPOSALS_AT_ONCE: usize = 4;

/// Runs all controllers until shutdown. `left`: what the last process had left to do.
pub async fn run(replica: Arc<Replica>, left: Option<Resume>, shutdown: CancellationToken) {
    let mut tasks = spawn_controllers(&replica, left, &shutdown);
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a controller ended");
        }
    }
}

fn spawn_controllers(replica: &Arc<Replica>, left: Option<Resume>, shutdown: &CancellationToken) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(route_changes::run(Arc::clone(replica), left, shutdown.clone()));
    tasks.spawn(compute_desired::run(Arc::clone(replica), shutdown.clone()));
    tasks.spawn(track_clusters::flush_heartbeats(Arc::clone(replica), shutdown.clone()));
    tasks.spawn(advance_agents::run(Arc::clone(replica), shutdown.clone()));
    tasks.spawn(follow_windows::run(Arc::clone(replica), shutdown.clone()));
    tasks.spawn(collect_mirrors::run(Arc::clone(replica), shutdown.clone()));
    tasks.spawn(refresh_secrets::run(Arc::clone(replica), shutdown.clone()));
    for controller in with_queues() {
        tasks.spawn((controller.run)(Arc::clone(replica), shutdown.clone()));
    }
    tasks
}

/// All controllers that take keys from a queue. A new one is added here and nowhere else.
fn with_queues() -> Vec<Controller> {
    vec![
        controller(
            "fetch_sources",
            SOURCES_AT_ONCE,
            |hub| &hub.queues.sources,
            fetch_sources::fetch_source,
        ),
        controller(
            "assign_revisions",
            SERVICES_AT_ONCE,
            |hub| &hub.queues.services,
            assign_revisions::assign_revision,
        ),
        controller(
            "summarize_reports",
            SUMMARIES_AT_ONCE,
            |hub| &hub.queues.summaries,
            summarize_reports::summarize_report,
        ),
        controller(
            "track_clusters",
            CLUSTERS_AT_ONCE,
            |hub| &hub.queues.clusters,
            track_clusters::track_cluster,
        ),
        controller(
            "serve_receivers",
            RECEIVERS_AT_ONCE,
            |hub| &hub.queues.receivers,
            serve_receivers::serve_receiver,
        ),
        controller(
            "ask_sources",
            RECEIVERS_AT_ONCE,
            |hub| &hub.queues.inboxes,
            ask_sources::ask_sources,
        ),
        controller(
            "stamp_services",
            SETS_AT_ONCE,
            |hub| &hub.memory.sets.queue,
            stamp_services::stamp_services,
        ),
        controller(
            "make_sets",
            NAMESPACES_AT_ONCE,
            |hub| &hub.queues.namespaces,
            make_sets::make_set,
        ),
        controller(
            "send_notifications",
            PROVIDERS_AT_ONCE,
            |hub| &hub.notifications.providers,
            send_notifications::send_notifications,
        ),
        controller(
            "check_rules",
            RULES_AT_ONCE,
            |hub| &hub.notifications.rules,
            check_rules::check_rule,
        ),
        controller(
            "advance_promotions",
            PIPELINES_AT_ONCE,
            |hub| &hub.memory.pipelines.queue,
            advance_promotions::advance_promotions,
        ),
        controller(
            "ask_gates",
            GATES_AT_ONCE,
            |hub| &hub.memory.pipelines.asking,
            ask_gates::ask_gate,
        ),
        controller(
            "propose_promotions",
            PROPOSALS_AT_ONCE,
            |hub| &hub.memory.pipelines.proposals,
            propose_promotions::propose_promotions,
        ),
    ]
}

impl Replica {
    /// The work of each controller with a queue, by its name.
    pub fn controller_work(&self) -> Vec<(&'static str, Counts)> {
        with_queues()
            .iter()
            .map(|controller| (controller.name, (controller.counts)(self)))
            .collect()
    }
}

struct Controller {
    name: &'static str,
    counts: Box<dyn Fn(&Replica) -> Counts>,
    run: Box<dyn FnOnce(Arc<Replica>, CancellationToken) -> BoxFuture<'static, ()>>,
}

/// `at_once`: keys that are reconciled at the same time.
fn controller<K, E, F>(
    name: &'static str,
    at_once: usize,
    queue: fn(&Replica) -> &Arc<WorkQueue<K>>,
    reconcile: fn(Arc<Replica>, K) -> F,
) -> Controller
where
    K: Clone + Ord + Hash + Debug + Send + Sync + 'static,
    E: std::error::Error + 'static,
    F: Future<Output = Result<Next, E>> + Send + 'static,
{
    let run = move |replica: Arc<Replica>, shutdown| {
        let keys = Arc::clone(queue(&replica));
        queue::work(name, keys, at_once, shutdown, move |key| {
            reconcile(Arc::clone(&replica), key)
        })
        .boxed()
    };
    Controller {
        name,
        counts: Box::new(move |replica| queue(replica).counts()),
        run: Box::new(run),
    }
}
