//! Hostile templates.

use std::time::{Duration, Instant};

use farwater_render::{Limits, Program};
use serde_json::json;

use super::{
    Case, case, run_all,
    support::{Bench, Files, Job, charts::small, files, strict},
};

fn template(text: &str) -> Job {
    Job::new(small(text))
}

fn with(extra: &[(&str, &str)]) -> Job {
    let mut all = small("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n");
    all.extend(files(extra.iter().copied()));
    Job::new(all)
}

pub fn loops() -> Vec<Case> {
    let time = "rendering took over";
    vec![
        case(
            "nested ranges",
            template("{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}"),
            time,
        ),
        case(
            "includes that repeat",
            template(
                "{{ define \"x\" }}{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}{{ end }}{{ include \"x\" . }}",
            ),
            time,
        ),
        case(
            "tpl in a loop",
            template(
                "{{ range until 100000 }}{{ range until 10000 }}{{ tpl \"{{ .a }}\" (dict \"a\" 1) }}{{ end }}{{ end }}",
            ),
            time,
        ),
        case(
            "hashes",
            template("{{ range until 100000000 }}{{ derivePassword 1 \"maximum\" \"p\" \"u\" \"s\" }}{{ end }}"),
            "rendering",
        ),
        case(
            "keys",
            template("{{ range until 10000 }}{{ $x := genPrivateKey \"rsa\" }}{{ end }}"),
            time,
        ),
        case(
            "passwords",
            template("{{ range until 10000 }}{{ $x := bcrypt \"x\" }}{{ end }}"),
            time,
        ),
        case(
            "certificates",
            template("{{ range until 10000 }}{{ $x := genCA \"x\" 1 }}{{ end }}"),
            time,
        ),
        case(
            "an include of itself",
            template("{{ define \"x\" }}{{ include \"x\" . }}{{ end }}{{ include \"x\" . }}"),
            "nested reference",
        ),
        case(
            "includes of each other",
            template(
                "{{ define \"x\" }}{{ include \"y\" . }}{{ end }}{{ define \"y\" }}{{ include \"x\" . }}{{ end }}{{ include \"x\" . }}",
            ),
            "nested reference",
        ),
        case(
            "a template of itself",
            template("{{ define \"x\" }}{{ template \"x\" . }}{{ end }}{{ template \"x\" . }}"),
            "",
        ),
        case("tpl of itself", template("{{ tpl .Values.t . }}"), None),
        case(
            "tpl of a value that names itself",
            with(&[
                ("values.yaml", "t: '{{ tpl .Values.t . }}'\n"),
                ("templates/b.yaml", "{{ tpl .Values.t . }}"),
            ]),
            "",
        ),
        case(
            "a range over a channel of numbers",
            template("{{ range $i := untilStep 0 1000000000 1 }}{{ end }}"),
            "rendering",
        ),
    ]
}

pub fn memory() -> Vec<Case> {
    let big = [
        ("repeat", "{{ repeat 10000000000 \"x\" }}"),
        (
            "repeat of repeat",
            "{{ $x := repeat 1000000 \"x\" }}{{ $y := repeat 1000000 $x }}",
        ),
        ("until", "{{ $x := until 1000000000 }}"),
        ("random text", "{{ randAlphaNum 1000000000 }}"),
        ("indent", "{{ indent 1000000000 \"x\" }}"),
        ("padding", "{{ printf \"%01000000000d\" 1 }}"),
        (
            "many paddings",
            "{{ $s := \"\" }}{{ range until 4000 }}{{ $s = printf \"%s%0100000d\" $s 1 }}{{ end }}{{ $t := repeat 100 $s }}{{ $u := repeat 100 $t }}",
        ),
        (
            "doubling",
            "{{ $s := \"xxxxxxxx\" }}{{ range until 64 }}{{ $s = printf \"%s%s\" $s $s }}{{ end }}",
        ),
        (
            "doubling lists",
            "{{ $l := list 1 2 }}{{ range until 64 }}{{ $l = concat $l $l }}{{ end }}",
        ),
        (
            "replacing",
            "{{ $s := repeat 100000 \"x\" }}{{ $t := $s | replace \"x\" $s }}",
        ),
        (
            "replacing by expressions",
            "{{ $s := repeat 100000 \"x\" }}{{ $t := regexReplaceAll \"x\" $s $s }}",
        ),
        (
            "splitting",
            "{{ $s := repeat 100000000 \"x,\" }}{{ $l := splitList \",\" $s }}",
        ),
        (
            "a large dict",
            "{{ $d := dict }}{{ range until 100000000 }}{{ $_ := set $d (print .) (repeat 1000 \"x\") }}{{ end }}",
        ),
        (
            "joining",
            "{{ $s := repeat 1000000 \"x\" }}{{ $l := list $s $s $s $s $s $s $s $s }}{{ range until 10 }}{{ $s = join $s $l }}{{ end }}",
        ),
    ];
    let mut cases: Vec<Case> = big
        .into_iter()
        .map(|(name, text)| case(name, template(text), ""))
        .collect();
    let cyclic = "{{ $d := dict }}{{ $_ := set $d \"self\" $d }}";
    for (name, with) in [
        ("toJson", "toJson"),
        ("toYaml", "toYaml"),
        ("deepCopy", "deepCopy"),
        ("print", "print"),
        ("toToml", "toToml"),
        ("merge", "merge (dict)"),
        ("quote", "quote"),
    ] {
        cases.push(case(
            format!("{name} of what holds itself"),
            template(&format!("{cyclic}{{{{ $x := {with} $d }}}}")),
            None,
        ));
    }
    cases
}

