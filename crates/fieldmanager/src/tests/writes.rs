use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{ApplyError, FieldManager, Managers, Set, Type};

fn schema() -> Value {
    let text = json!({"type": "string"});
    json!({"type": "object", "properties": {
        "apiVersion": text, "kind": text,
        "metadata": {"type": "object", "properties": {
            "name": text, "namespace": text, "uid": text,
            "annotations": {"type": "object", "additionalProperties": text},
            "managedFields": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "atomic"},
        }},
        "data": {"type": "object", "additionalProperties": text},
        "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            "items": {"type": "object", "properties": {"type": text, "status": text}}},
        "hosts": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
        "status": {"type": "object", "properties": {"phase": text}},
    }})
}

fn manager() -> FieldManager {
    let blank = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    FieldManager::new(Type::from_openapi(&schema()), blank, "", &["status"])
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn object(rest: &Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "b"}});
    object
        .as_object_mut()
        .unwrap()
        .extend(rest.as_object().unwrap().clone());
    object
}

/// The object after some applies of (manager, configuration).
fn after(applies: &[(&str, Value)]) -> Value {
    applies.iter().fold(Value::Null, |live, (name, config)| {
        let live = Some(&live).filter(|live| live.is_object());
        let mut object = manager()
            .apply(live, &object(config), name, true, at(1))
            .unwrap()
            .object;
        object["metadata"]["uid"] = json!("1");
        object
    })
}

fn conflicts(live: &Value, name: &str, config: &Value) -> String {
    manager()
        .apply(Some(live), &object(config), name, false, at(9))
        .unwrap_err()
        .to_string()
}

/// Each manager's name, operation and fields.
fn managers(object: &Value) -> Vec<(String, String, String)> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let entries = entries.map(|e| {
        let set = Set::from_fields_v1(&e["fieldsV1"])
            .unwrap()
            .to_string()
            .replace('\n', " ");
        (text(&e["manager"]), text(&e["operation"]), set)
    });
    entries.collect()
}

fn entry(name: &str, operation: &str, set: &str) -> (String, String, String) {
    (name.to_owned(), operation.to_owned(), set.to_owned())
}

#[test]
fn a_conflict_names_manager_and_field() {
    let live = after(&[("one", json!({"data": {"a": "1", "b": "1"}}))]);
    assert_eq!(
        conflicts(&live, "two", &json!({"data": {"a": "2"}})),
        "Apply failed with 1 conflict: conflict with \"one\": .data.a"
    );
    let live = manager().update(
        Some(&live),
        object(&json!({"data": {"a": "1", "b": "3"}})),
        "ctl",
        at(2),
    );
    assert_eq!(
        conflicts(&live, "two", &json!({"data": {"a": "2", "b": "2"}})),
        "Apply failed with 2 conflicts: conflicts with \"ctl\" using v1:\n- .data.b\nconflicts with \"one\":\n- .data.a"
    );
}

#[test]
fn what_two_appliers_agree_on_is_shared_and_goes_with_the_last() {
    let (one, both) = (json!({"data": {"a": "1"}}), json!({"data": {"a": "1", "b": "2"}}));
    let live = after(&[
        ("one", both.clone()),
        ("two", one.clone()),
        ("one", json!({"data": {"b": "2"}})),
    ]);
    assert_eq!(live["data"], json!({"a": "1", "b": "2"}));
    assert_eq!(
        managers(&live),
        [entry("two", "Apply", ".data.a"), entry("one", "Apply", ".data.b")]
    );
    let live = after(&[("one", both), ("one", one)]);
    assert_eq!(live["data"], json!({"a": "1"}));
}

