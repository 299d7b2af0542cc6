//! Hostile kustomizations, Liquid templates and patches.

use serde_json::json;

use super::{
    Case, case, run_all,
    support::{Bench, Files, Job, files},
    values::bomb,
};

const OBJECT: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";

pub fn overlays() -> Vec<Case> {
    let of = |text: &str| Job::of([("kustomization.yaml", text), ("a.yaml", OBJECT)]);
    let mut cases = vec![
        case(
            "a circle",
            Job::of([
                ("kustomization.yaml", "resources: [b]\n"),
                ("b/kustomization.yaml", "resources: [../]\n"),
            ]),
            "",
        ),
        case("itself", of("resources: [.]\n"), ""),
        case(
            "files of this machine",
            of("configMapGenerator: [{name: a, files: [/etc/passwd]}]\n"),
            "",
        ),
        case("resources of this machine", of("resources: [/etc]\n"), ""),
        case(
            "an executable",
            Job::of([
                ("kustomization.yaml", "generators: [g.yaml]\n"),
                (
                    "g.yaml",
                    "apiVersion: someteam.example.com/v1\nkind: Exec\nmetadata: {name: g, annotations: {config.kubernetes.io/function: \"exec: {path: ./run.sh}\"}}\n",
                ),
                ("run.sh", "#!/bin/sh\ntouch /tmp/farwater-hostile\n"),
            ]),
            "",
        ),
        case(
            "a container",
            Job::of([
                ("kustomization.yaml", "transformers: [g.yaml]\n"),
                (
                    "g.yaml",
                    "apiVersion: v1\nkind: F\nmetadata: {name: g, annotations: {config.kubernetes.io/function: \"container: {image: x, network: true}\"}}\n",
                ),
            ]),
            "",
        ),
        case(
            "a long prefix",
            of(&format!("resources: [a.yaml]\nnamePrefix: {}\n", "x".repeat(1 << 20))),
            "",
        ),
        case(
            "an expression that backtracks",
            of(
                "resources: [a.yaml]\npatches: [{target: {name: '(a+)+$'}, patch: '- {op: add, path: /x, value: 1}'}]\n",
            ),
            None,
        ),
        case(
            "patches that copy",
            of(&format!(
                "resources: [a.yaml]\npatches:\n- target: {{kind: ConfigMap}}\n  patch: |-\n    - {{op: add, path: /d, value: [xxxxxxxxxx]}}\n{}",
                "    - {op: copy, from: /d, path: /d/0}\n".repeat(40)
            )),
            None,
        ),
        case(
            "a schema elsewhere",
            of("resources: [a.yaml]\nopenapi: {path: 'https://127.0.0.1:1/s.json'}\n"),
            "not in the repository",
        ),
        case(
            "a schema that is none",
            Job::of([
                ("kustomization.yaml", "resources: [a.yaml]\nopenapi: {path: s.json}\n"),
                ("a.yaml", OBJECT),
                ("s.json", "[1"),
            ]),
            "",
        ),
        case(
            "charts outside",
            of("helmGlobals: {chartHome: ../../../../etc}\nhelmCharts: [{name: c, releaseName: r}]\n"),
            "leads out of the repository",
        ),
        case(
            "a chart that is a flag",
            of("helmCharts: [{name: --post-renderer, releaseName: r}]\n"),
            "no chart",
        ),
        case(
            "1,000 generators",
            of(&format!(
                "configMapGenerator:\n{}",
                (0..1000)
                    .map(|n| format!("- {{name: n{n}, literals: [a={}]}}\n", "x".repeat(1000)))
                    .collect::<String>()
            )),
            None,
        ),
    ];
    for depth in [7, 12] {
        let text = format!(
            "{OBJECT}data:\n{}",
            bomb(depth)
                .lines()
                .map(|line| format!("  {line}\n"))
                .collect::<String>()
        );
        cases.push(case(
            format!("a resource, {depth} deep"),
            Job::of([
                ("kustomization.yaml", "resources: [a.yaml]\n"),
                ("a.yaml", text.as_str()),
            ]),
            None,
        ));
        let own = format!("resources: [a.yaml]\n{}", bomb(depth));
        cases.push(case(format!("a kustomization, {depth} deep"), of(&own), None));
    }
    cases.push(case("overlays that double", doubling(), None));
    cases
}

