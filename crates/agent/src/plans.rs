//! Requested plans: made like in an attempt, reported, and not carried out.
//!
//! The state of a service's task comes from the task itself, which answers between two attempts; everything else runs
//! beside it. So a plan waits for a running apply, and delays none.

pub(crate) mod redact;
mod tell;

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use farwater_api::{
    plan::{HookEffect, PlannedHook, ServicePlan},
    protocol::{Action, Deployment, PlanReport, PlanRequest},
    service_deployment::DeletionPolicy,
};
use farwater_fleet::{
    hooks::{foresee_farewell, foresee_hooks},
    ownership::service_label,
    plan::{ObjectKey, Plan, Resolved, plan_removal, veil::Veil},
};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use crate::{
    Agent,
    bundles::Shelf,
    hub::{HubError, chain},
    messages::shorten,
    service::{
        Assignment, Superseded,
        basis::{Basis, Known, Snapshot, Stopped, spare_begun},
    },
};
use redact::Redactor;
use tell::Teller;

/// Limit for one plan: the requester waits about as long.
const PATIENCE: Duration = Duration::from_secs(90);
/// Limit for waiting for a running apply.
const BUSY: Duration = Duration::from_secs(45);

#[derive(Default)]
pub struct Plans {
    heard: Notify,
    redactor: Redactor,
}

impl Plans {
    /// Records that a plan is requested.
    pub fn hear(&self) {
        self.heard.notify_one();
    }
}

/// Makes plans for ever, one at a time, so that many requests put no more load on the API server than one.
pub async fn run(agent: &Arc<Agent>) -> Infallible {
    loop {
        agent.plans.heard.notified().await;
        if let Err(error) = answer_all(agent).await {
            // The hub tells the requester.
            tracing::warn!(error = error.text(), "can't answer a request for a plan");
        }
    }
}

async fn answer_all(agent: &Arc<Agent>) -> Result<(), HubError> {
    loop {
        let identity = agent.identity();
        let Some(request) = agent.hub.next_plan(&agent.caller(&identity)).await? else {
            return Ok(());
        };
        let id = request.statement.id.clone();
        // In a task of its own, because it may be much work and polls must continue.
        let made = tokio::spawn(answer(Arc::clone(agent), request)).await;
        let report = made.unwrap_or_else(|_| PlanReport::Failed("making the plan has failed in the agent".to_owned()));
        let identity = agent.identity();
        agent.hub.tell_plan(&agent.caller(&identity), &id, &report).await?;
    }
}

async fn answer(agent: Arc<Agent>, request: PlanRequest) -> PlanReport {
    if let Err(error) = agent.identity().verify_request(&request) {
        return PlanReport::Failed(format!("the agent does not trust the request: {}", chain(&error)));
    }
    match timeout(PATIENCE, make(&agent, &request)).await {
        Ok(Ok(plan)) => PlanReport::Planned(Box::new(plan)),
        Ok(Err(Stopped(problem))) => PlanReport::Failed(problem),
        Err(_) => PlanReport::Failed(format!("the agent was not done after {} s", PATIENCE.as_secs())),
    }
}

async fn make(agent: &Agent, request: &PlanRequest) -> Result<ServicePlan, Stopped> {
    let service = &request.entry.service;
    let basis = Basis { agent, service };
    let mut snapshot = ask_task(agent, &service.uid).await?;

    if let (Action::Remove { .. }, Some(record)) = (&request.entry.action, &mut snapshot.hooks) {
        snapshot.inventory.take_in(record.take_objects());
    }
    if let Action::Apply(deployment) = &request.entry.action {
        spare_begun(&mut snapshot.inventory, snapshot.deployment.as_ref(), deployment);
    }

    let work = Work {
        basis,
        snapshot: &snapshot,
        request,
    };
    match &request.entry.action {
        Action::Apply(deployment) => work.plan_deployment(deployment, None).await,
        Action::Hold { reason } => work.plan_hold(reason.clone()).await,
        Action::Unreadable(unreadable) => work.plan_hold(unreadable.explain(crate::VERSION)).await,
        Action::Remove {
            policy: DeletionPolicy::Delete,
            approved_prune,
        } => {
            let Some(deployment) = &snapshot.deployment else {
                return Ok(ServicePlan::default());
            };
            let live = basis
                .look_up_all(&deployment.ceiling.service_account, &snapshot.inventory)
                .await;
            let transfers = basis.transfers();
            let plan = plan_removal(&service.uid, &snapshot.inventory, &live, *approved_prune, &transfers);
            let held = plan.prune.held().map(|held| held.reason);
            let record = snapshot.hooks.as_ref();
            let hooks = record.map_or_else(Vec::new, |record| foresee_farewell(record, deployment, held.as_deref()));
            Ok(work.describe_plan(deployment, None, &plan, hooks).await)
        }
        Action::Remove {
            policy: DeletionPolicy::Orphan,
            ..
        } => Ok(ServicePlan {
            held: Some("the service is deleted: its objects stay, and lose its marks".to_owned()),
            unchanged: u32::try_from(snapshot.inventory.entries.len()).unwrap_or(u32::MAX),
            ..ServicePlan::default()
        }),
    }
}

