//! Recorded messages between agents and hubs of released versions, under `tests/wire`, and functions to replay them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Placeholder in a trace for the access token, which is not valid any more.
pub const ACCESS_TOKEN: &str = "Bearer <access token>";
/// A member, and a value of an enumeration, that no version knows.
pub const UNKNOWN_MEMBER: &str = "ofANewerVersion";
pub const UNKNOWN_WORD: &str = "OfANewerVersion";
/// Members whose text is one of a fixed set.
const WORDS: [&str; 6] = ["outcome", "sync", "health", "state", "type", "policy"];

/// Messages between agent and hub of one version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trace {
    pub version: String,
    pub protocol: u32,
    pub exchanges: Vec<Exchange>,
    /// The agent's state directory at the end. The keys of agent and hub were created for the recording.
    #[serde(skip)]
    pub identity: Value,
    #[serde(skip)]
    pub state: Value,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exchange {
    /// Name of the example. None: the exchange is no example.
    pub name: String,
    pub request: Request,
    pub answer: Answer,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    pub method: String,
    pub path: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Body>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    pub status: u16,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Body>,
}

/// The body, decoded from its transfer encoding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Body {
    Json(Value),
    Base64(String),
}

impl Body {
    /// None: there is no body.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return None;
        }
        Some(serde_json::from_slice(bytes).map_or_else(|_| Self::Base64(BASE64.encode(bytes)), Self::Json))
    }

    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Json(value) => value.to_string().into_bytes(),
            Self::Base64(text) => BASE64.decode(text).unwrap_or_default(),
        }
    }

    pub fn json(&self) -> Option<&Value> {
        match self {
            Self::Json(value) => Some(value),
            Self::Base64(_) => None,
        }
    }
}

impl Exchange {
    /// JSON of the request's body. Null: there is none.
    pub fn asked(&self) -> Value {
        self.request
            .body
            .as_ref()
            .and_then(Body::json)
            .cloned()
            .unwrap_or_default()
    }

    /// JSON of the answer's body. Null: there is none.
    pub fn answered(&self) -> Value {
        self.answer
            .body
            .as_ref()
            .and_then(Body::json)
            .cloned()
            .unwrap_or_default()
    }

    /// Kind of the exchange: the first significant part of the path, such as `desired`.
    pub fn kind(&self) -> &str {
        self.request
            .path
            .trim_start_matches("/agent/v1/")
            .split('/')
            .next()
            .unwrap_or_default()
    }

    pub fn is(&self, kind: &str, status: u16) -> bool {
        self.kind() == kind && self.answer.status == status
    }
}

impl Trace {
    pub fn folder(version: &str) -> PathBuf {
        root().join(format!("v{version}"))
    }

    pub fn load(folder: &Path) -> Result<Self> {
        let read = |name: &str| -> Result<Vec<u8>> {
            let path = folder.join(name);
            fs::read(&path).with_context(|| format!("read {}", path.display()))
        };
        let mut trace: Self = serde_json::from_slice(&read("trace.json")?).context("trace.json")?;
        trace.identity = serde_json::from_slice(&read("identity.json")?).context("identity.json")?;
        trace.state = serde_json::from_slice(&read("state.json")?).context("state.json")?;
        Ok(trace)
    }

    pub fn save(&self) -> Result<()> {
        let folder = Self::folder(&self.version);
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        let write = |name: &str, value: &Value| fs::write(folder.join(name), format!("{value:#}\n"));
        write("trace.json", &serde_json::to_value(self)?)?;
        write("identity.json", &self.identity)?;
        write("state.json", &self.state)?;
        Ok(())
    }

    /// The first exchange of this kind and status.
    pub fn first(&self, kind: &str, status: u16) -> Result<&Exchange> {
        let found = self.exchanges.iter().find(|exchange| exchange.is(kind, status));
        found.with_context(|| format!("version {} has no {kind} that was answered {status}", self.version))
    }

    /// All desired states.
    pub fn desired(&self) -> impl Iterator<Item = Value> {
        self.exchanges
            .iter()
            .filter(|exchange| exchange.is("desired", 200))
            .map(Exchange::answered)
    }

