//! Replaces secret values by hashes that only tell them apart.

use aws_lc_rs::{hmac, rand};
use farwater_fleet::plan::ObjectKey;
use serde_json::Value;

/// Bytes shown: enough that two values of one service never look equal.
const SHOWN_BYTES: usize = 8;

/// A key that never leaves the process, so that values can't be guessed by trying.
pub struct Redactor(Option<hmac::Key>);

impl Default for Redactor {
    fn default() -> Self {
        let mut secret = [0; 32];
        Self(
            rand::fill(&mut secret)
                .is_ok()
                .then(|| hmac::Key::new(hmac::HMAC_SHA256, &secret)),
        )
    }
}

impl Redactor {
    /// Includes the place in the hash, so that equal values of two Secrets don't look equal.
    pub fn hash(&self, object: &ObjectKey, path: &str, value: &Value) -> String {
        let Some(key) = &self.0 else { return "hidden".to_owned() };
        let mac = hmac::sign(key, format!("{object}\n{path}\n{value}").as_bytes());
        format!("hmac:{}", hex::encode(&mac.as_ref()[..SHOWN_BYTES]))
    }
}

pub fn is_secret(object: &ObjectKey) -> bool {
    object.group().is_empty() && object.kind() == "Secret"
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
}
