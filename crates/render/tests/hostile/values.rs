//! Hostile values and schemas.

use serde_json::{Value, json};

use super::{
    Case, case, run_all,
    support::{Bench, Job, charts::small, files},
};

const PLAIN: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: {{ .Values | toJson | quote }}}\n";

/// Text that expands to ten to the power of `depth` equal values.
pub fn bomb(depth: usize) -> String {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..depth {
        text += &format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", "));
    }
    text
}

fn with(extra: &[(&str, &str)]) -> Job {
    let mut all = small(PLAIN);
    all.extend(files(extra.iter().copied()));
    Job::new(all)
}

pub fn bombs() -> Vec<Case> {
    let mut cases = Vec::new();
    for depth in [4, 7, 10, 30] {
        let bomb = bomb(depth);
        let error = (depth >= 7).then_some("");
        cases.push(case(
            format!("values.yaml, {depth} deep"),
            with(&[("values.yaml", &bomb)]),
            error,
        ));
        let job = with(&[("more.yaml", &bomb)]).renderers(json!([{"helm": {"valuesFiles": ["more.yaml"]}}]));
        cases.push(case(format!("a values file, {depth} deep"), job, error));
        let chart = format!(
            "apiVersion: v2\nname: c\nversion: 1.0.0\nannotations:\n  x: y\n{}",
            bomb
        );
        cases.push(case(
            format!("Chart.yaml, {depth} deep"),
            Job::of([("Chart.yaml", chart.as_str())]),
            None,
        ));
        cases.push(case(
            format!("an object, {depth} deep"),
            Job::new(small(&format!(
                "apiVersion: v1\nkind: A\nmetadata: {{name: a}}\n{bomb}"
            ))),
            error,
        ));
        cases.push(case(
            format!("a definition, {depth} deep"),
            with(&[(
                "crds/a.yaml",
                &format!("apiVersion: v1\nkind: A\nmetadata: {{name: a}}\n{bomb}"),
            )]),
            error,
        ));
        let from =
            "apiVersion: v1\nkind: A\nmetadata: {name: a}\nx: {{ fromYaml (.Files.Get \"bomb\") | toJson | quote }}\n";
        let mut from = Job::new(small(from));
        from.files.insert("bomb".to_owned(), bomb.into_bytes());
        cases.push(case(format!("fromYaml, {depth} deep"), from, None));
    }
    let deep = format!("a: {}{}\n", "{a: ".repeat(20_000), "}".repeat(20_000));
    cases.push(case("20,000 maps in each other", with(&[("values.yaml", &deep)]), None));
    let wide: String = (0..200_000).map(|n| format!("k{n}: v\n")).collect();
    cases.push(case("200,000 keys", with(&[("values.yaml", &wide)]), None));
    cases.push(case(
        "merge keys in a circle",
        with(&[("values.yaml", "a: &a\n  <<: *a\n")]),
        "",
    ));
    cases.push(case("a list for values", with(&[("values.yaml", "- a\n")]), ""));
    cases.push(case("a number for values", with(&[("values.yaml", "5\n")]), ""));
    cases.push(case(
        "bytes for values",
        with(&[("values.yaml", "\u{0}\u{1}\u{2}")]),
        "",
    ));
    cases.push(case(
        "many documents",
        with(&[("values.yaml", &"a: b\n---\n".repeat(100_000))]),
        None,
    ));
    let inline = (0..500).fold(json!("x"), |inner, _| json!({"a": inner}));
    cases.push(case(
        "inline, deep",
        with(&[]).renderers(json!([{"helm": {"values": inline}}])),
        None,
    ));
    cases
}

pub fn schemas() -> Vec<Case> {
    let schema = |schema: Value| {
        with(&[
            ("values.schema.json", &schema.to_string()),
            (
                "values.yaml",
                "text: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\nlist: [1, 2, 3]\n",
            ),
        ])
    };
    let network = "rendering has no network";
    vec![
        case(
            "a schema elsewhere",
            schema(json!({"$ref": "http://127.0.0.1:1/schema.json"})),
            network,
        ),
        case(
            "a schema elsewhere, deep",
            schema(json!({"properties": {"a": {"allOf": [{"$ref": "https://example.com/s.json#/x"}]}}})),
            network,
        ),
        case(
            "a schema of this machine",
            schema(json!({"$ref": "file:///etc/passwd"})),
            network,
        ),
        case(
            "a schema beside it",
            schema(json!({"$ref": "../../other.json"})),
            network,
        ),
        case(
            "an expression that backtracks",
            schema(json!({"properties": {"text": {"pattern": "^(a+)+$"}}})),
            "",
        ),
        case("a schema of itself", schema(json!({"$ref": "#"})), None),
        case(
            "schemas of each other",
            schema(json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})),
            None,
        ),
        case("a schema that is none", with(&[("values.schema.json", "{")]), ""),
        case(
            "a schema that multiplies",
            schema((0..25).fold(json!({"type": "object"}), |inner, _| json!({"allOf": [inner]}))),
            None,
        ),
        case(
            "the standard's own schema",
            schema(json!({"$ref": "http://json-schema.org/draft-07/schema#"})),
            None,
        ),
    ]
}

#[tokio::test]
async fn values_and_schemas_that_explode_end_with_an_error_or_harmlessly() {
    let _alone = super::others::ALONE.lock().await;
    let bench = Bench::strict();
    run_all(&bench, bombs()).await;
    run_all(&bench, schemas()).await;
}