pub fn output() -> Vec<Case> {
    let most = "at most";
    vec![
        case(
            "10 GB",
            template("{{ range until 10000 }}{{ range until 1000 }}{{ repeat 1000 \"x\" }}{{ end }}{{ end }}"),
            "",
        ),
        case(
            "20 MB in one object",
            template("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: {{ repeat 20000000 \"x\" }}}\n"),
            most,
        ),
        case(
            "5 MB in one object",
            template("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: {{ repeat 5000000 \"x\" }}}\n"),
            most,
        ),
        case(
            "a million documents",
            template("{{ range until 1000000 }}\n---\na: b{{ end }}"),
            "",
        ),
        case(
            "20,000 objects",
            template("{{ range until 20000 }}\n---\napiVersion: v1\nkind: A\nmetadata: {name: n{{ . }}}{{ end }}"),
            "10000 objects",
        ),
        case("deep", template("a: {{ repeat 1000000 \"[\" }}"), ""),
        case(
            "deep and closed",
            template(
                "apiVersion: v1\nkind: A\nmetadata: {name: a}\nspec: {{ repeat 9000 \"[\" }}{{ repeat 9000 \"]\" }}",
            ),
            None,
        ),
        case(
            "not text",
            template("apiVersion: v1\nkind: A\nmetadata: {name: \"{{ b64dec \"//79\" }}\"}\n"),
            None,
        ),
        case("no object", template("just text\n"), ""),
        case("a long message", template("{{ fail (repeat 10000000 \"x\") }}"), ""),
    ]
}

pub fn functions() -> Vec<Case> {
    vec![
        case(
            "getHostByName",
            template("{{ getHostByName \"example.com\" }}"),
            "rendering has no network",
        ),
        case("env", template("{{ env \"HOME\" }}"), "function \"env\" not defined"),
        case(
            "expandenv",
            template("{{ expandenv \"$HOME\" }}"),
            "function \"expandenv\" not defined",
        ),
        case(
            "files of others",
            template(
                "apiVersion: v1\nkind: A\nmetadata: {name: a}\ndata: {{ .Files.Get \"../../../../etc/passwd\" | quote }}\nall: {{ (.Files.Glob \"/**\") | toJson | quote }}\n",
            ),
            None,
        ),
        case(
            "lookup",
            template(
                "apiVersion: v1\nkind: A\nmetadata: {name: a}\ndata: {{ lookup \"v1\" \"Secret\" \"kube-system\" \"\" | toJson | quote }}\n",
            ),
            None,
        ),
        case(
            "lookups without an end",
            template("{{ range until 5000 }}{{ lookup \"v1\" \"Secret\" \"a\" (print .) }}{{ end }}")
                .renderers(json!([{"helm": {"lookup": true}}])),
            "there is no cluster",
        ),
    ]
}

