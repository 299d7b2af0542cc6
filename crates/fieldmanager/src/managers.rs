//! `metadata.managedFields`: each manager's set, read and written.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{fields_v1::FieldsError, set::Set};

/// Maximum number of managers of updates (`DefaultMaxUpdateManagers`). Older ones become one.
const MOST_UPDATERS: usize = 10;
const ANCIENT: &str = "ancient-changes";
/// Maximum size of all managers' fields, in bytes. The number of managers that apply has no other limit. An object of
/// the largest size that the API accepts, with a few managers, stays far below.
const LARGEST: usize = 8 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// An owner of fields. A manager that applies is the same in all versions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    pub name: String,
    pub operation: Operation,
    /// Empty for a manager that applies.
    pub api_version: String,
    /// Empty for the resource itself.
    pub subresource: String,
}

impl Manager {
    pub fn new(name: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        let text = |text: &str| text.to_owned();
        let api_version = if operation == Operation::Apply {
            String::new()
        } else {
            text(api_version)
        };
        let name = if name.is_empty() { "unknown" } else { name };
        Self {
            name: text(name),
            operation,
            api_version,
            subresource: text(subresource),
        }
    }
}

/// The name in conflicts.
impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name)?;
        if !self.subresource.is_empty() {
            write!(f, " with subresource {:?}", self.subresource)?;
        }
        if self.operation == Operation::Update {
            write!(f, " using {}", self.api_version)?;
        }
        Ok(())
    }
}

/// The fields of a manager, and the time of their last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub set: Set,
    pub api_version: String,
    pub time: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managers(pub BTreeMap<Manager, Owned>);

