//! `wait serviceset/NAME --fetch`: the services of the set, whose sources are fetched first.

use farwater_api::{SET_LABEL, ServiceDeployment, service_sources::SourceReference};
use farwater_fleet::{
    stamping::set_label,
    why::{Standing, explain_source},
};
use kube::{Api, ResourceExt as _, api::ListParams};

use super::{
    Goal, Wanted,
    judge::{Progress, judge},
    services,
};
use crate::{commands::why, connection::Session, failure::Result};

/// Requests that the hub fetches the sources of the set's services now.
pub async fn ask(session: &Session, namespace: &str, set: &str) -> Result<()> {
    let names: Vec<String> = list(session, namespace, set)
        .await?
        .iter()
        .map(|service| service.name_any())
        .collect();
    // Without a name, each service of the namespace would be meant.
    if names.is_empty() {
        return Ok(());
    }
    let wanted = Wanted {
        namespace: namespace.to_owned(),
        names,
        newest: true,
    };
    services::ask(session, &wanted).await
}

/// Judges whether the services of a set have the newest version of their sources. The set itself learns of a fetched
/// version after its services.
pub async fn judge_newest(session: &Session, namespace: &str, set: &str, goal: Goal) -> Result<Progress> {
    let services = list(session, namespace, set).await?;
    let progress = judge_all(&services, goal);
    if progress != Progress::Reached {
        return Ok(progress);
    }
    let refused = refused_by_sources(session, namespace, &services).await?;
    Ok(refused.map_or(Progress::Reached, Progress::Refused))
}

/// Why the services may not have the newest version, although they are healthy: a source can't be fetched, or the user may
/// not read it. None: all sources were fetched.
pub async fn refused_by_sources(
    session: &Session,
    namespace: &str,
    services: &[ServiceDeployment],
) -> Result<Option<String>> {
    for reference in references(services) {
        let source = match why::find_source(session, namespace, &reference).await {
            Err(failure) if failure.is_missing() || failure.is_denied() => return Ok(Some(failure.cause)),
            source => source?,
        };
        let finding = explain_source(&source, &reference, namespace, jiff::Timestamp::now());
        if finding.standing == Standing::Broken {
            return Ok(Some(finding.sentence));
        }
    }
    Ok(None)
}

async fn list(session: &Session, namespace: &str, set: &str) -> Result<Vec<ServiceDeployment>> {
    let api: Api<ServiceDeployment> = Api::namespaced(session.client.clone(), namespace);
    let labelled = ListParams::default().labels(&format!("{SET_LABEL}={}", set_label(set)));
    let mut services = session.select_in(&api, labelled).await?;
    // The label is no proof.
    services.retain(|service| {
        let owners = service.owner_references();
        owners
            .iter()
            .any(|owner| owner.kind == "ServiceSet" && owner.name == set)
    });
    Ok(services)
}

/// A service that can't get there comes first, then one that is not there yet.
fn judge_all(services: &[ServiceDeployment], goal: Goal) -> Progress {
    let mut waiting = None;
    for service in services {
        let name = service.name_any();
        match judge(service, goal, true) {
            Progress::Reached => {}
            Progress::Refused(why) => return Progress::Refused(format!("{name}: {why}")),
            Progress::NotYet(why) => {
                waiting.get_or_insert_with(|| format!("{name}: {why}"));
            }
        }
    }
    waiting.map_or(Progress::Reached, Progress::NotYet)
}

/// The sources of the services, each once.
fn references(services: &[ServiceDeployment]) -> Vec<SourceReference> {
    let mut found: Vec<SourceReference> = Vec::new();
    for stated in services.iter().flat_map(|service| service.spec.all_sources()) {
        if !found.contains(stated.reference) {
            found.push(stated.reference.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(name: &str, more: Value) -> ServiceDeployment {
        let ready = json!({"type": "Ready", "status": "True", "reason": "Healthy", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let mut object = json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment",
            "metadata": {"name": name, "namespace": "team-a", "generation": 1},
            "spec": {"clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"}},
            "status": {"observedGeneration": 1, "assignedRevision": "b", "appliedRevision": "b", "conditions": [ready]},
        });
        object["status"]
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_set_has_the_newest_version_when_each_of_its_services_has_it() {
        let there = || service("site-east", json!({}));
        let held = || service("site-west", json!({"heldRevision": "c"}));
        let mut suspended = held();
        suspended.spec.suspend = true;
        let mut asked = there();
        asked.metadata.annotations = Some([(farwater_api::REQUESTED_AT.to_owned(), "2".to_owned())].into());

        let check = |services: &[ServiceDeployment], expected: Progress| {
            assert_eq!(judge_all(services, Goal::Healthy), expected);
        };
        check(&[], Progress::Reached);
        check(&[there()], Progress::Reached);
        let waits = "site-west: c is not assigned yet: m";
        check(&[there(), held()], Progress::NotYet(waits.to_owned()));
        check(
            &[asked],
            Progress::NotYet("site-east: its source is being asked".to_owned()),
        );
        let why = "site-west: c is held back: the service is suspended";
        check(&[held(), suspended], Progress::Refused(why.to_owned()));
        assert_eq!(references(&[there(), held()]).len(), 1);
    }
}
