//! Converts between objects and rows: spec and metadata apart from status, sealed or not.

use std::{collections::BTreeMap, sync::Arc};

use farwater_api::canonical_json;
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use crate::{
    JsonResource, Key, Operation, Resource, StoreError,
    seal::{Sealer, row_context},
};

pub(crate) type Labels = BTreeMap<String, String>;

/// An object split into its parts. Equal objects have equal bytes.
pub(crate) struct Parts {
    /// Without status and resourceVersion.
    object: Value,
    status_value: Option<Value>,
    pub uid: String,
    pub labels: Labels,
    /// Canonical JSON without status and resourceVersion.
    pub body: Vec<u8>,
    pub status: Option<Vec<u8>>,
}

impl Parts {
    /// Splits `object` and checks that it matches `key`.
    pub(crate) fn of(mut object: Value, key: &Key) -> Result<Self, StoreError> {
        let wrong = |problem: &str| StoreError::Object {
            key: Box::new(key.clone()),
            problem: problem.to_owned(),
        };
        if is_deeper(&object, MAX_DEPTH) {
            return Err(wrong("it is nested too deeply"));
        }

        let fields = object.as_object_mut().ok_or_else(|| wrong("not a JSON object"))?;
        let status_value = fields.remove("status").filter(|status| !status.is_null());
        let metadata = fields
            .get_mut("metadata")
            .and_then(Value::as_object_mut)
            .ok_or_else(|| wrong("it has no metadata"))?;
        metadata.remove("resourceVersion");
        let text = |field| metadata.get(field).and_then(Value::as_str).unwrap_or_default();
        if text("name") != key.name || text("namespace") != key.namespace {
            return Err(wrong("its metadata has another name or namespace"));
        }

        let uid = text("uid").to_owned();
        check_names(key, &uid).map_err(wrong)?;
        let owners = metadata
            .get("ownerReferences")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let mut owners = owners.filter_map(|owner| owner["uid"].as_str());
        if owners.any(|uid| uid.contains('\0') || uid.len() > MAX_NAME) {
            return Err(wrong("the uid of an owner is too long, or has a NUL in it"));
        }

        let labels = labels_of(metadata);
        // PostgreSQL can't read the labels of a row if one contains a NUL.
        if labels
            .iter()
            .any(|(name, value)| name.contains('\0') || value.contains('\0'))
        {
            return Err(wrong("a label has a NUL in it"));
        }
        let (body, status) = (canonical_json(&object), status_value.as_ref().map(canonical_json));
        Ok(Self {
            object,
            status_value,
            uid,
            labels,
            body,
            status,
        })
    }

    /// Puts the object together again, at `version`.
    pub(crate) fn into_object(self, version: u64) -> Value {
        let Self {
            mut object,
            status_value,
            ..
        } = self;
        complete(&mut object, status_value, version);
        object
    }
}

/// Why a key or uid can't be stored.
fn check_names(key: &Key, uid: &str) -> Result<(), &'static str> {
    if uid.is_empty() {
        return Err("its metadata has no uid");
    }
    // The context of sealing must be unambiguous.
    if [&*key.name, &*key.namespace, uid]
        .iter()
        .any(|part| part.contains('\0'))
    {
        return Err("its name, namespace or uid has a NUL in it");
    }
    if [key.kind.as_str(), &key.name, &key.namespace, uid]
        .iter()
        .any(|part| part.len() > MAX_NAME)
    {
        return Err("its kind, name, namespace or uid is too long");
    }
    Ok(())
}

/// Kubernetes' names have at most 253 bytes. Four of these together must fit an entry of PostgreSQL's index, 2,704
/// bytes.
const MAX_NAME: usize = 512;

/// serde_json reads 127 levels. A deeper object could be written, but never read.
const MAX_DEPTH: usize = 120;

fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Value::Object(fields) => levels == 0 || fields.values().any(|field| is_deeper(field, levels - 1)),
        _ => false,
    }
}

