//! Webhooks that an API server asks before it takes an object.

use anyhow::Result;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::https::Https;

/// A webhook that takes every object, some of them changed. Dropped, it is one that is down.
pub struct Webhook(Https);

impl Webhook {
    /// `change` gives the JSON patch with which an object is taken; none: it is taken as it is.
    pub async fn start(change: impl Fn(&Value) -> Option<Value> + Send + Sync + 'static) -> Result<Self> {
        Ok(Self(Https::start(move |body| review(body, &change)).await?))
    }

    /// Where it is, as a configuration says it.
    pub fn client(&self) -> Value {
        json!({"url": self.0.url(), "caBundle": STANDARD.encode(self.0.authority())})
    }
}

/// An AdmissionReview with the answer to it.
fn review(body: &[u8], change: &impl Fn(&Value) -> Option<Value>) -> Vec<u8> {
    let asked: Value = serde_json::from_slice(body).unwrap_or_default();
    let request = &asked["request"];
    let mut response = json!({"uid": request["uid"], "allowed": true});
    if let Some(patch) = change(&request["object"]) {
        response["patchType"] = "JSONPatch".into();
        response["patch"] = STANDARD.encode(patch.to_string()).into();
    }
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    review.to_string().into_bytes()
}

/// A configuration, mutating or validating, with one webhook. It is asked before objects of `[group, version, plural]` that bear a
/// label are made or changed, and nothing is done without its answer. `name`, of both, has three parts or more.
pub fn configuration(name: &str, client: &Value, [group, version, plural]: [&str; 3], label: &str) -> Value {
    let rule = json!({
        "apiGroups": [group], "apiVersions": [version], "resources": [plural], "operations": ["CREATE", "UPDATE"],
    });
    json!({"metadata": {"name": name}, "webhooks": [{
        "name": name,
        "clientConfig": client,
        "rules": [rule],
        "objectSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 5,
    }]})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(change: impl Fn(&Value) -> Option<Value>) -> Value {
        let asked = json!({"request": {"uid": "u-1", "object": {"name": "a"}}}).to_string();
        serde_json::from_slice(&review(asked.as_bytes(), &change)).unwrap()
    }

    #[test]
    fn an_answer_names_the_request_and_holds_the_patch() {
        assert_eq!(answer(|_| None)["response"], json!({"uid": "u-1", "allowed": true}));
        let changed = answer(|object| Some(json!([object["name"]])));
        assert_eq!(changed["response"]["patch"], STANDARD.encode("[\"a\"]"));
    }
}
