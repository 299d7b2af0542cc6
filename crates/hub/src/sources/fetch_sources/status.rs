//! Conditions of a source.

use farwater_api::SourceStatus;
use farwater_fleet::{
    conditions::{self, Verdict, whole_seconds},
    duration::show,
    promotion::Promotable,
};
use farwater_sources::{Reference, ReferenceError};
use farwater_store::{StoreError, delivery::Revision};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    Source, UNVERIFIED,
    save::{revision_text, wake_services},
};
use crate::{
    errors::SourceFailure,
    promotion::advance_promotions,
    replica::Replica,
    resources::SourceName,
    sources::{self, SourceObject, SourceSpec},
};

pub(super) async fn write_ready(
    replica: &Replica,
    source: &Source,
    revision: Option<&Revision>,
    more: Vec<Verdict>,
    moved: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    let text = revision.map(revision_text);
    let said = |text: &String| match replica.memory.checks.announced.stretch(&source.uid, source.interval) {
        (interval, true) => {
            format!(
                "serves {text}; webhooks announce pushes, so it is fetched only every {}",
                show(interval)
            )
        }
        (_, false) => format!("serves {text}"),
    };
    let mut verdicts = text
        .as_ref()
        .map(|text| Verdict::ready("Fetched", said(text)))
        .unwrap_or_default();
    verdicts.extend(more);
    verdicts.extend(source.verified(revision, None));
    replica.memory.checks.forget_problem(&source.uid);
    let status = SourceStatus {
        conditions: source.conditions(verdicts, now),
        stale_since: None,
        ..source.settled_status(revision)
    };
    sources::write_status(&replica.store, &source.object, &status).await?;
    if let Some(revision) = text.filter(|_| moved) {
        tracing::info!(source = %source.object.name, revision, "fetched");
    }
    Ok(())
}

impl Source {
    fn conditions(&self, verdicts: Vec<Verdict>, now: Timestamp) -> Vec<farwater_api::Condition> {
        conditions::resolve(&self.status().conditions, verdicts, self.generation, now)
    }

    /// Condition about signatures; None: no signatures are required.
    pub(super) fn verified(&self, served: Option<&Revision>, failure: Option<&SourceFailure>) -> Option<Verdict> {
        const KIND: &str = "SourceVerified";
        if !self.is_signed() {
            return None;
        }
        if let Some(failure) = failure.filter(|failure| failure.reason == UNVERIFIED) {
            return Some(Verdict::new(KIND, Some(false), failure.reason, failure.message.clone()));
        }
        let by = served.and_then(|revision| Some((revision, revision.taken.verified.as_deref()?.split(' ').next()?)));
        Some(match by {
            Some((revision, by)) => {
                let message = format!("{} was verified: {by}", revision_text(revision));
                Verdict::new(KIND, Some(true), "Succeeded", message)
            }
            None => Verdict::new(KIND, None, "NotVerified", "nothing was verified yet"),
        })
    }

    /// Status of a source whose request was handled, without its conditions.
    fn settled_status(&self, served: Option<&Revision>) -> SourceStatus {
        let time = served
            .and_then(|revision| Timestamp::from_second(revision.fetched).ok())
            .map(Time);
        SourceStatus {
            observed_generation: Some(self.generation),
            conditions: Vec::new(),
            revision: served.map(revision_text),
            last_fetch_time: time,
            stale_since: self.status().stale_since,
            last_handled_reconcile_at: self.requested.clone(),
        }
    }
}

