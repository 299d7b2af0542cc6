use super::*;
use crate::tree::MemoryTree;

fn walk(files: &[(&str, &str)], path: &str) -> Result<Closure, Box<ClosureError>> {
    let mut tree = MemoryTree::default();
    let root = tree.add_files(files.iter().copied());
    closure(&tree, &root, &RelPath::parse_folder(path).unwrap(), &Limits::default())
}

fn check(files: &[(&str, &str)], path: &str, expected: &[&str]) {
    let closure = walk(files, path).unwrap();
    assert_eq!(closure.files.keys().map(RelPath::as_str).collect::<Vec<_>>(), expected);
}

fn refused(files: &[(&str, &str)], path: &str, message: &str) {
    assert_eq!(walk(files, path).unwrap_err().to_string(), message);
}

#[test]
fn a_folder_is_taken_whole_and_nothing_beside_it() {
    let files = [
        ("apps/web/a.yaml", "a"),
        ("apps/web/x/b.yaml", "b"),
        ("apps/db/c.yaml", "c"),
        ("apps/web2/d", "d"),
    ];
    check(&files, "apps/web", &["apps/web/a.yaml", "apps/web/x/b.yaml"]);
    check(
        &files,
        ".",
        &["apps/db/c.yaml", "apps/web/a.yaml", "apps/web/x/b.yaml", "apps/web2/d"],
    );
}

#[test]
fn a_commit_outside_the_closure_changes_no_content_id() {
    let before = [("apps/web/a", "a"), ("base/k", "k"), ("other", "1")];
    let id = |files: &[(&str, &str)]| walk(files, "apps/web").unwrap().content_id;
    assert_eq!(
        id(&before),
        id(&[("apps/web/a", "a"), ("base/k", "changed"), ("other", "2"), ("new", "")])
    );
    assert_ne!(id(&before), id(&[("apps/web/a", "b"), ("base/k", "k"), ("other", "1")]));
    assert_ne!(id(&before), id(&[("apps/web/b", "a"), ("base/k", "k"), ("other", "1")]));
    let linked = |base: &str, other: &str| id(&[("apps/web/a", "-> ../../base/k"), ("base/k", base), ("other", other)]);
    assert_eq!(linked("k", "1"), linked("k", "2"));
    assert_ne!(linked("k", "1"), linked("changed", "1"));
}

#[test]
fn symlinks_bring_their_targets_and_the_links_on_the_way() {
    let files = [
        ("apps/web/a.yaml", "-> ../../x/y/f"),
        ("x/y", "-> ../z"),
        ("z/f", "f"),
        ("z/g", "g"),
    ];
    check(&files, "apps/web", &["apps/web/a.yaml", "x/y", "z/f"]);
    check(
        &[("a/d", "-> ../b"), ("b/f", ""), ("b/g/h", "")],
        "a",
        &["a/d", "b/f", "b/g/h"],
    );
    check(
        &[("current", "-> releases/5"), ("releases/5/f", ""), ("releases/4/f", "")],
        "current",
        &["current", "releases/5/f"],
    );
}

#[test]
fn symlinks_that_lead_out_in_circles_or_nowhere_are_refused() {
    refused(
        &[("a/l", "-> ../../etc/passwd")],
        "a",
        "a/l: is a symlink to \"../../etc/passwd\": path \"../../etc/passwd\" leads out of the repository",
    );
    refused(
        &[("a/l", "-> /etc/passwd")],
        "a",
        "a/l: is a symlink to \"/etc/passwd\": path \"/etc/passwd\" is absolute",
    );
    refused(
        &[("a/l", "-> m"), ("a/m", "-> l")],
        "a",
        "a/l: is a symlink to \"m\": symlinks lead in a circle, or through more than 40 others",
    );
    refused(
        &[("a/l", "-> ../b")],
        "a",
        "a/l: is a symlink to \"../b\": b does not exist",
    );
    refused(
        &[("a/l", "-> ")],
        "a",
        "a/l: is a symlink to \"\": path \"\" has an empty name",
    );
    refused(
        &[("a/l", "-> .git/config")],
        "a",
        "a/l: is a symlink to \".git/config\": path \"a/.git\" has a name that some systems take for `.git`",
    );
}

