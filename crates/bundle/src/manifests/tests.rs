use proptest::prelude::*;

use super::*;
use crate::{Limits, archive::Writer};

fn bundle(files: &[(&str, &[u8])]) -> Archive {
    let mut writer = Writer::default();
    let mut files = files.to_vec();
    files.sort_unstable();
    for (path, bytes) in files {
        let path = RelPath::parse(path).unwrap();
        match bytes.strip_prefix(b"-> ") {
            Some(target) => writer.link(&path, std::str::from_utf8(target).unwrap()),
            None => writer.file(&path, bytes, false),
        }
    }
    Archive::read(writer.finish(), &Limits::default()).unwrap()
}

fn read_all(files: &[(&str, &str)]) -> Manifests {
    let files: Vec<_> = files.iter().map(|(p, t)| (*p, t.as_bytes())).collect();
    read(&bundle(&files), &RelPath::root(), "default")
}

/// Compares one line per object, followed by one line per error.
fn check(files: &[(&str, &str)], expected: &[&str]) {
    let manifests = read_all(files);
    assert_eq!(manifests.is_complete(), manifests.errors().is_empty());
    let objects = manifests.objects().iter().map(|m| format!("{} {}", m.origin, m.object));
    let errors = manifests.errors().iter().map(|e| format!("! {e}"));
    assert_eq!(objects.chain(errors).collect::<Vec<_>>(), expected);
}

const A: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
const B: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: b\n  namespace: web\n";

#[test]
fn documents_are_read_file_by_file_in_the_order_of_a_walk() {
    let many = format!("# first\n\n{A}---\n# only a comment\n---\n\n---   # next\n{B}");
    check(
        &[
            (
                "a-b.yaml",
                "{\"apiVersion\": \"v1\", \"kind\": \"Secret\", \"metadata\": {\"name\": \"j\"}}",
            ),
            ("a/x.yml", &many),
            ("notes.txt", "hello"),
        ],
        &[
            "a/x.yml:3 (document 1) ConfigMap a",
            "a/x.yml:11 (document 2) Deployment.apps web/b",
            "a-b.yaml:1 (document 1) Secret j",
        ],
    );
}

#[test]
fn lists_are_taken_apart() {
    let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n- {apiVersion: v1, kind: ConfigMapList, items: [{metadata: {name: b}}]}\n";
    check(
        &[("l.yaml", list)],
        &["l.yaml:1 (document 1) ConfigMap a", "l.yaml:1 (document 1) ConfigMap b"],
    );
    check(&[("e.yaml", "apiVersion: v1\nkind: List\nitems: []\n")], &[]);
    check(
        &[("c.yaml", "apiVersion: x.io/v1\nkind: AllowList\nmetadata: {name: c}\n")],
        &["c.yaml:1 (document 1) AllowList.x.io c"],
    );
}

#[test]
fn json_files_hold_one_value_or_several() {
    let json = "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"}}\n\n{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"b\"}}\n";
    check(
        &[("j.json", json)],
        &["j.json:1 (document 1) ConfigMap a", "j.json:3 (document 2) ConfigMap b"],
    );
    let twice = "{\"apiVersion\":\"v1\",\n\"kind\":\"A\",\"kind\":\"B\"}";
    check(
        &[("j.json", twice)],
        &["! j.json:2 (document 1): not valid JSON: key \"kind\" is given twice; keep one"],
    );
    check(
        &[("f.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")],
        &["f.yaml:1 (document 1) ConfigMap a"],
    );
}

#[test]
fn unfinished_merges_and_templates_are_called_what_they_are() {
    let conflict = format!("{A}<<<<<<< HEAD\ndata: {{a: b}}\n=======\n>>>>>>> next\n");
    check(
        &[("m.yaml", &conflict)],
        &["! m.yaml:4 (document 1): holds the conflict markers of an unfinished merge"],
    );
    let template = format!("{A}data:\n  a: {{{{ .Values.a }}}}\n");
    let said = "a mapping's key is a mapping, which JSON can't have; it looks like a template: Helm's belong in a chart, \
                Liquid's in a file whose name ends in .liquid";
    check(&[("t.yaml", &template)], &[&format!("! t.yaml:5 (document 1): {said}")]);
    check(
        &[("q.yaml", &format!("{A}data: {{a: '{{{{ b }}}}'}}\n"))],
        &["q.yaml:1 (document 1) ConfigMap a"],
    );
}

