//! Judges how far a service is on its way to the goal of a wait. Pure.

use farwater_api::ServiceDeployment;
use farwater_fleet::{
    conditions::find,
    summary::FROZEN,
    why::{HeldBack, held_back},
};

use super::Goal;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    Reached,
    NotYet(String),
    /// The hub reports that the object won't get there by itself.
    Refused(String),
}

/// Judges a service by its status. A status of an older generation doesn't count. `newest`: waits for the newest
/// revision of the source, and not only for the assigned one.
pub fn judge(service: &ServiceDeployment, goal: Goal, newest: bool) -> Progress {
    let Some(status) = &service.status else {
        return Progress::NotYet("the hub has not processed it yet".to_owned());
    };
    let seen = status.observed_generation.unwrap_or_default() >= service.metadata.generation.unwrap_or_default();
    if !seen {
        return Progress::NotYet("the hub has not processed the new spec yet".to_owned());
    }
    let condition = |kind: &str| find(&status.conditions, kind);
    let text = |c: &farwater_api::Condition| {
        if c.message.is_empty() {
            c.reason.clone()
        } else {
            c.message.clone()
        }
    };
    // A fetch that began before the push doesn't include it.
    if service.open_request().is_some() {
        return Progress::NotYet("its source is being asked".to_owned());
    }
    if service.metadata.deletion_timestamp.is_some() {
        return Progress::Refused("it is being deleted".to_owned());
    }

    let held = held_back(service).filter(|_| newest).or_else(|| held_pin(service));
    // A changed spec of the same revision is another entry. A held service has no entry to apply.
    let applied = match status.assigned_entry {
        Some(entry) => status.applied_entry == Some(entry),
        None => status.applied_revision.is_some() && status.applied_revision == status.assigned_revision,
    };
    // An applied service may have failed since.
    if goal == Goal::Applied && applied && held.is_none() {
        return Progress::Reached;
    }
    if let Some(stalled) = condition("Stalled").filter(|c| c.status == "True") {
        return Progress::Refused(text(stalled));
    }
    if let Some(HeldBack { sentence, by_people }) = held {
        return if by_people {
            Progress::Refused(sentence)
        } else {
            Progress::NotYet(sentence)
        };
    }
    if let Some(prune) = condition("PruneHeld").filter(|c| c.status == "True") {
        return Progress::Refused(text(prune));
    }

    let ready = condition("Ready");
    if applied && ready.is_some_and(|c| c.status == "True") {
        Progress::Reached
    } else {
        Progress::NotYet(ready.map_or_else(|| "no status yet".to_owned(), text))
    }
}