    /// All entries of all desired states.
    pub fn entries(&self) -> impl Iterator<Item = Value> {
        self.desired()
            .flat_map(|state| state["entries"].as_array().cloned().unwrap_or_default())
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/wire")
}

/// Traces of all kept versions, the oldest first.
pub fn kept() -> Result<Vec<Trace>> {
    let root = root();
    let mut traces = Vec::new();
    for entry in fs::read_dir(&root).with_context(|| format!("read {}", root.display()))? {
        let folder = entry?.path();
        if folder.is_dir() {
            traces.push(Trace::load(&folder).with_context(|| format!("read {}", folder.display()))?);
        }
    }
    ensure!(!traces.is_empty(), "no trace is kept in {}", root.display());
    traces.sort_by_key(|trace| trace.protocol);
    Ok(traces)
}

/// Reads a message as this version does. An error names the member that can't be read, or that is no longer read.
pub fn understand<T: DeserializeOwned + Serialize>(message: &Value) -> Result<T> {
    let read: T = match T::deserialize(message) {
        Ok(read) => read,
        Err(error) => bail!("{}: {error}", culprit::<T>(message, &error.to_string())),
    };
    let lost = lost(message, &serde_json::to_value(&read)?);
    ensure!(lost.is_empty(), "not read any more: {}", lost.join(", "));
    Ok(read)
}

/// The member that caused the error, because serde does not report it. Its value appears in the error, and without it
/// the message gives another error or none.
fn culprit<T: DeserializeOwned>(message: &Value, error: &str) -> String {
    let quoted = |value: &Value| match value {
        Value::Null => error.contains("null"),
        Value::Object(_) => error.contains("map"),
        Value::Array(_) => error.contains("sequence"),
        Value::String(text) => error.contains(text.as_str()),
        scalar => error.contains(&scalar.to_string()),
    };
    let is_culprit = |pointer: &String| {
        let (parent, member) = pointer.rsplit_once('/').unwrap_or(("", ""));
        let mut without = message.clone();
        if let Some(Value::Object(object)) = without.pointer_mut(parent) {
            object.remove(&member.replace("~1", "/").replace("~0", "~"));
        }
        message.pointer(pointer).is_some_and(quoted)
            && T::deserialize(&without).map_or_else(|other| other.to_string() != error, |_| true)
    };
    pointers(message)
        .into_iter()
        .rev()
        .find(is_culprit)
        .unwrap_or_else(|| "the message".to_owned())
}

/// Members of `message` that are missing or different in `read`.
fn lost(message: &Value, read: &Value) -> Vec<String> {
    let differs = |pointer: &String| match (message.pointer(pointer), read.pointer(pointer)) {
        (Some(Value::Object(_)), Some(Value::Object(_))) => false,
        (Some(Value::Array(one)), Some(Value::Array(other))) => one.len() != other.len(),
        (one, other) => one != other,
    };
    let mut all: Vec<String> = Vec::new();
    for pointer in pointers(message).into_iter().filter(differs) {
        // Members inside a missing member are missing too, so don't list them.
        if !all.iter().any(|lost| {
            pointer
                .strip_prefix(lost.as_str())
                .is_some_and(|rest| rest.starts_with('/'))
        }) {
            all.push(pointer);
        }
    }
    all
}

/// JSON pointers to everything inside a value.
fn pointers(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(value, String::new(), &mut |pointer, _| found.push(pointer.to_owned()));
    found.remove(0);
    found
}

fn walk(value: &Value, pointer: String, visit: &mut impl FnMut(&str, &Value)) {
    visit(&pointer, value);
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                walk(
                    value,
                    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1")),
                    visit,
                );
            }
        }
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                walk(item, format!("{pointer}/{n}"), visit);
            }
        }
        _ => {}
    }
}

/// Members that all of these values have. `*` stands for any index of an array.
pub fn common_members(messages: &[Value]) -> BTreeSet<String> {
    let members = |message: &Value| -> BTreeSet<String> {
        let general = |pointer: String| {
            let parts = pointer
                .split('/')
                .map(|part| if part.parse::<usize>().is_ok() { "*" } else { part });
            parts.collect::<Vec<_>>().join("/")
        };
        pointers(message).into_iter().map(general).collect()
    };
    let all = messages
        .iter()
        .map(members)
        .reduce(|one, other| one.intersection(&other).cloned().collect());
    all.unwrap_or_default()
}

