//! Which spec of a service counts while a newer one waits for its turn.

use farwater_api::ServiceDeploymentSpec;

/// What the newer spec waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// The rollout of the set that the service is a member of.
    Rollout,
    /// A change window. The service belongs to no set.
    Window,
}

/// The spec that counts: the held one, with those fields of the service's `own` that count at once.
///
/// A suspension, a pin and the deletion policy never wait. All other fields of a member are those of the set's template,
/// which the rollout releases as a whole. Of a service without a set, dependencies and a `prune` that is switched off count
/// at once too, because they only narrow what the agent may do.
pub fn counting(own: &ServiceDeploymentSpec, held: ServiceDeploymentSpec, waits: WaitsFor) -> ServiceDeploymentSpec {
    let spec = ServiceDeploymentSpec {
        suspend: own.suspend,
        suspension: own.suspension.clone(),
        pin: own.pin.clone(),
        deletion_policy: own.deletion_policy,
        ..held
    };
    match waits {
        WaitsFor::Rollout => spec,
        WaitsFor::Window => ServiceDeploymentSpec {
            depends_on: own.depends_on.clone(),
            prune: spec.prune && own.prune,
            ..spec
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(more: Value) -> ServiceDeploymentSpec {
        let mut spec = json!({
            "clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"}, "path": "old",
        });
        let more = more.as_object().expect("an object").clone();
        spec.as_object_mut().expect("an object").extend(more);
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn the_held_spec_counts_except_for_stops_pins_and_deletion() {
        let own = spec(json!({"path": "new", "suspend": true, "deletionPolicy": "Orphan"}));
        for waits in [WaitsFor::Rollout, WaitsFor::Window] {
            let counts = counting(&own, spec(json!({})), waits);
            assert_eq!(counts, spec(json!({"suspend": true, "deletionPolicy": "Orphan"})));
        }
    }

    #[test]
    fn what_narrows_a_service_without_a_set_counts_at_once() {
        let own = spec(json!({"prune": false, "dependsOn": [{"name": "db"}]}));
        assert_eq!(counting(&own, spec(json!({})), WaitsFor::Window), own);
        assert_eq!(counting(&own, spec(json!({})), WaitsFor::Rollout), spec(json!({})));
        // A prune that is switched on waits, as it deletes more.
        let held = spec(json!({"prune": false}));
        assert_eq!(counting(&spec(json!({})), held.clone(), WaitsFor::Window), held);
    }
}