fn packed(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let mut tar = Vec::new();
    for (name, content) in entries {
        let mut header = [0u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[136..147].copy_from_slice(b"00000000000");
        header[148..156].copy_from_slice(b"        ");
        header[156] = b'0';
        header[257..263].copy_from_slice(b"ustar\0");
        header[263..265].copy_from_slice(b"00");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        tar.extend_from_slice(&header);
        tar.extend_from_slice(content);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    let path = folder.path().join("c.tar");
    std::fs::write(&path, tar).unwrap();
    assert!(
        std::process::Command::new("gzip")
            .arg("-n")
            .arg(&path)
            .status()
            .unwrap()
            .success()
    );
    std::fs::read(folder.path().join("c.tar.gz")).unwrap()
}

/// A chart with this archive in `charts`.
fn with_packed(archive: Vec<u8>) -> Job {
    let mut all: Files = small("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n");
    all.insert("charts/c-1.0.0.tgz".to_owned(), archive);
    Job::new(all)
}

pub fn archives() -> Vec<Case> {
    const CHART: &[u8] = b"apiVersion: v2\nname: c\nversion: 1.0.0\n";
    let chart = ("c/Chart.yaml", CHART);
    let zeros = vec![0; 100 << 20];
    let many: Vec<String> = (0..100_000).map(|n| format!("c/templates/{n}.yaml")).collect();
    let mut many: Vec<(&str, &[u8])> = many.iter().map(|name| (name.as_str(), &b""[..])).collect();
    many.push(chart);
    let nested = (0..6).fold(packed(&[chart]), |inner, _| {
        packed(&[chart, ("c/charts/c-1.0.0.tgz", &inner)])
    });
    vec![
        case(
            "a name that leads out",
            with_packed(packed(&[chart, ("c/../../../etc/cron.d/x", b"x")])),
            "illegally",
        ),
        case(
            "an absolute name",
            with_packed(packed(&[chart, ("c//etc/passwd", b"x")])),
            None,
        ),
        case("a drive", with_packed(packed(&[chart, ("c/c:/x", b"x")])), None),
        case("zeros", with_packed(packed(&[chart, ("c/zeros", &zeros)])), ""),
        case("100,000 files", with_packed(packed(&many)), None),
        case("archives in archives", with_packed(nested), None),
        case("no archive", with_packed(b"not gzip".to_vec()), ""),
        case(
            "an archive that is cut",
            with_packed(packed(&[chart])[..40].to_vec()),
            "",
        ),
        case("an empty archive", with_packed(packed(&[])), ""),
        case("no chart in it", with_packed(packed(&[("c/x", b"")])), ""),
    ]
}

pub fn metadata() -> Vec<Case> {
    let chart = |text: &str| {
        Job::of([
            ("Chart.yaml", text),
            ("templates/a.yaml", "apiVersion: v1\nkind: A\nmetadata: {name: a}\n"),
        ])
    };
    let depends = |repository: &str| {
        chart(&format!(
            "apiVersion: v2\nname: c\nversion: 1.0.0\ndependencies: [{{name: d, version: '*', repository: '{repository}'}}]\n"
        ))
    };
    vec![
        case("a dependency outside", depends("file:///etc"), "is absolute"),
        case(
            "a dependency far outside",
            depends("file://../../../../../etc"),
            "leads out of the repository",
        ),
        case("itself as dependency", depends("file://."), ""),
        case(
            "a remote dependency",
            depends("https://127.0.0.1:1/"),
            "dependency build",
        ),
        case("no name", chart("apiVersion: v2\nversion: 1.0.0\n"), "name"),
        case(
            "a name that leads out",
            chart("apiVersion: v2\nname: ../../x\nversion: 1.0.0\n"),
            "name",
        ),
        case(
            "a version that is none",
            chart("apiVersion: v2\nname: c\nversion: latest\n"),
            "version",
        ),
        case(
            "an API version of tomorrow",
            chart("apiVersion: v9\nname: c\nversion: 1.0.0\n"),
            None,
        ),
        case("not YAML", chart("{{{{"), ""),
        case("rules that ignore in circles", with(&[(".helmignore", "**\n")]), ""),
        case("long rules", with(&[(".helmignore", "[a-\n")]), ""),
    ]
}

#[tokio::test]
async fn templates_that_never_end_end_with_an_error() {
    let _alone = super::others::ALONE.lock().await;
    // A low limit is enough: each of them reaches any limit.
    let limits = Limits {
        cpu: Duration::from_secs(2),
        ..strict().limits
    };
    run_all(&Bench::with(Program { limits, ..strict() }, ""), loops()).await;
}

#[tokio::test]
async fn templates_that_take_too_much_end_with_an_error() {
    let _alone = super::others::ALONE.lock().await;
    let bench = Bench::strict();
    run_all(&bench, memory()).await;
    run_all(&bench, output()).await;
}

/// A template that waits uses no processor time. This one uses all that it gets.
#[tokio::test]
async fn the_processors_time_has_a_limit_of_its_own() {
    let _alone = super::others::ALONE.lock().await;
    // So long that even on a busy machine the time limit doesn't end it.
    let (limit, long) = (Duration::from_secs(2), Duration::from_secs(300));
    let limits = Limits {
        time: long,
        cpu: limit,
        ..strict().limits
    };
    let bench = Bench::with(Program { limits, ..strict() }, "");
    for _ in 0..2 {
        let begun = Instant::now();
        let said = bench
            .refuse(&template(
                "{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}",
            ))
            .await;
        assert!(said.contains("rendering took over 2 s"), "{said}");
        assert!(begun.elapsed() >= limit, "{:?}", begun.elapsed());
    }
    // The time that one render used is not counted for the next.
    let plain = template("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n");
    assert_eq!(super::support::values(bench.render(&plain).await).len(), 1);
}

#[tokio::test]
async fn charts_reach_nothing_outside_of_themselves() {
    let _alone = super::others::ALONE.lock().await;
    let bench = Bench::strict();
    run_all(&bench, functions()).await;
    run_all(&bench, archives()).await;
    run_all(&bench, metadata()).await;
}
