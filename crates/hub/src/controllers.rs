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

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use queue::{Counts, WorkQueue, chain};

use crate::delivery::Delivery;
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

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "fetch_sources",
        Arc::clone(&delivery.sources),
        SOURCES_AT_ONCE,
        shutdown.clone(),
        move |name| fetch_sources::fetch_source(Arc::clone(&shared), name),
    ));

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "assign_revisions",
        Arc::clone(&delivery.services),
        SERVICES_AT_ONCE,
        shutdown.clone(),
        move |name| assign_revisions::assign_revision(Arc::clone(&shared), name),
    ));

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "summarize_reports",
        Arc::clone(&delivery.summaries),
        SUMMARIES_AT_ONCE,
        shutdown.clone(),
        move |name| summarize_reports::summarize_report(Arc::clone(&shared), name),
    ));

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "track_clusters",
        Arc::clone(&delivery.cluster_work),
        CLUSTERS_AT_ONCE,
        shutdown.clone(),
        move |uid| track_clusters::track_cluster(Arc::clone(&shared), uid),
    ));

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "serve_receivers",
        Arc::clone(&delivery.receiver_work),
        RECEIVERS_AT_ONCE,
        shutdown.clone(),
        move |name| serve_receivers::serve_receiver(Arc::clone(&shared), name),
    ));

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "ask_sources",
        Arc::clone(&delivery.inboxes),
        RECEIVERS_AT_ONCE,
        shutdown.clone(),
        move |name| ask_sources::ask_sources(Arc::clone(&shared), name),
    ));

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "stamp_services",
        Arc::clone(&delivery.sets.queue),
        SETS_AT_ONCE,
        shutdown.clone(),
        move |name| stamp_services::stamp_services(Arc::clone(&shared), name),
    ));

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "make_sets",
        Arc::clone(&delivery.namespaces),
        NAMESPACES_AT_ONCE,
        shutdown.clone(),
        move |name| make_sets::make_set(Arc::clone(&shared), name),
    ));

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "send_notifications",
        Arc::clone(&delivery.notifications.providers),
        PROVIDERS_AT_ONCE,
        shutdown.clone(),
        move |name| send_notifications::send_notifications(Arc::clone(&shared), name),
    ));

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "check_rules",
        Arc::clone(&delivery.notifications.rules),
        RULES_AT_ONCE,
        shutdown.clone(),
        move |name| check_rules::check_rule(Arc::clone(&shared), name),
    ));

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "advance_promotions",
        Arc::clone(&delivery.pipelines.queue),
        PIPELINES_AT_ONCE,
        shutdown.clone(),
        move |name| advance_promotions::advance_promotions(Arc::clone(&shared), name),
    ));

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "ask_gates",
        Arc::clone(&delivery.pipelines.asking),
        GATES_AT_ONCE,
        shutdown.clone(),
        move |gate| ask_gates::ask_gate(Arc::clone(&shared), gate),
    ));

    let shared = Arc::clone(delivery);
    tasks.spawn(queue::work(
        "propose_promotions",
        Arc::clone(&delivery.pipelines.proposals),
        PROPOSALS_AT_ONCE,
        shutdown.clone(),
        move |name| propose_promotions::propose_promotions(Arc::clone(&shared), name),
    ));

    tasks
}
