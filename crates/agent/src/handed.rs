//! The values that a service's templates see, and which of them are kept out of all output.

use std::collections::BTreeMap;

use farwater_api::{
    ServiceDeploymentSpec,
    parameters::Parameters,
    protocol::{ClusterIdentity, ServiceIdentity},
};
use farwater_fleet::{
    parameters::{ClusterInput, Inputs, Objects, resolve},
    plan::veil::Veil,
};
use serde_json::{Map, Value};

/// Values for one attempt.
pub struct Handed {
    parameters: Parameters,
    pub veil: Veil,
    is_sealed: bool,
}

impl Handed {
    /// Without sealed parameters the agent fills in what it knows itself, in the same form. Promoted texts take
    /// precedence over both.
    pub fn of(
        sealed: Option<Parameters>,
        service: &ServiceIdentity,
        (target_namespace, promoted): (&str, &BTreeMap<String, String>),
        cluster: &ClusterIdentity,
    ) -> Self {
        let is_sealed = sealed.is_some();
        let mut parameters = sealed.unwrap_or_else(|| own(service, target_namespace, cluster));
        parameters.promote(promoted);
        let mut veil = Veil::default();
        parameters.secrets().for_each(|value| hide(value, &mut veil));
        Self {
            parameters,
            veil,
            is_sealed,
        }
    }

    /// `{configuration, cluster, contexts, service}`
    pub fn values(&self) -> &Map<String, Value> {
        &self.parameters.values
    }

    /// Whether the hub has sealed them, so that no person may see them in plain text.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }
}

fn own(service: &ServiceIdentity, target_namespace: &str, cluster: &ClusterIdentity) -> Parameters {
    let spec = ServiceDeploymentSpec {
        target_namespace: target_namespace.to_owned(),
        ..Default::default()
    };
    let resolution = resolve(Inputs {
        uid: &service.uid,
        namespace: &service.namespace,
        name: &service.name,
        spec: &spec,
        cluster: ClusterInput {
            uid: &cluster.uid,
            namespace: &cluster.namespace,
            name: &cluster.name,
            labels: &Default::default(),
            annotations: &Default::default(),
            metadata: &Default::default(),
            version: None,
        },
        objects: &Objects::default(),
    });
    resolution.parameters
}

/// Hides a value in each form that templates give it.
fn hide(value: &Value, veil: &mut Veil) {
    match value {
        Value::String(text) => veil.add(text),
        Value::Number(number) => veil.add(&number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| hide(item, veil)),
        Value::Object(fields) => fields.values().for_each(|field| hide(field, veil)),
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn handed(sealed: Option<Parameters>) -> Handed {
        promoted(sealed, &BTreeMap::new())
    }

    fn promoted(sealed: Option<Parameters>, promoted: &BTreeMap<String, String>) -> Handed {
        let service = ServiceIdentity {
            uid: "uid-1".into(),
            namespace: "team-a".into(),
            name: "web".into(),
        };
        let cluster = ClusterIdentity {
            uid: "uid-2".into(),
            namespace: "farwater-admin".into(),
            name: "east".into(),
        };
        Handed::of(sealed, &service, ("web-space", promoted), &cluster)
    }

    #[test]
    fn a_service_without_parameters_sees_what_the_agent_knows() {
        assert_eq!(
            json!(handed(None).values()),
            json!({
                "configuration": {}, "contexts": {},
                "cluster": {
                    "id": "uid-2", "name": "east", "handle": "east", "namespace": "farwater-admin",
                    "labels": {}, "tags": {}, "annotations": {}, "metadata": {},
                },
                "service": {"id": "uid-1", "name": "web", "namespace": "web-space"},
            })
        );
    }

    #[test]
    fn what_was_promoted_counts_before_what_is_stated() {
        let values = json!({"configuration": {"imageTag": "1", "host": "a", "pin": "hunter2"}, "contexts": {}});
        let sealed = Parameters {
            values: values.as_object().unwrap().clone(),
            secret: vec!["/configuration/imageTag".to_owned(), "/configuration/pin".to_owned()],
            ..Parameters::default()
        };
        let texts = BTreeMap::from([("imageTag".to_owned(), "2.0.1".to_owned())]);
        let handed = promoted(Some(sealed), &texts);
        let expected = json!({"imageTag": "2.0.1", "host": "a", "pin": "hunter2"});
        assert_eq!(handed.values()["configuration"], expected);
        assert_eq!(handed.veil.conceal("2.0.1 hunter2"), "2.0.1 (secret)");
        assert_eq!(
            promoted(None, &texts).values()["configuration"],
            json!({"imageTag": "2.0.1"})
        );
    }

    #[test]
    fn secrets_are_hidden_in_each_form_that_templates_give_them() {
        let values = json!({
            "configuration": {"password": "hunter2", "host": "web.example.com", "pin": "12"},
            "contexts": {"a": {"deep/key": {"list": ["correct horse", 987_654]}, "pem": "-----BEGIN-----\nAAAABBBB\n-----END-----\n"}},
        });
        let secret = [
            "/configuration/password",
            "/configuration/pin",
            "/contexts/a/deep~1key",
            "/contexts/a/pem",
        ];
        let sealed = Parameters {
            values: values.as_object().unwrap().clone(),
            secret: secret.map(str::to_owned).to_vec(),
            ..Parameters::default()
        };
        let handed = handed(Some(sealed));
        assert_eq!(handed.values()["configuration"]["password"], "hunter2");
        for (text, expected) in [
            (
                "a.yaml:3: \"hunter2\" at web.example.com",
                "a.yaml:3: \"(secret)\" at web.example.com",
            ),
            ("aHVudGVyMg== 12", "(secret) 12"),
            ("12", "(secret)"),
            ("correct horse 987654", "(secret) (secret)"),
            ("  AAAABBBB", "  (secret)"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(handed.veil.conceal(text), expected);
        }
    }
}
