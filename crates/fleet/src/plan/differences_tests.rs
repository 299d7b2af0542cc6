use serde_json::json;

use super::*;

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).unwrap()
}

#[test]
fn pointers_are_read_as_the_rfc_says() {
    for (text, read) in [
        ("/spec/replicas", Some(vec!["spec", "replicas"])),
        ("/a~1b/~0c", Some(vec!["a/b", "~c"])),
        ("/~01", Some(vec!["~1"])),
        ("", None),
        ("spec", None),
        ("/", None),
        ("/a//b", None),
        ("/a~", None),
    ] {
        let expected = read.map(|segments| Pointer(segments.into_iter().map(str::to_owned).collect()));
        assert_eq!(Pointer::parse(text), expected, "{text}");
    }
}

fn live(manager: &str, operation: &str) -> Value {
    json!({
        "metadata": {"resourceVersion": "7", "managedFields": [
            {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {"f:image": {}}}},
            {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        ]},
        "spec": {"replicas": 9, "image": "a"},
    })
}

fn sent(live: &Value, pointers: &[&str], managers: &[&str]) -> Value {
    let mut manifest = json!({"metadata": {"name": "a"}, "spec": {"replicas": 1, "image": "b"}});
    let pointers: Vec<Pointer> = pointers.iter().map(|text| pointer(text)).collect();
    let managers: Vec<String> = managers.iter().map(|name| (*name).to_owned()).collect();
    leave_ignored(&mut manifest, live, &pointers, &managers);
    assert_eq!(manifest["metadata"]["resourceVersion"], "7");
    manifest["spec"].clone()
}

#[test]
fn an_ignored_field_is_left_to_whoever_has_it() {
    let theirs = live("hpa", "Update");
    assert_eq!(sent(&theirs, &["/spec/replicas"], &[]), json!({"image": "b"}));
    assert_eq!(sent(&theirs, &[], &["hpa"]), json!({"image": "b"}));
    assert_eq!(sent(&theirs, &[], &["another"]), json!({"replicas": 1, "image": "b"}));
}

#[test]
fn an_ignored_field_that_nobody_else_has_keeps_its_value() {
    let ours = live(FIELD_MANAGER, "Update");
    assert_eq!(
        sent(&ours, &["/spec/replicas"], &[]),
        json!({"replicas": 9, "image": "b"})
    );
    // A removed field was removed on purpose.
    let mut without = ours;
    without["spec"].as_object_mut().unwrap().remove("replicas");
    assert_eq!(sent(&without, &["/spec/replicas"], &[]), json!({"image": "b"}));
}

#[test]
fn a_managers_fields_are_found_in_lists_by_their_keys() {
    let mut manifest = json!({"spec": {"containers": [
        {"name": "a", "image": "1", "resources": {"limits": {"cpu": "1", "memory": "2"}}}, {"name": "b", "image": "1"}]}});
    let fields = json!({"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:image": {},
        "f:resources": {".": {}, "f:limits": {"f:cpu": {}}}}}}});
    remove_owned(&mut manifest, &fields);
    let expected = json!({"spec": {"containers": [
        {"name": "a", "resources": {"limits": {"memory": "2"}}}, {"name": "b", "image": "1"}]}});
    assert_eq!(manifest, expected);
}

#[test]
fn ignored_fields_do_not_count_as_owned() {
    let metadata = |ignore: &str, replicas: bool| {
        let mut fields = json!({"f:spec": {"f:image": {}}});
        if replicas {
            fields["f:spec"]["f:replicas"] = json!({});
        }
        json!({"annotations": {"farwater.dev/ignore-differences": ignore},
               "managedFields": [{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}]})
    };
    let owned = |ignore: &str, replicas| super::super::owned_fields(&metadata(ignore, replicas));
    assert_eq!(owned("/spec/replicas", true), owned("/spec/replicas", false));
    assert_ne!(owned("", true), owned("", false));
    assert_ne!(owned("/spec/paused", true), owned("/spec/paused", false));
}

#[test]
fn a_map_that_held_nothing_but_ignored_fields_does_not_count_either() {
    let without = |fields: Value, ignored: &[&str]| {
        without_fields(&fields, &ignored.iter().map(|text| pointer(text)).collect::<Vec<_>>())
    };
    let both = json!({"f:data": {"f:a": {}, "f:b": {}}, "f:x": {}});
    assert_eq!(without(both.clone(), &["/data/a", "/data/b"]), json!({"f:x": {}}));
    assert_eq!(
        without(json!({"f:data": {"f:b": {}}, "f:x": {}}), &["/data/a", "/data/b"]),
        json!({"f:x": {}})
    );
    assert_eq!(without(both, &["/data/a"]), json!({"f:data": {"f:b": {}}, "f:x": {}}));
    // A map that is owned as a whole, and one that is owned itself besides its keys.
    assert_eq!(without(json!({"f:data": {}}), &["/data/a"]), json!({"f:data": {}}));
    assert_eq!(
        without(json!({"f:data": {".": {}, "f:a": {}}}), &["/data/a"]),
        json!({"f:data": {".": {}}})
    );
}

