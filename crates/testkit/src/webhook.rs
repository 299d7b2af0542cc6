//! Webhooks that an API server calls before it accepts an object.

use anyhow::Result;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::https::Https;

/// A webhook that accepts every object and changes some of them. When dropped, it is down.
pub struct Webhook(Https);

impl Webhook {
    /// `change` returns the JSON patch for an object. None: the object is not changed.
    pub async fn start(change: impl Fn(&Value) -> Option<Value> + Send + Sync + 'static) -> Result<Self> {
        Ok(Self(Https::start(move |body| review(body, &change)).await?))
    }

    /// Its URL for a configuration.
    pub fn client(&self) -> Value {
        json!({"url": self.0.url(), "caBundle": STANDARD.encode(self.0.authority())})
    }
}

/// An AdmissionReview with the answer.
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

/// A mutating or validating configuration with one webhook. It is called before objects of `[group, version, plural]`
/// with a label are created or changed, and a request fails without its answer. `name`, of both, has at least three
/// parts.
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
