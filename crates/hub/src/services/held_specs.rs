//! Which spec of a service counts. A newer spec counts once it is released: for a set's member when the rollout comes
//! to it, for any other service when no change window holds it.

use farwater_api::{ServiceDeployment, ServiceDeploymentSpec};
use farwater_fleet::{
    held_spec::{WaitsFor, counting},
    windows::Closed,
};
use farwater_store::{
    Key, Resource, StoreError, Tx,
    delivery::{HeldService, MemberRollout, delete_held, load_held, rollout_of_service, save_held},
};

use crate::{replica::Replica, sets::rollouts};

/// Returns a service with the spec that counts now.
pub fn effective(
    mut service: ServiceDeployment,
    member: Option<&MemberRollout>,
    held: Option<&HeldService>,
) -> Result<ServiceDeployment, StoreError> {
    // A deletion goes by the service's own spec.
    if service.metadata.deletion_timestamp.is_some() {
        return Ok(service);
    }
    let (spec, waits) = match member {
        Some(member) => (rollouts::held_spec(member)?, WaitsFor::Rollout),
        None => (held.map(read).transpose()?.flatten(), WaitsFor::Window),
    };
    if let Some(spec) = spec {
        service.spec = counting(&service.spec, spec, waits);
    }
    Ok(service)
}

/// The same, with the rows of its uid.
pub async fn load_effective(
    replica: &Replica,
    uid: &str,
    service: ServiceDeployment,
) -> Result<ServiceDeployment, StoreError> {
    let (member, held) = {
        let mut tables = replica.store.tables().await?;
        (
            rollout_of_service(&mut tables, uid).await?,
            load_held(&mut tables, uid).await?,
        )
    };
    effective(service, member.as_ref(), held.as_ref())
}

fn read(held: &HeldService) -> Result<Option<ServiceDeploymentSpec>, StoreError> {
    if held.spec.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&held.spec)
        .map(Some)
        .map_err(|error| StoreError::Row {
            what: format!("held spec of service {}", held.service_uid),
            problem: error.to_string(),
        })
}

/// Observed state of a service that belongs to no set.
#[derive(Debug)]
pub struct HeldLook {
    known: Option<HeldService>,
    /// The service as it was read.
    uid: String,
    generation: Option<i64>,
    spec: String,
    /// A held spec counts instead of the service's own.
    pub restated: bool,
}

/// The row to save after the decision.
#[derive(Debug)]
pub struct HeldNext {
    look: HeldLook,
    row: Option<HeldService>,
    is_closed: bool,
}

impl HeldLook {
    pub fn of(
        resource: &Resource,
        service: &ServiceDeployment,
        known: Option<HeldService>,
    ) -> Result<Self, StoreError> {
        let held = known.as_ref().map(read).transpose()?.flatten();
        let restated = held.is_some_and(|held| counting(&service.spec, held, WaitsFor::Window) != service.spec);
        Ok(Self {
            known,
            uid: resource.uid.clone(),
            generation: resource.object["metadata"]["generation"].as_i64(),
            spec: resource.object["spec"].to_string(),
            restated,
        })
    }

    fn had_spec(&self) -> bool {
        self.known.as_ref().is_some_and(|known| !known.spec.is_empty())
    }

    /// `closed`: the window that keeps its changes from starting; `waits`: a newer version waits for that.
    pub fn end(self, closed: Option<&Closed>, waits: bool) -> HeldNext {
        let row = closed.filter(|_| waits || self.restated).map(|closed| HeldService {
            service_uid: self.uid.clone(),
            spec: self
                .known
                .as_ref()
                .filter(|_| self.restated)
                .map(|known| known.spec.clone())
                .unwrap_or_default(),
            change_window: closed.by.clone(),
            until: closed.until.map_or(0, |until| until.as_second().max(1)),
        });
        HeldNext {
            look: self,
            row,
            is_closed: closed.is_some(),
        }
    }
}

impl HeldNext {
    pub fn is_known(&self) -> bool {
        self.look.known == self.row
    }

    /// Another spec counts from now on.
    pub fn is_released(&self) -> bool {
        self.look.restated && !self.is_held()
    }

    /// A held spec counts instead of the service's own.
    pub fn is_held(&self) -> bool {
        self.row.as_ref().is_some_and(|row| !row.spec.is_empty())
    }

    /// Whether the same spec counts as before, even if another one was written while a window was closed.
    pub fn keeps_spec(&self) -> bool {
        self.is_held() || (self.is_closed && self.look.had_spec())
    }

    /// `key`: key of the service.
    pub async fn save(self, tx: &mut Tx, key: &Key) -> Result<(), StoreError> {
        let Self {
            look,
            row,
            is_closed: _,
        } = self;
        let found = load_held(tx, &look.uid).await?;
        let spec = |row: &Option<HeldService>| row.as_ref().map(|row| row.spec.clone()).unwrap_or_default();
        let (was, is) = (spec(&look.known), spec(&found));

        // A spec that was written since the read is decided by the next reconcile. Until then the spec that counted
        // still counts, or the one that was read.
        let newer = if is != was {
            Some(is).filter(|is| !is.is_empty())
        } else if !was.is_empty() && spec(&row).is_empty() {
            let now = tx.get(key).await?.filter(|now| now.uid == look.uid);
            let is_newest = now.is_none_or(|now| now.object["metadata"]["generation"].as_i64() == look.generation);
            (!is_newest).then_some(look.spec)
        } else {
            None
        };

        let next = match newer {
            Some(spec) => Some(HeldService {
                service_uid: look.uid.clone(),
                spec,
                ..row.unwrap_or_default()
            }),
            None => row,
        };

        match next {
            Some(next) if found.as_ref() != Some(&next) => save_held(tx, &next).await,
            None if found.is_some() => delete_held(tx, &look.uid).await,
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use farwater_api::service_deployment::DeletionPolicy;
    use serde_json::{Value, json};

    use super::*;

    /// Its row may have been read before it was deleted.
    #[test]
    fn a_service_that_goes_goes_as_it_says_itself_whatever_is_held() {
        let spec = |policy: &str, path: &str| {
            json!({
                "clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"}, "path": path,
                "deletionPolicy": policy,
            })
        };
        let counts = |metadata: Value, member: Option<&MemberRollout>, held: Option<&HeldService>| {
            let own = json!({"metadata": metadata, "spec": spec("Delete", "new")});
            let service = effective(serde_json::from_value(own).unwrap(), member, held).unwrap();
            (service.spec.deletion_policy, service.spec.path)
        };
        let text = spec("Orphan", "old").to_string();
        let member = MemberRollout {
            held_spec: text.clone(),
            ..MemberRollout::default()
        };
        let held = HeldService {
            spec: text,
            ..HeldService::default()
        };
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (member, held) in [(Some(&member), None), (None, Some(&held))] {
            assert_eq!(counts(json!({}), member, held).1, "old");
            assert_eq!(
                counts(deleted.clone(), member, held),
                (DeletionPolicy::Delete, "new".to_owned())
            );
        }
    }
}
