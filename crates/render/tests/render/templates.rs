//! Files named `*.liquid`.

use serde_json::{Value, json};

use super::support::{Bench, Job, errors, values};

fn parameters() -> Value {
    json!({
        "configuration": {"host": "a.example.com", "replicas": 3, "big": 10_000_000, "ratio": 0.25, "debug": false, "empty": "", "list": ["x", "y"], "tls": {"secret": "s"}, "none": null},
        "cluster": {"name": "east", "metadata": {"labels": {"tier": "gold"}}},
        "contexts": {"dns": {"zone": "example.com"}},
        "service": {"name": "web"},
    })
}

fn config_map(data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n{data}")
}

async fn check(bench: &Bench, data: &str, expected: Value) {
    let text = config_map(data);
    let job = Job::of([("a.yaml.liquid", text.as_str())]).parameters(parameters());
    assert_eq!(values(bench.render(&job).await)[0]["data"], expected, "{data}");
}

#[tokio::test]
async fn templates_see_what_a_service_is_given() {
    let bench = Bench::new();
    check(
        &bench,
        "  host: {{ configuration.host }}\n",
        json!({"host": "a.example.com"}),
    )
    .await;
    check(
        &bench,
        "  all: '{{ configuration.replicas }} {{ configuration.big }} {{ configuration.ratio }}'\n",
        json!({"all": "3 10000000 0.25"}),
    )
    .await;
    check(
        &bench,
        "  tier: {{ cluster.metadata.labels.tier }}\n  zone: '{{ contexts.dns.zone }}'\n  of: {{ service.name }}\n",
        json!({"tier": "gold", "zone": "example.com", "of": "web"}),
    )
    .await;
    check(
        &bench,
        "  l: '{% for x in configuration.list %}{{ x }}{% unless forloop.last %},{% endunless %}{% endfor %}'\n",
        json!({"l": "x,y"}),
    )
    .await;
    check(
        &bench,
        "  d: '{{ configuration.absent | default: \"fallback\" }}'\n",
        json!({"d": "fallback"}),
    )
    .await;
    check(&bench, "  d: '{{ configuration.empty }}'\n", json!({"d": ""})).await;
    check(&bench, "{% if configuration.absent %}\n  no: 'x'\n{% elsif configuration.debug %}\n  no: 'y'\n{% else %}\n  yes_: 'z'\n{% endif %}\n", json!({"yes_": "z"})).await;
    check(
        &bench,
        "{% for i in (1..3) %}\n  k{{ i }}: '{{ i | times: 2 }}'\n{% endfor %}\n",
        json!({"k1": "2", "k2": "4", "k3": "6"}),
    )
    .await;
    check(
        &bench,
        "  raw: '{% raw %}{{ untouched }}{% endraw %}'\n",
        json!({"raw": "{{ untouched }}"}),
    )
    .await;
    check(&bench, "  b: {{ configuration.host | b64enc }}\n  q: {{ configuration.host | quote }}\n  u: {{ service.name | upcase }}\n", json!({"b": "YS5leGFtcGxlLmNvbQ==", "q": "a.example.com", "u": "WEB"})).await;
    check(
        &bench,
        "  text: |{{ configuration.tls | to_yaml | nindent: 4 }}\n  j: '{{ configuration.list | to_json }}'\n",
        json!({"text": "secret: s\n", "j": "[\"x\",\"y\"]"}),
    )
    .await;
    check(
        &bench,
        "{% assign j = '{\"a\": [1, 2]}' | from_json %}  j: '{{ j.a | last }}'\n  s: {{ 'a' | sha256sum | truncate: 8, '' | quote }}\n",
        json!({"j": "2", "s": "ca978112"}),
    )
    .await;
    check(
        &bench,
        "{% assign n = configuration.replicas | plus: 1 %}  next: '{{ n }}'\n",
        json!({"next": "4"}),
    )
    .await;
    check(
        &bench,
        "{% case cluster.name %}{% when 'east' %}  c: 'E'{% else %}  c: 'other'{% endcase %}\n",
        json!({"c": "E"}),
    )
    .await;
}