#[test]
fn what_the_folders_around_it_say_of_its_files_belongs_to_a_folder() {
    let files = [
        ("a/b/x", ""),
        ("a/.sourceignore", ""),
        (".sourceignore", ""),
        ("a/c/.sourceignore", ""),
    ];
    check(&files, "a/b", &[".sourceignore", "a/.sourceignore", "a/b/x"]);
    check(&[("a/b/x", ""), ("a/.sourceignore/x", "")], "a/b", &["a/b/x"]);
    let why = ".sourceignore: is a symlink; make it a file: otherwise its excluded files would be read";
    refused(&[("a/b/x", ""), (".sourceignore", "-> ignored")], "a/b", why);
}

#[test]
fn of_a_key_that_is_given_twice_the_last_one_counts_as_in_kustomize() {
    let twice = "resources: [gone.yaml]\nnamePrefix: x-\nresources: [a.yaml]\n";
    check(
        &[("a/kustomization.yaml", twice), ("a/a.yaml", "")],
        "a",
        &["a/a.yaml", "a/kustomization.yaml"],
    );
}

#[test]
fn kustomizations_are_followed_wherever_they_lead() {
    let overlay = "resources: [../../base, https://example.com/x.yaml, 'github.com/a/b?ref=v1']
patches:
- path: ../shared/patch.yaml
configMapGenerator:
- name: c
  files: [key=../../files/a.conf]
  envs: [../../files/b.env]
transformers:
- '{apiVersion: builtin, kind: X}'
";
    let files = [
        ("overlays/east/kustomization.yaml", overlay),
        ("overlays/shared/patch.yaml", ""),
        ("overlays/shared/unused.yaml", ""),
        ("base/kustomization.yml", "components: [../components/tls]\n"),
        ("base/deploy.yaml", ""),
        (
            "components/tls/Kustomization",
            "secretGenerator:\n- env: ../../files/c.env\n",
        ),
        ("files/a.conf", ""),
        ("files/b.env", ""),
        ("files/c.env", ""),
        ("files/d.env", ""),
    ];
    check(
        &files,
        "overlays/east",
        &[
            "base/deploy.yaml",
            "base/kustomization.yml",
            "components/tls/Kustomization",
            "files/a.conf",
            "files/b.env",
            "files/c.env",
            "overlays/east/kustomization.yaml",
            "overlays/shared/patch.yaml",
        ],
    );
}

#[test]
fn charts_bring_their_file_dependencies() {
    let chart =
        "name: web\ndependencies:\n- {name: lib, repository: file://../lib}\n- {name: r, repository: https://x}\n";
    let files = [
        ("charts/web/Chart.yaml", chart),
        ("charts/lib/Chart.yaml", "name: lib"),
        ("charts/lib/t.yaml", ""),
    ];
    check(
        &files,
        "charts/web",
        &["charts/lib/Chart.yaml", "charts/lib/t.yaml", "charts/web/Chart.yaml"],
    );
    refused(
        &[("c/Chart.yaml", "dependencies:\n- name: x\n  repository: file:///etc\n")],
        "c",
        "c/Chart.yaml:3: names \"/etc\": path \"/etc\" is absolute",
    );
}

#[test]
fn references_out_of_the_repository_name_file_and_line() {
    refused(
        &[
            ("a/kustomization.yaml", "# x\nresources:\n- ok.yaml\n- ../../secrets\n"),
            ("a/ok.yaml", ""),
        ],
        "a",
        "a/kustomization.yaml:4: names \"../../secrets\": path \"../../secrets\" leads out of the repository",
    );
    refused(
        &[("a/kustomization.yaml", "resources: [missing.yaml]\n")],
        "a",
        "a/kustomization.yaml:1: names \"missing.yaml\": a/missing.yaml does not exist",
    );
    refused(
        &[("a/kustomization.yaml", "resources: [\n")],
        "a",
        &walk(&[("a/kustomization.yaml", "resources: [\n")], "a")
            .unwrap_err()
            .to_string(),
    );
    assert!(
        walk(&[("a/kustomization.yaml", "resources: [\n")], "a")
            .unwrap_err()
            .line
            .is_some()
    );
}

