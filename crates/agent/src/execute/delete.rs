//! Deletes objects, each only with the uid that the plan names, and in the plan's order.

use std::collections::BTreeMap;

use farwater_api::objects::ObjectRef;
use farwater_fleet::{
    ownership::proven_owner,
    plan::{GroupVersionKind, Keep, LiveObject, ObjectKey, Stage, stage_of, waves::Departure},
    prune::{Candidate, Purpose, owns_pods},
};
use futures::{StreamExt as _, stream};

use super::{Executor, PARALLEL};
use crate::{
    kinds::Served,
    kubernetes::{ApiError, Propagation, TRIES},
    live::live_object,
};

/// The result of one delete.
#[derive(Clone, Debug)]
pub enum Deleted {
    Gone,
    /// Deletion was requested; a finalizer delays it.
    Going,
    Refused(ApiError),
    /// Its annotations have protected it since the plan.
    Kept(Keep),
    /// Another object must be gone first.
    Waits(ObjectRef),
    /// A newer assignment arrived first, so its deletion was not requested.
    Superseded,
}

impl Executor<'_> {
    /// `going`: objects that are being deleted already.
    pub async fn delete(
        &self,
        deletes: &[Candidate],
        going: &[Candidate],
        purpose: Purpose,
    ) -> BTreeMap<ObjectKey, Deleted> {
        let mut departure = Departure::new(deletes, going);
        let mut results = BTreeMap::new();
        loop {
            let (open, waiting) = departure.sort();
            if open.is_empty() {
                let waits = waiting.into_iter().map(|(candidate, obstacle)| {
                    (
                        ObjectKey::from(&candidate.object),
                        Deleted::Waits(obstacle.object.clone()),
                    )
                });
                results.extend(waits);
                return results;
            }
            let mut by_stage: BTreeMap<Stage, Vec<Candidate>> = BTreeMap::new();
            for candidate in open {
                by_stage
                    .entry(stage_of(&candidate.object))
                    .or_default()
                    .push(candidate.clone());
            }
            for stage in by_stage.into_values().rev() {
                let asked: Vec<_> = stage
                    .iter()
                    .map(|candidate| self.delete_one(candidate, purpose))
                    .collect();
                let done: Vec<_> = stream::iter(asked).buffer_unordered(PARALLEL).collect().await;
                for (key, deleted) in done {
                    match deleted {
                        Deleted::Gone => departure.note_gone(&key),
                        _ => departure.note_tried(&key),
                    }
                    results.insert(key, deleted);
                }
            }
        }
    }

    async fn delete_one(&self, candidate: &Candidate, purpose: Purpose) -> (ObjectKey, Deleted) {
        let key = ObjectKey::from(&candidate.object);
        if self.superseded.has_come() {
            return (key, Deleted::Superseded);
        }
        let guard = |live: &LiveObject| match live.protection.forbids(purpose, candidate.confirm) {
            _ if self.superseded.has_come() => Some(Deleted::Superseded),
            // Another service may have added objects to it since the plan.
            keep => keep
                .or_else(|| self.leaving.holds(self.service, &key))
                .map(Deleted::Kept),
        };
        let propagation = if owns_pods(&candidate.object) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        let deleted = self
            .delete_as(&candidate.object, &candidate.uid, propagation, guard)
            .await;
        (key, deleted.unwrap_or_else(Deleted::Refused))
    }

    /// `guard`: called with the object as just read; it may return another result instead of the deletion.
    pub(super) async fn delete_object(
        &self,
        object: &ObjectRef,
        uid: &str,
        guard: impl Fn(&LiveObject) -> Option<Deleted>,
    ) -> Result<Deleted, ApiError> {
        self.delete_as(object, uid, Propagation::Background, guard).await
    }

    async fn delete_as(
        &self,
        object: &ObjectRef,
        uid: &str,
        propagation: Propagation,
        guard: impl Fn(&LiveObject) -> Option<Deleted>,
    ) -> Result<Deleted, ApiError> {
        let resource = match self
            .kinds
            .find(self.kubernetes, &GroupVersionKind::from(object))
            .await?
        {
            Served::No => return Ok(Deleted::Gone),
            Served::As(resource) => resource,
        };
        let (path, key) = (resource.path_of(object), ObjectKey::from(object));

        // Delete only the planned object while it is ours and not protected, as just read: since the plan it may have
        // been handed over to another service under the same uid.
        let mut tries = 1;
        loop {
            let live = match self.kubernetes.get(Some(self.account), &path, true).await {
                Ok(object) => live_object(&object),
                Err(error) if error.is_not_found() => return Ok(Deleted::Gone),
                Err(error) => return Err(error),
            };
            let ours = live.owner.as_deref().and_then(|owner| proven_owner(owner, &key)) == Some(self.service);
            if live.uid != uid || !ours {
                return Ok(Deleted::Gone);
            }
            if let Some(instead) = guard(&live) {
                return Ok(instead);
            }
            let exactly = Some((uid, live.resource_version.as_str()));
            match self
                .persist(|| self.kubernetes.delete(Some(self.account), &path, exactly, propagation))
                .await
            {
                // Another writer changed it in between: read it again.
                Err(error) if error.code() == 409 && tries < TRIES => tries += 1,
                Ok(true) => return Ok(Deleted::Gone),
                Ok(false) => return Ok(Deleted::Going),
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use farwater_api::{
        Digest, OWNER_ANNOTATION,
        protocol::{Action, Entry, ServiceAccount, ServiceIdentity},
    };
    use farwater_fleet::ownership::owner_annotation;
    use k8s_openapi::api::{core::v1::ConfigMap, rbac::v1::ClusterRoleBinding};
    use kube::{
        Api, Client, Resource as _,
        api::{DeleteParams, Patch, PatchParams, PostParams},
    };
    use serde_json::json;
    use tokio::sync::watch;

    use super::*;
    use crate::{
        kinds::Kinds,
        kubernetes::Kubernetes,
        service::{Assignment, Superseded},
        tombstones::{Listed, Tombstones},
    };

    const PRUNE: &str = "farwater.dev/prune";

    fn reference(namespace: &str, name: &str) -> ObjectRef {
        ObjectRef {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// A ConfigMap owned by the service `uid`, as a plan deletes it.
    async fn candidate(maps: &Api<ConfigMap>, name: &str, confirm: bool) -> Candidate {
        let object = reference(maps.namespace().unwrap(), name);
        let owner = owner_annotation("uid", &ObjectKey::from(&object));
        let map = json!({"metadata": {"name": name, "annotations": {OWNER_ANNOTATION: owner}}});
        let made = maps
            .create(&PostParams::default(), &serde_json::from_value(map).unwrap())
            .await
            .unwrap();
        Candidate {
            object,
            uid: made.meta().uid.clone().unwrap(),
            wave: 0,
            confirm,
            waits: false,
        }
    }

    async fn annotate(maps: &Api<ConfigMap>, name: &str, annotation: &str, value: &str) {
        let patch = json!({"metadata": {"annotations": {annotation: value}}});
        maps.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

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

    #[tokio::test(flavor = "multi_thread")]
    async fn what_was_protected_replaced_or_handed_over_since_it_was_planned_stays() {
        let plane = farwater_testkit::shared(1).await.unwrap();
        let client = plane.client().await.unwrap();
        let namespace = plane.namespace("deleted").await.unwrap();
        let account = ServiceAccount {
            namespace: namespace.clone(),
            name: "deleter".to_owned(),
        };
        bind(&client, &account).await;
        let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
        let mut deletes = Vec::new();
        for name in ["goes", "kept", "asks", "was-asked", "replaced", "handed-over"] {
            deletes.push(candidate(&maps, name, name == "was-asked").await);
        }
        annotate(&maps, "kept", PRUNE, "disabled").await;
        annotate(&maps, "asks", PRUNE, "confirm").await;
        annotate(&maps, "was-asked", PRUNE, "confirm").await;
        // The same name and marks with another uid, and the same uid with the mark of another service.
        maps.delete("replaced", &DeleteParams::default()).await.unwrap();
        let replacement = candidate(&maps, "replaced", false).await;
        let owner = owner_annotation("another", &ObjectKey::from(&reference(&namespace, "handed-over")));
        annotate(&maps, "handed-over", OWNER_ANNOTATION, &owner).await;

        let service = ServiceIdentity {
            uid: "uid".to_owned(),
            namespace: "team".to_owned(),
            name: "web".to_owned(),
        };
        let entry = Entry {
            service: service.clone(),
            action: Action::Hold { reason: String::new() },
        };
        let digest = Digest::of("entry");
        let (_next, assignments) = watch::channel(Assignment {
            entry,
            digest,
            unlisted: false,
        });
        let kubernetes = Kubernetes::connect(Some(plane.kubeconfig())).unwrap();
        let kinds = Kinds::new(std::time::Duration::ZERO);
        let executor = Executor {
            kubernetes: &kubernetes,
            kinds: &kinds,
            account: &account,
            service: "uid",
            tombstones: Tombstones {
                kubernetes: &kubernetes,
                kinds: &kinds,
                listed: &Listed::default(),
                installation: String::new(),
                service: &service,
            },
            rules: std::sync::Arc::default(),
            leaving: &crate::service::Leaving::default(),
            superseded: Superseded::by(assignments),
        };
        let results = executor.delete(&deletes, &[], Purpose::Sync).await;
        let said = |name: &str| match &results[&ObjectKey::from(&reference(&namespace, name))] {
            Deleted::Kept(keep) => keep.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(said("goes"), "Gone");
        assert_eq!(
            said("kept"),
            "left the source and stays: its annotation farwater.dev/prune: disabled says so"
        );
        assert_eq!(
            said("asks"),
            "left the source and stays: its annotation farwater.dev/prune: confirm says so"
        );
        assert_eq!(said("was-asked"), "Gone");
        assert!(maps.get_opt("goes").await.unwrap().is_none() && maps.get_opt("was-asked").await.unwrap().is_none());
        assert!(maps.get_opt("kept").await.unwrap().is_some() && maps.get_opt("asks").await.unwrap().is_some());
        // The planned objects are gone for this service, and it must not delete the present ones.
        assert_eq!(
            (said("replaced"), said("handed-over")),
            ("Gone".to_owned(), "Gone".to_owned())
        );
        let uid = async |name: &str| maps.get(name).await.unwrap().metadata.uid.unwrap();
        assert_eq!(uid("replaced").await, replacement.uid);
        let planned = deletes
            .iter()
            .find(|candidate| candidate.object.name == "handed-over")
            .unwrap();
        assert_eq!(uid("handed-over").await, planned.uid);
    }
}