#[derive(Debug, thiserror::Error)]
pub enum ManagedFieldsError {
    #[error("managed fields are a list of objects")]
    Shape,
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    #[error("apiVersion must not be empty")]
    ApiVersion,
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    #[error("invalid fieldsType {1:?} in managed fields entry {0}")]
    FieldsType(usize, String),
    #[error("error decoding set of {0:?}")]
    Set(String, #[source] FieldsError),
    #[error("error decoding time of {0:?}")]
    Time(String, #[source] jiff::Error),
}

impl Managers {
    /// Reads `metadata.managedFields`. Absent: no managers.
    pub fn decode(entries: Option<&Value>) -> Result<Self, ManagedFieldsError> {
        let entries = match entries {
            None | Some(Value::Null) => return Ok(Self::default()),
            Some(Value::Array(entries)) => entries,
            Some(_) => return Err(ManagedFieldsError::Shape),
        };
        let each = entries.iter().enumerate().map(|(n, entry)| decode_entry(n, entry));
        each.collect::<Result<_, _>>().map(Self)
    }

    /// The value of `metadata.managedFields`: managers that apply first, then by time and name.
    pub fn encode(&self) -> Vec<Value> {
        let mut entries: Vec<_> = self.0.iter().collect();
        entries.sort_by(|(a, owned_a), (b, owned_b)| {
            let seconds = |owned: &Owned| owned.time.map_or(0, Timestamp::as_second);
            (a.operation.cmp(&b.operation))
                .then(seconds(owned_a).cmp(&seconds(owned_b)))
                .then_with(|| a.name.cmp(&b.name))
                .then_with(|| owned_a.api_version.cmp(&owned_b.api_version))
                .then_with(|| a.subresource.cmp(&b.subresource))
        });
        entries
            .into_iter()
            .map(|(manager, owned)| encode_entry(manager, owned))
            .collect()
    }

    /// Whether the managers exceed the limit of an object.
    pub(crate) fn is_too_large(&self) -> bool {
        let size = |(manager, owned): (&Manager, &Owned)| manager.name.len() + owned.set.size();
        self.0.iter().map(size).sum::<usize>() > LARGEST
    }

    /// Combines the oldest updaters of a version until the number is within the limit.
    pub(crate) fn cap(&mut self) {
        let updaters = self
            .0
            .iter()
            .filter(|(manager, _)| manager.operation == Operation::Update);
        let mut updaters: Vec<_> = updaters.map(|(manager, owned)| (manager.clone(), owned.time)).collect();
        if updaters.len() <= MOST_UPDATERS {
            return;
        }
        let seconds = |time: &Option<Timestamp>| time.map_or(0, Timestamp::as_second);
        updaters.sort_by(|(a, time_a), (b, time_b)| seconds(time_a).cmp(&seconds(time_b)).then_with(|| a.cmp(b)));
        let mut length = updaters.len();
        let mut first_of_version: BTreeMap<String, Manager> = BTreeMap::new();
        for (manager, time) in updaters {
            if length <= MOST_UPDATERS {
                break;
            }
            let Some(first) = first_of_version.get(&manager.api_version) else {
                first_of_version.insert(manager.api_version.clone(), manager);
                continue;
            };
            let bucket = Manager::new(ANCIENT, Operation::Update, &manager.api_version, "");
            if !self.0.contains_key(&bucket)
                && let Some(owned) = self.0.remove(first)
            {
                self.0.insert(bucket.clone(), owned);
            }
            let Some(owned) = self.0.remove(&manager) else { continue };
            let ancient = self.0.entry(bucket).or_insert_with(|| owned.clone());
            ancient.set = ancient.set.union(&owned.set);
            ancient.time = time;
            length -= 1;
        }
    }
}

fn text<'a>(entry: &'a Map<String, Value>, field: &str) -> &'a str {
    entry.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn decode_entry(n: usize, entry: &Value) -> Result<(Manager, Owned), ManagedFieldsError> {
    let entry = entry.as_object().ok_or(ManagedFieldsError::Shape)?;
    let operation = match text(entry, "operation") {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err(ManagedFieldsError::Operation),
    };
    let api_version = text(entry, "apiVersion");
    if api_version.is_empty() {
        return Err(ManagedFieldsError::ApiVersion);
    }
    match text(entry, "fieldsType") {
        "FieldsV1" => {}
        "" => return Err(ManagedFieldsError::NoFieldsType(n)),
        other => return Err(ManagedFieldsError::FieldsType(n, other.to_owned())),
    }
    let name = text(entry, "manager").to_owned();
    let set = match entry.get("fieldsV1").filter(|fields| !fields.is_null()) {
        Some(fields) => Set::from_fields_v1(fields).map_err(|why| ManagedFieldsError::Set(name.clone(), why))?,
        None => Set::new(),
    };
    let time = entry.get("time").and_then(Value::as_str).map(str::parse).transpose();
    let time = time.map_err(|why| ManagedFieldsError::Time(name.clone(), why))?;
    let subresource = text(entry, "subresource").to_owned();
    let owned = Owned {
        set,
        api_version: api_version.to_owned(),
        time,
    };
    let api_version = if operation == Operation::Apply {
        String::new()
    } else {
        api_version.to_owned()
    };
    Ok((
        Manager {
            name,
            operation,
            api_version,
            subresource,
        },
        owned,
    ))
}

fn encode_entry(manager: &Manager, owned: &Owned) -> Value {
    let mut entry = json!({
        "operation": manager.operation.name(),
        "apiVersion": owned.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": owned.set.to_fields_v1(),
    });
    if !manager.name.is_empty() {
        entry["manager"] = json!(manager.name);
    }
    if let Some(time) = owned.time {
        entry["time"] = json!(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    }
    if !manager.subresource.is_empty() {
        entry["subresource"] = json!(manager.subresource);
    }
    entry
}

/// Whether the managed fields of two objects differ only in times.
pub(crate) fn same_but_times(a: &[Value], b: &[Value]) -> bool {
    fn fields(entry: &Value) -> impl Iterator<Item = (&String, &Value)> {
        entry
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| *name != "time")
    }
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| fields(a).eq(fields(b)))
}