#[test]
fn what_a_template_will_make_is_not_missing() {
    let files = [
        (
            "a/kustomization.yaml",
            "resources: [m.yaml, ../b/n.yaml]\npatches: [{path: ../b/p.yaml}]\n",
        ),
        ("a/m.yaml.liquid", ""),
        ("b/n.yaml.liquid", ""),
        ("b/p.yaml.liquid/x", ""),
        ("b/p.yaml", ""),
    ];
    check(
        &files,
        "a",
        &["a/kustomization.yaml", "a/m.yaml.liquid", "b/n.yaml.liquid", "b/p.yaml"],
    );
    refused(
        &[
            ("a/kustomization.yaml", "resources: [m.yaml]\n"),
            ("a/m.yaml.liquid/x", ""),
        ],
        "a",
        "a/kustomization.yaml:1: names \"m.yaml\": a/m.yaml does not exist",
    );
}

#[test]
fn a_broken_kustomization_that_nothing_leads_to_spoils_nothing() {
    check(
        &[("a/f", ""), ("a/t/kustomization.yaml", "{{ template }}")],
        "a",
        &["a/f", "a/t/kustomization.yaml"],
    );
    check(
        &[("a/f", ""), ("a/t/kustomization.yaml", "resources: [generated.yaml]")],
        "a",
        &["a/f", "a/t/kustomization.yaml"],
    );
    assert!(walk(&[("a/t/kustomization.yaml", "resources: [../../../x]")], "a").is_err());
}

#[test]
fn paths_that_are_missing_or_files_are_refused() {
    refused(&[("a/f", "")], "b", "b: the source has no such folder");
    refused(
        &[("a/f", "")],
        "a/f",
        "a/f: is a file; the path of a service is a folder",
    );
    refused(&[("a/f", "")], "a/f/g", "a/f/g: the source has no such folder");
}

fn hostile(name: &[u8], mode: Mode) -> String {
    let mut tree = MemoryTree::default();
    let blob = tree.add_blob(b"x");
    let inner = tree.add_tree(vec![Entry {
        name: name.to_vec(),
        mode,
        id: blob,
    }]);
    let root = tree.add_tree(vec![Entry {
        name: b"a".to_vec(),
        mode: Mode::Tree,
        id: inner,
    }]);
    let path = RelPath::parse("a").unwrap();
    closure(&tree, &root, &path, &Limits::default())
        .unwrap_err()
        .to_string()
}

#[test]
fn hostile_names_in_trees_are_refused_and_shown_escaped() {
    assert_eq!(hostile(b"..", Mode::File), "a: path \"a/..\" has `.` or `..` as a name");
    assert_eq!(
        hostile(b".GIT", Mode::File),
        "a: path \"a/.GIT\" has a name that some systems take for `.git`"
    );
    assert_eq!(
        hostile(b"a\nb", Mode::File),
        "a: path \"a/a\\nb\" has a control character"
    );
    assert_eq!(hostile(b"\xff", Mode::File), "a: path \"a/\\xff\" is not UTF-8");
    assert_eq!(
        hostile(b"../../etc", Mode::File),
        "a: path \"a/../../etc\" has a slash or backslash in a name"
    );
    assert_eq!(
        hostile(b"sub", Mode::Commit),
        "a/sub: is a submodule that was not fetched; set spec.recurseSubmodules of its source, and list it in .gitmodules"
    );
}

#[test]
fn too_many_files_and_a_tree_of_trees_are_refused() {
    let mut tree = MemoryTree::default();
    let mut id = tree.add_tree(Vec::new());
    for _ in 0..10 {
        let entries = (0..10)
            .map(|n| Entry {
                name: format!("{n}").into(),
                mode: Mode::Tree,
                id,
            })
            .collect();
        id = tree.add_tree(entries);
    }
    let limits = Limits {
        files: 100,
        ..Limits::default()
    };
    let error = closure(&tree, &id, &RelPath::root(), &limits).unwrap_err();
    assert!(
        matches!(error.reason, ClosureReason::TooManyFiles { limit: 100 }),
        "{error}"
    );
    let blob = tree.add_blob(b"");
    let entries = (0..101)
        .map(|n| Entry {
            name: format!("{n}").into(),
            mode: Mode::File,
            id: blob,
        })
        .collect();
    let id = tree.add_tree(entries);
    assert!(closure(&tree, &id, &RelPath::root(), &limits).is_err());
}

