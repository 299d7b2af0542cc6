//! What an apply would change in an object, field by field and three ways: the live value, the planned value, the last
//! applied value.
//!
//! Differences between source and cluster that the apply would *not* change are counted, not shown: defaults,
//! normalised values, fields of others, and fields that the API server maintains.

use std::collections::BTreeSet;

use farwater_api::{
    FIELD_MANAGER, OWNER_ANNOTATION, SERVICE_LABEL,
    plan::{FieldChange, FieldOrigin, MAX_PLANNED_FIELDS, MAX_SHOWN_VALUE},
};
use serde_json::{Map, Value};

use super::veil::Veil;

/// Replaces a secret value with a text that only tells it from other values. Called with the path and the value.
pub type Redact<'a> = &'a dyn Fn(&str, &Value) -> String;

/// The versions of one object to compare.
#[derive(Clone, Copy)]
pub struct Sides<'a> {
    pub live: &'a Value,
    /// The API server's answer to a dry run.
    pub planned: &'a Value,
    /// The manifest to send.
    pub source: &'a Value,
    /// The last sent manifest, if known.
    pub applied: Option<&'a Value>,
    /// The manifest of another render of the same files.
    pub again: Option<&'a Value>,
    /// Of a Secret: how its values are shown.
    pub redact: Option<Redact<'a>>,
    /// For an object that may contain secret values: which, and how they are shown.
    pub veiled: Option<Veiled<'a>>,
}

#[derive(Clone, Copy)]
pub struct Veiled<'a> {
    pub veil: &'a Veil,
    pub redact: Redact<'a>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    pub fields: Vec<FieldChange>,
    /// Number of changed fields that are not listed.
    pub more: u32,
    /// Number of differences that remain.
    pub hidden: u32,
    /// Our marks change, i.e. the owner of the object.
    pub marked: bool,
}

/// Compares the versions. `room`: bytes left for listed fields; it is reduced by what is listed.
pub fn compare(sides: Sides<'_>, room: &mut usize) -> Compared {
    let entries = sides.live["metadata"]["managedFields"].as_array().into_iter().flatten();
    let ours = entries.into_iter().find(|entry| {
        entry["manager"] == FIELD_MANAGER && entry["operation"] == "Apply" && entry["subresource"].is_null()
    });

    // If the last applied manifest is unknown, its secret values may be in the cluster, and the veil does not know them
    // either.
    let blind = sides.applied.is_none() && sides.veiled.is_some_and(|veiled| veiled.veil.hides(sides.source));
    let (redact, veiled, knows) = (sides.redact, sides.veiled, sides.applied.is_some());
    let compares = sides.again.is_some();
    let mut walk = Walk {
        redact,
        veiled,
        blind,
        knows,
        compares,
        room,
        out: Compared::default(),
    };
    let (mut live, mut planned) = (sides.live.clone(), sides.planned.clone());
    walk.out.hidden += take_kept(&mut live);
    take_kept(&mut planned);
    let marks = take_marks(&mut live);
    walk.out.marked = marks != take_marks(&mut planned);
    walk.out.hidden += u32::from(walk.out.marked);
    let (mut source, mut applied, mut again) = (sides.source.clone(), sides.applied.cloned(), sides.again.cloned());
    for manifest in [Some(&mut source), applied.as_mut(), again.as_mut()]
        .into_iter()
        .flatten()
    {
        take_marks(manifest);
    }

    let at = At {
        live: Some(&live),
        planned: Some(&planned),
        source: Some(&source),
        applied: applied.as_ref(),
        again: again.as_ref(),
        owned: ours.map(|entry| &entry["fieldsV1"]),
    };
    walk.visit("", at, false);
    walk.out
}

/// Removes what the API server maintains, and returns the number of removed fields. Each is one difference to the
/// source.
fn take_kept(object: &mut Value) -> u32 {
    let mut taken = 0;
    if let Some(map) = object.as_object_mut() {
        taken += u32::from(map.remove("status").is_some());
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in [
            "managedFields",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "uid",
            "selfLink",
        ] {
            taken += u32::from(metadata.remove(field).is_some());
        }
    }
    taken
}

/// Removes our own marks, and the copy of itself that kubectl writes into an object.
fn take_marks(object: &mut Value) -> Vec<Value> {
    let marks = [
        ("labels", SERVICE_LABEL),
        ("annotations", OWNER_ANNOTATION),
        ("annotations", "kubectl.kubernetes.io/last-applied-configuration"),
    ];
    let mut taken = Vec::new();
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return taken;
    };
    for (field, mark) in marks {
        let Some(map) = metadata.get_mut(field).and_then(Value::as_object_mut) else {
            continue;
        };
        taken.extend(map.remove(mark));
        if map.is_empty() {
            metadata.remove(field);
        }
    }
    taken
}

