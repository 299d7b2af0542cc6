//! Scalars, keys, merges and documents are read exactly as by the real kubectl.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use farwater_bundle::{Archive, Limits, MemoryTree, RelPath, archive, closure, manifests};
use farwater_testkit::Tools;
use serde_json::Value;

/// The objects that kubectl would send, or its error.
fn ask_kubectl(file: &str, text: &str) -> Result<Vec<Value>, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file);
    std::fs::write(&path, text).unwrap();
    let output = Command::new(Tools::find().unwrap().kubectl())
        // Reads the file, removes a label that isn't there, and prints. It is the only command that asks no server for
        // anything.
        .args(["label", "--local", "absent-", "-o", "json", "-f"])
        .arg(&path)
        .env("HOME", dir.path())
        .env("KUBECONFIG", dir.path().join("none"))
        .output()
        .unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let values: Vec<Value> = values.collect::<Result<_, _>>().unwrap();
    Ok(values.into_iter().map(normalize).collect())
}

/// Removes what the command adds, and turns integers beyond 64 bits into floats, as kubectl does.
fn normalize(mut value: Value) -> Value {
    if value["metadata"]["labels"] == serde_json::json!({}) {
        value["metadata"].as_object_mut().unwrap().remove("labels");
    }
    floats(&mut value);
    value
}

fn floats(value: &mut Value) {
    match value {
        Value::Number(number) if number.as_i64().is_none() && number.is_u64() => *value = number.as_f64().into(),
        Value::Array(items) => items.iter_mut().for_each(floats),
        Value::Object(map) => map.values_mut().for_each(floats),
        _ => {}
    }
}

fn ask_us(file: &str, text: &str) -> Result<Vec<Value>, String> {
    let mut tree = MemoryTree::default();
    let root = tree.add_files([(file, text)]);
    let limits = Limits::default();
    let found = closure(&tree, &root, &RelPath::root(), &limits).unwrap();
    let archive = Archive::read(archive::pack(&tree, &found, &limits).unwrap(), &limits).unwrap();
    let manifests = manifests::read(&archive, &RelPath::root(), "default");
    match manifests.errors() {
        [] => Ok(manifests.objects().iter().map(|m| m.value.clone()).collect()),
        errors => Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
    }
}

fn object(body: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a, namespace: default}}\n{body}\n")
}

/// Checks many scalars with one run of kubectl, as plain values of a mapping.
fn same_values(scalars: &[&str]) {
    let lines: String = scalars
        .iter()
        .enumerate()
        .map(|(n, s)| format!("  k{n:03}: {s}\n"))
        .collect();
    let text = object(&format!("data:\n{lines}"));
    let (theirs, ours) = (ask_kubectl("a.yaml", &text).unwrap(), ask_us("a.yaml", &text).unwrap());
    let show = |values: &[Value], n: usize| values[0]["data"][format!("k{n:03}")].to_string();
    let different: Vec<_> = (0..scalars.len())
        .map(|n| (scalars[n], show(&theirs, n), show(&ours, n)))
        .filter(|(_, theirs, ours)| theirs != ours)
        .collect();
    assert!(different.is_empty(), "(scalar, kubectl, ours): {different:#?}");
}

#[test]
fn booleans_and_nulls_are_the_same() {
    same_values(&[
        "y", "Y", "yes", "Yes", "YES", "yEs", "n", "N", "no", "No", "NO", "nO", "on", "On", "ON", "oN", "off", "Off",
        "OFF", "oFF", "true", "True", "TRUE", "tRue", "false", "False", "FALSE", "fAlse", "", "~", "null", "Null",
        "NULL", "nULL", "nil", "none",
    ]);
}

#[test]
fn numbers_are_the_same() {
    same_values(&[
        "0",
        "-0",
        "+0",
        "1",
        "+1",
        "-1",
        "0644",
        "0o644",
        "0O644",
        "00",
        "08",
        "09",
        "0_7",
        "012345678",
        "1_000",
        "_1",
        "1_",
        "1__0",
        "0x1F",
        "0X1f",
        "-0x1F",
        "0xfg",
        "0x",
        "0b11",
        "0B11",
        "-0b11",
        "0b2",
        "0b",
        "+0b1",
        "0b-1",
        "0x-1",
        "0o8",
        "--1",
        "+-1",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854775809",
        "18446744073709551615",
        "18446744073709551616",
        "12345678901234567890",
        "+9223372036854775808",
        "123456789012345678901234567890",
        "1.0",
        "-1.0",
        "1.5",
        "1.",
        ".5",
        "-.5",
        "+.5",
        "._5",
        ".5_0",
        "1_0.5",
        "1e3",
        "1E3",
        "1e+3",
        "1e-3",
        "1.e3",
        ".1e1",
        "1e",
        "e3",
        "1e3.5",
        "-0.0",
        "0.1",
        "1e20",
        "1e21",
        "1e22",
        "1e-6",
        "1e-7",
        "123456.789",
        "1234e56",
        "1e308",
        "9007199254740993",
        "9007199254740993.0",
        "1152921504606846976.0",
        "9223372036854775807.0",
        "9223372036854774784.0",
        "0x1p-2",
        "0x1.8",
        "infinity",
        "Inf",
        "nan",
        "NaN",
        "1.2.3",
        "1,000",
        "1 000",
        "0b1111111111111111111111111111111111111111111111111111111111111111",
        "0xffffffffffffffff",
        "0777777777777777777777",
        "01777777777777777777777",
    ]);
}