/// The state of the service's task. A service without a task has applied nothing.
async fn ask_task(agent: &Agent, uid: &str) -> Result<Snapshot, Stopped> {
    let Some(mailbox) = agent.watches.mailbox(&service_label(uid)) else {
        return Ok(Snapshot::default());
    };
    match timeout(BUSY, mailbox.ask()).await {
        Ok(Ok(snapshot)) => Ok(snapshot),
        Ok(Err(_)) => Err(Stopped("the agent ends".to_owned())),
        Err(_) => Err(Stopped(format!(
            "the agent has been applying the service for {} s; ask again",
            BUSY.as_secs()
        ))),
    }
}

/// One request, and the state of the service's task.
struct Work<'a> {
    basis: Basis<'a>,
    snapshot: &'a Snapshot,
    request: &'a PlanRequest,
}

impl Work<'_> {
    /// Plans a hold: the last applied deployment is kept, as the service's task does.
    async fn plan_hold(&self, reason: String) -> Result<ServicePlan, Stopped> {
        let reason = shorten(&reason);
        match &self.snapshot.deployment {
            Some(deployment) => {
                let kept = Deployment {
                    prune: false,
                    hold_prune: None,
                    ..deployment.clone()
                };
                self.plan_deployment(&kept, Some(reason)).await
            }
            None => Ok(ServicePlan {
                held: Some(reason),
                ..ServicePlan::default()
            }),
        }
    }

    async fn plan_deployment(&self, deployment: &Deployment, held: Option<String>) -> Result<ServicePlan, Stopped> {
        let Snapshot { inventory, cooling, .. } = self.snapshot;
        let before = self.snapshot.before();
        let (resolved, errors) = self.basis.read_source(deployment, before, Shelf::Passing).await?;
        let mut live = BTreeMap::new();
        self.basis
            .look_up(&deployment.ceiling.service_account, inventory, &resolved, &mut live)
            .await;
        let known = Known {
            inventory,
            live: &live,
            cooling,
        };
        let plan = self.basis.make_plan(deployment, &resolved, known).await;
        let established = inventory.baseline > 0;
        let obstacle = held.as_ref().map(|_| "the service is held");
        let mut hooks = foresee_hooks(
            self.snapshot.hooks.clone(),
            deployment,
            &resolved,
            established,
            obstacle,
        );
        let is_made_up = |key: &ObjectKey| resolved.again.as_ref().is_some_and(|again| again.names_otherwise(key));
        for hook in hooks
            .iter_mut()
            .filter(|hook| hook.effect == HookEffect::Run && hook.message.is_empty())
        {
            if is_made_up(&ObjectKey::from(&hook.object)) {
                hook.message = "the chart generates its name".to_owned();
            }
        }
        let told = self.describe_plan(deployment, Some(&resolved), &plan, hooks).await;
        Ok(ServicePlan { held, errors, ..told })
    }

    async fn describe_plan(
        &self,
        deployment: &Deployment,
        resolved: Option<&Resolved>,
        plan: &Plan,
        hooks: Vec<PlannedHook>,
    ) -> ServicePlan {
        let applied = match resolved {
            Some(resolved) => self.last_applied(deployment, resolved, plan).await,
            None => Default::default(),
        };
        // No assignment can be newer than this request.
        let entry = self.request.entry.clone();
        let assignment = Assignment {
            digest: entry.digest(),
            entry: entry.into_value(),
            unlisted: false,
        };
        let (_newest, assignments) = watch::channel(assignment);
        let executor = self
            .basis
            .executor(&deployment.ceiling.service_account, Superseded::by(assignments));
        let objects = resolved
            .iter()
            .flat_map(|resolved| &resolved.objects)
            .map(|o| (o.key(), o))
            .collect();
        let redactor = &self.basis.agent.plans.redactor;
        let again = resolved.and_then(|resolved| resolved.again.as_ref());
        let mut teller = Teller::new(&executor, redactor, objects, applied, again);
        teller.tell(plan, &self.snapshot.inventory, hooks).await
    }

    /// The last applied manifests of the objects that change, if they can be obtained and have the hash in the
    /// inventory. Also the secret values in them and in the planned manifests.
    async fn last_applied(
        &self,
        deployment: &Deployment,
        resolved: &Resolved,
        plan: &Plan,
    ) -> (BTreeMap<ObjectKey, Vec<u8>>, Veil) {
        let mut veil = resolved.veil.clone();
        let changes = plan.waves.iter().flat_map(|wave| &wave.changes);
        let entries = &self.snapshot.inventory.entries;
        let mut wanted: BTreeMap<ObjectKey, _> = changes
            .filter_map(|change| Some((change.object.clone(), entries.get(&change.object)?.hash?)))
            .collect();
        let mut found = BTreeMap::new();
        let mut take = |resolved: &Resolved| {
            for object in &resolved.objects {
                let key = object.key();
                if wanted.get(&key) == Some(&object.hash) {
                    wanted.remove(&key);
                    found.insert(key, object.body.clone());
                }
            }
            wanted.is_empty()
        };
        if !take(resolved)
            && let Some(last) = self.snapshot.deployment.as_ref().filter(|last| *last != deployment)
            && let Ok((former, _)) = self
                .basis
                .read_source(last, self.snapshot.before(), Shelf::Nothing)
                .await
        {
            take(&former);
            veil.join(&former.veil);
        }
        (found, veil)
    }
}