#[test]
fn differences_name_fields_and_no_values() {
    let live = json!({"metadata": {"name": "a", "resourceVersion": "1", "labels": {"farwater.dev/service": "x"}},
        "data": {"same": "1", "changed": "secret", "theirs": "3"}, "list": [{"a": 1}, {"a": 2}], "status": {"x": 1}});
    let applied = json!({"metadata": {"name": "a", "resourceVersion": "2"},
        "data": {"same": "1", "changed": "other", "ours": "4", "theirs": "3"}, "list": [{"a": 1}, {"a": 3}]});
    assert_eq!(
        differences(&live, &applied),
        [".data.changed", ".data.ours", ".list[1].a"]
    );
    assert!(differences(&live, &live).is_empty());
}

#[track_caller]
fn check_overruled(sent: Value, answer: Value, expected: &[&str]) {
    assert_eq!(overruled(&sent, &answer), expected, "{sent} {answer}");
}

#[test]
fn a_value_that_the_answer_has_otherwise_is_overruled() {
    check_overruled(
        json!({"data": {"x": "1", "y": "2"}}),
        json!({"data": {"x": "2", "y": "2"}}),
        &[".data.x"],
    );
    check_overruled(json!({"data": {"x": "1"}}), json!({"data": {}}), &[".data.x"]);
    check_overruled(json!({"data": {"x": "1"}}), json!({}), &[".data"]);
    check_overruled(
        json!({"spec": {"paused": false}}),
        json!({"spec": {"paused": true}}),
        &[".spec.paused"],
    );
    check_overruled(
        json!({"spec": {"replicas": 0}}),
        json!({"spec": {"replicas": 1}}),
        &[".spec.replicas"],
    );
    let labels = |value: &str| json!({"metadata": {"labels": {"a.b/c": value}, "resourceVersion": value}});
    check_overruled(labels("1"), labels("2"), &[".metadata.labels.a.b/c"]);
}

#[test]
fn what_is_added_normalised_left_out_or_filled_in_is_not_overruled() {
    let same = |sent: Value, answer: Value| check_overruled(sent, answer, &[]);
    same(
        json!({"spec": {"a": 1}}),
        json!({"spec": {"a": 1, "b": 2}, "status": {}}),
    );
    for (sent, answer) in [
        (json!("1000m"), json!("1")),
        (json!(0.5), json!("500m")),
        (json!(1), json!(1.0)),
        (json!("1.5Gi"), json!("1536Mi")),
        (json!("1e3"), json!("1k")),
        (json!("YWJj\nZGVm\n"), json!("YWJjZGVm")),
        (json!(""), json!("10.96.0.1")),
        (Value::Null, json!({"a": 1})),
        (json!({}), json!({"a": 1})),
        (json!([]), json!(["a"])),
    ] {
        same(json!({"field": sent}), json!({"field": answer}));
    }
    for nothing in [
        json!(false),
        json!(0),
        json!(""),
        json!({}),
        json!([]),
        Value::Null,
        json!({"a": {"b": null}}),
    ] {
        same(json!({"field": nothing}), json!({}));
    }
    same(json!({"status": {"ready": true}}), json!({"status": {}}));
    for (sent, answer) in [
        (json!("1Gi"), json!("1G")),
        (json!("1a"), json!("1")),
        (json!("a"), json!("b")),
    ] {
        check_overruled(json!({"field": sent}), json!({"field": answer}), &[".field"]);
    }
}

#[test]
fn elements_of_lists_are_overruled_one_by_one() {
    let pod = |containers: Value| json!({"containers": containers});
    check_overruled(
        pod(json!([{"name": "web", "image": "a"}])),
        pod(json!([{"name": "proxy", "image": "p"}, {"name": "web", "image": "mirror/a", "tty": true}])),
        &[".containers[name=\"web\"].image"],
    );
    check_overruled(
        pod(json!([{"name": "web"}])),
        pod(json!([{"name": "other"}])),
        &[".containers[name=\"web\"]"],
    );
    let rules = |verb: &str| json!({"rules": [{"verbs": ["get", verb]}, {"verbs": ["list"]}]});
    check_overruled(rules("watch"), rules("delete"), &[".rules[0].verbs"]);
    // Others may add elements to a list that is a set.
    check_overruled(json!({"finalizers": ["a"]}), json!({"finalizers": ["b", "a"]}), &[]);
    let rules = |rules: Value| json!({"rules": rules});
    check_overruled(
        rules(json!([{"v": 1}, {"v": 2}])),
        rules(json!([{"v": 0}, {"v": 1}, {"v": 2, "w": 1}])),
        &[],
    );
    check_overruled(
        rules(json!([{"v": 1}, {"v": 3}])),
        rules(json!([{"v": 1}, {"v": 2}, {"v": 2}])),
        &[".rules"],
    );
}

#[test]
fn few_overruled_fields_are_named_and_more_are_told() {
    let map = |value: &str| json!({"data": {"a": value, "b": value, "c": value, "d": value, "e": value}});
    let found = overruled(&map("1"), &map("2"));
    assert_eq!(found, [".data.a", ".data.b", ".data.c", ".data.d"]);
    let rest = ": a mutating webhook or policy there overrules the source";
    let told = explain_overruled(&found);
    assert_eq!(
        told,
        format!("the API server keeps another value of .data.a, .data.b, .data.c and more{rest}")
    );
    assert_eq!(
        explain_overruled(&found[..1]),
        format!("the API server keeps another value of .data.a{rest}")
    );
    let long = |value: &str| json!({"data": {("k".repeat(300)): value}});
    assert_eq!(overruled(&long("1"), &long("2"))[0].len(), MAX_PLACE);
}