#[test]
fn texts_that_look_like_something_are_the_same() {
    same_values(&[
        "2024-01-02",
        "2024-1-2",
        "2024-01-02T03:04:05Z",
        "2024-01-02 03:04:05",
        "2024-13-45",
        "2024-",
        "2024-01",
        "1:30",
        "190:20:30",
        "12:30:45.5",
        "=",
        "<<",
        "!",
        "'yes'",
        "\"1\"",
        "'0644'",
        "\"\\u0041\"",
        "'it''s'",
        "a b",
        "a:b",
        "a#b",
        "a # b",
        "x@",
        "-x",
        "?x",
        ":x",
        "[]",
        "{}",
        "[1, yes, 0644, ~, '1']",
        "{a: 1, b: yes}",
        "!!str 1",
        "!!str yes",
        "!!int '5'",
        "!!int 5",
        "!!float 1",
        "!!float 1.5",
        "!!bool yes",
        "!!null ''",
        "!!binary aGVsbG8=",
        "!!timestamp 2024-01-02",
        "!custom 5",
        "! 5",
        "! yes",
        "!!str",
        "!<tag:yaml.org,2002:int> 7",
        "é",
        "\"😀\"",
    ]);
}

#[test]
fn keys_are_the_same() {
    let text = object(
        "data: {1: a, yes: b, 1.5: c, 0644: d, 1e30: e, -0.5: f, '1x': g, 2024-01-02: h, 1e-7: i, 100000000: j, 2.0: k, 123456789.5: l, .inf: m}",
    );
    assert_eq!(ask_us("a.yaml", &text).unwrap(), ask_kubectl("a.yaml", &text).unwrap());
}

#[test]
fn blocks_aliases_and_merges_are_the_same() {
    for body in [
        "data:\n  a: |\n    one\n      two\n\n    three\n  b: >\n    one\n    two\n\n    three\n  c: |-\n    x\n  d: |+\n    x\n\n  e: >-\n    a\n     b\n    c\n  f: plain\n    goes on\n",
        "data: &d {a: 1, b: 2}\nother: *d\n",
        "x: &x {a: 1, b: 1}\ndata: {b: 2, <<: *x, c: 3}\n",
        "x: &x {a: 1, b: 1}\ndata: {<<: *x, b: 2}\n",
        "x: &x {a: 1, b: 1}\ny: &y {b: 2, c: 2}\ndata: {a: 0, <<: [*x, *y], c: 4}\n",
        "x: &x {a: 1}\ny: &y {<<: *x, b: 1}\ndata: {<<: *y}\n",
        "data: {<<: {a: 1}}\n",
        "data: {'<<': 1}\n",
        "data: {\"a\\tb\": \"x\\ty\", 'c': \"line\\\n    goes on\"}\n",
        "data: {a: [x, [y, {z: 1}]]}\n",
        "data:\n- a\n-   b\n- - c\n  - d\n",
        "data: \"tab\\tnul\\0end\"\n",
    ] {
        let text = object(body);
        assert_eq!(ask_us("a.yaml", &text), ask_kubectl("a.yaml", &text), "{body}");
    }
}

#[test]
fn documents_and_lists_are_the_same() {
    let (a, b) = (
        object("data: {k: a}"),
        object("data: {k: b}").replace("name: a", "name: b"),
    );
    let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: default}}\n";
    let typed = "apiVersion: v1\nkind: ConfigMapList\nitems:\n- {metadata: {name: a, namespace: default}}\n";
    let json = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"},"data":{"f":1.0,"g":1e3,"h":12345678901234567890,"i":-0}}"#;
    for (file, text) in [
        ("a.yaml", format!("---\n{a}---\n{b}")),
        ("a.yaml", format!("# comment\n---\n\n---\n{a}--- # next\n{b}---\n")),
        ("a.yaml", format!("\u{feff}{a}")),
        ("a.yaml", a.replace('\n', "\r\n")),
        ("a.yml", list.to_owned()),
        ("a.yaml", typed.to_owned()),
        ("a.json", json.to_owned()),
        ("a.json", format!("{json}\n{}", json.replace("\"a\"", "\"b\""))),
        ("a.yaml", format!("{json}\n---\n{b}")),
        (
            "a.yaml",
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: default}}\n".to_owned(),
        ),
    ] {
        assert_eq!(ask_us(file, &text), ask_kubectl(file, &text), "{file}: {text}");
    }
}

#[test]
fn what_kubectl_refuses_we_refuse() {
    for body in [
        "data: {.inf: .inf}",
        "data: {k: .nan}",
        "data: {~: 1}",
        "data: {? [a] : b}",
        "data: [",
        "data: *x",
        "data: {<<: 1}",
        "data: !!int x",
        "\tdata: 1",
    ] {
        let text = object(body);
        assert!(ask_kubectl("a.yaml", &text).is_err(), "{body}");
        assert!(ask_us("a.yaml", &text).is_err(), "{body}");
    }
}