#[test]
fn a_hook_with_a_generated_name_has_the_same_one_each_time() {
    let hook = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  generateName: migrate-\n  annotations: {argocd.argoproj.io/hook: PreSync}\n";
    check(
        &[("hook.yaml", hook)],
        &["hook.yaml:1 (document 1) Job.batch migrate-879592bc"],
    );
}

#[test]
fn what_an_object_must_have_is_named_with_file_and_line() {
    let bad = "metadata: {name: a}\n---\nkind: A\n---\nkind: A\napiVersion: v1\n---\nkind: A\napiVersion: v1\nmetadata: {generateName: a-}\n---\n- x\n---\njust text\n---\nkind: 5\n---\nkind: A\napiVersion: a/b/c\nmetadata: {name: x}\n---\nkind: A\napiVersion: v1\nmetadata: {name: 007}\n";
    check(
        &[("bad.yaml", bad)],
        &[
            "! bad.yaml:1 (document 1): has no kind: an object needs apiVersion, kind and metadata.name; files that hold none belong elsewhere",
            "! bad.yaml:3 (document 2): has no apiVersion: an object needs apiVersion, kind and metadata.name; files that hold none belong elsewhere",
            "! bad.yaml:5 (document 3): has no metadata.name: an object needs apiVersion, kind and metadata.name; files that hold none belong elsewhere",
            "! bad.yaml:8 (document 4): has metadata.generateName: each apply would make another object; give it a metadata.name",
            "! bad.yaml:12 (document 5): is a list, not an object",
            "! bad.yaml:14 (document 6): is a string, not an object",
            "! bad.yaml:16 (document 7): has a kind that is not a string; quote it",
            "! bad.yaml:18 (document 8): has apiVersion \"a/b/c\", which Kubernetes can't take as one",
            "! bad.yaml:22 (document 9): has a metadata.name that is not a string; quote it",
        ],
    );
}

#[test]
fn one_broken_document_spoils_no_other() {
    let broken = format!("{A}---\na: [\n---\n{B}");
    let manifests = read_all(&[("x.yaml", &broken)]);
    assert_eq!(manifests.objects().len(), 2);
    let [error] = manifests.errors() else {
        panic!("{manifests:?}")
    };
    assert!(
        error.to_string().starts_with("x.yaml:5 (document 2): not valid YAML: "),
        "{error}"
    );
}

#[test]
fn duplicate_keys_are_errors_with_both_lines() {
    let twice = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  k: 1\n  k: 2\n";
    check(
        &[("d.yaml", twice)],
        &["! d.yaml:6 (document 1): key \"k\" is given twice, first on line 5; keep one"],
    );
}

#[test]
fn two_objects_with_one_identity_are_refused_naming_both() {
    let other_version = "apiVersion: apps/v1beta1\nkind: Deployment\nmetadata: {name: b, namespace: web}\n";
    check(
        &[("1.yaml", B), ("2.yaml", other_version)],
        &[
            "1.yaml:1 (document 1) Deployment.apps web/b",
            "! Deployment.apps web/b is written twice: 1.yaml:1 (document 1) and 2.yaml:1 (document 1); keep one",
        ],
    );
    // An object without a namespace counts as one in the service's namespace.
    let explicit = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n";
    assert_eq!(read_all(&[("1.yaml", A), ("2.yaml", explicit)]).errors().len(), 1);
}