/// Adds the parts that rows store separately. False: `object` isn't an object with metadata.
fn complete(object: &mut Value, status: Option<Value>, version: u64) -> bool {
    let Some(fields) = object.as_object_mut() else {
        return false;
    };
    if let Some(status) = status {
        fields.insert("status".to_owned(), status);
    }
    let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) else {
        return false;
    };
    metadata.insert("resourceVersion".to_owned(), Value::from(version.to_string()));
    true
}

fn labels_of(metadata: &Map<String, Value>) -> Labels {
    let labels = metadata.get("labels").and_then(Value::as_object);
    labels
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// The bytes of one row, as stored.
#[derive(Clone)]
pub(crate) struct StoredParts {
    pub uid: String,
    pub version: u64,
    /// Number of the key that it is sealed with. 0: not sealed.
    pub sealed: i16,
    pub labels: String,
    pub body: Vec<u8>,
    pub status: Option<Vec<u8>>,
}

impl StoredParts {
    /// Approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len() + self.status.as_ref().map_or(0, Vec::len)
    }

    pub(crate) fn new(parts: &Parts, key: &Key, version: u64, sealer: &Sealer) -> Self {
        let Parts {
            uid,
            labels,
            body,
            status,
            ..
        } = parts;
        let uid = uid.clone();
        if sealer.seals(&key.kind) {
            let (with, context) = (sealer.current(), row_context(key, &uid));
            let seal = |plain: &[u8]| with.seal(plain, &context);
            let (body, status) = (seal(body), status.as_deref().map(seal));
            return Self {
                uid,
                version,
                sealed: with.number,
                labels: "{}".to_owned(),
                body,
                status,
            };
        }
        let labels = serde_json::to_string(labels).expect("a map of strings is plain JSON");
        Self {
            uid,
            version,
            sealed: 0,
            labels,
            body: body.clone(),
            status: status.clone(),
        }
    }

    pub(crate) fn labels(&self, key: &Key, sealer: &Sealer) -> Result<Labels, StoreError> {
        if self.sealed != 0 {
            let plain = self.clone().open(key, sealer)?;
            return Ok(labels_of_object(&parse(&plain.body, key)?));
        }
        serde_json::from_str(&self.labels).map_err(|error| unreadable(key, error.to_string()))
    }

    /// The row's content in plain text.
    pub(crate) fn open(self, key: &Key, sealer: &Sealer) -> Result<PlainParts, StoreError> {
        let open = |bytes: Vec<u8>| match self.sealed {
            0 => Ok(bytes),
            number => sealer.open_row(number, &bytes, key, &self.uid),
        };
        let body = open(self.body)?;
        let status = self.status.map(open).transpose()?;
        Ok(PlainParts {
            uid: self.uid,
            version: self.version,
            body,
            status,
        })
    }
}

/// A row's content in plain text, as canonical JSON.
pub(crate) struct PlainParts {
    pub uid: String,
    pub version: u64,
    pub body: Vec<u8>,
    pub status: Option<Vec<u8>>,
}

/// A type that rows are read as.
pub(crate) trait FromParts: Sized {
    fn from_parts(parts: PlainParts, key: Key) -> Result<Self, StoreError>;
}

impl FromParts for Resource {
    fn from_parts(parts: PlainParts, key: Key) -> Result<Self, StoreError> {
        let object = assemble(&parts.body, parts.status.as_deref(), parts.version, &key)?;
        Ok(Self {
            key,
            uid: parts.uid,
            version: parts.version,
            object: Arc::new(object),
        })
    }
}

impl FromParts for JsonResource {
    fn from_parts(parts: PlainParts, key: Key) -> Result<Self, StoreError> {
        let json = splice(&parts.body, parts.status.as_deref(), parts.version, &key)?;
        Ok(Self {
            key,
            version: parts.version,
            json,
        })
    }
}

