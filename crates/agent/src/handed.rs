//! What a service's templates see, and what of it is in nobody's output.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    ServiceDeploymentSpec,
    parameters::Parameters,
    protocol::{ClusterIdentity, ServiceIdentity},
};
use farwater_fleet::parameters::{ClusterInput, Inputs, Objects, resolve};
use serde_json::Value;

/// Shorter texts stand in half of what is written, and are no secrets.
const MIN_SECRET: usize = 4;
/// Lines of a longer secret that stand alone: indented in YAML, a key in PEM is no more one text.
const MIN_LINE: usize = 12;
const HIDDEN: &str = "(secret)";

/// For one attempt.
pub struct Handed {
    parameters: Parameters,
    /// Texts that stay where they are, the longest first.
    secrets: Vec<String>,
}

impl Handed {
    /// Of a service without parameters: what the agent knows by itself, in the same form.
    pub fn of(
        sealed: Option<Parameters>,
        service: &ServiceIdentity,
        target_namespace: &str,
        cluster: &ClusterIdentity,
    ) -> Self {
        let parameters = sealed.unwrap_or_else(|| own(service, target_namespace, cluster));
        let secrets = find_secrets(&parameters);
        Self { parameters, secrets }
    }

    /// `{configuration, cluster, contexts, service}`
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "objects that stand in files as they are need none; templates take them")
    )]
    pub fn values(&self) -> &Value {
        &self.parameters.values
    }

    /// A text without what is secret.
    pub fn hide(&self, text: &str) -> String {
        let found = self.secrets.iter().filter(|secret| text.contains(secret.as_str()));
        found.fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), HIDDEN))
    }
}

/// Secret values, in each form that templates give them.
fn find_secrets(parameters: &Parameters) -> Vec<String> {
    let mut texts = Vec::new();
    for pointer in &parameters.secret {
        if let Some(value) = parameters.values.pointer(pointer) {
            gather(value, &mut texts);
        }
    }
    let mut secrets: Vec<String> = Vec::new();
    for text in texts {
        let lines = text.lines().map(str::trim).filter(|line| line.len() >= MIN_LINE);
        secrets.extend(lines.map(str::to_owned));
        secrets.push(BASE64.encode(&text));
        secrets.push(text);
    }
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.dedup();
    secrets
}

fn own(service: &ServiceIdentity, target_namespace: &str, cluster: &ClusterIdentity) -> Parameters {
    let spec = ServiceDeploymentSpec { target_namespace: target_namespace.to_owned(), ..Default::default() };
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

fn gather(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) if text.trim().len() >= MIN_SECRET => texts.push(text.clone()),
        Value::Number(number) if number.to_string().len() >= MIN_SECRET => texts.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| gather(item, texts)),
        Value::Object(fields) => fields.values().for_each(|field| gather(field, texts)),
        Value::String(_) | Value::Number(_) | Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn handed(sealed: Option<Parameters>) -> Handed {
        let service = ServiceIdentity { uid: "uid-1".into(), namespace: "team-a".into(), name: "web".into() };
        let cluster = ClusterIdentity { uid: "uid-2".into(), namespace: "farwater-admin".into(), name: "east".into() };
        Handed::of(sealed, &service, "web-space", &cluster)
    }

    #[test]
    fn a_service_without_parameters_sees_what_the_agent_knows() {
        assert_eq!(
            *handed(None).values(),
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
    fn secrets_are_hidden_in_each_form_that_templates_give_them() {
        let pem = "-----BEGIN KEY-----\nAAAABBBBCCCCDDDD\nEEEE\n-----END KEY-----\n";
        let sealed = Parameters {
            values: json!({
                "configuration": {"password": "hunter2", "host": "web.example.com", "pin": "12"},
                "contexts": {"a": {"deep/key": {"list": ["correct horse", 987_654]}, "pem": pem}},
            }),
            secret: vec![
                "/configuration/password".into(),
                "/configuration/pin".into(),
                "/contexts/a/deep~1key".into(),
                "/contexts/a/pem".into(),
            ],
        };
        let handed = handed(Some(sealed));
        assert_eq!(handed.values()["configuration"]["password"], "hunter2");
        for (text, expected) in [
            ("a.yaml:3: \"hunter2\" at web.example.com", "a.yaml:3: \"(secret)\" at web.example.com"),
            ("aHVudGVyMg== 12", "(secret) 12"),
            ("correct horse 987654", "(secret) (secret)"),
            ("  AAAABBBBCCCCDDDD", "  (secret)"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(handed.hide(text), expected);
        }
    }
}