#[test]
fn sizes_bombs_and_texts_that_are_no_text_are_refused() {
    let long = format!("{A}data: {{k: \"{}\"}}\n---\n{B}", "x".repeat(3 << 20));
    let manifests = read_all(&[("long.yaml", &long)]);
    assert_eq!(manifests.objects().len(), 1);
    assert!(
        manifests.errors()[0]
            .to_string()
            .contains("the Kubernetes API takes at most 3145728")
    );
    let mut bomb = format!("{A}a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for n in 1..10 {
        bomb += &format!("a{n}: &a{n} [{}]\n", [format!("*a{}", n - 1).as_str(); 9].join(", "));
    }
    assert!(
        read_all(&[("bomb.yaml", &bomb)]).errors()[0]
            .to_string()
            .contains("alias bomb")
    );
    let manifests = read(&bundle(&[("u.yaml", b"\xff\xfea\0")]), &RelPath::root(), "");
    assert_eq!(
        manifests.errors()[0].to_string(),
        "u.yaml:1 (document 1): is not UTF-8 text"
    );
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    assert!(
        read_all(&[("p.yaml", pointer)]).errors()[0]
            .to_string()
            .contains("LFS pointer")
    );
    assert!(!read_all(&[("s.yaml", "--- text\n")]).is_complete());
}

#[test]
fn a_kustomization_is_no_manifest_and_a_chart_is_not_half_read() {
    check(
        &[("kustomization.yaml", "resources: [a.yaml]"), ("a.yaml", A)],
        &["a.yaml:1 (document 1) ConfigMap a"],
    );
    let chart = read_all(&[("Chart.yaml", "name: web\n"), ("a.yaml", A)]);
    assert!(
        chart.errors()[0]
            .to_string()
            .starts_with("Chart.yaml:1 (document 1): has no kind")
    );
}

#[test]
fn a_kustomization_below_is_an_error_that_says_what_to_do_and_its_folder_is_not_read() {
    let files: &[(&str, &[u8])] = &[
        ("a.yaml", A.as_bytes()),
        ("web/b.yaml", B.as_bytes()),
        ("web/base/Kustomization", b"resources: []\n"),
        ("web/base/c.yaml", B.as_bytes()),
        ("web/kustomization.yml", b"resources: [b.yaml]\n"),
    ];
    let read = |options: RawOptions| {
        let mut collector = Collector::new("web");
        collector.add_folder(&bundle(files), &RelPath::root(), &[], &options);
        collector.finish()
    };
    let found = read(RawOptions::ALL);
    assert_eq!(
        found
            .objects()
            .iter()
            .map(|found| found.object.name.as_str())
            .collect::<Vec<_>>(),
        ["a"]
    );
    assert_eq!(
        found.errors().iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "web: holds a kustomization.yml, so it is not read as raw manifests. Add a renderer with the path of this folder, or leave this \
          folder out with raw.exclude or .sourceignore; if its files are to be applied as they are, leave out kustomization.yml alone"
        ]
    );
    let without = |names: &[&str]| {
        let exclude = names.iter().map(|name| (*name).to_owned()).collect();
        RawOptions {
            exclude,
            ..RawOptions::ALL
        }
    };
    assert!(read(without(&["web/"])).is_complete());
    assert!(
        read(RawOptions {
            recurse: false,
            ..RawOptions::ALL
        })
        .is_complete()
    );
    let as_they_are = read(without(&["kustomization.yml", "base/"]));
    assert!(
        as_they_are.is_complete() && as_they_are.objects().len() == 2,
        "{as_they_are:?}"
    );
}

#[test]
fn what_renderers_made_is_collected_beside_manifests() {
    let archive = bundle(&[("a.yaml", A.as_bytes()), ("chart/templates/b.yaml", b"{{ no }}")]);
    let path = |text: &str| RelPath::parse(text).unwrap();
    let object = |name: &str| serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let mut collector = Collector::new("web");
    collector.add_folder(&archive, &RelPath::root(), &[path("chart")], &RawOptions::ALL);
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [object("b"), object("c")]});
    let origin = |file: &str, document| Origin {
        file: path(file),
        line: 0,
        document,
    };
    collector.add_rendered(&origin("chart/templates/b.yaml", 1), list);
    collector.add_rendered(&origin("chart/templates/c.yaml", 1), object("c"));
    let mut other = object("a");
    other["data"] = serde_json::json!({"x": "y"});
    collector.add_rendered(&origin("chart/templates/d.yaml", 2), other);
    let manifests = collector.finish();
    let said: Vec<_> = manifests
        .objects()
        .iter()
        .map(|m| format!("{} {}", m.origin, m.object.name))
        .collect();
    let expected = [
        "a.yaml:1 (document 1) a",
        "chart/templates/b.yaml (document 1) b",
        "chart/templates/b.yaml (document 1) c",
    ];
    assert_eq!(said, expected);
    assert!(
        manifests.errors()[0]
            .to_string()
            .contains("is written twice: a.yaml:1 (document 1) and chart/templates/d.yaml")
    );
}