#[test]
fn charts_that_a_kustomization_inflates_are_named_until_they_are_there() {
    let kustomization = "helmCharts:\n- {name: redis, repo: https://h, version: 7.0.0}\n- {name: nats, repo: 'oci://r/c'}\n- {name: local}\n";
    let missing = |files: &[(&str, &str)]| {
        let shown =
            |chart: &InflatedChart| format!("{} {} {} {}", chart.name, chart.repository, chart.version, chart.place);
        walk(files, "app")
            .unwrap()
            .inflated
            .iter()
            .map(shown)
            .collect::<Vec<_>>()
    };
    let files = [("app/kustomization.yaml", kustomization)];
    assert_eq!(
        missing(&files),
        [
            "nats oci://r/c  app/charts/nats",
            "redis https://h 7.0.0 app/charts/redis-7.0.0/redis"
        ]
    );
    let there = [
        files[0],
        ("app/charts/redis-7.0.0/redis/Chart.yaml", "name: redis"),
        ("app/charts/nats/Chart.yaml", "name: nats"),
    ];
    assert_eq!(missing(&there), [""; 0]);
    let charts: Vec<_> = walk(&there, "app")
        .unwrap()
        .charts
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        charts,
        ["app/charts/nats", "app/charts/redis-7.0.0/redis"],
        "they may depend on others"
    );
    let home = format!("helmGlobals: {{chartHome: ../vendor}}\n{kustomization}");
    assert_eq!(
        missing(&[("app/kustomization.yaml", &home)])[0],
        "nats oci://r/c  vendor/nats"
    );
}

#[test]
fn remote_bases_are_named_until_their_repositories_are_laid_in() {
    let kustomization = "resources: [https://h.example.com/org/repo//deploy?ref=v1, https://h.example.com/a.yaml]\npatches: [{path: 'https://h.example.com/org/other//p'}]\n";
    let named = |files: &[(&str, &str)], path: &str| {
        walk(files, path)
            .unwrap()
            .bases
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let files = [
        ("app/kustomization.yaml", kustomization),
        ("elsewhere/x/kustomization.yaml", "resources: [gh.com/a/b?ref=x]\n"),
    ];
    assert_eq!(
        named(&files, "app"),
        ["https://h.example.com/a.yaml", "https://h.example.com/org/repo at v1"]
    );
    // In a folder that is included as a whole, kustomizations are not built, so their bases are not needed.
    assert_eq!(named(&files, "elsewhere"), [""; 0]);
    let place = ".farwater-bases/h.example.com~org~repo@v1";
    let laid_in = |kustomization: &str| {
        vec![
            (
                "app/kustomization.yaml".to_owned(),
                "resources: ['https://h.example.com/org/repo//deploy?ref=v1']\n".to_owned(),
            ),
            (format!("{place}/deploy/kustomization.yaml"), kustomization.to_owned()),
            (format!("{place}/base/a.yaml"), "a".to_owned()),
            (format!("{place}/other/b.yaml"), "b".to_owned()),
        ]
    };
    let whole = laid_in("resources: [../base/a.yaml]\n");
    let files: Vec<_> = whole
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    let expected = [
        format!("{place}/base/a.yaml"),
        format!("{place}/deploy/kustomization.yaml"),
        files[0].0.to_owned(),
    ];
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    check(&files, "app", &expected);
    // The bases of a base are looked for in the next round.
    let file = Base::parse("https://h.example.com/a.yaml").unwrap().place().unwrap();
    let with_file = [
        (
            "app/kustomization.yaml",
            "resources: ['https://h.example.com/a.yaml']\n",
        ),
        (file.as_str(), "a"),
    ];
    check(&with_file, "app", &[file.as_str(), "app/kustomization.yaml"]);
    let more = laid_in("resources: ['git@h.example.com:org/third//x?ref=main']\n");
    let files: Vec<_> = more.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    assert_eq!(named(&files, "app"), ["git@h.example.com:org/third at main"]);
    refused(
        &[
            (
                "app/kustomization.yaml",
                "resources: ['https://h.example.com/org/repo//none?ref=v1']\n",
            ),
            (&format!("{place}/x"), ""),
        ],
        "app",
        &format!(
            "app/kustomization.yaml:1: names \"https://h.example.com/org/repo//none?ref=v1\": {place}/none does not exist"
        ),
    );
}