/// Each of 24 folders includes the previous one twice, under other names.
fn doubling() -> Job {
    let mut all: Files = files([
        ("d0/kustomization.yaml", "resources: [a.yaml]\n"),
        ("d0/a.yaml", OBJECT),
    ]);
    for n in 1..24 {
        let before = n - 1;
        for side in ["l", "r"] {
            all.insert(
                format!("d{n}/{side}/kustomization.yaml"),
                format!("resources: [../../d{before}]\nnamePrefix: {side}\n").into_bytes(),
            );
        }
        all.insert(format!("d{n}/kustomization.yaml"), b"resources: [l, r]\n".to_vec());
    }
    Job::new(all).at("d23")
}

pub fn templates() -> Vec<Case> {
    let of = |text: &str| {
        Job::of([("a.yaml.liquid", text)])
            .parameters(json!({"configuration": {"list": vec!["x"; 1000], "text": "x".repeat(1000)}}))
    };
    let all = [
        (
            "loops",
            "{% for a in (1..100000) %}{% for b in (1..100000) %}{% endfor %}{% endfor %}",
        ),
        ("a long range", "{% for a in (1..100000000000) %}{% endfor %}"),
        (
            "output",
            "{% for a in (1..100000) %}{% for b in (1..1000) %}{{ configuration.text }}{% endfor %}{% endfor %}",
        ),
        (
            "doubling",
            "{% assign s = configuration.text %}{% for a in (1..64) %}{% assign s = s | append: s %}{% endfor %}",
        ),
        (
            "capturing",
            "{% assign s = configuration.text %}{% for a in (1..64) %}{% capture s %}{{ s }}{{ s }}{% endcapture %}{% endfor %}",
        ),
        (
            "replacing",
            "{% assign s = configuration.text | replace: 'x', configuration.text %}{% assign s = s | replace: 'x', configuration.text %}{% assign s = s | replace: 'x', configuration.text %}",
        ),
        ("no end", "{% for a in (1..3) %}"),
        ("deep", &"{% if true %}".repeat(20_000)),
        ("braces", &"{{".repeat(100_000)),
        (
            "filters",
            &format!("{{{{ configuration.text {} }}}}", "| upcase ".repeat(20_000)),
        ),
        ("division", "{{ 1 | divided_by: 0 }}"),
        ("a wrong type", "{{ configuration.list | times: configuration.text }}"),
        ("a method", "{{ configuration.text.size.size.size }}"),
        ("files", "{% include '../../../etc/passwd' %}"),
    ];
    all.into_iter()
        .map(|(name, text)| case(format!("liquid: {name}"), of(text), ""))
        .collect()
}

pub fn patches() -> Vec<Case> {
    let of = |patches| Job::of([("a.yaml", OBJECT)]).patches(patches);
    vec![
        case(
            "a patch that explodes",
            of(
                json!([{"target": {"kind": "ConfigMap"}, "patch": format!("kind: ConfigMap\nmetadata: {{name: a}}\n{}", bomb(12))}]),
            ),
            None,
        ),
        case(
            "an expression that is none",
            of(json!([{"target": {"name": "["}, "patch": "- {op: add, path: /x, value: 1}"}])),
            "",
        ),
        case(
            "a path that leads nowhere",
            of(
                json!([{"target": {"name": "a"}, "patch": format!("[{{op: remove, path: '{}'}}]", "/a".repeat(10_000))}]),
            ),
            "",
        ),
        case(
            "no object is left",
            of(json!([{"target": {"name": "a"}, "patch": "- {op: replace, path: '', value: null}"}])),
            None,
        ),
        case(
            "another identity",
            of(json!([{"target": {"name": "a"}, "patch": "- {op: remove, path: /kind}"}])),
            "",
        ),
        case(
            "a list position far out",
            of(
                json!([{"target": {"name": "a"}, "patch": "- {op: add, path: /l, value: []}\n- {op: add, path: /l/99999999999, value: 1}"}]),
            ),
            "",
        ),
    ]
}

#[tokio::test]
async fn kustomizations_templates_and_patches_end_with_an_error_or_harmlessly() {
    let _alone = super::others::ALONE.lock().await;
    let bench = Bench::strict();
    run_all(&bench, overlays()).await;
    run_all(&bench, templates()).await;
    run_all(&bench, patches()).await;
    assert!(!std::path::Path::new("/tmp/farwater-hostile").exists());
}
