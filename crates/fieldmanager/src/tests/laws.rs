use jiff::Timestamp;
use proptest::{collection::vec, prelude::*};
use serde_json::{Map, Value, json};

use crate::{
    Duplicates, Element, FieldManager, Managers, Operation, Path, Set, Type, compare, merge, remove, to_set, validate,
};

fn element() -> impl Strategy<Value = Element> {
    prop_oneof![
        4 => "[a-c]".prop_map(|name| Element::field(&name)),
        1 => ("[a-b]", 0..2i64).prop_map(|(name, id)| {
            Element::key(vec![("name".into(), json!(name)), ("id".into(), json!(id))])
        }),
        1 => prop_oneof![Just(json!("<&>")), Just(json!(1)), Just(json!(true))].prop_map(Element::Value),
        1 => (-1..3i64).prop_map(Element::Index),
    ]
}

fn set() -> impl Strategy<Value = Set> {
    vec(vec(element(), 1..4).prop_map(Path), 0..8).prop_map(Set::of)
}

/// A kind with all types of lists, structs, maps and undeclared fields.
fn schema() -> Value {
    json!({"type": "object", "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object", "properties": {
            "name": {"type": "string"}, "uid": {"type": "string"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "managedFields": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "atomic"},
        }},
        "spec": {"type": "object", "properties": {
            "size": {"type": "integer"},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "proto"],
                "items": {"type": "object", "properties": {
                    "port": {"type": "integer"}, "proto": {"type": "string", "default": "TCP"},
                    "name": {"type": "string"},
                }}},
            "hosts": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "args": {"type": "array", "items": {"type": "string"}},
            "selector": {"type": "object", "x-kubernetes-map-type": "atomic",
                "additionalProperties": {"type": "string"}},
            "target": {"x-kubernetes-int-or-string": true},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }},
    }})
}

fn ty() -> Type {
    Type::from_openapi(&schema())
}

fn blank() -> Value {
    json!({"apiVersion": "v1", "kind": "Thing"})
}

fn letters() -> impl Strategy<Value = Value> {
    "[a-c]".prop_map(Value::from)
}

fn fields(entry: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    vec(("[a-c]", entry), 0..3).prop_map(|fields| Value::Object(fields.into_iter().collect()))
}

/// At least one item, and no duplicate keys. A list without items is not mentioned, so it has no owner.
fn items(item: impl Strategy<Value = Value>, key: fn(&Value) -> String) -> impl Strategy<Value = Value> {
    vec(item, 1..4).prop_map(move |items| {
        let mut seen = std::collections::BTreeSet::new();
        items.into_iter().filter(|item| seen.insert(key(item))).collect()
    })
}

fn port() -> impl Strategy<Value = Value> {
    let parts = (
        1..4i64,
        proptest::option::of("(TCP|UDP)"),
        proptest::option::of("[a-b]"),
    );
    parts.prop_map(|(port, proto, name)| {
        let mut item = Map::from_iter([("port".to_owned(), json!(port))]);
        item.extend(proto.map(|proto| ("proto".to_owned(), json!(proto))));
        item.extend(name.map(|name| ("name".to_owned(), json!(name))));
        item.into()
    })
}

/// A configuration with some of the fields.
fn config() -> impl Strategy<Value = Value> {
    let maybe = proptest::option::of::<BoxedStrategy<Value>>;
    let port_key = |item: &Value| format!("{} {}", item["port"], item["proto"].as_str().unwrap_or("TCP"));
    let spec = (
        maybe((0..3i64).prop_map(Value::from).boxed()),
        maybe(items(port(), port_key).boxed()),
        maybe(items(letters(), Value::to_string).boxed()),
        maybe(vec(letters(), 0..3).prop_map(Value::from).boxed()),
        maybe(fields(letters()).boxed()),
        maybe(prop_oneof![letters(), (0..3i64).prop_map(Value::from)].boxed()),
        maybe(fields(prop_oneof![letters(), fields(letters())]).boxed()),
    );
    (spec, maybe(fields(letters()).boxed())).prop_map(|(spec, labels)| {
        let names = ["size", "ports", "hosts", "args", "selector", "target", "free"];
        let values = [spec.0, spec.1, spec.2, spec.3, spec.4, spec.5, spec.6];
        let spec = names
            .into_iter()
            .zip(values)
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let mut object = blank();
        object["metadata"] = json!({"name": "a"});
        if let Some(labels) = labels {
            object["metadata"]["labels"] = labels;
        }
        object["spec"] = Value::Object(spec.collect());
        object
    })
}