pub(super) async fn write_failure(
    replica: &Replica,
    source: &Source,
    served: Option<&Revision>,
    failure: SourceFailure,
    now: Timestamp,
) -> Result<(), StoreError> {
    let since = source.status().stale_since.unwrap_or_else(|| whole_seconds(now));
    let is_refused = failure.reason == UNVERIFIED;
    let kept = match (served, &source.object.spec) {
        (Some(revision), _) if is_refused => {
            format!("{}, the last verified, stays in use", revision_text(revision))
        }
        (Some(revision), _) => {
            format!("{} stays in use, unchecked since {}", revision_text(revision), since.0)
        }
        (None, SourceSpec::Helm(spec)) if spec.is_registry() => {
            format!("the last revision stays in use, unchecked since {}", since.0)
        }
        (None, _) if source.is_signed() => "nothing that was verified is there to serve".to_owned(),
        (None, _) => "nothing was fetched yet".to_owned(),
    };

    let message = format!("{}; {kept}", failure.message);
    let mut verdicts = if failure.lasting {
        Verdict::stalled(failure.reason, message)
    } else {
        vec![Verdict::new("Ready", Some(false), failure.reason, message)]
    };
    verdicts.extend(source.verified(served, Some(&failure)));

    let status = SourceStatus {
        conditions: source.conditions(verdicts, now),
        stale_since: Some(since),
        ..source.settled_status(served)
    };

    let name = &source.object.name;
    tracing::warn!(source = %name, reason = failure.reason, error = failure.message, "a source can't be asked");
    if source.object.is_link() {
        // Requeue only once per problem: a requeued service requests this fetch again, and then reads the problem
        // itself.
        if replica.memory.checks.note_problem(&source.uid, failure.message) {
            wake_services(replica, &source.uid).await?;
        }
        return Ok(());
    }
    sources::write_status(&replica.store, &source.object, &status).await
}

pub(super) async fn write_reconciling(
    replica: &Replica,
    source: &Source,
    served: Option<&Revision>,
) -> Result<(), StoreError> {
    let message = format!("asking {}", source.object.any.url);
    let mut verdicts = Verdict::reconciling("Fetching", message);
    verdicts.extend(source.verified(served, None));
    let status = SourceStatus {
        conditions: source.conditions(verdicts, Timestamp::now()),
        last_handled_reconcile_at: source.status().last_handled_reconcile_at,
        ..source.settled_status(served)
    };
    sources::write_status(&replica.store, &source.object, &status).await
}

/// The commit that a pipeline has promoted to a source that follows one. None: it follows no pipeline.
pub(super) async fn find_promoted(
    replica: &Replica,
    object: &SourceObject,
) -> Result<Option<Result<Promotable, String>>, StoreError> {
    let (SourceSpec::Git(spec), SourceName::Resource(_, name)) = (&object.spec, &object.name) else {
        return Ok(None);
    };
    // A pipeline beside another field is no valid reference, and is reported as such.
    match Reference::parse(spec.r#ref.as_ref()) {
        Err(ReferenceError::Pipeline(pipeline)) => advance_promotions::find_promoted(replica, name, &pipeline)
            .await
            .map(Some),
        _ => Ok(None),
    }
}

pub(super) async fn write_unpromoted(
    replica: &Replica,
    source: &Source,
    served: Option<&Revision>,
    why: &str,
) -> Result<(), StoreError> {
    let message = match served {
        Some(revision) => format!("{why}; {} stays in use", revision_text(revision)),
        None => format!("{why}; nothing is served"),
    };
    let mut verdicts = vec![Verdict::new("Ready", Some(served.is_some()), "NotPromoted", message)];
    verdicts.extend(source.verified(served, None));
    let status = SourceStatus {
        conditions: source.conditions(verdicts, Timestamp::now()),
        ..source.settled_status(served)
    };
    sources::write_status(&replica.store, &source.object, &status).await
}

pub(super) async fn write_suspended(
    replica: &Replica,
    source: &Source,
    served: Option<&Revision>,
) -> Result<(), StoreError> {
    let message = served.map_or_else(
        || "suspended; nothing was fetched yet".to_owned(),
        |revision| format!("suspended; {} stays in use", revision_text(revision)),
    );
    let mut verdicts = vec![Verdict::new("Ready", served.map(|_| true), "Suspended", message)];
    verdicts.extend(source.verified(served, None));
    let status = SourceStatus {
        conditions: source.conditions(verdicts, Timestamp::now()),
        ..source.settled_status(served)
    };
    sources::write_status(&replica.store, &source.object, &status).await
}
