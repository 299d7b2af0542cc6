//! The parts of a service's spec that have rows of their own.

use std::time::Duration;

use farwater_api::{
    ServiceDeployment, ServiceDeploymentSpec, SourceKind,
    git_repository::LocalReference,
    service_deployment::Pin,
    service_sources::{SourceReference, StatedSource},
};
use farwater_fleet::{
    assignment::{Trouble, Why, suspension_end},
    history,
};
use farwater_store::{StoreError, delivery::Assignment};
use jiff::Timestamp;

use super::LONGEST_REST;
use crate::{
    queue::Next,
    services::{dependencies, rows::TypedRow as _},
};

/// Backstop for a lost wake-up: a service that waits for others is normally requeued by them.
const RECHECK: Duration = Duration::from_secs(60);

/// A `readyExpr` may read any field of a dependency, also fields whose changes requeue no dependents.
const EXPRESSION_RECHECK: Duration = Duration::from_secs(5);

/// Retry of a service whose files could not be fetched.
const FILES_RECHECK: Duration = Duration::from_secs(15);

/// Requeue timers and the ends of suspensions use different clocks. If a timer fires before the end, the service is
/// requeued after `SOON`; a distant end is checked every `LONGEST_REST`.
const SOON: Duration = Duration::from_millis(50);

/// The parts of a spec that have rows of their own, and the authors of the spec.
pub struct Stated {
    pub secrets: Vec<String>,
    pub depends_on: Vec<String>,
    /// Whether one of its dependencies has a `readyExpr`.
    waits_for_expression: bool,
    source_name: String,
    pin: Option<Pin>,
    pinned_by: Option<String>,
    changed_by: Option<String>,
    suspended_until: Option<Timestamp>,
    goes_back: bool,
}

impl Stated {
    pub fn of(service: &ServiceDeployment) -> Self {
        let names = |all: &[LocalReference]| all.iter().map(|reference| reference.name.clone()).collect();
        let (spec, status) = (&service.spec, service.status.as_ref());
        Self {
            secrets: names(&spec.secrets),
            depends_on: dependencies::names(spec),
            waits_for_expression: spec.depends_on.iter().any(|reference| reference.ready_expr.is_some()),
            source_name: source_name(spec),
            pin: spec.pin.clone(),
            pinned_by: status.and_then(|status| status.pinned_by.clone()),
            changed_by: status.and_then(|status| status.changed_by.clone()),
            suspended_until: suspension_end(spec),
            goes_back: false,
        }
    }

    /// `goes_back`: its set is pinned, or the rollout of its set goes back.
    pub fn in_set(self, goes_back: bool) -> Self {
        Self { goes_back, ..self }
    }

    /// For a service that is removed: it gets no Secrets any more.
    pub fn without_secrets(self) -> Self {
        Self {
            secrets: Vec::new(),
            ..self
        }
    }

    /// As the history stores it. `rollout`: number of its set's rollout; 0 without a set.
    pub fn of_version(&self, rollout: u64) -> history::Stated<'_> {
        history::Stated {
            rollout,
            source_name: &self.source_name,
            pin: self.pin.as_ref(),
            pinned_by: self.pinned_by.as_deref(),
            changed_by: self.changed_by.as_deref(),
            goes_back: self.goes_back,
        }
    }

    /// When to requeue the service although nothing changes.
    pub fn next_look(&self, row: &Assignment) -> Result<Next, StoreError> {
        let decided = row.read_decided()?;
        let end = self.suspended_until.filter(|_| decided.suspended == Some(true));
        let rest = end.map(|end| {
            Duration::try_from(end.duration_since(Timestamp::now()))
                .unwrap_or(SOON)
                .max(SOON)
        });
        let recheck = match decided.why {
            Why::Waiting(_) if self.waits_for_expression => Some(EXPRESSION_RECHECK),
            Why::Waiting(_) => Some(RECHECK),
            Why::Trouble(Trouble::Files { .. }) => Some(FILES_RECHECK),
            _ => None,
        };
        Ok(match rest.into_iter().chain(recheck).min() {
            Some(wait) => Next::After(wait.min(LONGEST_REST)),
            None => Next::OnChange,
        })
    }
}

/// The names of all sources of a spec, for the history. Other names mean that a person changed the spec.
fn source_name(spec: &ServiceDeploymentSpec) -> String {
    let name = |stated: StatedSource<'_>| {
        let SourceReference { kind, name } = stated.reference;
        let kind = if *kind == SourceKind::GitRepository {
            String::new()
        } else {
            format!("{kind} ")
        };
        let chart = stated.chart.map(|chart| format!(" {}", chart.name)).unwrap_or_default();
        format!("{kind}{name}{chart}")
    };
    spec.all_sources().map(name).collect::<Vec<_>>().join(", ")
}