/// The same place in all versions.
#[derive(Clone, Copy)]
struct At<'a> {
    live: Option<&'a Value>,
    planned: Option<&'a Value>,
    source: Option<&'a Value>,
    applied: Option<&'a Value>,
    again: Option<&'a Value>,
    /// Of the fields that we own, in the format FieldsV1.
    owned: Option<&'a Value>,
}

impl<'a> At<'a> {
    fn each(self, step: impl Fn(&'a Value) -> Option<&'a Value>, owned: Option<&'a Value>) -> Self {
        let down = |value: Option<&'a Value>| value.and_then(&step);
        Self {
            live: down(self.live),
            planned: down(self.planned),
            source: down(self.source),
            applied: down(self.applied),
            again: down(self.again),
            owned,
        }
    }

    fn field(self, name: &str) -> Self {
        let below = self.owned.and_then(|owned| {
            if is_whole(owned) {
                Some(owned)
            } else {
                owned.get(format!("f:{name}"))
            }
        });
        self.each(|value| value.get(name), below)
    }

    fn element(self, key: &str, value: &Value) -> Self {
        let is_it = |keys: &str| {
            let keys = keys
                .strip_prefix("k:")
                .and_then(|keys| serde_json::from_str::<Map<String, Value>>(keys).ok());
            keys.is_some_and(|keys| keys.get(key) == Some(value))
        };
        let below = self.owned.and_then(|owned| match owned.as_object() {
            _ if is_whole(owned) => Some(owned),
            Some(map) => map.iter().find(|(keys, _)| is_it(keys)).map(|(_, below)| below),
            None => None,
        });
        self.each(
            |list| list.as_array()?.iter().find(|element| element.get(key) == Some(value)),
            below,
        )
    }

    fn index(self, index: usize) -> Self {
        self.each(|list| list.get(index), self.owned)
    }
}

/// Whether this is a leaf of FieldsV1: everything below is owned with it.
fn is_whole(owned: &Value) -> bool {
    owned.as_object().is_some_and(Map::is_empty)
}

/// Keys that identify elements of a list, most specific first: the merge keys of Kubernetes' own lists.
const KEYS: [&str; 8] = [
    "name",
    "mountPath",
    "containerPort",
    "port",
    "devicePath",
    "ip",
    "key",
    "type",
];

/// The key that identifies the elements of both lists. None: no key does.
pub(super) fn key_of(one: &[Value], other: &[Value]) -> Option<&'static str> {
    let tells = |key: &str, list: &[Value]| {
        let values: BTreeSet<String> = list
            .iter()
            .filter_map(|element| element.get(key).filter(|v| !v.is_object()).map(Value::to_string))
            .collect();
        values.len() == list.len()
    };
    KEYS.into_iter().find(|key| tells(key, one) && tells(key, other))
}

struct Walk<'a> {
    redact: Option<Redact<'a>>,
    veiled: Option<Veiled<'a>>,
    /// Live values may be secrets that are no longer known.
    blind: bool,
    /// The last applied manifest is known.
    knows: bool,
    /// Another render is known, to compare with.
    compares: bool,
    room: &'a mut usize,
    out: Compared,
}

