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
    assert_eq!(sent(&ours, &["/spec/replicas"], &[]), json!({"replicas": 9, "image": "b"}));
    // Who took it away meant it.
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
fn differences_name_fields_and_no_values() {
    let live = json!({"metadata": {"name": "a", "resourceVersion": "1", "labels": {"farwater.dev/service": "x"}},
        "data": {"same": "1", "changed": "secret", "theirs": "3"}, "list": [{"a": 1}, {"a": 2}], "status": {"x": 1}});
    let applied = json!({"metadata": {"name": "a", "resourceVersion": "2"},
        "data": {"same": "1", "changed": "other", "ours": "4", "theirs": "3"}, "list": [{"a": 1}, {"a": 3}]});
    assert_eq!(differences(&live, &applied), [".data.changed", ".data.ours", ".list[1].a"]);
    assert!(differences(&live, &live).is_empty());
}