/// A pin whose version is not assigned: not yet, or a ChangeWindow holds it.
fn held_pin(service: &ServiceDeployment) -> Option<HeldBack> {
    let (pin, status) = (service.spec.pin.as_ref()?, service.status.as_ref()?);
    if status.bundle_digest == Some(pin.bundle) {
        return None;
    }
    let frozen = find(&status.conditions, FROZEN).filter(|c| c.status == "True");
    Some(HeldBack {
        sentence: match frozen {
            Some(frozen) => format!("the pinned version is held back: {}", frozen.message),
            None => "the pinned version is not assigned yet".to_owned(),
        },
        by_people: frozen.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use farwater_api::{Digest, REQUESTED_AT, service_deployment::Pin};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;

    fn service(status: serde_json::Value) -> ServiceDeployment {
        serde_json::from_value(json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment",
            "metadata": {"name": "web", "namespace": "team-a", "generation": 2},
            "spec": {"clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"}},
            "status": status
        }))
        .unwrap()
    }

    fn condition(type_: &str, status: &str) -> serde_json::Value {
        json!({"type": type_, "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn healthy_means_the_assigned_revision_and_the_current_spec() {
        let ready = [condition("Ready", "True")];
        let now =
            json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b", "conditions": ready});
        assert_eq!(judge(&service(now), Goal::Healthy, false), Progress::Reached);
        let old_spec =
            json!({"observedGeneration": 1, "assignedRevision": "b", "appliedRevision": "b", "conditions": ready});
        assert!(matches!(
            judge(&service(old_spec), Goal::Healthy, false),
            Progress::NotYet(_)
        ));
        let old_news =
            json!({"observedGeneration": 2, "assignedRevision": "c", "appliedRevision": "b", "conditions": ready});
        assert!(matches!(
            judge(&service(old_news), Goal::Healthy, false),
            Progress::NotYet(_)
        ));
    }

    #[test]
    fn a_request_that_is_open_is_waited_for() {
        let status = |handled: &str| {
            json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b",
                   "lastHandledReconcileAt": handled, "conditions": [condition("Ready", "True")]})
        };
        let asked = |handled| {
            let mut service = service(status(handled));
            service.metadata.annotations = Some([(REQUESTED_AT.to_owned(), "2".to_owned())].into());
            judge(&service, Goal::Healthy, false)
        };
        assert_eq!(asked("1"), Progress::NotYet("its source is being asked".to_owned()));
        assert_eq!(asked("2"), Progress::Reached);
    }

    #[test]
    fn what_was_fetched_and_is_held_back_is_not_there() {
        let check = |conditions: serde_json::Value, newest: bool| {
            let status = json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b", "heldRevision": "c",
                                "conditions": conditions});
            judge(&service(status), Goal::Healthy, newest)
        };
        let ready = condition("Ready", "True");
        assert_eq!(check(json!([ready]), false), Progress::Reached);
        assert_eq!(
            check(json!([ready]), true),
            Progress::NotYet("c is not assigned yet: m".to_owned())
        );
        let frozen = json!([ready, condition("Frozen", "True")]);
        assert_eq!(check(frozen, true), Progress::Refused("c is held back: m".to_owned()));
    }

    #[test]
    fn applied_does_not_ask_for_health() {
        let status = json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b",
                            "conditions": [condition("Ready", "False")]});
        assert_eq!(judge(&service(status.clone()), Goal::Applied, false), Progress::Reached);
        assert_eq!(
            judge(&service(status), Goal::Healthy, false),
            Progress::NotYet("m".to_owned())
        );
    }

    /// terraform-provider-argocd#110, ksail#5578.
    #[test]
    fn a_changed_spec_of_the_same_revision_and_a_removal_are_not_applied() {
        let status = |assigned: &str| {
            json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b",
                   "assignedEntry": Digest::of(assigned), "appliedEntry": Digest::of("old"),
                   "conditions": [condition("Ready", "Unknown")]})
        };
        assert_eq!(judge(&service(status("old")), Goal::Applied, false), Progress::Reached);
        assert_eq!(
            judge(&service(status("new")), Goal::Applied, false),
            Progress::NotYet("m".to_owned())
        );
        let mut leaving = service(status("old"));
        leaving.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(
            judge(&leaving, Goal::Applied, false),
            Progress::Refused("it is being deleted".to_owned())
        );
    }

    #[test]
    fn what_is_applied_and_failed_later_is_applied() {
        let status = json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b",
                            "conditions": [condition("Ready", "False"), condition("Stalled", "True")]});
        assert_eq!(judge(&service(status.clone()), Goal::Applied, false), Progress::Reached);
        assert_eq!(
            judge(&service(status), Goal::Healthy, false),
            Progress::Refused("m".to_owned())
        );
    }

    #[test]
    fn a_pin_that_a_freeze_holds_and_a_prune_that_waits_for_a_person_are_no_success() {
        let mut pinned = service(
            json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "b",
            "bundleDigest": Digest::of("b"), "conditions": [condition("Ready", "True"), condition("Frozen", "True")]}),
        );
        assert_eq!(judge(&pinned, Goal::Healthy, false), Progress::Reached);
        pinned.spec.pin = Some(Pin {
            bundle: Digest::of("a"),
            reason: None,
        });
        let held = Progress::Refused("the pinned version is held back: m".to_owned());
        assert_eq!(judge(&pinned, Goal::Healthy, false), held);
        assert_eq!(judge(&pinned, Goal::Applied, false), held);

        let waits = json!({"observedGeneration": 2, "assignedRevision": "b", "appliedRevision": "a",
                           "conditions": [condition("Ready", "False"), condition("PruneHeld", "True")]});
        assert_eq!(
            judge(&service(waits), Goal::Healthy, false),
            Progress::Refused("m".to_owned())
        );
    }

    #[test]
    fn a_stalled_service_is_an_honest_no() {
        let status = json!({"observedGeneration": 2, "conditions": [condition("Stalled", "True")]});
        assert_eq!(
            judge(&service(status), Goal::Applied, false),
            Progress::Refused("m".to_owned())
        );
    }
}
