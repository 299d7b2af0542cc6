//! Tables (`meta.k8s.io/v1`): what `kubectl get` prints.

use std::borrow::Cow;

use farwater_api::json_path;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::{Column, ResourceKind, meta, views};

/// The contents of a row's `object` (`includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    Metadata,
    Object,
}

/// An age in kubectl's form (`k8s.io/apimachinery/pkg/util/duration.HumanDuration`).
pub fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |big: i64, big_unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{big}{big_unit}")
        } else {
            format!("{big}{big_unit}{small}{small_unit}")
        }
    };
    match seconds {
        // Slightly ahead of our clock counts as now; far ahead is invalid.
        ..-1 => "<invalid>".into(),
        -1..0 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 => two(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(seconds / HOUR, "h", seconds % HOUR / MINUTE, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(seconds / DAY, "d", seconds % DAY / HOUR, "h"),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => two(seconds / YEAR, "y", seconds % YEAR / DAY, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

fn age(value: Option<&Value>, now: Timestamp) -> Value {
    let Some(text) = value.and_then(Value::as_str) else {
        return json!("<unknown>");
    };
    match text.parse::<Timestamp>() {
        Ok(time) => json!(human_duration(now.as_second() - time.as_second())),
        Err(_) => json!("<invalid>"),
    }
}

struct BuiltIn {
    name: &'static str,
    kind: &'static str,
    priority: i64,
    cell: fn(&Value, Timestamp) -> Value,
}

const fn column(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> BuiltIn {
    BuiltIn {
        name,
        kind: "string",
        priority: 0,
        cell,
    }
}

const fn wide(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> BuiltIn {
    BuiltIn {
        name,
        kind: "string",
        priority: 1,
        cell,
    }
}

fn name(object: &Value, _: Timestamp) -> Value {
    json!(meta::text(object, "name"))
}

fn created(object: &Value, now: Timestamp) -> Value {
    age(object["metadata"].get("creationTimestamp"), now)
}

fn size(field: &Value) -> usize {
    field.as_object().map_or(0, serde_json::Map::len)
}

fn subjects(object: &Value, kind: &str) -> Value {
    let of_kind = object["subjects"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|s| s["kind"] == kind);
    let names: Vec<String> = of_kind
        .map(|s| {
            let name = s["name"].as_str().unwrap_or_default();
            match s["namespace"].as_str().filter(|_| kind == "ServiceAccount") {
                Some(namespace) => format!("{namespace}/{name}"),
                None => name.to_owned(),
            }
        })
        .collect();
    json!(names.join(", "))
}

fn event_object(object: &Value, _: Timestamp) -> Value {
    let text = |field: &str| object["involvedObject"][field].as_str().unwrap_or_default();
    let kind = text("kind").to_lowercase();
    json!(if text("name").is_empty() {
        kind
    } else {
        format!("{kind}/{}", text("name"))
    })
}

fn time<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    object.pointer(path).filter(|time| time.is_string())
}

/// Events say in one of several fields when they were seen, depending on their writer's age.
fn first_seen(object: &Value, now: Timestamp) -> Value {
    age(
        time(object, "/firstTimestamp").or_else(|| time(object, "/eventTime")),
        now,
    )
}

fn last_seen(object: &Value, now: Timestamp) -> Value {
    if object["series"].is_object() {
        return age(time(object, "/series/lastObservedTime"), now);
    }
    match time(object, "/lastTimestamp") {
        Some(last) => age(Some(last), now),
        None => first_seen(object, now),
    }
}

fn event_source(object: &Value, _: Timestamp) -> Value {
    let first = |paths: [&str; 2]| {
        let texts = paths
            .into_iter()
            .filter_map(|path| object.pointer(path).and_then(Value::as_str));
        texts
            .into_iter()
            .find(|text| !text.is_empty())
            .unwrap_or_default()
            .to_owned()
    };
    let component = first(["/source/component", "/reportingComponent"]);
    let instance = first(["/source/host", "/reportingInstance"]);
    json!(if instance.is_empty() {
        component
    } else {
        format!("{component}, {instance}")
    })
}

fn event_count(object: &Value, _: Timestamp) -> Value {
    let count = if object["series"].is_object() {
        &object["series"]["count"]
    } else {
        &object["count"]
    };
    match count.as_u64() {
        None | Some(0) if !object["series"].is_object() => json!(1),
        count => json!(count.unwrap_or_default()),
    }
}

const ROLES: &[BuiltIn] = &[
    column("Name", name),
    BuiltIn {
        name: "Created At",
        kind: "date",
        priority: 0,
        cell: |o, _| o["metadata"]["creationTimestamp"].clone(),
    },
];
const BINDINGS: &[BuiltIn] = &[
    column("Name", name),
    column("Role", |o, _| {
        let text = |field: &str| o["roleRef"][field].as_str().unwrap_or_default();
        json!(format!("{}/{}", text("kind"), text("name")))
    }),
    column("Age", created),
    wide("Users", |o, _| subjects(o, "User")),
    wide("Groups", |o, _| subjects(o, "Group")),
    wide("ServiceAccounts", |o, _| subjects(o, "ServiceAccount")),
];
const DEFAULT: &[BuiltIn] = &[column("Name", name), column("Age", created)];

fn built_in(kind: &str) -> &'static [BuiltIn] {
    const NAMESPACES: &[BuiltIn] = &[
        column("Name", name),
        column("Status", |o, _| o["status"]["phase"].clone()),
        column("Age", created),
    ];
    const CONFIG_MAPS: &[BuiltIn] = &[
        column("Name", name),
        column("Data", |o, _| json!(size(&o["data"]) + size(&o["binaryData"]))),
        column("Age", created),
    ];
    const SECRETS: &[BuiltIn] = &[
        column("Name", name),
        column("Type", |o, _| o["type"].clone()),
        column("Data", |o, _| json!(size(&o["data"]))),
        column("Age", created),
    ];
    const EVENTS: &[BuiltIn] = &[
        column("Last Seen", last_seen),
        column("Type", |o, _| o["type"].clone()),
        column("Reason", |o, _| o["reason"].clone()),
        column("Object", event_object),
        wide("Subobject", |o, _| o["involvedObject"]["fieldPath"].clone()),
        wide("Source", event_source),
        column("Message", |o, _| {
            json!(o["message"].as_str().unwrap_or_default().trim())
        }),
        wide("First Seen", first_seen),
        wide("Count", event_count),
        wide("Name", name),
    ];
    const LEASES: &[BuiltIn] = &[
        column("Name", name),
        column("Holder", |o, _| o["spec"]["holderIdentity"].clone()),
        column("Age", created),
    ];
    match kind {
        "Lease" => LEASES,
        "Namespace" => NAMESPACES,
        "ConfigMap" => CONFIG_MAPS,
        "Secret" => SECRETS,
        "Event" => EVENTS,
        "Role" | "ClusterRole" => ROLES,
        "RoleBinding" | "ClusterRoleBinding" => BINDINGS,
        _ => DEFAULT,
    }
}

/// The table's `columnDefinitions`.
pub fn columns(kind: &ResourceKind) -> Value {
    let definition = |name: &str, kind: &str, description: &str, priority: i64| {
        let format = if name == "Name" { "name" } else { "" };
        json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority})
    };
    if !kind.ours {
        return built_in(&kind.kind)
            .iter()
            .map(|c| definition(c.name, c.kind, "", c.priority))
            .collect();
    }
    let own = kind
        .columns
        .iter()
        .map(|c| definition(&c.name, &c.kind, &c.description, c.priority));
    std::iter::once(definition("Name", "string", "Name of the resource.", 0))
        .chain(own)
        .collect()
}

fn custom_cell(object: &Value, column: &Column, now: Timestamp) -> Value {
    let Some(value) = json_path::first(object, &column.path) else {
        return Value::Null;
    };
    match (column.kind.as_str(), value) {
        (_, Value::Null) => Value::Null,
        ("date", value) => age(Some(value), now),
        ("string", Value::String(text)) => json!(text),
        ("string", other) => json!(other.to_string()),
        ("integer", Value::Number(n)) => n.as_i64().map_or(Value::Null, |n| json!(n)),
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        _ => Value::Null,
    }
}

/// `metadata` alone, as `PartialObjectMetadata`.
pub fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

pub fn row(kind: &ResourceKind, object: &Value, include: IncludeObject, now: Timestamp) -> Value {
    let cells: Vec<Value> = if kind.ours {
        let own = kind.columns.iter().map(|c| custom_cell(object, c, now));
        std::iter::once(name(object, now)).chain(own).collect()
    } else {
        let stored = match kind.view {
            Some(_) => Cow::Owned(views::store(kind, object.clone())),
            None => Cow::Borrowed(object),
        };
        let cells = built_in(&kind.kind).iter().map(|c| (c.cell)(&stored, now));
        cells
            .map(|cell| if cell.is_null() { json!("") } else { cell })
            .collect()
    };
    match include {
        IncludeObject::None => json!({"cells": cells, "object": null}),
        IncludeObject::Metadata => json!({"cells": cells, "object": partial(object)}),
        IncludeObject::Object => json!({"cells": cells, "object": object}),
    }
}

/// A table; without column definitions if a watch has sent them before.
pub fn table(list_meta: Value, columns: Option<Value>, rows: Vec<Value>) -> Value {
    let mut table = json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_meta, "rows": rows});
    table["columnDefinitions"] = columns.unwrap_or(Value::Null);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::REGISTRY;

    #[test]
    fn every_column_of_our_kinds_has_a_path_that_is_understood() {
        for column in REGISTRY.kinds.iter().flat_map(|kind| &kind.columns) {
            json_path::Path::parse(&column.path).unwrap();
        }
    }

    #[test]
    fn ages_are_written_as_kubectl_writes_them() {
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (601, "10m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (90_000, "25h"),
            (180_000, "2d2h"),
            (864_000, "10d"),
            (64_000_000, "2y10d"),
            (300_000_000, "9y"),
        ] {
            assert_eq!(human_duration(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn rows_have_one_cell_for_each_column() {
        for kind in REGISTRY.kinds.iter().filter(|k| k.stored) {
            let row = row(
                kind,
                &json!({"metadata": {"name": "n"}}),
                IncludeObject::None,
                Timestamp::UNIX_EPOCH,
            );
            let cells = row["cells"].as_array().unwrap();
            assert_eq!(cells.len(), columns(kind).as_array().unwrap().len(), "{}", kind.kind);
            assert!(row["object"].is_null());
        }
    }

    #[test]
    fn columns_of_our_kinds_follow_their_paths() {
        let kind = REGISTRY.find("farwater.dev", "v1alpha1", "servicedeployments").unwrap();
        let object = json!({
            "metadata": {"name": "web", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"clusterRef": {"name": "east"}, "path": ""},
            "status": {"conditions": [{"type": "Ready", "status": "True", "message": "applied"}]},
        });
        let now = "2026-01-01T00:00:30Z".parse().unwrap();
        let row = row(kind, &object, IncludeObject::Metadata, now);
        assert_eq!(row["cells"], json!(["web", "True", "applied", null, "30s", "east", ""]));
        assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    }
}