#[test]
fn an_applier_that_changes_nothing_gets_no_time() {
    let config = json!({"data": {"a": "1"}});
    let live = after(&[("one", config.clone())]);
    let applied = manager()
        .apply(Some(&live), &object(&config), "two", false, at(5))
        .unwrap();
    assert!(!applied.changed);
    let entries = applied.object["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!((&entries[0]["manager"], entries[0].get("time")), (&json!("two"), None));
    assert_eq!(entries[1]["time"], "1970-01-01T00:00:01Z");
}

#[test]
fn items_of_keyed_lists_are_owned_field_by_field() {
    let ready = |status: &str| json!({"conditions": [{"type": "Ready", "status": status}], "hosts": ["x"]});
    let other = json!({"conditions": [{"type": "Other", "status": "True"}], "hosts": ["y"]});
    let live = after(&[("one", ready("True")), ("two", other)]);
    assert_eq!(live["hosts"], json!(["x", "y"]));
    assert_eq!(live["conditions"].as_array().unwrap().len(), 2);
    assert_eq!(
        managers(&live)[0].2,
        ".conditions[type=\"Ready\"] .conditions[type=\"Ready\"].status .conditions[type=\"Ready\"].type .hosts[=\"x\"]"
    );
    assert_eq!(
        conflicts(&live, "two", &ready("False")),
        "Apply failed with 1 conflict: conflict with \"one\": .conditions[type=\"Ready\"].status"
    );
    let twice = json!({"hosts": ["x", "x"], "conditions": [{"status": "True"}]});
    assert_eq!(
        conflicts(&live, "two", &twice),
        "failed to create typed patch object (b/a; /v1, Kind=ConfigMap): errors:\n  .conditions: element 0: associative \
         list with keys has an element that omits all key fields [\"type\"] (and doesn't have default values for any key \
         fields)\n  .hosts: duplicate entries for key [=\"x\"]"
    );
}

#[test]
fn what_is_no_configuration_of_the_kind_is_refused() {
    let check = |config: Value, expected: &str| {
        let error = manager().apply(None, &config, "one", false, at(1)).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(
        json!({"apiVersion": "v2", "kind": "ConfigMap"}),
        "invalid object type: /v2, Kind=ConfigMap",
    );
    check(
        json!({"apiVersion": "a/v1", "kind": "X"}),
        "invalid object type: a/v1, Kind=X",
    );
    check(
        object(&json!({"metadata": {"managedFields": []}})),
        "metadata.managedFields must be nil",
    );
    let head = "failed to create typed patch object (b/a; /v1, Kind=ConfigMap): ";
    check(
        object(&json!({"x": 1})),
        &format!("{head}.x: field not declared in schema"),
    );
    check(
        object(&json!({"data": {"a": 5}})),
        &format!("{head}.data.a: expected string, got &value.valueUnstructured{{Value:5}}"),
    );
    check(
        object(&json!({"data": [1]})),
        &format!("{head}.data: expected map, got &{{[1]}}"),
    );
    check(
        object(&json!({"hosts": {"a": true}})),
        &format!("{head}.hosts: expected list, got &{{map[a:true]}}"),
    );
}

#[test]
fn updates_are_tracked_from_the_first() {
    let made = manager().update(
        None,
        object(&json!({"data": {"a": "1"}, "status": {"phase": "x"}})),
        "one",
        at(1),
    );
    assert_eq!(managers(&made), [entry("one", "Update", ".data .data.a")]);
    let mut live = made;
    live["metadata"]["uid"] = json!("1");
    let changed = manager().update(
        Some(&live),
        object(&json!({"data": {"a": "2", "b": "1"}})),
        "two",
        at(2),
    );
    assert_eq!(
        managers(&changed),
        [
            entry("one", "Update", ".data"),
            entry("two", "Update", ".data.a .data.b")
        ]
    );
    let same = manager().update(Some(&live), object(&json!({"data": {"a": "1"}})), "two", at(3));
    assert_eq!(managers(&same), [entry("one", "Update", ".data .data.a")]);
}

#[test]
fn clients_may_forget_managers_and_change_them_but_not_break_them() {
    let live = after(&[("one", json!({"data": {"a": "1"}}))]);
    let send = |managed: Value| {
        let mut new = object(&json!({"data": {"a": "1"}}));
        new["metadata"]["managedFields"] = managed;
        managers(&manager().update(Some(&live), new, "two", at(2)))
    };
    let kept = [entry("one", "Apply", ".data.a")];
    assert_eq!(send(json!([])), []);
    assert_eq!(send(json!([{}])), []);
    assert_eq!(send(Value::Null), kept);
    assert_eq!(send(json!([{"manager": "x", "operation": "Foo"}])), kept);
    assert_eq!(send(json!("x")), kept);
    let other = json!([{"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}, "x:later": {}}}}]);
    assert_eq!(send(other), [entry("x", "Update", ".data.a")]);
}

#[test]
fn what_nobody_was_tracked_for_belongs_to_before_the_first_apply() {
    let mut live = object(&json!({"data": {"a": "1", "b": "1"}}));
    live["metadata"]["uid"] = json!("1");
    assert_eq!(managers(&manager().update(Some(&live), live.clone(), "one", at(1))), []);
    let config = object(&json!({"data": {"a": "1"}}));
    let applied = manager()
        .apply(Some(&live), &config, "two", false, at(2))
        .unwrap()
        .object;
    assert_eq!(
        managers(&applied),
        [
            entry("two", "Apply", ".data.a"),
            entry("before-first-apply", "Update", ".data .data.a .data.b")
        ]
    );
}

#[test]
fn the_oldest_updaters_become_one() {
    let mut live = after(&[("one", json!({"data": {"a": "0"}}))]);
    for n in 1..=12i64 {
        let mut new = live.clone();
        new["data"][format!("k{n}")] = json!("x");
        live = manager().update(Some(&live), new, &format!("m{n:02}"), at(n));
    }
    let names: Vec<_> = managers(&live).into_iter().map(|(name, ..)| name).collect();
    let expected = [
        "one",
        "ancient-changes",
        "m04",
        "m05",
        "m06",
        "m07",
        "m08",
        "m09",
        "m10",
        "m11",
        "m12",
    ];
    assert_eq!(names, expected);
    assert_eq!(managers(&live)[1].2, ".data.k1 .data.k2 .data.k3");
}

#[test]
fn kubectl_goes_on_where_its_client_side_apply_ended() {
    let last = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "b"},
        "data": {"a": "1", "b": "1"}});
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let mut live = object(&json!({"data": {"a": "1", "b": "1"}}));
    live["metadata"]["annotations"] = json!({annotation: last.to_string()});
    live = manager().update(None, live, "kubectl-client-side-apply", at(1));
    live["metadata"]["uid"] = json!("1");

    let config = object(&json!({"data": {"a": "2"}}));
    let applied = manager()
        .apply(Some(&live), &config, "kubectl", false, at(2))
        .unwrap()
        .object;
    assert_eq!(applied["data"]["a"], "2");
    assert_eq!(applied["metadata"]["annotations"][annotation], format!("{config}\n"));
    assert!(manager().apply(Some(&live), &config, "other", false, at(2)).is_err());

    let other = manager().update(
        Some(&live),
        object(&json!({"data": {"a": "1", "b": "5"}})),
        "ctl",
        at(2),
    );
    let mut other = other;
    other["metadata"]["annotations"] = live["metadata"]["annotations"].clone();
    assert_eq!(
        conflicts(&other, "kubectl", &json!({"data": {"a": "3", "b": "3"}})),
        "Apply failed with 1 conflict: conflict with \"ctl\" using v1: .data.b"
    );
}

#[test]
fn times_alone_are_no_change() {
    let old = after(&[("one", json!({"data": {"a": "1"}}))]);
    let later = |object: &Value| {
        let mut object = object.clone();
        object["metadata"]["managedFields"][0]["time"] = json!("2026-01-01T00:00:00Z");
        object
    };
    let mut new = later(&old);
    FieldManager::keep_times(&old, &mut new);
    assert_eq!(new, old);
    new = later(&old);
    new["data"]["a"] = json!("2");
    let changed = new.clone();
    FieldManager::keep_times(&old, &mut new);
    assert_eq!(new, changed);
}

#[test]
fn entries_of_a_version_that_is_not_served_go() {
    let mut live = after(&[("one", json!({"data": {"a": "1"}}))]);
    live["metadata"]["managedFields"][0]["apiVersion"] = json!("v0");
    let updated = manager().update(Some(&live), object(&json!({"data": {"a": "2"}})), "two", at(2));
    assert_eq!(managers(&updated), [entry("two", "Update", ".data.a")]);
}

#[test]
fn what_became_one_value_is_owned_as_one() {
    let live = after(&[("one", json!({"data": {"a": "1"}}))]);
    let mut schema = schema();
    schema["properties"]["data"]["x-kubernetes-map-type"] = json!("atomic");
    let blank = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    let atomic = FieldManager::new(Type::from_openapi(&schema), blank, "", &[]);
    let error = atomic
        .apply(Some(&live), &object(&json!({"data": {"b": "1"}})), "two", false, at(2))
        .unwrap_err();
    assert!(matches!(error, ApplyError::Conflicts(_)));
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"one\": .data"
    );
}

#[test]
fn hostile_managed_fields_are_read_or_refused() {
    let deep = (0..100).fold(json!({}), |below, _| json!({"f:a": below}));
    let entry = |fields: Value| json!([{"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}]);
    assert_eq!(Managers::decode(Some(&entry(deep))).unwrap().0.len(), 1);
    for wrong in [
        json!({"f:a": 1}),
        json!({"a": {}}),
        json!({"k:{": {}}),
        json!([]),
        json!({"i:x": {}}),
    ] {
        assert!(Managers::decode(Some(&entry(wrong.clone()))).is_err(), "{wrong}");
    }
    assert!(Managers::decode(Some(&json!([5]))).is_err());
}

#[test]
fn an_object_has_no_more_managers_than_it_may() {
    let name = |n: usize| format!("{n}-{}", "x".repeat(1 << 20));
    let fields: Value = (0..4)
        .map(|n| (format!("f:{}", name(n)), json!({})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let entry = |manager: &str| {
        json!({"manager": manager, "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": fields}})
    };
    let mut live = after(&[("one", json!({"data": {"a": "1"}}))]);
    live["metadata"]["managedFields"] = json!([entry("big"), entry("bigger")]);
    assert!(matches!(
        manager().apply(Some(&live), &object(&json!({"data": {"a": "1"}})), "two", true, at(2)),
        Err(ApplyError::TooManyManagers)
    ));
    assert_eq!(
        managers(&manager().update(Some(&live), object(&json!({"data": {"a": "2"}})), "two", at(2))),
        []
    );
}
