//! Parts of messages that are hashed or signed, kept as received.

use std::{fmt, ops::Deref};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Value, value::RawValue};

use super::Statement;
use crate::{Digest, canonical_json};

/// The value that this version understands of a part of a message, and the part's whole JSON.
///
/// Digests and signatures cover the received JSON in its canonical form, including fields of a newer version that the
/// value does not hold. Serialising it again yields the received JSON.
#[derive(Clone)]
pub struct Verbatim<T> {
    value: T,
    /// Canonical JSON.
    json: Box<RawValue>,
    digest: Digest,
}

impl<T> Verbatim<T> {
    fn new(value: T, json: &Value) -> Self {
        let text = String::from_utf8(canonical_json(json)).expect("JSON is UTF-8");
        let digest = Digest::of(&text);
        Self {
            value,
            json: RawValue::from_string(text).expect("canonical JSON is JSON"),
            digest,
        }
    }

    /// Digest of the received JSON.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Signed message: `purpose`, then the received JSON. The purpose keeps signatures for one use from counting for
    /// another.
    pub fn message_for(&self, purpose: &[u8]) -> Vec<u8> {
        [purpose, self.json.get().as_bytes()].concat()
    }

    /// The value without its JSON.
    pub fn into_value(self) -> T {
        self.value
    }
}

impl Verbatim<Statement> {
    /// The signed message.
    pub fn message(&self) -> Vec<u8> {
        self.message_for(Statement::PREFIX)
    }
}

/// A value that is created here serialises to its JSON.
impl<T: Serialize> From<T> for Verbatim<T> {
    fn from(value: T) -> Self {
        let json = serde_json::to_value(&value).expect("parts of messages are plain JSON");
        Self::new(value, &json)
    }
}

impl<T> Deref for Verbatim<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> PartialEq for Verbatim<T> {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl<T> Eq for Verbatim<T> {}

impl<T: fmt::Debug> fmt::Debug for Verbatim<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T> Serialize for Verbatim<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

impl<'de, T: serde::de::DeserializeOwned> Deserialize<'de> for Verbatim<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Value::deserialize(deserializer)?;
        let value = T::deserialize(&json).map_err(D::Error::custom)?;
        Ok(Self::new(value, &json))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::{Action, AgentSettings, DesiredState, Entry, ServiceIdentity, tag};

    fn entry() -> Entry {
        Entry {
            service: ServiceIdentity {
                uid: "a".into(),
                namespace: "team".into(),
                name: "web".into(),
            },
            action: Action::Hold { reason: "x".into() },
        }
    }

    #[test]
    fn what_is_made_here_has_the_digest_that_it_always_had() {
        assert_eq!(Verbatim::from(entry()).digest(), entry().digest());
        let text = r#"{"action":{"reason":"x","type":"Hold"},"service":{"name":"web","namespace":"team","uid":"a"}}"#;
        assert_eq!(entry().digest(), Digest::of(text));
        let settings = AgentSettings {
            image: Some("i".into()),
            deadline_seconds: 300,
            ..AgentSettings::default()
        };
        assert_eq!(Verbatim::from(settings.clone()).digest(), settings.digest());
    }

    #[test]
    fn fields_of_a_newer_version_are_ignored_and_count_in_the_digest() {
        let mut json = serde_json::to_value(entry()).unwrap();
        json["service"]["colour"] = "green".into();
        json["action"]["until"] = json!({"b": [1, null], "a": 1.5});
        let read: Verbatim<Entry> = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(*read, entry());
        assert_eq!(read.digest(), Digest::of_json(&json));
        assert_ne!(read.digest(), entry().digest());
        assert_ne!(read, Verbatim::from(entry()));
        // The next reader receives all of it.
        assert_eq!(serde_json::to_value(&read).unwrap(), json);
        let again: Verbatim<Entry> = serde_json::from_str(&serde_json::to_string(&read).unwrap()).unwrap();
        assert_eq!(again, read);
        assert_eq!(tag(std::slice::from_ref(&read)), tag(&[again]));
    }

    #[test]
    fn an_absent_member_is_not_a_null() {
        let text = r#"{"deadlineSeconds":300,"log":null}"#;
        let read: Verbatim<AgentSettings> = serde_json::from_str(text).unwrap();
        assert_eq!(read.log, None);
        assert_eq!(read.digest(), Digest::of(text));
        assert_ne!(read.digest(), read.into_value().digest());
    }

    #[test]
    fn a_statement_is_verified_over_what_came() {
        let mut json = json!({
            "installation": "i", "clusterUid": "c", "epoch": 1, "generation": 2,
            "tag": Digest::of("t"), "keyId": "k",
        });
        let made: Statement = serde_json::from_value(json.clone()).unwrap();
        let read: Verbatim<Statement> = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(read.message(), made.message());
        json["until"] = 7.into();
        let read: Verbatim<Statement> = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(read.message(), [Statement::PREFIX, &canonical_json(&json)].concat());
        assert_eq!(*read, made);
    }

    #[test]
    fn a_state_of_whatever_order_and_spacing_is_the_same_state() {
        let one = r#"{"statement": {"installation":"i","clusterUid":"c","epoch":1,"generation":2,"keyId":"k",
            "tag":"sha256:0000000000000000000000000000000000000000000000000000000000000000"},
            "signature":"", "entries": [{"action": {"type":"Hold","reason":"x"}, "service": {"uid":"a","name":"b","namespace":"c"}}]}"#;
        let read: DesiredState = serde_json::from_str(one).unwrap();
        let value: Value = serde_json::from_str(one).unwrap();
        let again: DesiredState = serde_json::from_value(value).unwrap();
        assert_eq!(read, again);
        assert_eq!(read.statement.message(), again.statement.message());
    }
}