fn manager() -> FieldManager {
    FieldManager::new(ty(), blank(), "", &[])
}

fn applied(live: Option<&Value>, config: &Value, name: &str) -> Value {
    let mut object = manager()
        .apply(live, config, name, true, Timestamp::UNIX_EPOCH)
        .unwrap()
        .object;
    object["metadata"]["uid"] = json!("1");
    object
}

fn owned(object: &Value, name: &str) -> Set {
    let managers = Managers::decode(object["metadata"].get("managedFields")).unwrap().0;
    managers
        .into_iter()
        .find(|(manager, _)| manager.name == name)
        .map_or_else(Set::new, |(_, owned)| owned.set)
}

fn unmanaged(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"].as_object_mut().unwrap().remove("managedFields");
    object
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sets_follow_the_laws_of_sets(a in set(), b in set(), c in set()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.union(&a), a.clone());
        prop_assert_eq!(a.intersection(&a), a.clone());
        prop_assert!(a.difference(&a).is_empty());
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert_eq!(a.difference(&b.union(&c)), a.difference(&b).difference(&c));
        prop_assert_eq!(a.intersection(&b.union(&c)), a.intersection(&b).union(&a.intersection(&c)));
        prop_assert_eq!(a.union(&b).len() + a.intersection(&b).len(), a.len() + b.len());
    }

    #[test]
    fn a_set_is_what_its_paths_are(a in set(), b in set()) {
        prop_assert_eq!(Set::of(a.paths()), a.clone());
        prop_assert_eq!(a.paths().len(), a.len());
        prop_assert!(a.paths().iter().all(|path| a.contains(path)));
        let prefixed = |path: &Path| (1..=path.0.len()).any(|n| b.contains(&Path(path.0[..n].to_vec())));
        let outside = a.paths().into_iter().filter(|path| !prefixed(path));
        prop_assert_eq!(a.recursive_difference(&b), Set::of(outside));
        let longer = |path: &Path| a.paths().iter().any(|p| p.0.len() > path.0.len() && p.0.starts_with(&path.0));
        prop_assert_eq!(a.leaves(), Set::of(a.paths().into_iter().filter(|path| !longer(path))));
    }

    #[test]
    fn sets_are_written_and_read_back(a in set()) {
        prop_assert_eq!(&Set::from_fields_v1(&a.to_fields_v1()).unwrap(), &a);
        let text = serde_json::to_string(&a).unwrap();
        prop_assert_eq!(&Set::from_fields_v1(&serde_json::from_str(&text).unwrap()).unwrap(), &a);
    }

    #[test]
    fn a_value_differs_from_itself_in_nothing(a in config(), b in config()) {
        validate(&a, &ty(), Duplicates::Refused).unwrap();
        prop_assert!(compare(&a, &a, &ty()).is_same());
        let (forth, back) = (compare(&a, &b, &ty()), compare(&b, &a, &ty()));
        prop_assert_eq!(forth.added, back.removed);
        prop_assert_eq!(forth.modified, back.modified);
    }

    #[test]
    fn a_merge_keeps_all_fields_and_the_right_leaves(a in config(), b in config()) {
        let merged = merge(&a, &b, &ty());
        validate(&merged, &ty(), Duplicates::Refused).unwrap();
        // An empty object that gets fields is no longer a leaf, and one that is replaced is not mentioned.
        let (both, all) = (to_set(&a, &ty()).union(&to_set(&b, &ty())).leaves(), to_set(&merged, &ty()).paths());
        let free = Element::field("free");
        let mentioned = |path: &Path| all.iter().any(|p| p.0.starts_with(&path.0)) || path.0.contains(&free);
        prop_assert!(both.paths().iter().all(mentioned));
        prop_assert!(compare(&merged, &merge(&merged, &b, &ty()), &ty()).is_same());
        prop_assert!(compare(&b, &merged, &ty()).removed.is_empty());
    }

    #[test]
    fn what_is_removed_is_not_mentioned(a in config(), b in config()) {
        let members = to_set(&b, &ty());
        let rest = remove(&a, &members, &ty());
        if !rest.is_null() {
            let left = to_set(&rest, &ty()).intersection(&members).leaves();
            let empty = |path: &Path| rest.pointer(&pointer(path)).is_none_or(Value::is_null);
            prop_assert!(left.paths().iter().all(empty));
        }
    }

    #[test]
    fn an_apply_is_idempotent(live in config(), config in config()) {
        let once = applied(Some(&applied(None, &live, "one")), &config, "two");
        let again = manager().apply(Some(&once), &config, "two", false, Timestamp::MAX).unwrap();
        prop_assert!(!again.changed);
        prop_assert_eq!(again.object, once);
    }

    #[test]
    fn an_applier_owns_what_it_applied(live in config(), config in config()) {
        let object = applied(Some(&applied(None, &live, "one")), &config, "two");
        let expected = to_set(&config, &ty());
        let name = ["apiVersion", "kind"].map(|name| Path(vec![Element::field(name)]));
        let unowned = Set::of(name.into_iter().chain([Path(vec![Element::field("metadata"), Element::field("name")])]));
        prop_assert_eq!(owned(&object, "two"), expected.difference(&unowned));
    }

    #[test]
    fn what_is_applied_no_more_is_gone_unless_another_owns_it(first in config(), other in config()) {
        let mut first = first;
        first["metadata"]["labels"]["z"] = json!("kept");
        let alone = applied(Some(&applied(None, &first, "one")), &other, "one");
        let fresh = applied(None, &other, "one");
        prop_assert_eq!(to_set(&unmanaged(&alone), &ty()).leaves(), to_set(&unmanaged(&fresh), &ty()).leaves());

        let shared = applied(Some(&applied(None, &first, "one")), &first, "two");
        let given_up = applied(Some(&shared), &other, "one");
        // The second apply took changed fields by force, and may have filled empty ones.
        let left = to_set(&given_up, &ty()).paths();
        let kept = owned(&given_up, "two").intersection(&to_set(&first, &ty())).leaves();
        prop_assert!(kept.paths().iter().all(|path| left.iter().any(|p| p.0.starts_with(&path.0))));
    }

    #[test]
    fn an_update_owns_what_it_changed(live in config(), new in config()) {
        let mut live = live;
        // An update of an object without owners creates none.
        live["spec"]["size"] = json!(7);
        let live = applied(None, &live, "one");
        let mut new = new;
        new["metadata"]["uid"] = json!("1");
        let updated = manager().update(Some(&live), new.clone(), "two", Timestamp::UNIX_EPOCH);
        let changes = compare(&unmanaged(&live), &new, &ty());
        prop_assert_eq!(owned(&updated, "two"), changes.modified.union(&changes.added));
        let lost = changes.modified.union(&changes.added).union(&changes.removed);
        prop_assert_eq!(owned(&updated, "one"), owned(&live, "one").difference(&lost));
        let managers = Managers::decode(updated["metadata"].get("managedFields")).unwrap();
        prop_assert!(managers.0.keys().all(|m| m.operation == Operation::Apply || m.api_version == "v1"));
    }
}

/// Only for paths of fields.
fn pointer(path: &Path) -> String {
    path.0
        .iter()
        .map(|element| format!("/{}", element.to_string().trim_start_matches('.')))
        .collect()
}