impl Walk<'_> {
    /// Compares one place. `hides`: every value below is secret.
    fn visit(&mut self, path: &str, at: At<'_>, hides: bool) {
        if at.live == at.planned {
            self.out.hidden += noise(at.source, at.live);
            return;
        }
        let hides = hides || self.is_secret(path);

        // Each hidden value is hashed by itself.
        let opens = |value: Option<&Value>| value.map_or(hides || path.is_empty(), Value::is_object);
        if opens(at.live) && opens(at.planned) {
            let names: BTreeSet<&String> = [at.live, at.planned]
                .into_iter()
                .flatten()
                .filter_map(Value::as_object)
                .flat_map(Map::keys)
                .collect();
            for name in names {
                self.visit(&join(path, name), at.field(name), hides);
            }
            return;
        }

        let lists = (at.live.and_then(Value::as_array), at.planned.and_then(Value::as_array));
        if let (Some(live), Some(planned)) = lists {
            if let Some(key) = key_of(live, planned) {
                self.visit_elements(path, at, key, hides);
                return;
            }
            if live.len() == planned.len() {
                for index in 0..live.len() {
                    self.visit(&format!("{path}[{index}]"), at.index(index), hides);
                }
                return;
            }
        }
        self.note(path, at, hides);
    }

    fn visit_elements(&mut self, path: &str, at: At<'_>, key: &str, hides: bool) {
        let elements = |list: Option<&Value>| list.and_then(Value::as_array).cloned().unwrap_or_default();
        let (live, planned) = (elements(at.live), elements(at.planned));
        let gone = live
            .iter()
            .filter(|element| !planned.iter().any(|other| other[key] == element[key]));
        for element in planned.iter().chain(gone) {
            let value = &element[key];
            let shown = match self.veiled.filter(|veiled| veiled.veil.hides(value)) {
                Some(veiled) => (veiled.redact)(path, value),
                None => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
            };
            self.visit(&format!("{path}[{key}={shown}]"), at.element(key, value), hides);
        }
        let order = |list: &[Value]| list.iter().map(|element| element[key].clone()).collect::<Vec<_>>();
        let (live, planned) = (order(&live), order(&planned));
        let same: Vec<_> = live.iter().filter(|value| planned.contains(value)).collect();
        if same != planned.iter().filter(|value| live.contains(value)).collect::<Vec<_>>() {
            let (live, planned) = (Value::from(live), Value::from(planned));
            let order = At {
                live: Some(&live),
                planned: Some(&planned),
                source: None,
                applied: None,
                again: None,
                owned: None,
            };
            self.note(&format!("{path} (order)"), order, hides);
        }
    }

    fn is_secret(&self, path: &str) -> bool {
        self.redact.is_some() && matches!(path, "data" | "stringData" | "metadata.annotations")
    }

    fn note(&mut self, path: &str, at: At<'_>, hides: bool) {
        let values = [at.live, at.planned, at.applied];
        let is_veiled = |veil: &Veil| values.into_iter().flatten().any(|value| veil.hides(value));
        let veiled = self
            .veiled
            .filter(|veiled| is_veiled(veiled.veil) || (self.blind && at.live.is_some()));
        // If one of the values is hidden, all are: before the change, the same place held the old secret.
        let redact = self.redact.filter(|_| hides).or(veiled.map(|veiled| veiled.redact));
        let mut texts = values
            .map(|value| value.map(|value| redact.map_or_else(|| value.to_string(), |redact| redact(path, value))));
        shorten(&mut texts);
        let [live, planned, applied] = texts;
        let path = crate::conditions::cut(path, MAX_SHOWN_VALUE);
        let made_up = self.compares && at.source != at.again;
        let field = FieldChange {
            path,
            live,
            planned,
            applied,
            origin: self.origin(at, hides),
            made_up,
        };
        let lengths = [&field.live, &field.planned, &field.applied].map(|text| text.as_ref().map_or(0, String::len));
        // Allows for the JSON names of the field's members.
        let bytes = field.path.len() + lengths.iter().sum::<usize>() + 80;
        if self.out.fields.len() >= MAX_PLANNED_FIELDS || bytes > *self.room {
            self.out.more += 1;
            return;
        }
        *self.room -= bytes;
        self.out.fields.push(field);
    }

    /// Who changes the field. `is_secret`: a Secret's `stringData` is owned under that name but stored under another,
    /// and its values are never normalised.
    fn origin(&self, at: At<'_>, is_secret: bool) -> FieldOrigin {
        let is_owned = at.owned.is_some();
        if !self.knows {
            return if is_owned {
                FieldOrigin::Source
            } else {
                FieldOrigin::Unknown
            };
        }
        // Another manager that changes one of our values takes over the field.
        let stands = if is_secret { at.live == at.applied } else { is_owned };
        let (ours, theirs) = (at.source != at.applied, at.applied.is_some() && !stands);
        match (ours, theirs) {
            (true, true) => FieldOrigin::Both,
            (true, false) => FieldOrigin::Source,
            (false, true) => FieldOrigin::Cluster,
            (false, false) => FieldOrigin::Unknown,
        }
    }
}

fn join(path: &str, name: &str) -> String {
    let is_plain = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    match (is_plain, path.is_empty()) {
        (true, true) => name.to_owned(),
        (true, false) => format!("{path}.{name}"),
        (false, _) => format!("{path}[{}]", Value::from(name)),
    }
}

/// Number of places that a plain comparison of the two would show.
fn noise(source: Option<&Value>, live: Option<&Value>) -> u32 {
    match (source, live) {
        (one, other) if one == other => 0,
        (Some(Value::Object(one)), Some(Value::Object(other))) => {
            let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            names
                .into_iter()
                .map(|name| noise(one.get(name), other.get(name)))
                .sum()
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) if one.len() == other.len() => one
            .iter()
            .zip(other)
            .map(|(one, other)| noise(Some(one), Some(other)))
            .sum(),
        _ => 1,
    }
}

/// Cuts long texts so that they begin shortly before their first difference.
fn shorten(texts: &mut [Option<String>]) {
    const BEFORE: usize = 40;
    let begin = {
        let mut given = texts.iter().flatten();
        let Some(first) = given.next() else { return };
        let common = |text: &String| first.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
        given
            .filter(|text| *text != first)
            .map(common)
            .min()
            .unwrap_or(0)
            .saturating_sub(BEFORE)
    };
    for text in texts.iter_mut().flatten().filter(|text| text.len() > MAX_SHOWN_VALUE) {
        let mut at = begin.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let ellipsis = if at > 0 { "…" } else { "" };
        *text = crate::conditions::cut(&format!("{ellipsis}{}", &text[at..]), MAX_SHOWN_VALUE);
    }
}

#[cfg(test)]
#[path = "fields_tests.rs"]
mod tests;
