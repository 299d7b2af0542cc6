use serde_json::json;

use super::*;

fn object(group: &str, kind: &str) -> ObjectRef {
    ObjectRef {
        group: group.into(),
        version: "v1".into(),
        kind: kind.into(),
        namespace: "web".into(),
        name: "a".into(),
    }
}

fn deployment(annotations: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "a", "namespace": "web", "annotations": annotations},
        "spec": {"replicas": 3, "paused": false, "list": [{"name": "x"}], "strategy": {"type": "Recreate"}},
    })
}

fn asking(expression: &str) -> IgnoreDifference {
    IgnoreDifference {
        kind: Some("Deployment".into()),
        expression: Some(expression.into()),
        ..Default::default()
    }
}

fn of(manifest: &Value, rules: &[IgnoreDifference]) -> Ignored {
    Ignores::compile(rules)
        .of(manifest, &object("apps", "Deployment"))
        .unwrap()
}

fn pointers(ignored: &Ignored) -> Vec<&str> {
    let found = ignored
        .annotations
        .get(IGNORE_DIFFERENCES)
        .map(String::as_str)
        .unwrap_or_default();
    found.split(',').filter(|pointer| !pointer.is_empty()).collect()
}

/// Evaluates the expression on a Deployment with these annotations.
#[track_caller]
fn check(expression: &str, annotations: Value, expected: &[&str]) {
    let ignored = of(&deployment(annotations), &[asking(expression)]);
    assert_eq!(pointers(&ignored), expected, "{expression}");
    assert!(ignored.unanswered.is_empty(), "{expression}: {:?}", ignored.unanswered);
}

#[test]
fn what_a_service_ignores_is_written_on_the_objects_that_it_names() {
    let rule = |kind: &str| IgnoreDifference {
        kind: Some(kind.into()),
        json_pointers: vec!["/spec/replicas".into(), "/spec/paused".into()],
        managed_fields_managers: vec!["hpa".into()],
        ..IgnoreDifference::default()
    };
    let own = deployment(json!({"farwater.dev/ignore-differences": "/spec/replicas,/spec/own"}));
    assert_eq!(of(&own, &[rule("Service")]), Ignored::default());
    assert_eq!(
        of(&own, &[rule("Deployment")]).annotations,
        BTreeMap::from([
            (IGNORE_DIFFERENCES, "/spec/replicas,/spec/own,/spec/paused".to_owned()),
            (IGNORE_MANAGERS, "hpa".to_owned())
        ])
    );
}

#[test]
fn an_expression_picks_fields_of_the_source_from_the_outside_in() {
    check("field == '/spec/replicas'", json!({}), &["/spec/replicas"]);
    check(
        "field in ['/spec/list', '/spec/strategy/type']",
        json!({}),
        &["/spec/list", "/spec/strategy/type"],
    );
    check("field.startsWith('/spec')", json!({}), &["/spec"]);
    check("field.startsWith('/spec/list/')", json!({}), &[]);
    check(
        "field == '/spec/replicas' && self.spec.replicas > 2",
        json!({}),
        &["/spec/replicas"],
    );
    check("field == '/spec/replicas' && self.spec.replicas > 3", json!({}), &[]);
    let injected = json!({"sidecar.io/status": "1", "sidecar.io/inject": "yes", "other": "x"});
    let picked = [
        "/metadata/annotations/sidecar.io~1inject",
        "/metadata/annotations/sidecar.io~1status",
    ];
    check(
        "field.startsWith('/metadata/annotations/sidecar.io~1')",
        injected,
        &picked,
    );
    // Fields that the agent needs are never ignored.
    check("true", json!({"note": "x"}), &["/metadata/annotations/note", "/spec"]);
}

#[test]
fn an_objects_own_expression_counts_beside_its_services() {
    let own = deployment(json!({"farwater.dev/ignore-expression": "field == '/spec/paused'"}));
    assert_eq!(pointers(&of(&own, &[])), ["/spec/paused"]);
    assert_eq!(
        pointers(&of(&own, &[asking("field == '/spec/list'")])),
        ["/spec/paused", "/spec/list"]
    );
    let bad = deployment(json!({"farwater.dev/ignore-expression": "object.spec"}));
    let error = Ignores::compile(&[])
        .of(&bad, &object("apps", "Deployment"))
        .unwrap_err()
        .to_string();
    let expected =
        "farwater.dev/ignore-expression is \"object.spec\", and must be a CEL expression: knows no \"object\"";
    assert!(error.starts_with(expected), "{error}");
}

#[track_caller]
fn check_unanswered(manifest: &Value, expression: &str, picked: &[&str], expected: &str) {
    let ignored = of(manifest, &[asking(expression)]);
    assert_eq!(pointers(&ignored), picked, "{expression}");
    assert_eq!(
        ignored.unanswered,
        [format!("ignoreDifferences[0].expression {expected}")],
        "{expression}"
    );
}

#[test]
fn an_error_ignores_nothing_and_is_told() {
    let plain = deployment(json!({}));
    check_unanswered(
        &plain,
        "self.spec.absent",
        &[],
        "has no answer at /spec, which stays a difference: there is no \"absent\"",
    );
    // An answer for another field still counts.
    check_unanswered(
        &plain,
        "field == '/spec/replicas' ? self.spec.absent : field == '/spec/paused'",
        &["/spec/paused"],
        "has no answer at /spec/replicas, which stays a difference: there is no \"absent\"",
    );
    check_unanswered(
        &plain,
        "field",
        &[],
        "has no answer at /spec, which stays a difference: its value is no boolean",
    );
    let unreadable = of(&plain, &[asking("field ==")]).unanswered;
    assert!(
        unreadable[0].starts_with("ignoreDifferences[0].expression ignores nothing: line 1, "),
        "{unreadable:?}"
    );

    let mut large = plain.clone();
    large["spec"] = (0..65)
        .map(|n| (format!("f{n}"), json!(n)))
        .collect::<Map<String, Value>>()
        .into();
    let many = "ignores nothing: it picks more than 64 fields; let it pick the map that holds them";
    check_unanswered(&large, "field.startsWith('/spec/')", &[], many);

    let mut long = plain;
    long["spec"] = (0..30)
        .map(|n| (format!("f{n}"), json!(n)))
        .collect::<Map<String, Value>>()
        .into();
    long["spec"]["list"] = json!(vec![0; 10_000]);
    let told = "ignores nothing: the service's expressions take too long together; name fields by JSON pointers";
    check_unanswered(&long, "self.spec.list.exists(x, x < 0)", &[], told);
}

#[test]
fn a_secrets_values_are_not_asked_about_and_odd_names_stay() {
    let anything = |expression: &str| IgnoreDifference {
        expression: Some(expression.into()),
        ..Default::default()
    };
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "data": {"a": "aHVudGVyMg=="}});
    let of = |manifest: &Value, expression: &str| {
        let ignored = Ignores::compile(&[anything(expression)])
            .of(manifest, &object("", "Secret"))
            .unwrap();
        pointers(&ignored).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of(&secret, "has(self.data)"), Vec::<String>::new());
    assert_eq!(of(&secret, "field == '/data/a'"), ["/data/a"]);
    let odd = json!({"kind": "Secret", "metadata": {"name": "a"}, "data": {"a,b": "1", " c": "2", "": "3", "d": "4"}});
    assert_eq!(of(&odd, "field.startsWith('/data/')"), ["/data/d"]);
}
