//! Controllers and what they share. A controller is woken by a timer or a change, reads again, acts so that acting
//! twice changes nothing, and writes a status.
//!
//! A file named `verb_object` is one controller; it gets only a key and keeps no objects. The other files are shared by
//! several.

pub mod advance_agents;
pub mod advance_promotions;
pub mod announced;
pub mod approvals;
pub mod artifacts;
pub mod ask_gates;
pub mod ask_sources;
pub mod assign_revisions;
pub mod candidates;
pub mod check_rules;
pub mod collect_mirrors;
pub mod combine;
pub mod compute_desired;
pub mod dependencies;
pub mod digest_report;
pub mod events;
pub mod exchange_seal_key;
pub mod fetch_sources;
pub mod follow_windows;
pub mod freeze_prunes;
pub mod git;
pub mod held_specs;
pub mod hook_runs;
pub mod large_files;
pub mod make_sets;
pub mod measure_impact;
pub mod orphans;
pub mod pipelines;
pub mod plan_sets;
pub mod propose_plans;
pub mod propose_promotions;
pub mod queue;
pub mod refresh_secrets;
pub mod requests;
pub mod resources;
pub mod resume;
pub mod rollouts;
pub mod route_changes;
pub mod seen;
pub mod select_health_rules;
pub mod send_notifications;
pub mod serve_receivers;
pub mod services;
pub mod set_versions;
pub mod sets;
pub mod source_access;
pub mod sources;
pub mod stamp_services;
pub mod submodules;
pub mod summarize_reports;
pub mod surveys;
pub mod trace_deliveries;
pub mod track_clusters;
pub mod turns;
pub mod verify_revisions;
pub mod versions;

use std::{fmt::Debug, hash::Hash, sync::Arc};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use queue::{Counts, WorkQueue, chain};

use crate::delivery::Delivery;
use queue::Next;
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
pub async fn run(delivery: Arc<Delivery>, left: Option<Resume>, shutdown: CancellationToken) {
    let mut tasks = spawn_controllers(&delivery, left, &shutdown);
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a controller ended");
        }
    }
}

fn spawn_controllers(delivery: &Arc<Delivery>, left: Option<Resume>, shutdown: &CancellationToken) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(route_changes::run(Arc::clone(delivery), left, shutdown.clone()));
    tasks.spawn(compute_desired::run(Arc::clone(delivery), shutdown.clone()));
    tasks.spawn(track_clusters::flush_heartbeats(Arc::clone(delivery), shutdown.clone()));
    tasks.spawn(advance_agents::run(Arc::clone(delivery), shutdown.clone()));
    tasks.spawn(follow_windows::run(Arc::clone(delivery), shutdown.clone()));
    tasks.spawn(collect_mirrors::run(Arc::clone(delivery), shutdown.clone()));
    tasks.spawn(refresh_secrets::run(Arc::clone(delivery), shutdown.clone()));
    for controller in with_queues() {
        tasks.spawn((controller.run)(Arc::clone(delivery), shutdown.clone()));
    }
    tasks
}

/// All controllers that take keys from a queue. A new one is added here and nowhere else.
fn with_queues() -> Vec<Controller> {
    vec![
        controller("fetch_sources", SOURCES_AT_ONCE, |hub| &hub.sources, fetch_sources::fetch_source),
        controller("assign_revisions", SERVICES_AT_ONCE, |hub| &hub.services, assign_revisions::assign_revision),
        controller("summarize_reports", SUMMARIES_AT_ONCE, |hub| &hub.summaries, summarize_reports::summarize_report),
        controller("track_clusters", CLUSTERS_AT_ONCE, |hub| &hub.cluster_work, track_clusters::track_cluster),
        controller("serve_receivers", RECEIVERS_AT_ONCE, |hub| &hub.receiver_work, serve_receivers::serve_receiver),
        controller("ask_sources", RECEIVERS_AT_ONCE, |hub| &hub.inboxes, ask_sources::ask_sources),
        controller("stamp_services", SETS_AT_ONCE, |hub| &hub.sets.queue, stamp_services::stamp_services),
        controller("make_sets", NAMESPACES_AT_ONCE, |hub| &hub.namespaces, make_sets::make_set),
        controller(
            "send_notifications",
            PROVIDERS_AT_ONCE,
            |hub| &hub.notifications.providers,
            send_notifications::send_notifications,
        ),
        controller("check_rules", RULES_AT_ONCE, |hub| &hub.notifications.rules, check_rules::check_rule),
        controller(
            "advance_promotions",
            PIPELINES_AT_ONCE,
            |hub| &hub.pipelines.queue,
            advance_promotions::advance_promotions,
        ),
        controller("ask_gates", GATES_AT_ONCE, |hub| &hub.pipelines.asking, ask_gates::ask_gate),
        controller(
            "propose_promotions",
            PROPOSALS_AT_ONCE,
            |hub| &hub.pipelines.proposals,
            propose_promotions::propose_promotions,
        ),
    ]
}

impl Delivery {
    /// The work of each controller with a queue, by its name.
    pub fn controller_work(&self) -> Vec<(&'static str, Counts)> {
        with_queues().iter().map(|controller| (controller.name, (controller.counts)(self))).collect()
    }
}

struct Controller {
    name: &'static str,
    counts: Box<dyn Fn(&Delivery) -> Counts>,
    run: Box<dyn FnOnce(Arc<Delivery>, CancellationToken) -> BoxFuture<'static, ()>>,
}

/// `at_once`: keys that are reconciled at the same time.
fn controller<K, E, F>(
    name: &'static str,
    at_once: usize,
    queue: fn(&Delivery) -> &Arc<WorkQueue<K>>,
    reconcile: fn(Arc<Delivery>, K) -> F,
) -> Controller
where
    K: Clone + Ord + Hash + Debug + Send + Sync + 'static,
    E: std::error::Error + 'static,
    F: Future<Output = Result<Next, E>> + Send + 'static,
{
    let run = move |delivery: Arc<Delivery>, shutdown| {
        let keys = Arc::clone(queue(&delivery));
        queue::work(name, keys, at_once, shutdown, move |key| reconcile(Arc::clone(&delivery), key)).boxed()
    };
    Controller { name, counts: Box::new(move |delivery| queue(delivery).counts()), run: Box::new(run) }
}
