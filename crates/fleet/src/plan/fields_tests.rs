use serde_json::json;

use super::*;

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

/// Our own entry of managedFields.
fn owning(fields: &str) -> Value {
    json!([{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": yaml(fields)}])
}

struct Case<'a> {
    live: &'a str,
    owned: &'a str,
    planned: &'a str,
    source: &'a str,
    applied: Option<&'a str>,
}

/// Compares one line per field, followed by the number of hidden ones.
#[track_caller]
fn check(case: Case<'_>, expected: &str) {
    let mut live = yaml(case.live);
    live["metadata"]["managedFields"] = if case.owned.is_empty() {
        json!([])
    } else {
        owning(case.owned)
    };
    live["metadata"]["resourceVersion"] = json!("7");
    live["metadata"]["uid"] = json!("u");
    let mut planned = yaml(case.planned);
    planned["metadata"] = live["metadata"].clone();
    planned["metadata"]["resourceVersion"] = json!("8");
    let applied = case.applied.map(yaml);
    let hash = |path: &str, value: &Value| format!("#{}", path.len() + value.as_str().map_or(0, str::len));
    let redact: Option<Redact<'_>> = if live["kind"] == "Secret" { Some(&hash) } else { None };
    let mut source = yaml(case.source);
    source["metadata"] = json!({});
    let sides = Sides {
        live: &live,
        planned: &planned,
        source: &source,
        applied: applied.as_ref(),
        again: None,
        redact,
        veiled: None,
    };
    let compared = compare(sides, &mut 10_000);
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let lines = compared.fields.iter().map(|field| {
        let [live, planned, applied] = [&field.live, &field.planned, &field.applied].map(text);
        format!(
            "{}: {live} > {planned}, was {applied} ({:?})\n",
            field.path, field.origin
        )
    });
    let more = if compared.more > 0 {
        format!(" more {}", compared.more)
    } else {
        String::new()
    };
    let found = format!("{}hidden {}{more}", lines.collect::<String>(), compared.hidden);
    assert_eq!(found, expected);
}

const OWNED: &str = "{f:data: {f:a: {}, f:b: {}}}";

/// An object whose plan is its manifest. Nothing is known of earlier applies, and nothing is secret.
fn planned_over<'a>(live: &'a Value, planned: &'a Value) -> Sides<'a> {
    Sides {
        live,
        planned,
        source: planned,
        applied: None,
        again: None,
        redact: None,
        veiled: None,
    }
}

#[test]
fn a_difference_is_the_sources_the_clusters_or_both() {
    let case = Case {
        live: "data: {a: one, b: two}",
        owned: OWNED,
        planned: "data: {a: one, b: three}",
        source: "data: {a: one, b: three}",
        applied: Some("data: {a: one, b: two}"),
    };
    check(case, "data.b: \"two\" > \"three\", was \"two\" (Source)\nhidden 3");
    let by_hand = Case {
        live: "data: {a: one, b: mine}",
        owned: "{f:data: {f:a: {}}}",
        planned: "data: {a: one, b: two}",
        source: "data: {a: one, b: two}",
        applied: Some("data: {a: one, b: two}"),
    };
    check(by_hand, "data.b: \"mine\" > \"two\", was \"two\" (Cluster)\nhidden 3");
    let both = Case {
        live: "data: {a: one, b: mine}",
        owned: "{f:data: {f:a: {}}}",
        planned: "data: {a: one, b: three}",
        source: "data: {a: one, b: three}",
        applied: Some("data: {a: one, b: two}"),
    };
    check(both, "data.b: \"mine\" > \"three\", was \"two\" (Both)\nhidden 3");
}

#[test]
fn fields_that_come_and_go_are_named() {
    let case = Case {
        live: "data: {a: one, b: two}",
        owned: OWNED,
        planned: "data: {a: one, c: three}",
        source: "data: {a: one, c: three}",
        applied: Some("data: {a: one, b: two}"),
    };
    let expected = "data.b: \"two\" > -, was \"two\" (Source)\ndata.c: - > \"three\", was - (Source)\nhidden 3";
    check(case, expected);
    // Nothing was applied, or it is unknown what.
    let adopted = Case {
        live: "data: {a: one}",
        owned: "",
        planned: "data: {a: two}",
        source: "data: {a: two}",
        applied: None,
    };
    check(adopted, "data.a: \"one\" > \"two\", was - (Unknown)\nhidden 3");
}

#[test]
fn defaults_normalised_values_and_the_status_are_counted_and_not_shown() {
    let case = Case {
        live: "spec: {replicas: 2, cpu: '1', paused: false, strategy: {type: RollingUpdate}}\nstatus: {replicas: 2}",
        owned: "{f:spec: {f:replicas: {}, f:cpu: {}}}",
        planned: "spec: {replicas: 3, cpu: '1', paused: false, strategy: {type: RollingUpdate}}\nstatus: {replicas: 2}",
        source: "spec: {replicas: 3, cpu: 1000m}",
        applied: Some("spec: {replicas: 2, cpu: 1000m}"),
    };
    // Hidden are three fields of the metadata, the status, and cpu, paused and strategy.
    check(case, "spec.replicas: 2 > 3, was 2 (Source)\nhidden 7");
}

#[test]
fn elements_of_lists_are_told_apart_by_their_keys() {
    let case = Case {
        live: "containers: [{name: web, image: a}, {name: log, image: b}, {name: injected, image: x}]",
        owned: "f:containers: {'k:{\"name\":\"web\"}': {f:image: {}}, 'k:{\"name\":\"log\"}': {f:image: {}}}",
        planned: "containers: [{name: web, image: a2}, {name: injected, image: x}, {name: new, image: c}]",
        source: "containers: [{name: web, image: a2}, {name: new, image: c}]",
        applied: Some("containers: [{name: web, image: a}, {name: log, image: b}]"),
    };
    let expected = "\
containers[name=web].image: \"a\" > \"a2\", was \"a\" (Source)
containers[name=new]: - > {\"image\":\"c\",\"name\":\"new\"}, was - (Source)
containers[name=log]: {\"image\":\"b\",\"name\":\"log\"} > -, was {\"image\":\"b\",\"name\":\"log\"} (Source)
hidden 4";
    check(case, expected);
    let values = Case {
        live: "args: [a, b]",
        owned: "{f:args: {}}",
        planned: "args: [a, c]",
        source: "args: [a, c]",
        applied: Some("args: [a, b]"),
    };
    check(values, "args[1]: \"b\" > \"c\", was \"b\" (Source)\nhidden 3");
}

#[test]
fn a_secrets_values_are_hashed_one_by_one_and_its_annotations_too() {
    let case = Case {
        live: "kind: Secret\ndata: {user: YQ==}",
        owned: "{f:data: {f:user: {}}}",
        planned: "kind: Secret\ndata: {user: YmI=, password: aHVudGVyMg==}\ntype: Opaque",
        source: "kind: Secret\ndata: {user: YmI=, password: aHVudGVyMg==}\ntype: Opaque",
        applied: Some("kind: Secret\ndata: {user: YQ==}"),
    };
    let expected = "\
data.password: - > #25, was - (Source)
data.user: #13 > #13, was #13 (Source)
type: - > \"Opaque\", was - (Source)
hidden 3";
    check(case, expected);
    // Ownership as after `stringData`; somebody has changed the value.
    let by_hand = Case {
        live: "kind: Secret\ndata: {user: bWluZQ==}",
        owned: "{f:stringData: {f:user: {}}}",
        planned: "kind: Secret\ndata: {user: YQ==}",
        source: "kind: Secret\ndata: {user: YQ==}",
        applied: Some("kind: Secret\ndata: {user: YQ==}"),
    };
    check(by_hand, "data.user: #17 > #13, was #13 (Cluster)\nhidden 3");
    let emptied = Case {
        live: "kind: Secret\ndata: {user: YQ==}",
        owned: "{f:data: {f:user: {}}}",
        planned: "kind: Secret",
        source: "kind: Secret",
        applied: Some("kind: Secret\ndata: {user: YQ==}"),
    };
    check(emptied, "data.user: #13 > -, was #13 (Source)\nhidden 3");
}

#[test]
fn what_is_too_much_is_counted() {
    let map = |value: &str| {
        let fields: Vec<String> = (0..100).map(|n| format!("k{n:03}: {value}")).collect();
        format!("data: {{{}}}", fields.join(", "))
    };
    let (live, planned) = (yaml(&map("a")), yaml(&map("b")));
    let sides = planned_over(&live, &planned);
    let compared = compare(sides, &mut 1_000_000);
    assert_eq!((compared.fields.len(), compared.more), (MAX_PLANNED_FIELDS, 36));
    let mut room = 300;
    let compared = compare(sides, &mut room);
    assert_eq!((compared.fields.len(), compared.more), (3, 97));
    assert!(room < 100);
}

#[test]
fn long_texts_are_shown_from_where_they_differ() {
    let long = |tail: &str| json!({"data": {"file": format!("{}{tail}", "ä".repeat(4000))}});
    let (live, planned) = (long("old"), long("new"));
    let sides = Sides {
        live: &live,
        planned: &planned,
        source: &planned,
        applied: Some(&live),
        again: None,
        redact: None,
        veiled: None,
    };
    let compared = compare(sides, &mut 10_000);
    let field = &compared.fields[0];
    let (was, is) = (field.live.clone().unwrap(), field.planned.clone().unwrap());
    assert!(
        was.starts_with('…') && was.ends_with("old\"") && is.ends_with("new\""),
        "{was} {is}"
    );
    assert!(was.len() <= MAX_SHOWN_VALUE && is.len() <= MAX_SHOWN_VALUE);
}

#[test]
fn paths_that_hold_dots_are_quoted_and_our_marks_are_not_shown() {
    let live = json!({"metadata": {"name": "a", "annotations": {"a.b/c": "1"}, "labels": {SERVICE_LABEL: "x"}}});
    let planned = json!({"metadata": {"name": "a", "annotations": {"a.b/c": "2", OWNER_ANNOTATION: "me"}}});
    let sides = planned_over(&live, &planned);
    let compared = compare(sides, &mut 10_000);
    let paths: Vec<_> = compared.fields.iter().map(|field| field.path.as_str()).collect();
    assert_eq!(
        (paths, compared.marked),
        (vec!["metadata.annotations[\"a.b/c\"]"], true)
    );
}

/// Like [`check`], for an object with values that must stay hidden.
#[track_caller]
fn check_veiled(secrets: &[&str], [live, planned, applied]: [Value; 3], expected: &str) {
    let mut veil = Veil::default();
    secrets.iter().for_each(|secret| veil.add(secret));
    let hash = |path: &str, _: &Value| format!("#{}", path.len());
    let applied = (!applied.is_null()).then_some(applied);
    let veiled = Some(Veiled {
        veil: &veil,
        redact: &hash,
    });
    let sides = Sides {
        live: &live,
        planned: &planned,
        source: &planned,
        applied: applied.as_ref(),
        again: None,
        redact: None,
        veiled,
    };
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let fields = compare(sides, &mut 10_000).fields;
    let lines = fields
        .iter()
        .map(|field| format!("{}: {} > {}\n", field.path, text(&field.live), text(&field.planned)));
    assert_eq!(lines.collect::<String>(), expected);
}

#[test]
fn values_that_nobody_may_see_are_hidden_in_any_object() {
    let map = |password: &str, port: u16| json!({"data": {"url": format!("db://{password}"), "port": port}});
    let (before, after) = (map("hunter2-old", 1), map("hunter2-new", 2));
    // Both values are known: the one that is decrypted now, and the one that was applied.
    let secrets = ["hunter2-old", "hunter2-new"];
    check_veiled(
        &secrets,
        [before.clone(), after.clone(), before.clone()],
        "data.port: 1 > 2\ndata.url: #8 > #8\n",
    );
    // Only the new value is known. The old one is hidden because it is at the same place.
    check_veiled(
        &secrets[1..],
        [before.clone(), after.clone(), before.clone()],
        "data.port: 1 > 2\ndata.url: #8 > #8\n",
    );
    // Nothing is known of the last applied manifest, so no value of the cluster is shown.
    check_veiled(
        &secrets[1..],
        [before.clone(), after, Value::Null],
        "data.port: #9 > #9\ndata.url: #8 > #8\n",
    );
    check_veiled(
        &["elsewhere"],
        [before.clone(), map("x", 1), Value::Null],
        "data.url: \"db://hunter2-old\" > \"db://x\"\n",
    );
    let list = |name: &str| json!({"env": [{"name": name, "value": "1"}]});
    check_veiled(
        &["hunter2-new"],
        [list("a"), list("hunter2-new"), list("a")],
        "env[name=#3]: - > #12\nenv[name=a]: {\"name\":\"a\",\"value\":\"1\"} > -\n",
    );
}

#[test]
fn what_another_render_has_otherwise_is_made_up() {
    let secret =
        |password: &str, level: &str| json!({"kind": "Secret", "data": {"password": password, "level": level}});
    let (live, source, again) = (
        secret("b2xk", "MQ=="),
        secret("bmV3", "Mg=="),
        secret("b3RoZXI=", "Mg=="),
    );
    let told = |again: Option<&Value>| {
        let sides = Sides {
            live: &live,
            planned: &source,
            source: &source,
            applied: None,
            again,
            redact: None,
            veiled: None,
        };
        let fields = compare(sides, &mut 1000).fields;
        fields
            .into_iter()
            .map(|field| (field.path, field.made_up))
            .collect::<Vec<_>>()
    };
    let expected = |password: bool| vec![("data.level".to_owned(), false), ("data.password".to_owned(), password)];
    assert_eq!(told(Some(&again)), expected(true));
    assert_eq!(told(None), expected(false));
}