#[test]
fn a_folder_of_which_nothing_is_read_is_an_error_that_names_what_is_there() {
    let read = |files: &[(&str, &[u8])], options: RawOptions| {
        let mut collector = Collector::new("web");
        collector.add_folder(&bundle(files), &RelPath::parse("app").unwrap(), &[], &options);
        collector.finish()
    };
    let check = |files: &[(&str, &[u8])], options: RawOptions, expected: &str| {
        let said = read(files, options).errors()[0].to_string();
        let expected =
            format!("app: has no manifests{expected}. If no objects are meant, set raw.allowEmpty of the renderer");
        assert_eq!(said, expected);
    };
    let jsonnet: &[(&str, &[u8])] = &[
        ("app/README.md", b""),
        ("app/lib/a.libsonnet", b""),
        ("app/main.jsonnet", b""),
    ];
    check(
        jsonnet,
        RawOptions::ALL,
        ", which are named *.yaml, *.yml and *.json; it has README.md, lib/a.libsonnet, main.jsonnet. \
         Name another path, or the renderer of these files",
    );
    let below: &[(&str, &[u8])] = &[("app/setup/a.yaml", A.as_bytes())];
    check(
        below,
        RawOptions {
            recurse: false,
            ..RawOptions::ALL
        },
        " but setup/a.yaml, left out by recurse, include or exclude of its renderer or by .sourceignore",
    );
    assert!(
        read(
            jsonnet,
            RawOptions {
                allow_empty: true,
                ..RawOptions::ALL
            }
        )
        .is_complete()
    );
    // A file with only a comment states that there are no objects.
    assert!(read(&[("app/a.yaml", b"# later\n")], RawOptions::ALL).is_complete());
}

#[test]
fn an_empty_folder_is_complete_and_a_missing_one_is_not() {
    assert!(read_all(&[("README.md", "")]).is_complete());
    let missing = read(
        &bundle(&[("a/b.yaml", A.as_bytes())]),
        &RelPath::parse("c").unwrap(),
        "",
    );
    assert_eq!(
        missing.errors()[0].to_string(),
        "c: the bundle has no such folder: c does not exist"
    );
}

#[test]
fn symlinked_files_are_read_and_symlinked_folders_are_not_descended() {
    check(
        &[
            ("a/l.yaml", "-> ../b/c.yaml"),
            ("a/dir", "-> ../b"),
            ("a/dir.yaml", "-> ../b"),
            ("b/c.yaml", A),
        ],
        &[
            "a/l.yaml:1 (document 1) ConfigMap a",
            "! ConfigMap a is written twice: a/l.yaml:1 (document 1) and b/c.yaml:1 (document 1); keep one",
        ],
    );
    let only_a = bundle(&[
        ("a/dir.yaml", b"-> ../b"),
        ("a/l.yaml", b"-> ../b/c.yaml"),
        ("b/c.yaml", A.as_bytes()),
    ]);
    assert_eq!(read(&only_a, &RelPath::parse("a").unwrap(), "").objects().len(), 1);
}

#[test]
fn errors_are_cut_and_counted() {
    let many = "kind: A\n---\n".repeat(150);
    let manifests = read_all(&[("m.yaml", &many)]);
    assert_eq!(manifests.errors().len(), MAX_ERRORS + 1);
    assert_eq!(manifests.errors()[MAX_ERRORS].to_string(), "and 50 more errors");
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic_or_point_past_its_end(text in "[-a-c{}\\[\\]:,&*!|>'\"%#<?0-9.\\n \\t]{0,60}") {
        let text = format!("kind: a\n{text}");
        let lines = text.split('\n').count() as u32;
        let manifests = read_all(&[("x.yaml", &text)]);
        prop_assert!(!manifests.is_complete() || manifests.objects().is_empty());
        for error in manifests.errors() {
            if let ManifestError::Document { origin, .. } = error {
                prop_assert!(origin.line >= 1 && origin.line <= lines + 1, "{error}");
            }
        }
    }
}
