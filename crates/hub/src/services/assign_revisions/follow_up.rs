//! Work that is left after a decision was saved: requeues that close races, and fetches.

use farwater_fleet::{assignment::Why, windows::Closed};
use farwater_store::{
    StoreError,
    delivery::{Assignment, ServiceOrigin, load_assignment, mark_cluster, trust_service_origin},
};

use super::{
    decide::Outcome,
    observe::{LedTo, Observed, References, is_any_there},
};
use crate::{
    replica::Replica,
    resources::{Name, SourceName},
    services::candidates::Ingredient,
};

/// Planned before the save, carried out after it.
pub struct FollowUp {
    service_uid: String,
    edition: u64,
    closed: Option<Closed>,
    /// The cluster or the source differs from those of the row before.
    is_new: bool,
    /// The grants do not allow the new placement.
    is_denied: bool,
    references: References,
    led_to: LedTo,
    ask: Vec<(String, SourceName)>,
    /// The assignment comes from a revision that was fetched since a restore.
    trusted: Option<ServiceOrigin>,
    request: Option<Answer>,
}

/// What becomes of the service's request to fetch its sources.
enum Answer {
    /// The sources were fetched: acknowledge the request.
    Assigned(String),
    /// Fetch the sources. The service is requeued when its own source answers.
    PassOn {
        value: String,
        own: (String, SourceName),
        others: Vec<(String, SourceName)>,
    },
}

impl FollowUp {
    pub fn plan(observed: &Observed, outcome: &Outcome) -> Self {
        let Observed {
            resource,
            service,
            row,
            ingredients,
            resolved,
            cluster,
            ..
        } = observed;
        let next = &outcome.next;
        let found_by = |row: &Assignment| (row.cluster_uid.clone(), row.source_uid.clone());
        let is_new = row.as_ref().map(found_by) != Some(found_by(next));

        // False if an earlier version stays assigned because the source's current one can't be built or may not run
        // here.
        let is_current = resolved.candidate.is_ok() && next.assigned.is_some() && next.assigned == next.candidate;
        let is_asked = ingredients.iter().all(Ingredient::is_asked);
        let trusted = observed
            .origin
            .clone()
            .filter(|known| known.unasked && is_asked && is_current);
        Self {
            service_uid: resource.uid.clone(),
            edition: observed.edition,
            closed: outcome.closed.clone(),
            is_new,
            is_denied: is_new && matches!(outcome.why, Why::NotGranted(_)),
            references: References::of(&service.spec.cluster_ref, ingredients),
            led_to: LedTo::of(cluster, ingredients.iter().map(|one| one.found.as_ref())),
            ask: resolved.ask.clone(),
            trusted,
            request: Answer::plan(observed),
        }
    }

    pub async fn carry_out(self, replica: &Replica, name: &Name, is_rewired: bool) -> Result<(), StoreError> {
        if self.is_outdated(replica, name, is_rewired).await? {
            replica.decide_again(name);
        }
        // Only after the commit, because a fetch looks up the users of its source by these rows.
        fetch_now(replica, self.ask);
        if let Some(known) = self.trusted {
            trust_source(replica, known).await?;
        }
        if let Some(answer) = self.request {
            answer.carry_out(replica, name);
        }
        replica.wake_after_decision(name);
        Ok(())
    }

    /// Whether something changed between the read and the commit that found no row of this service to wake.
    async fn is_outdated(&self, replica: &Replica, name: &Name, is_rewired: bool) -> Result<bool, StoreError> {
        // `follow_windows` finds held services by their rows. It may have scanned before this row was committed, so
        // check the window once more and requeue.
        let is_over = |closed: &Closed| closed.until.is_some_and(|until| until <= replica.memory.windows.now());
        if self.edition != replica.memory.windows.edition() || self.closed.as_ref().is_some_and(is_over) {
            return Ok(true);
        }
        // Wakers look services up by these rows. A change that arrived before the commit found no row, so compare what
        // this reconcile read with what is there now.
        if self.is_denied || (is_rewired && is_any_there(replica, &self.service_uid, &self.ask).await?) {
            return Ok(true);
        }
        Ok((self.is_new || is_rewired) && LedTo::load(replica, name, &self.references).await? != self.led_to)
    }
}

impl Answer {
    fn plan(observed: &Observed) -> Option<Self> {
        let request = observed.request.as_ref()?;
        let value = request.value.clone();
        Some(match observed.source_uid() {
            Some(uid) if !request.is_answered => {
                let source = SourceName::of(&observed.name.namespace, &observed.service.spec.source_ref);
                Self::PassOn {
                    value,
                    own: (uid.to_owned(), source),
                    others: observed.other_sources(),
                }
            }
            _ => Self::Assigned(value),
        })
    }

    fn carry_out(self, replica: &Replica, name: &Name) {
        match self {
            Self::Assigned(value) => replica.memory.checks.requests.assign(name, &value),
            Self::PassOn { value, own, mut others } => {
                if replica.memory.checks.requests.want(name, &value, &own.0) {
                    others.push(own);
                    fetch_now(replica, others);
                }
            }
        }
    }
}

fn fetch_now(replica: &Replica, sources: Vec<(String, SourceName)>) {
    for (uid, source) in sources {
        replica.fetch_now(&uid, source);
    }
}

/// After a restore: records that the assignment comes from a revision fetched since then.
async fn trust_source(replica: &Replica, known: ServiceOrigin) -> Result<(), StoreError> {
    let trusted = replica.store.transact(move |tx| {
        Box::pin(async move {
            trust_service_origin(tx, &known.service_uid).await?;
            match load_assignment(tx, &known.service_uid)
                .await?
                .filter(|row| !row.cluster_uid.is_empty())
            {
                Some(row) => mark_cluster(tx, &row.cluster_uid).await,
                None => Ok(()),
            }
        })
    });
    trusted.await?;
    replica.wake_after_mark();
    Ok(())
}