#[tokio::test]
async fn what_is_not_defined_is_an_error_with_file_and_line() {
    let bench = Bench::new();
    let cases = [
        (
            "  a: 'x'\n  h: {{ configuration.hots }}\n",
            "sub/a.yaml.liquid:6: undefined variable in {{ configuration.hots }}",
        ),
        (
            "  h: {{ nothing.at.all }}\n",
            "sub/a.yaml.liquid:5: undefined variable in {{ nothing.at.all }}",
        ),
        (
            "  h: {{ configuration.none }}\n",
            "sub/a.yaml.liquid:5: undefined variable",
        ),
        (
            "\n{% for x in configuration.lits %}\n  {{ x }}: 1\n{% endfor %}\n",
            "sub/a.yaml.liquid:6: undefined variable in {% for x in configuration.lits %}",
        ),
        ("  h: {{ configuration.host | nosuch }}\n", "sub/a.yaml.liquid:5: "),
        ("{% if configuration.host %}\n  a: b\n", "sub/a.yaml.liquid:"),
        // Liquid takes this as text, and it is not valid YAML.
        (
            "  h: {{ configuration.host | \n",
            "sub/a.yaml:5 (document 1): not valid YAML",
        ),
        ("{% nosuch %}\n", "sub/a.yaml.liquid:5: "),
        (
            "{% include '/etc/passwd' %}\n",
            "include '/etc/passwd': templates include no files",
        ),
        (
            "  h: {{ configuration.host | indent: 1000000000 }}\n",
            "sub/a.yaml.liquid:5: ",
        ),
    ];
    for (data, expected) in cases {
        let text = config_map(data);
        let job = Job::of([
            ("sub/a.yaml.liquid", text.as_str()),
            ("b.yaml", "apiVersion: v1\nkind: A\nmetadata: {name: b}\n"),
        ]);
        let output = bench.render(&job.parameters(parameters())).await;
        let said = errors(&output);
        assert!(
            said.contains(expected) && !said.contains("farwater_defined"),
            "{expected}: {said}"
        );
        // If a template fails, no object is rendered: without its file the others could come out wrong. A manifest that
        // can't be read doesn't affect the others.
        let is_template = said.contains(".liquid:") || said.contains("templates");
        assert_eq!(output.objects.is_empty(), is_template, "{said}");
    }
}

#[tokio::test]
async fn no_error_has_a_parameter_in_it() {
    let bench = Bench::new();
    let canary = "c4n4ry-7531";
    let parameters = json!({"configuration": {"text": canary, "list": [canary], "map": {"k": canary}}});
    for text in [
        "{{ configuration.list | times: 2 }}",
        "{{ 4 | divided_by: configuration.text }}",
        "{{ 4 | modulo: configuration.map }}",
        "{{ configuration.text | date: configuration.list }}",
        "{{ configuration.text | b64dec }}",
        "{{ configuration.text | slice: configuration.text }}",
        "{{ configuration.map | sort: configuration.list }}",
        "{{ 'x' | indent: configuration.text }}",
        "{% for x in configuration.list limit: configuration.text %}{{ x }}{% endfor %}",
        "{% for x in (configuration.text..3) %}{{ x }}{% endfor %}",
        "{% include configuration.text %}",
        "{{ configuration.text.k.j }}",
        "a: {{ configuration.text }}: {{ configuration.text }}: [",
    ] {
        let job = Job::of([("a.yaml.liquid", text)]).parameters(parameters.clone());
        let output = bench.render(&job).await;
        let told: Vec<String> = output.errors.iter().map(ToString::to_string).collect();
        let said = format!("{told:?} {:?} {:?}", output.errors, output.warnings);
        assert!(!said.contains(canary), "{text}: {said}");
    }
}

#[tokio::test]
async fn templates_make_the_files_of_charts_and_kustomizations() {
    let bench = Bench::new();
    let chart = Job::of([
        (
            "Chart.yaml.liquid",
            "apiVersion: v2\nname: c\nversion: 1.0.0\nappVersion: '{{ configuration.replicas }}'\n",
        ),
        ("values.yaml.liquid", "host: {{ configuration.host }}\n"),
        (
            "templates/a.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {host: '{{ .Values.host }}', app: '{{ .Chart.AppVersion }}'}\n",
        ),
    ]);
    let made = values(bench.render(&chart.parameters(parameters())).await);
    assert_eq!(made[0]["data"], json!({"host": "a.example.com", "app": "3"}));
    let overlay = Job::of([(
        "kustomization.yaml.liquid",
        "namePrefix: {{ cluster.name }}-\nconfigMapGenerator: [{name: a, literals: [zone={{ contexts.dns.zone }}], options: {disableNameSuffixHash: true}}]\n",
    )]);
    let made = values(bench.render(&overlay.parameters(parameters())).await);
    assert_eq!(
        (&made[0]["metadata"]["name"], &made[0]["data"]["zone"]),
        (&json!("east-a"), &json!("example.com"))
    );
}

#[tokio::test]
async fn a_file_beside_its_template_is_an_error() {
    let text = config_map("  a: b\n");
    let job = Job::of([("a.yaml", text.as_str()), ("a.yaml.liquid", text.as_str())]).parameters(parameters());
    let said = errors(&Bench::new().render(&job).await);
    assert!(
        said.contains("a.yaml.liquid would become a.yaml, which is there already"),
        "{said}"
    );
}

#[tokio::test]
async fn one_template_changes_nothing_for_another() {
    let (first, second) = (
        config_map("{% assign configuration = 'gone' %}  a: b\n"),
        config_map("  h: {{ configuration.host }}\n"),
    );
    let second = second.replace("name: a", "name: b");
    let job = Job::of([("a.yaml.liquid", first.as_str()), ("b.yaml.liquid", second.as_str())]).parameters(parameters());
    assert_eq!(values(Bench::new().render(&job).await)[1]["data"]["h"], "a.example.com");
}