/// The same as [`assemble`], but as text: the body is scanned, not parsed into values.
fn splice(body: &[u8], status: Option<&[u8]>, version: u64, key: &Key) -> Result<Vec<u8>, StoreError> {
    #[derive(Deserialize)]
    struct Outline<'a> {
        #[serde(borrow)]
        metadata: &'a RawValue,
    }
    let unusable = || unreadable(key, "it is no object with metadata".to_owned());
    if !(body.starts_with(b"{") && body.ends_with(b"}")) {
        return Err(unusable());
    }
    let outline: Outline<'_> = serde_json::from_slice(body).map_err(|error| unreadable(key, error.to_string()))?;
    let metadata = outline.metadata.get();
    // Never empty, because a row has a name and a uid.
    let fields = metadata
        .strip_prefix('{')
        .filter(|rest| rest.starts_with('"'))
        .ok_or_else(unusable)?;
    let at = fields.as_ptr() as usize - body.as_ptr() as usize;
    let mut json = Vec::with_capacity(body.len() + status.map_or(0, <[u8]>::len) + 64);
    json.extend_from_slice(&body[..at]);
    json.extend_from_slice(format!("\"resourceVersion\":\"{version}\",").as_bytes());
    json.extend_from_slice(&body[at..body.len() - 1]);
    if let Some(status) = status {
        let _: &RawValue = serde_json::from_slice(status).map_err(|error| unreadable(key, error.to_string()))?;
        json.extend_from_slice(b",\"status\":");
        json.extend_from_slice(status);
    }
    json.push(b'}');
    Ok(json)
}

/// Puts the whole object together again, with its resourceVersion.
pub(crate) fn assemble(body: &[u8], status: Option<&[u8]>, version: u64, key: &Key) -> Result<Value, StoreError> {
    let mut object = parse(body, key)?;
    let status = status.map(|status| parse(status, key)).transpose()?;
    if !complete(&mut object, status, version) {
        return Err(unreadable(key, "it is no object with metadata".to_owned()));
    }
    Ok(object)
}

pub(crate) fn labels_of_object(object: &Value) -> Labels {
    object
        .get("metadata")
        .and_then(Value::as_object)
        .map(labels_of)
        .unwrap_or_default()
}

/// Encodes labels, sealed with the same key as their row.
pub(crate) fn encode_labels(
    labels: &Labels,
    sealed: i16,
    key: &Key,
    uid: &str,
    sealer: &Sealer,
) -> Result<Vec<u8>, StoreError> {
    let json = serde_json::to_vec(labels).expect("a map of strings is plain JSON");
    if sealed == 0 {
        return Ok(json);
    }
    let with = sealer
        .key(sealed)
        .ok_or_else(|| unreadable(key, "it was sealed with another key".to_owned()))?;
    Ok(with.seal(&json, &row_context(key, uid)))
}

pub(crate) fn decode_labels(
    stored: Vec<u8>,
    sealed: i16,
    key: &Key,
    uid: &str,
    sealer: &Sealer,
) -> Result<Labels, StoreError> {
    let json = if sealed == 0 {
        stored
    } else {
        sealer.open_row(sealed, &stored, key, uid)?
    };
    serde_json::from_slice(&json).map_err(|error| unreadable(key, error.to_string()))
}

pub(crate) fn encode_operation(operation: Operation) -> i16 {
    match operation {
        Operation::Created => 1,
        Operation::Updated => 2,
        Operation::Deleted => 3,
    }
}

pub(crate) fn decode_operation(stored: i16, key: &Key) -> Result<Operation, StoreError> {
    match stored {
        1 => Ok(Operation::Created),
        2 => Ok(Operation::Updated),
        3 => Ok(Operation::Deleted),
        other => Err(unreadable(key, format!("its change has the unknown operation {other}"))),
    }
}

fn parse(json: &[u8], key: &Key) -> Result<Value, StoreError> {
    serde_json::from_slice(json).map_err(|error| unreadable(key, error.to_string()))
}

fn unreadable(key: &Key, problem: String) -> StoreError {
    StoreError::Row {
        what: format!("{} {}/{}", key.kind, key.namespace, key.name),
        problem,
    }
}