/// The message as a newer version might write it, with an unknown member. One result for each object, except those at
/// `maps`, whose members are data. The last result has one in all of them.
pub fn with_unknown_members(message: &Value, maps: &[&str]) -> Vec<(String, Value)> {
    let mut objects = Vec::new();
    walk(message, String::new(), &mut |pointer, value| {
        if value.is_object() && !maps.contains(&pointer) {
            objects.push(pointer.to_owned());
        }
    });
    let extend = |message: &mut Value, pointer: &str| {
        if let Some(Value::Object(object)) = message.pointer_mut(pointer) {
            object.insert(
                UNKNOWN_MEMBER.to_owned(),
                serde_json::json!({"list": [1, null, "x"], "flag": true}),
            );
        }
    };
    let mut variants = Vec::new();
    let mut all = message.clone();
    for pointer in objects {
        let mut one = message.clone();
        extend(&mut one, &pointer);
        extend(&mut all, &pointer);
        variants.push((format!("an unknown member in {pointer:?}"), one));
    }
    variants.push(("an unknown member in every object".to_owned(), all));
    variants
}

/// The message with an unknown value of an enumeration, once for each place of one.
pub fn with_unknown_words(message: &Value) -> Vec<(String, Value)> {
    let mut variants = Vec::new();
    for pointer in pointers(message) {
        let is_word = pointer
            .rsplit_once('/')
            .is_some_and(|(_, member)| WORDS.contains(&member));
        let mut one = message.clone();
        if is_word && let Some(word @ Value::String(_)) = one.pointer_mut(&pointer) {
            *word = UNKNOWN_WORD.into();
            variants.push((pointer, one));
        }
    }
    variants
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Inner {
        count: u64,
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Outer {
        inner: Vec<Inner>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    }

    #[test]
    fn a_member_that_has_changed_is_named() {
        let check = |message: Value, expected: &str| {
            let error = understand::<Outer>(&message).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        assert!(understand::<Outer>(&json!({"inner": [{"count": 1}], "note": "x"})).is_ok());
        check(
            json!({"inner": [{"count": 1}, {"count": "2"}]}),
            "/inner/1/count: invalid type",
        );
        check(json!({"inner": {"count": 1}}), "/inner: invalid type: map");
        check(json!({"note": "x"}), "the message: missing field `inner`");
        check(
            json!({"inner": [{"count": 1}], "remark": "x"}),
            "not read any more: /remark",
        );
        let lost = understand::<Outer>(&json!({"inner": [], "a": {"b": 1}, "ab": 2})).unwrap_err();
        assert_eq!(lost.to_string(), "not read any more: /a, /ab");
    }

    #[test]
    fn unknown_things_are_put_everywhere_but_into_data() {
        let message = json!({"services": {"uid": {"outcome": "Applied"}}, "list": [{"a": 1}]});
        let found: Vec<String> = with_unknown_members(&message, &["/services"])
            .into_iter()
            .map(|(at, _)| at)
            .collect();
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(
            found[1].contains("/list/0") && found[2].contains("/services/uid"),
            "{found:?}"
        );
        let words = with_unknown_words(&message);
        assert_eq!(words[0].1["services"]["uid"]["outcome"], UNKNOWN_WORD);
        let members = common_members(&[message, json!({"list": [{"a": 2, "b": 3}]})]);
        assert_eq!(
            members.into_iter().collect::<Vec<_>>(),
            ["/list", "/list/*", "/list/*/a"]
        );
    }

    /// `0.1.0` belongs to the release (0, 1).
    fn release(version: &str) -> (u64, u64) {
        let mut numbers = version.split(['.', '-', '+']).map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    #[test]
    fn the_traces_of_this_release_and_the_two_before_it_are_kept() {
        use farwater_api::protocol::{MAX_SKEW, PROTOCOL};
        let kept = kept().unwrap();
        let numbers: BTreeSet<u32> = kept.iter().map(|trace| trace.protocol).collect();
        let releases: BTreeSet<_> = kept.iter().map(|trace| release(&trace.version)).collect();
        assert_eq!(
            numbers.len(),
            releases.len(),
            "each minor release has a protocol of its own"
        );
        let newest = kept.last().unwrap();
        let is_new = release(env!("CARGO_PKG_VERSION")) > release(&newest.version);
        assert_eq!(
            PROTOCOL,
            newest.protocol + u32::from(is_new),
            "PROTOCOL is one more with each minor release"
        );
        let wanted: BTreeSet<u32> = (PROTOCOL.saturating_sub(MAX_SKEW).max(1)..=newest.protocol).collect();
        assert_eq!(numbers, wanted);
    }

    #[test]
    fn bodies_are_readable_where_they_can_be() {
        assert_eq!(Body::of(b""), None);
        assert_eq!(Body::of(b"{\"a\":1}"), Some(Body::Json(json!({"a": 1}))));
        assert_eq!(Body::of(&[0x28, 0xb5]).unwrap().bytes(), [0x28, 0xb5]);
    }
}
