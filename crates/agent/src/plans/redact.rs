//! Values of Secrets as something that tells them apart, and nothing else of them.

use aws_lc_rs::{hmac, rand};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_fleet::plan::ObjectKey;
use serde_json::{Map, Value};

/// Enough that two values of one service are never taken for each other.
const SHOWN_BYTES: usize = 8;

/// A key that never leaves the process: without it nobody can try out what a value may be.
pub struct Redactor(Option<hmac::Key>);

impl Default for Redactor {
    fn default() -> Self {
        let mut secret = [0; 32];
        Self(rand::fill(&mut secret).is_ok().then(|| hmac::Key::new(hmac::HMAC_SHA256, &secret)))
    }
}

impl Redactor {
    /// Bound to its place, so that nobody learns that two Secrets hold the same.
    pub fn hash(&self, object: &ObjectKey, path: &str, value: &Value) -> String {
        let Some(key) = &self.0 else { return "hidden".to_owned() };
        let mac = hmac::sign(key, format!("{object}\n{path}\n{value}").as_bytes());
        format!("hmac:{}", hex::encode(&mac.as_ref()[..SHOWN_BYTES]))
    }
}

pub fn is_secret(object: &ObjectKey) -> bool {
    object.group().is_empty() && object.kind() == "Secret"
}

/// `stringData` as the API server stores it.
pub fn fold_string_data(manifest: &mut Value) {
    let Some(Value::Object(texts)) = manifest.as_object_mut().and_then(|map| map.remove("stringData")) else { return };
    let data = &mut manifest["data"];
    if !data.is_object() {
        *data = Value::Object(Map::new());
    }
    for (name, text) in texts {
        data[&name] = BASE64.encode(text.as_str().unwrap_or_default()).into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_hash_tells_values_apart_and_is_of_its_place_and_process() {
        let key = |name: &str| ObjectKey::new("", "Secret", "web", name);
        let redactor = Redactor::default();
        let hash = redactor.hash(&key("a"), "data.x", &json!("aHVudGVyMg=="));
        assert_eq!(hash, redactor.hash(&key("a"), "data.x", &json!("aHVudGVyMg==")));
        assert_eq!(hash.len(), "hmac:".len() + 2 * SHOWN_BYTES);
        for other in [
            redactor.hash(&key("a"), "data.x", &json!("aHVudGVyMw==")),
            redactor.hash(&key("a"), "data.y", &json!("aHVudGVyMg==")),
            redactor.hash(&key("b"), "data.x", &json!("aHVudGVyMg==")),
            Redactor::default().hash(&key("a"), "data.x", &json!("aHVudGVyMg==")),
        ] {
            assert_ne!(hash, other);
        }
    }

    #[test]
    fn texts_become_data_as_in_the_api_server() {
        let mut manifest = json!({"data": {"a": "YQ=="}, "stringData": {"b": "hunter2", "a": "b"}});
        fold_string_data(&mut manifest);
        assert_eq!(manifest, json!({"data": {"a": "Yg==", "b": "aHVudGVyMg=="}}));
    }
}
