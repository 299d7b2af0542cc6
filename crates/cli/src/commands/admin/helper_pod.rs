//! The pod that restores: the hub's own with another command. It has everything that the hub's pod needs to start
//! (image, volumes, variables, tolerations), including users' changes.

use farwater_manifests::names::hub as names;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use serde_json::{Value, json};

pub const NAME: &str = "farwater-hub-restore";
/// Component label that no Service, policy or budget of the hub's selects.
pub const COMPONENT: &str = "hub-restore";

/// Fields of a container that serves, which this one doesn't.
const SERVING: [&str; 6] = [
    "args",
    "ports",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("its pod has no container {}", names::CONTAINER)]
    NoContainer,
    #[error("its volumes are deleted when it is scaled down (persistentVolumeClaimRetentionPolicy)")]
    LosesVolumes,
    #[error("it is not as Kubernetes describes one: {0}")]
    Strange(String),
}

/// The pod reads standard input once, and then ends.
pub fn helper_pod(set: &StatefulSet, command: &[String], seconds: u64) -> Result<Pod, Unfit> {
    let strange = |error: serde_json::Error| Unfit::Strange(error.to_string());
    let set = serde_json::to_value(set).map_err(strange)?;
    let spec = &set["spec"];
    if spec["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Delete" {
        return Err(Unfit::LosesVolumes);
    }

    let mut pod = spec["template"]["spec"].clone();
    let containers = pod["containers"].as_array().cloned().unwrap_or_default();
    let hub = containers
        .into_iter()
        .find(|container| container["name"] == names::CONTAINER);
    let mut container = hub.ok_or(Unfit::NoContainer)?;
    if let Some(fields) = container.as_object_mut() {
        fields.retain(|name, _| !SERVING.contains(&name.as_str()));
    }
    container["command"] = json!(command);
    container["stdin"] = json!(true);
    container["stdinOnce"] = json!(true);
    pod["containers"] = json!([container]);
    pod["restartPolicy"] = json!("Never");
    // Without any input it must not wait for ever.
    pod["activeDeadlineSeconds"] = json!(seconds);
    if let Some(fields) = pod.as_object_mut() {
        fields.remove("topologySpreadConstraints");
    }

    let mut volumes = pod["volumes"].as_array().cloned().unwrap_or_default();
    volumes.extend(
        spec["volumeClaimTemplates"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|claim| volume(&set, claim)),
    );
    pod["volumes"] = json!(volumes);
    let labels = json!({
        "app.kubernetes.io/name": "farwater", "app.kubernetes.io/component": COMPONENT,
        "app.kubernetes.io/part-of": "farwater",
    });
    let metadata = json!({"name": NAME, "namespace": set["metadata"]["namespace"], "labels": labels});
    serde_json::from_value(json!({"metadata": metadata, "spec": pod})).map_err(strange)
}

/// The claim that the set's controller has created from a template for the first pod.
fn volume(set: &Value, template: &Value) -> Value {
    let name = template["metadata"]["name"].as_str().unwrap_or_default();
    let set = set["metadata"]["name"].as_str().unwrap_or_default();
    json!({"name": name, "persistentVolumeClaim": {"claimName": format!("{name}-{set}-0")}})
}

#[cfg(test)]
mod tests {
    use farwater_manifests::{Database, Hub, Tls};

    use super::*;

    fn set(hub: &Hub) -> StatefulSet {
        let objects = hub.objects();
        let set = objects
            .into_iter()
            .find(|object| object["kind"] == "StatefulSet")
            .unwrap();
        serde_json::from_value(set).unwrap()
    }

    fn helper(set: &StatefulSet) -> Value {
        serde_json::to_value(helper_pod(set, &["farwater".to_owned(), "admin".to_owned()], 60).unwrap()).unwrap()
    }

    #[test]
    fn it_is_the_hubs_pod_with_another_command() {
        let hub = Hub {
            image: "registry.example/hub:1".to_owned(),
            database: Database::Postgres {
                secret: "database".to_owned(),
            },
            tls: Tls::Secret {
                name: "served".to_owned(),
            },
            ..Hub::default()
        };
        let pod = helper(&set(&hub));
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["image"], "registry.example/hub:1");
        assert_eq!(container["command"], json!(["farwater", "admin"]));
        assert_eq!(
            (&container["stdin"], &container["stdinOnce"]),
            (&json!(true), &json!(true))
        );
        for gone in SERVING {
            assert!(container.get(gone).is_none(), "{gone}");
        }
        let variables = container["env"].as_array().unwrap();
        assert!(variables.iter().any(|variable| variable["name"] == "FARWATER_DATABASE"));
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let claim = volumes.iter().find(|volume| volume["name"] == "data").unwrap();
        assert_eq!(claim["persistentVolumeClaim"]["claimName"], "data-farwater-hub-0");
        let mounted = container["volumeMounts"].as_array().unwrap();
        assert!(
            mounted
                .iter()
                .any(|mount| mount["name"] == "data" && mount["mountPath"] == names::DATA)
        );
        // What a restricted namespace requires, and a label that the hub's own Service must not select.
        assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/component"], COMPONENT);
        assert_eq!(
            (&pod["spec"]["restartPolicy"], &pod["spec"]["activeDeadlineSeconds"]),
            (&json!("Never"), &json!(60))
        );
    }

    #[test]
    fn what_others_added_stays_and_only_the_hubs_container_runs() {
        let mut changed = serde_json::to_value(set(&Hub::default())).unwrap();
        let pod = &mut changed["spec"]["template"]["spec"];
        pod["tolerations"] = json!([{"key": "dedicated", "operator": "Exists"}]);
        pod["imagePullSecrets"] = json!([{"name": "registry"}]);
        pod["containers"]
            .as_array_mut()
            .unwrap()
            .insert(0, json!({"name": "sidecar", "image": "proxy"}));
        let pod = helper(&serde_json::from_value(changed).unwrap());
        assert_eq!(pod["spec"]["tolerations"][0]["key"], "dedicated");
        assert_eq!(pod["spec"]["imagePullSecrets"][0]["name"], "registry");
        assert_eq!(pod["spec"]["containers"].as_array().unwrap().len(), 1);
        assert_eq!(pod["spec"]["containers"][0]["name"], "hub");
    }

    #[test]
    fn a_set_that_deletes_its_volume_when_scaled_is_not_scaled() {
        let mut set = serde_json::to_value(set(&Hub::default())).unwrap();
        set["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({"whenScaled": "Delete", "whenDeleted": "Retain"});
        let refused = helper_pod(&serde_json::from_value(set).unwrap(), &[], 60);
        assert_eq!(refused.unwrap_err(), Unfit::LosesVolumes);
        let refused = helper_pod(&StatefulSet::default(), &[], 60);
        assert_eq!(refused.unwrap_err(), Unfit::NoContainer);
    }
}
