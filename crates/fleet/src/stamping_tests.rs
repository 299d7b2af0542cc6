use serde_json::json;

use super::*;

fn set(more: Value) -> ServiceSetSpec {
    let mut spec = json!({
        "clusterSelector": {"matchLabels": {"env": "prod"}},
        "template": {
            "metadata": {"labels": {"team": "a"}},
            "spec": {
                "targetNamespace": "web", "sourceRef": {"name": "apps"}, "path": "web",
                "configuration": {"color": "blue", "size": "s"},
            },
        },
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn stamp(spec: &ServiceSetSpec, own: &[(&str, &str)]) -> Result<Stamped, StampProblem> {
    let (labels, annotations) = (labels(own), labels(&[("note", "y")]));
    let metadata = json!({"domain": "example.com", "ports": [80], "long": "x".repeat(5000)});
    let cluster = ClusterInput {
        uid: "1",
        namespace: ADMIN_NAMESPACE,
        name: "east",
        labels: &labels,
        annotations: &annotations,
        metadata: metadata.as_object().unwrap(),
        version: None,
    };
    Template::read("web", spec).unwrap().stamp(cluster)
}

#[test]
fn a_service_is_the_template_with_its_cluster_and_what_the_set_says() {
    let stamped = stamp(&set(json!({"deletionPolicy": "Delete"})), &[]).unwrap();
    let expected = json!({
        "clusterRef": {"name": "east", "namespace": "farwater-admin"}, "deletionPolicy": "Delete", "targetNamespace": "web",
        "sourceRef": {"name": "apps"}, "path": "web", "configuration": {"color": "blue", "size": "s"},
    });
    assert_eq!(Value::from(stamped.spec), expected);
    assert_eq!(stamped.name, "web-east");
    assert_eq!(stamped.labels, labels(&[("team", "a"), ("farwater.dev/set", "web")]));
}

#[test]
fn parameters_are_stated_or_of_a_label_or_computed() {
    let spec = set(json!({"parameters": [
        {"name": "size", "value": "l"},
        {"name": "region", "fromLabel": "region"},
        {"name": "tier", "fromLabel": "tier", "default": "low"},
        {"name": "host", "expression": "self.name + '.' + self.metadata.domain"},
        {"name": "port", "expression": "self.metadata.port", "default": "80"},
    ]}));
    let stamped = stamp(&spec, &[("region", "eu")]).unwrap();
    let expected = json!({
        "color": "blue", "size": "l", "region": "eu", "tier": "low", "host": "east.example.com", "port": "80",
    });
    assert_eq!(stamped.spec["configuration"], expected);
}

#[test]
fn what_a_cluster_lacks_is_an_error_and_no_empty_text() {
    let wrong = |parameter: Value| {
        stamp(&set(json!({"parameters": [parameter]})), &[])
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        wrong(json!({"name": "region", "fromLabel": "region"})),
        "parameter region: the cluster has no label region; label it, or state a default"
    );
    assert_eq!(
        wrong(json!({"name": "host", "expression": "self.labels.region + 'x'"})),
        "parameter host: its expression has no value here: there is no \"region\""
    );
    assert_eq!(
        wrong(json!({"name": "ports", "expression": "self.metadata.ports"})),
        "parameter ports: its expression has no value here: its value is no string"
    );
    assert_eq!(
        wrong(json!({"name": "long", "expression": "self.metadata.long"})),
        "parameter long: its text of 5000 bytes is longer than 4096"
    );
}

#[test]
fn the_first_override_that_selects_a_cluster_counts() {
    let spec = set(json!({"overrides": [
        {"clusterSelector": {"matchLabels": {"size": "small"}}, "patch": {"path": "small", "configuration": {"size": null}}},
        {"clusterSelector": {}, "patch": {"path": "other"}},
    ]}));
    let small = stamp(&spec, &[("size", "small")]).unwrap().spec;
    assert_eq!(
        (&small["path"], &small["configuration"]),
        (&json!("small"), &json!({"color": "blue"}))
    );
    let other = stamp(&spec, &[]).unwrap().spec;
    assert_eq!(
        (&other["path"], &other["configuration"]["size"]),
        (&json!("other"), &json!("s"))
    );
    let variants: Vec<_> = Template::variants(&spec)
        .map(|(at, spec)| (at, spec.0["path"].clone()))
        .collect();
    let expected = [
        ("template.spec", "web"),
        ("overrides[0].patch", "small"),
        ("overrides[1].patch", "other"),
    ];
    assert_eq!(variants, expected.map(|(at, path)| (at.to_owned(), json!(path))));
}

#[test]
fn what_makes_no_sense_is_named_with_its_place() {
    let problems = |parameters: Value| {
        let spec = set(json!({"parameters": parameters}));
        let found = Template::read("web", &spec).err().unwrap_or_default();
        found
            .into_iter()
            .map(|problem| format!("{}: {}", problem.field, problem.why))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        problems(json!([
            {"name": "a"}, {"name": "b", "value": "x", "fromLabel": "y"}, {"name": "c", "value": "x", "default": "y"},
            {"name": "d", "value": ""}, {"name": "d", "value": ""}, {"name": "e", "expression": "self."},
            {"name": "f", "expression": "cluster.name"},
        ])),
        [
            "parameters[0]: state one of value, fromLabel and expression",
            "parameters[1]: state one of value, fromLabel and expression",
            "parameters[2].default: a value that is stated needs none",
            "parameters[4].name: \"d\" is stated twice",
            &problems(json!([{"name": "e", "expression": "self."}]))[0].replace("[0]", "[5]"),
            "parameters[6].expression: knows no \"cluster\": the object is \"self\"",
        ]
    );
}

#[test]
fn long_names_are_cut_and_stay_different() {
    let (one, other) = (format!("{}-1", "c".repeat(252)), format!("{}-2", "c".repeat(252)));
    let (one, other) = (service_name("web", &one), service_name("web", &other));
    assert!(one.len() == 253 && other.len() == 253 && one != other);
    assert_eq!(service_name("web", "east"), "web-east");
    assert!(fit(&"x.".repeat(40), MAX_LABEL).len() <= MAX_LABEL);
}
