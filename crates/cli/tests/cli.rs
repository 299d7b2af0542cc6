//! The real program with a real hub: where it prints what, and its exit codes.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use farwater_api::{ClusterGrant, ServiceDeployment};
use farwater_testkit::{Hub, Tools, git::GitServer, wait_for};
use k8s_openapi::api::{core::v1::Namespace, rbac::v1::RoleBinding};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use serde_json::json;
use tokio::sync::OnceCell;

const PROGRAM: &str = env!("CARGO_BIN_EXE_farwater");

/// One hub for all tests. Each test uses names of its own.
async fn hub() -> &'static Hub {
    static HUB: OnceCell<Hub> = OnceCell::const_new();
    HUB.get_or_init(|| async {
        // The folder is next to the programs, so that the next run finds and removes what a killed run left behind.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-hub");
        let _ = fs::remove_dir_all(&folder);
        Hub::start(&folder).await.unwrap()
    })
    .await
}

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

/// The program in an empty environment, independent of the machine.
fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments)
        .env_clear()
        .env("HOME", home)
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null());
    command
}

fn run_in(home: &Path, arguments: &[&str]) -> Ran {
    command(home, arguments).output().unwrap().into()
}

/// Runs the program as the administrator of the shared hub.
async fn run(arguments: &[&str]) -> Ran {
    let hub = hub().await;
    let home = tempfile::tempdir().unwrap();
    command(home.path(), arguments)
        .env("FARWATER_KUBECONFIG", hub.kubeconfig())
        .output()
        .unwrap()
        .into()
}

async fn succeed(arguments: &[&str]) -> String {
    let ran = run(arguments).await;
    assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.stderr);
    ran.stdout
}

async fn deploy(name: &str, cluster: &str) {
    succeed(&["cluster", "join", cluster]).await;
    let url = format!("http://127.0.0.1:9/{name}.git");
    let arguments = [
        "deploy",
        &url,
        "--path",
        "apps/web",
        "--cluster",
        cluster,
        "--name",
        name,
    ];
    let stdout = succeed(&arguments).await;
    let created = format!("gitrepository.farwater.dev/{name} created\nservicedeployment.farwater.dev/{name} created\n");
    assert_eq!(stdout, created);
}

#[test]
fn wrong_command_lines_end_with_2_and_a_hint() {
    let home = tempfile::tempdir().unwrap();
    let ran = run_in(home.path(), &["depoly"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("deploy"), "{}", ran.stderr);
    let ran = run_in(home.path(), &["--help"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout.contains("farwater"));
}

#[test]
fn without_a_hub_it_says_how_to_sign_in() {
    let home = tempfile::tempdir().unwrap();
    let ran = run_in(home.path(), &["get", "clusters"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""));
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines[0], "farwater: no hub is known: you are not signed in");
    assert!(lines[2].starts_with("  next: farwater login"), "{}", ran.stderr);
}

#[test]
fn a_hub_that_is_away_ends_with_7() {
    let home = tempfile::tempdir().unwrap();
    let kubeconfig = home.path().join("config");
    let cluster = "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:9'}}]";
    let user = "users: [{name: a, user: {token: t}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]";
    fs::write(&kubeconfig, format!("{cluster}\n{user}\ncurrent-context: a\n")).unwrap();
    let ran = run_in(
        home.path(),
        &["--kubeconfig", kubeconfig.to_str().unwrap(), "get", "clusters"],
    );
    assert_eq!(ran.code, 7, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("the hub at https://127.0.0.1:9 can't be reached"),
        "{}",
        ran.stderr
    );
}

/// Started by kubectl itself, which finds and starts plugins in its own way. Tested with the newest and the oldest
/// supported version.
#[tokio::test]
async fn kubectl_runs_it_as_its_plugin_with_its_own_configuration() {
    succeed(&["cluster", "join", "plugged"]).await;
    let kubeconfig = hub().await.kubeconfig();
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("bin");
    fs::create_dir(&path).unwrap();
    symlink(PROGRAM, path.join("kubectl-farwater")).unwrap();
    let tools = Tools::find().unwrap();
    for kubectl in [tools.kubectl(), tools.kubectl_1_29()] {
        let run = |kubeconfig: Option<&Path>, arguments: &[&str]| -> Ran {
            let mut command = Command::new(&kubectl);
            command
                .arg("farwater")
                .args(arguments)
                .env_clear()
                .env("HOME", home.path())
                .env("PATH", &path);
            command
                .envs(kubeconfig.map(|file| ("KUBECONFIG", file)))
                .output()
                .unwrap()
                .into()
        };
        let ran = run(Some(&kubeconfig), &["get", "clusters", "-A"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        assert!(
            ran.stdout
                .lines()
                .any(|line| line.starts_with("farwater-admin   plugged ")),
            "{}",
            ran.stdout
        );
        // kubectl passes on exit codes and names.
        let ran = run(Some(&kubeconfig), &["get", "clusters", "nowhere-to-be-found"]);
        assert_eq!(ran.code, 4, "{}", ran.stderr);
        assert!(ran.stderr.starts_with("kubectl farwater: "), "{}", ran.stderr);
        assert!(run(None, &["--help"]).stdout.contains("Usage: kubectl farwater"));
        // Without a kubeconfig, the message is not that of a missing `farwater login`.
        let ran = run(None, &["get", "clusters"]);
        assert!(
            ran.code != 0 && !ran.stderr.contains("not signed in"),
            "{} {}",
            ran.code,
            ran.stderr
        );
    }
}

/// The bench `cli-start` measures how long this takes.
#[test]
fn its_own_version_needs_no_hub_and_no_kubeconfig() {
    let home = tempfile::tempdir().unwrap();
    let ran = run_in(home.path(), &["version", "--client"]);
    assert_eq!((ran.code, ran.stdout.lines().count(), ran.stderr.as_str()), (0, 1, ""));
}

#[test]
fn every_shell_gets_a_completion_script() {
    let home = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let ran = run_in(home.path(), &["completion", shell]);
        assert!(
            ran.code == 0 && ran.stdout.contains("farwater"),
            "{shell}: {}",
            ran.stderr
        );
    }
}

#[test]
fn an_export_asks_no_hub() {
    let home = tempfile::tempdir().unwrap();
    let url = "https://git.example.com/infra.git";
    let ran = run_in(
        home.path(),
        &[
            "deploy",
            url,
            "--path",
            "./apps/web/",
            "--cluster",
            "east",
            "--tag",
            "v1",
            "--export",
        ],
    );
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(
        ran.stdout.contains("kind: GitRepository") && ran.stdout.contains("path: apps/web\n"),
        "{}",
        ran.stdout
    );
    let secret = run_in(
        home.path(),
        &[
            "deploy",
            "https://u:hush@git.example.com/x.git",
            "--cluster",
            "east",
            "--export",
        ],
    );
    assert_eq!(secret.code, 2);
    assert!(!secret.stderr.contains("hush"), "{}", secret.stderr);
}

#[tokio::test]
async fn login_remembers_only_what_the_hub_accepted() {
    let hub = hub().await;
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join(".config/farwater/config");
    let ca = hub.dir().join("keys/ca.crt");
    let token = home.path().join("token");
    let url = hub.url();
    let login = |token: &Path, ca: Option<&Path>| {
        let mut arguments = vec!["login", &url, "--token-file", token.to_str().unwrap()];
        arguments.extend(ca.iter().flat_map(|ca| ["--ca", ca.to_str().unwrap()]));
        run_in(home.path(), &arguments)
    };

    fs::write(&token, "nobody").unwrap();
    assert_eq!(login(&token, Some(&ca)).code, 3);
    fs::write(&token, hub.token().unwrap() + "\n").unwrap();
    let ran = login(&token, None);
    assert_eq!(ran.code, 7, "{}", ran.stderr);
    assert!(ran.stderr.contains("--ca"), "{}", ran.stderr);
    assert!(!config.exists());

    let ran = login(&token, Some(&ca));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o600);
    let ran = run_in(home.path(), &["version", "-o", "json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let version: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(
        version["hub"]["version"].as_str().unwrap().contains("farwater"),
        "{version}"
    );
    assert_eq!(version["hub"]["server"], url);
}

#[tokio::test]
async fn cluster_join_prints_the_command_and_nothing_else() {
    let ran = run(&["cluster", "join", "joins", "-l", "env=test"]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
    assert!(
        ran.stdout.starts_with("farwater-agent --hub https://"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stdout.contains(" --join-token ") && ran.stdout.contains(" --ca-pin sha256:"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stderr.contains("made Cluster farwater-admin/joins"),
        "{}",
        ran.stderr
    );
    let second = run(&["cluster", "join", "joins", "-o", "json"]).await;
    let answer: serde_json::Value = serde_json::from_str(&second.stdout).unwrap();
    assert!(
        !ran.stdout.contains(answer["token"].as_str().unwrap()),
        "a token is made once"
    );
    assert_eq!(
        succeed(&["get", "clusters", "-l", "env=test", "-o", "name"]).await,
        "cluster.farwater.dev/joins\n"
    );
}

#[tokio::test]
async fn get_prints_the_servers_table_or_the_objects() {
    deploy("shown", "nowhere").await;
    let table = succeed(&["get", "sd", "shown"]).await;
    let header: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["NAME", "READY", "STATUS", "REVISION", "AGE"]);
    assert!(!table.contains('\u{1b}'));
    assert!(succeed(&["get", "sd", "shown", "-o", "wide"]).await.contains("nowhere"));
    assert!(succeed(&["get", "sd", "-A"]).await.contains("farwater-admin   shown"));
    let json: serde_json::Value = serde_json::from_str(&succeed(&["get", "sd/shown", "-o", "json"]).await).unwrap();
    assert_eq!(json["kind"], "ServiceDeployment");
    let yaml: serde_json::Value =
        serde_saphyr::from_str(&succeed(&["get", "sd", "shown", "-o", "yaml"]).await).unwrap();
    assert_eq!(yaml["spec"], json["spec"]);
    let names = succeed(&["get", "sd,fwgit", "-o", "name"]).await;
    assert!(
        names.contains("servicedeployment.farwater.dev/shown\n")
            && names.contains("gitrepository.farwater.dev/shown\n")
    );
    assert!(succeed(&["get", "namespaces"]).await.contains("farwater-admin"));
}

#[tokio::test]
async fn get_selects_sorts_and_prints_labels_and_templates() {
    for (name, labels) in [
        ("listed-10", "env=list,tier=a"),
        ("listed-9", "env=list"),
        ("listed-1", "env=list,tier=b"),
    ] {
        succeed(&["cluster", "join", name, "-l", labels]).await;
    }
    let get = async |more: &[&str]| succeed(&[&["get", "clusters", "-l", "env=list"][..], more].concat()).await;
    let names = |table: &str| -> Vec<String> {
        table
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(
        names(&get(&["--sort-by", ".metadata.name"]).await),
        ["listed-1", "listed-9", "listed-10"]
    );
    let table = get(&["-L", "env,tier", "--show-labels"]).await;
    assert!(
        table.lines().next().unwrap().ends_with("ENV    TIER   LABELS"),
        "{table}"
    );
    assert!(table.contains("list   a      env=list,tier=a"), "{table}");
    let selected = get(&["--field-selector", "metadata.name!=listed-9", "-o", "name"]).await;
    assert_eq!(
        selected,
        "cluster.farwater.dev/listed-1\ncluster.farwater.dev/listed-10\n"
    );
    let template = "jsonpath={range .items[*]}{.metadata.name}:{.metadata.labels.tier}{\"\\n\"}{end}";
    let sorted = get(&["--sort-by", "{.metadata.name}", "-o", template]).await;
    assert_eq!(sorted, "listed-1:b\nlisted-9:\nlisted-10:a\n");
    assert_eq!(
        succeed(&["get", "cluster/listed-9", "-o", "jsonpath={.metadata.name}"]).await,
        "listed-9"
    );
    let yaml = succeed(&["get", "cluster/listed-9", "-o", "yaml"]).await;
    assert!(!yaml.contains("managedFields"), "{yaml}");
    assert!(
        succeed(&["get", "cluster/listed-9", "-o", "yaml", "--show-managed-fields"])
            .await
            .contains("managedFields")
    );
    // One document with several kinds.
    deploy("among", "nowhere").await;
    let all: serde_json::Value = serde_json::from_str(&succeed(&["get", "sources,sd", "-o", "json"]).await).unwrap();
    let kinds: Vec<_> = all["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|object| object["kind"].as_str().unwrap())
        .collect();
    assert!(
        kinds.contains(&"GitRepository") && kinds.contains(&"ServiceDeployment"),
        "{kinds:?}"
    );
    for (refused, told) in [
        (["get", "clusters", "-o", "jsonpath={.items[x]}"], "brackets hold"),
        (
            ["get", "clusters", "--sort-by", ".spec.none"],
            "no object has the field",
        ),
        (
            ["get", "cluster/listed-9", "-l", "env=list"],
            "names and selectors exclude each other",
        ),
        (["get", "clusters", "-l", "a in"], "selectors are those of kubectl"),
        (
            ["get", "clusters", "--field-selector", "spec.none=a"],
            "selectors are those of kubectl",
        ),
    ] {
        let ran = run(&refused).await;
        assert!(
            ran.code == 2 && ran.stderr.contains(told),
            "{refused:?}: {}",
            ran.stderr
        );
    }
}

#[tokio::test]
async fn a_deletion_says_what_it_means_and_is_waited_for() {
    deploy("doomed", "nowhere").await;
    deploy("kept", "nowhere").await;
    // There is no terminal for the question.
    let asked = run(&["delete", "doomed"]).await;
    assert_eq!((asked.code, asked.stdout.as_str()), (2, ""), "{}", asked.stderr);
    assert!(
        asked
            .stderr
            .contains("ServiceDeployment farwater-admin/doomed\n  no object of it is known in cluster nowhere")
    );
    assert!(
        asked.stderr.contains("next: farwater delete doomed --yes"),
        "{}",
        asked.stderr
    );
    let used = run(&["delete", "gitrepository/kept"]).await;
    assert_eq!(used.code, 5, "{}", used.stderr);
    assert!(
        used.stderr.contains("GitRepository farwater-admin/kept is in use") && used.stderr.contains("used by kept")
    );
    // With both in one command, nothing uses the source any more.
    let gone = succeed(&[
        "delete",
        "doomed",
        "gitrepository/doomed",
        "--yes",
        "--wait",
        "--timeout",
        "20s",
    ])
    .await;
    let mut lines: Vec<&str> = gone.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "gitrepository.farwater.dev/doomed deleted",
            "servicedeployment.farwater.dev/doomed deleted"
        ]
    );
    assert_eq!(run(&["get", "sd/doomed"]).await.code, 4);
    assert_eq!(run(&["delete", "doomed", "--yes"]).await.code, 4);
    assert_eq!(
        succeed(&["delete", "gitrepository/kept", "--yes"]).await,
        "gitrepository.farwater.dev/kept deleted\n"
    );
}

#[tokio::test]
async fn sources_sets_and_clusters_are_explained_and_waited_for() {
    deploy("explained", "nowhere").await;
    let source = run(&["why", "gitrepository/explained"]).await;
    assert_eq!(source.code, 1, "{} {}", source.stdout, source.stderr);
    let waited = run(&["wait", "gitrepository/explained", "--timeout", "1s"]).await;
    assert!(
        waited.code == 6 && waited.stderr.contains("gitrepository/explained is not ready"),
        "{}",
        waited.stderr
    );
    succeed(&["cluster", "join", "explained"]).await;
    let cluster = run(&["why", "cluster/explained"]).await;
    assert!(
        cluster.code == 1 && cluster.stdout.contains("the cluster explained has never joined"),
        "{}",
        cluster.stdout
    );
    assert!(
        succeed(&["tree", "gitrepository/explained"])
            .await
            .contains("explained")
    );
    for (arguments, code, told) in [
        (
            ["why", "serviceset/none"],
            4,
            "there is no ServiceSet \"none\" in namespace farwater-admin",
        ),
        (
            ["wait", "serviceset/none"],
            4,
            "there is no ServiceSet \"none\" in namespace farwater-admin",
        ),
        (
            ["why", "changewindow/none"],
            2,
            "a ChangeWindow has no health to explain",
        ),
        (
            ["objects", "serviceset/none"],
            2,
            "names a ServiceSet, and a service is needed",
        ),
    ] {
        let ran = run(&arguments).await;
        assert!(
            ran.code == code && ran.stderr.contains(told),
            "{arguments:?}: {} {}",
            ran.code,
            ran.stderr
        );
    }
}

#[tokio::test]
async fn what_does_not_exist_ends_with_4_and_what_was_perhaps_meant() {
    deploy("payments", "nowhere").await;
    for arguments in [
        ["get", "sd", "paymnets"].as_slice(),
        &["why", "paymnets"],
        &["tree", "paymnets"],
        &["wait", "paymnets"],
        &["objects", "paymnets"],
    ] {
        let ran = run(arguments).await;
        assert_eq!(ran.code, 4, "{arguments:?}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("did you mean \"payments\"?"),
            "{arguments:?}: {}",
            ran.stderr
        );
    }
    for arguments in [
        &["rollback", "payments", "--to", "99"][..],
        &["hooks", "payments", "--retry", "nope"],
        &["hooks", "payments", "nope"],
    ] {
        let ran = run(arguments).await;
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (4, ""),
            "{arguments:?}: {}",
            ran.stderr
        );
    }
    let ran = run(&["hooks", "payments"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert!(
        ran.stderr
            .starts_with("no hook or test of payments was run; next: farwater why payments"),
        "{}",
        ran.stderr
    );
    let ran = run(&["get", "clsuters"]).await;
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("did you mean \"clusters\"?"), "{}", ran.stderr);
}

#[tokio::test]
async fn deploy_is_repeatable_and_exports_what_it_applies() {
    deploy("again", "nowhere").await;
    let url = "http://127.0.0.1:9/again.git";
    let arguments = [
        "deploy",
        url,
        "--path",
        "apps/web",
        "--cluster",
        "nowhere",
        "--name",
        "again",
    ];
    assert_eq!(
        succeed(&arguments).await,
        "gitrepository.farwater.dev/again unchanged\nservicedeployment.farwater.dev/again unchanged\n"
    );
    let other: Vec<&str> = arguments.iter().copied().chain(["--branch", "next"]).collect();
    let stdout = succeed(&other).await;
    assert!(
        stdout.starts_with("gitrepository.farwater.dev/again-"),
        "another branch is another source: {stdout}"
    );
    assert!(
        stdout.ends_with("servicedeployment.farwater.dev/again configured\n"),
        "{stdout}"
    );
    let other_folder = [
        "deploy",
        url,
        "--path",
        "apps/api",
        "--cluster",
        "nowhere",
        "--name",
        "again",
    ];
    let ran = run(&other_folder).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (5, ""), "{}", ran.stderr);
    let told = format!("service farwater-admin/again exists already: it deploys folder apps/web of {url}");
    assert!(
        ran.stderr.contains(&told) && ran.stderr.contains("--replace"),
        "{}",
        ran.stderr
    );
    let replaced: Vec<&str> = other_folder.iter().copied().chain(["--replace"]).collect();
    assert!(
        succeed(&replaced)
            .await
            .ends_with("servicedeployment.farwater.dev/again configured\n")
    );
    assert!(
        succeed(&other_folder)
            .await
            .ends_with("servicedeployment.farwater.dev/again unchanged\n")
    );
    succeed(&["cluster", "join", "elsewhere"]).await;
    let moved = [
        "deploy",
        url,
        "--path",
        "apps/api",
        "--cluster",
        "elsewhere",
        "--name",
        "again",
    ];
    let ran = run(&moved).await;
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (5, ""),
        "the cluster can't change: {}",
        ran.stderr
    );
}

// The Git server answers while the program runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_replaced_keeps_no_pin_to_a_version_of_its_earlier_folder() {
    succeed(&["cluster", "join", "pinned"]).await;
    let server = GitServer::start().await.unwrap();
    let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: map}}";
    server
        .create("pinned")
        .unwrap()
        .commit("main", &[("old/map.yaml", map), ("new/map.yaml", map)])
        .unwrap();
    let url = server.url("pinned");
    let deploy = |path: &'static str| {
        [
            "deploy",
            &url,
            "--path",
            path,
            "--cluster",
            "pinned",
            "--name",
            "pinned",
        ]
    };
    succeed(&deploy("old")).await;
    let services: Api<ServiceDeployment> = Api::namespaced(hub().await.client().await.unwrap(), "farwater-admin");
    let bundle = wait_for("a version to be assigned", Duration::from_secs(30), || async {
        Ok(services
            .get("pinned")
            .await?
            .status
            .and_then(|status| status.bundle_digest))
    });
    let pin = json!({"spec": {"pin": {"bundle": bundle.await.unwrap()}}});
    services
        .patch("pinned", &PatchParams::default(), &Patch::Merge(pin))
        .await
        .unwrap();

    assert_eq!(run(&deploy("new")).await.code, 5);
    succeed(&[&deploy("new")[..], &["--replace"]].concat()).await;
    let spec = services.get("pinned").await.unwrap().spec;
    assert_eq!((spec.path.as_str(), spec.pin), ("new", None));
}

// The Git server answers while the program runs.
#[tokio::test(flavor = "multi_thread")]
async fn deploy_refuses_before_it_writes_and_leaves_nothing_that_failed() {
    succeed(&["cluster", "join", "somewhere"]).await;
    let url = "http://127.0.0.1:9/refused.git";
    let base = ["deploy", url, "--path", "apps/web", "--name", "refused", "--cluster"];
    let with = |more: &[&'static str]| [&base[..], more].concat();
    let ran = run(&with(&["no-such-cluster"])).await;
    let told = "cluster no-such-cluster does not exist in namespace farwater-admin";
    assert!(
        ran.code == 4 && ran.stderr.contains(told),
        "{} {}",
        ran.code,
        ran.stderr
    );
    let ran = run(&with(&["somewhere", "--secret", "no-such-secret"])).await;
    assert!(
        ran.code == 4 && ran.stderr.contains("Secret no-such-secret does not exist"),
        "{}",
        ran.stderr
    );
    let ran = run(&with(&["somewhere", "--interval", "1s"])).await;
    assert!(
        ran.code == 5 && ran.stderr.contains("spec.interval"),
        "{} {}",
        ran.code,
        ran.stderr
    );
    let ran = run(&with(&["somewhere", "--dry-run"])).await;
    assert!(
        ran.code == 0
            && ran
                .stdout
                .contains("servicedeployment.farwater.dev/refused created (dry run)\n")
    );
    let told = format!("not checked: whether {url} can be read and has a default branch and folder apps/web");
    assert!(ran.stderr.contains(&told), "{}", ran.stderr);
    // A folder that is missing is final; what another service uses by then stays.
    let server = GitServer::start().await.unwrap();
    server
        .create("refused")
        .unwrap()
        .commit("main", &[("apps/web/web.yaml", "{}")])
        .unwrap();
    let url = server.url("refused");
    let deploy = |name: &'static str, more: &'static [&'static str]| {
        let url = url.clone();
        async move {
            let base = [
                "deploy",
                &url,
                "--path",
                "no/such/folder",
                "--name",
                name,
                "--cluster",
                "somewhere",
            ];
            run(&[&base[..], more].concat()).await
        }
    };
    let failing = tokio::spawn(deploy("refused", &["--wait"]));
    let is_made = || async { Ok((run(&["get", "fwgit", "refused"]).await.code == 0).then_some(())) };
    wait_for("the source is made", Duration::from_secs(30), is_made)
        .await
        .unwrap();
    assert_eq!(deploy("used-beside", &[]).await.code, 0);
    let ran = failing.await.unwrap();
    assert!(
        ran.code == 1 && ran.stdout.contains("servicedeployment.farwater.dev/refused deleted"),
        "{}",
        ran.stdout
    );
    assert_eq!(run(&["get", "sd", "refused"]).await.code, 4);
    let stays = "gitrepository.farwater.dev/refused stays: used-beside uses it";
    assert!(ran.stderr.contains(stays), "{}", ran.stderr);
    succeed(&["get", "fwgit", "refused"]).await;
    // Its repository is known, so a dry run asks it.
    let ran = deploy("third", &["--dry-run", "--branch", "none"]).await;
    assert!(
        ran.code == 1 && ran.stdout.is_empty() && ran.stderr.contains("branch or tag none does not exist"),
        "{} {}{}",
        ran.code,
        ran.stdout,
        ran.stderr
    );
    let ran = deploy("third", &["--dry-run", "--branch", "main"]).await;
    assert!(
        ran.code == 0 && ran.stderr.contains("can be read and has branch main"),
        "{} {}",
        ran.code,
        ran.stderr
    );
}

/// Runs the program as a user who has rights in one namespace.
async fn run_as(user: &str, namespace: &str, arguments: &[&str]) -> Ran {
    let kubeconfig = Kubeconfig::read_from(hub().await.kubeconfig()).unwrap();
    let mut kubeconfig = serde_json::to_value(kubeconfig).unwrap();
    kubeconfig["users"][0]["user"]["as"] = user.into();
    kubeconfig["contexts"][0]["context"]["namespace"] = namespace.into();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("kubeconfig");
    fs::write(&file, kubeconfig.to_string()).unwrap();
    command(home.path(), arguments)
        .env("FARWATER_KUBECONFIG", file)
        .output()
        .unwrap()
        .into()
}

/// Creates the tenant `team-x` with a user `ann`, who may deploy from `https://git.example.com/` to the clusters with
/// the label `team: x`.
async fn make_tenant() {
    let client = hub().await.client().await.unwrap();
    let make = PostParams::default();
    let namespace = json!({"metadata": {"name": "team-x"}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(&make, &serde_json::from_value(namespace).unwrap())
        .await
        .unwrap();
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": "ann"}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "ann"}],
    });
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), "team-x");
    bindings
        .create(&make, &serde_json::from_value(binding).unwrap())
        .await
        .unwrap();
    let spec = json!({
        "namespaces": ["team-x"], "clusterSelector": {"matchLabels": {"team": "x"}}, "verbs": ["deploy"],
        "allowedSources": ["https://git.example.com/"], "serviceAccountName": "farwater",
    });
    let grant = ClusterGrant::new("team-x", serde_json::from_value(spec).unwrap());
    Api::all(client).create(&make, &grant).await.unwrap();
}

#[tokio::test]
async fn a_tenant_sees_its_clusters_in_all_forms_and_a_refused_deployment_leaves_nothing() {
    make_tenant().await;
    succeed(&["cluster", "join", "granted", "-l", "team=x"]).await;
    succeed(&["cluster", "join", "foreign"]).await;
    let ann = async |arguments: &[&str]| run_as("ann", "team-x", arguments).await;
    for (arguments, code, told) in [
        (&["get", "clusters"][..], 0, "granted   farwater-admin"),
        (
            &["get", "clusters", "-o", "name"],
            0,
            "grantedcluster.farwater.dev/granted\n",
        ),
        (
            &["get", "clusters", "-o", "jsonpath={.items[*].metadata.name}"],
            0,
            "granted",
        ),
        (
            &["get", "cluster/granted", "-o", "jsonpath={.status.connected}"],
            0,
            "false",
        ),
        (
            &["get", "cluster", "granted", "-n", "farwater-admin", "-o", "yaml"],
            0,
            "kind: GrantedCluster\n",
        ),
        (
            &["get", "grantedclusters", "granted", "-o", "name"],
            0,
            "grantedcluster.farwater.dev/granted\n",
        ),
        (
            &["why", "cluster/granted"],
            1,
            "the cluster granted is not ready: its agent was not heard yet",
        ),
        (&["tree", "cluster/granted"], 0, "farwater-admin/granted  never joined"),
        (
            &["wait", "cluster/granted", "--timeout", "1s"],
            6,
            "cluster/granted: the cluster is not ready",
        ),
        (
            &["get", "cluster/foreign"],
            4,
            "there is no Cluster \"foreign\" in namespace team-x",
        ),
        (
            &["why", "cluster/farwater-admin/foreign"],
            3,
            "can't read Cluster farwater-admin/foreign",
        ),
    ] {
        let ran = ann(arguments).await;
        let shown = format!("{}{}", ran.stdout, ran.stderr);
        assert!(
            ran.code == code && shown.contains(told),
            "{arguments:?}: {} {shown}",
            ran.code
        );
        assert!(!shown.contains("team: x"), "{arguments:?} shows labels: {shown}");
    }

    // An administrator may read the Cluster itself, so a namespace without one has none.
    for arguments in [
        &["get", "cluster/granted", "-n", "team-x", "-o", "name"][..],
        &["wait", "cluster/granted", "-n", "team-x", "--timeout", "1s"],
    ] {
        let ran = run(arguments).await;
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (4, ""),
            "{arguments:?}: {}",
            ran.stderr
        );
    }

    // The hub knows the address of the source only once it is created.
    let url = "http://127.0.0.1:9/web.git";
    let ran = ann(&["deploy", url, "--cluster", "granted", "--name", "web"]).await;
    assert!(
        ran.code == 3 && ran.stderr.contains("does not allow source http://127.0.0.1:9/web.git"),
        "{} {}",
        ran.code,
        ran.stderr
    );
    assert!(
        ran.stdout.ends_with("gitrepository.farwater.dev/web deleted\n"),
        "{}",
        ran.stdout
    );
    let left = ann(&["get", "sources,sd"]).await;
    assert_eq!((left.stdout.as_str(), left.stderr.as_str()), ("", "nothing found\n"));
}

#[tokio::test]
async fn why_is_an_honest_no_with_a_next_command() {
    deploy("broken", "nowhere").await;
    let ran = run(&["why", "broken"]).await;
    assert_eq!(ran.code, 1, "{} {}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("next: farwater "), "{}", ran.stdout);
    let finding: serde_json::Value = serde_json::from_str(&run(&["why", "broken", "-o", "json"]).await.stdout).unwrap();
    assert_ne!(finding["standing"], "healthy");
    assert!(!finding["sentence"].as_str().unwrap().is_empty());
}

#[tokio::test]
async fn a_freeze_is_made_seen_spoken_against_and_ended() {
    deploy("frozen-web", "freezing").await;
    let name = "cli-holidays";
    let reason = ["--reason", "nobody is here"];
    let arguments = [
        &[
            "freeze",
            "--name",
            name,
            "--until",
            "2099-01-04T06:00:00Z",
            "--service",
            "frozen-web",
            // A name with a typing error protects nothing.
            "--service",
            "frozen-wbe",
        ][..],
        &reason,
    ];
    let made = run(&arguments.concat()).await;
    assert_eq!(
        (made.code, made.stdout.as_str()),
        (0, "changewindow.farwater.dev/cli-holidays created\n"),
        "{}",
        made.stderr
    );
    let told = "no change of service frozen-web or frozen-wbe starts in any namespace until 2099-01-04T06:00:00Z";
    assert!(made.stderr.contains(told), "{}", made.stderr);
    let note = "note: no ServiceDeployment is named frozen-wbe; the freeze concerns one that gets this name";
    assert!(
        made.stderr.contains(note) && !made.stderr.contains("named frozen-web;"),
        "{}",
        made.stderr
    );
    assert!(
        made.stderr
            .contains("next: farwater unfreeze cli-holidays -n farwater-admin"),
        "{}",
        made.stderr
    );
    let shown = succeed(&["get", "changewindows"]).await;
    let line = shown.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(line.contains("Deny") && line.contains("nobody is here"), "{shown}");

    let against = ["freeze", "--override", "frozen-web", "--reason", "a hole"];
    let told = "servicedeployment.farwater.dev/frozen-web overridden: its changes begin, for a day\n";
    assert_eq!(succeed(&against).await, told);
    let told = "servicedeployment.farwater.dev/frozen-web unchanged: this counts already\n";
    assert_eq!(succeed(&against).await, told);
    let service = succeed(&["get", "sd", "frozen-web", "-o", "json"]).await;
    assert!(
        service.contains("overriddenBy") && service.contains("overriddenAt"),
        "{service}"
    );

    assert_eq!(
        succeed(&["unfreeze", name]).await,
        "changewindow.farwater.dev/cli-holidays deleted\n"
    );
    assert_eq!(run(&["unfreeze", name]).await.code, 4);
    let refused = run(&["freeze", "--reason", "x"]).await;
    assert_eq!(refused.code, 2, "{}", refused.stderr);
}

#[tokio::test]
async fn doctor_looks_at_this_machine_and_the_hub_and_names_a_remedy() {
    let ran = run(&["doctor", "-o", "json"]).await;
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let checks = answer["checks"].as_array().unwrap();
    let find = |name: &str| {
        checks
            .iter()
            .find(|check| check["name"] == name)
            .unwrap_or_else(|| panic!("{name}: {}", ran.stdout))
            .clone()
    };
    for name in [
        "kubeconfig",
        "hub",
        "clock",
        "versions",
        "certificate",
        "authority",
        "user",
        "ready",
        "disk",
    ] {
        assert!(find(name)["grade"] != "fail" || name == "disk", "{}", find(name));
    }
    let ready = find("ready");
    assert!(
        ready["found"].as_str().unwrap().contains("store, access, running"),
        "{ready}"
    );
    let pin = find("authority");
    assert!(pin["found"].as_str().unwrap().contains("sha256:"), "{pin}");
    // The sources of other tests can't be fetched, because their remote doesn't exist.
    deploy("ill", "ill").await;
    let clusters: kube::Api<farwater_api::Cluster> =
        kube::Api::namespaced(hub().await.client().await.unwrap(), farwater_api::ADMIN_NAMESPACE);
    clusters
        .delete("ill", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let ill = || async {
        let ran = run(&["doctor"]).await;
        assert!(
            ran.stdout.lines().all(|line| line.chars().count() <= 80),
            "{}",
            ran.stdout
        );
        (ran.code == 1 && ran.stdout.contains("WARN  sources")).then_some(ran)
    };
    let begun = Instant::now();
    let ran = loop {
        if let Some(ran) = ill().await {
            break ran;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "a source that can't be asked is not told"
        );
    };
    assert!(
        ran.stdout.contains("> farwater get fwgit,fwhelm,fwoci -A"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("FAIL  services"), "{}", ran.stdout);
}

#[test]
fn doctor_says_what_to_do_without_a_hub_and_with_one_that_is_away() {
    let home = tempfile::tempdir().unwrap();
    let ran = run_in(home.path(), &["doctor"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        ran.stdout.contains("FAIL  kubeconfig") && ran.stdout.contains("> farwater login"),
        "{}",
        ran.stdout
    );

    let kubeconfig = home.path().join("config");
    let cluster = "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:9'}}]";
    let user = "users: [{name: a, user: {token: t}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]";
    fs::write(&kubeconfig, format!("{cluster}\n{user}\ncurrent-context: a\n")).unwrap();
    let ran = run_in(home.path(), &["--kubeconfig", kubeconfig.to_str().unwrap(), "doctor"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        ran.stdout.contains("FAIL  hub") && ran.stdout.contains("can't be reached"),
        "{}",
        ran.stdout
    );
}

#[tokio::test]
async fn a_wait_that_is_over_ends_with_6_and_says_what_it_waits_for() {
    succeed(&["cluster", "join", "waits"]).await;
    deploy("waiting", "waits").await;
    let ran = run(&["wait", "waiting", "--timeout", "1s"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (6, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("timed out after 1s"), "{}", ran.stderr);
}

#[tokio::test]
async fn a_watch_shows_what_comes_and_what_goes() {
    let hub = hub().await;
    let home = tempfile::tempdir().unwrap();
    let mut watching = command(home.path(), &["get", "configmaps", "-o", "name", "-w"])
        .env("FARWATER_KUBECONFIG", hub.kubeconfig())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let client = hub.client().await.unwrap();
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> = kube::Api::namespaced(client, "farwater-admin");
    let map = serde_json::from_value(serde_json::json!({"metadata": {"name": "watched"}})).unwrap();
    maps.create(&Default::default(), &map).await.unwrap();
    // The test fails if the pipe ends. If the pipe stays silent, the timeout ends the test.
    let seen = tokio::task::spawn_blocking(move || lines.find(|line| line.as_ref().unwrap() == "configmap/watched"));
    let seen = tokio::time::timeout(Duration::from_secs(20), seen).await;
    watching.kill().unwrap();
    watching.wait().unwrap();
    assert!(seen.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn a_reader_that_has_enough_is_no_failure() {
    let hub = hub().await;
    let home = tempfile::tempdir().unwrap();
    let mut child = command(home.path(), &["get", "clusterroles", "-o", "yaml"])
        .env("FARWATER_KUBECONFIG", hub.kubeconfig())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(
        (ended.status.code(), ended.stderr.as_slice()),
        (Some(0), b"".as_slice())
    );
}

#[tokio::test]
async fn on_a_terminal_tables_fit_and_states_are_coloured() {
    let hub = hub().await;
    deploy("a-service-with-a-rather-long-name", "nowhere").await;
    // `script` gives its child a terminal. Without a terminal of its own, that one has no rows, and a size without rows
    // counts as none.
    let shown = |variables: &str, columns: u32| -> String {
        let kubeconfig: PathBuf = hub.kubeconfig();
        let inner = format!(
            "stty rows 24 cols {columns}; {variables} {PROGRAM} --kubeconfig {} get sd",
            kubeconfig.display()
        );
        let output = Command::new("script")
            .args(["-qec", &inner, "/dev/null"])
            .env("TERM", "xterm")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().replace('\r', "")
    };
    let narrow = shown("NO_COLOR=1", 80);
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    assert!(
        narrow.contains("a-service-with-a-rather-long-name") && !narrow.contains('\u{1b}'),
        "{narrow}"
    );
    assert!(shown("", 200).contains("\u{1b}[3"));
}

#[tokio::test]
async fn a_token_file_may_be_standard_input() {
    let hub = hub().await;
    let home = tempfile::tempdir().unwrap();
    let ca = hub.dir().join("keys/ca.crt");
    let mut child = command(
        home.path(),
        &["login", &hub.url(), "--token-file", "-", "--ca", ca.to_str().unwrap()],
    )
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(hub.token().unwrap().as_bytes())
        .unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
}

#[test]
fn sources_of_flux_are_printed_as_ours_and_what_is_not_is_said() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("flux.yaml");
    let write = |text: &str| fs::write(&file, text).unwrap();
    let convert = || run_in(home.path(), &["convert", "flux", file.to_str().unwrap()]);
    write(
        "apiVersion: v1\nkind: List\nitems:\n- apiVersion: source.toolkit.fluxcd.io/v1\n  kind: HelmRepository\n  \
         metadata: {name: charts, namespace: team-a, uid: u}\n  \
         spec: {url: https://charts.example.com, interval: 5m, accessFrom: {}}\n---\n\
         apiVersion: v1\nkind: Secret\nmetadata: {name: mine}\n",
    );
    let ran = convert();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let converted: serde_json::Value = serde_saphyr::from_str(&ran.stdout).unwrap();
    assert_eq!(
        converted,
        serde_json::json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "HelmRepository",
            "metadata": {"name": "charts", "namespace": "team-a"},
            "spec": {"url": "https://charts.example.com", "interval": "5m"},
        })
    );
    for said in [
        "HelmRepository charts: spec.accessFrom: has no counterpart",
        "Secret mine: left alone, it is none of Flux",
    ] {
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }

    write(
        "{apiVersion: source.toolkit.fluxcd.io/v1, kind: GitRepository, metadata: {name: apps}, spec: {url: https://git.example.com/a, \
         interval: 1m, ref: {branch: main}, ignore: /docs}}",
    );
    let ran = convert();
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    for said in [
        "GitRepository apps: spec.ignore: has no counterpart",
        "not converted: it would be something else; --allow-losses",
    ] {
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
    let ran = run_in(
        home.path(),
        &["convert", "flux", "--allow-losses", file.to_str().unwrap()],
    );
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(
        ran.stdout.contains("branch: main") && ran.stderr.contains("spec.ignore"),
        "{}{}",
        ran.stdout,
        ran.stderr
    );

    write(
        "{apiVersion: source.toolkit.fluxcd.io/v1, kind: OCIRepository, metadata: {name: apps}, \
         spec: {url: oci://registry.example.com/apps, interval: 1s}}",
    );
    let ran = convert();
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(
        ran.stderr.contains("not converted: the hub would refuse spec.interval"),
        "{}",
        ran.stderr
    );

    write("{apiVersion: source.toolkit.fluxcd.io/v1, kind: Bucket, metadata: {name: files}}");
    let ran = convert();
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("Bucket files: not converted"), "{}", ran.stderr);

    write("{");
    let ran = convert();
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("flux.yaml:1 can't be read"), "{}", ran.stderr);
}

#[test]
fn applications_and_kustomizations_are_printed_for_a_cluster_and_a_loss_is_a_no() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("theirs.yaml");
    let path = file.to_str().unwrap();
    fs::write(
        &file,
        "{apiVersion: kustomize.toolkit.fluxcd.io/v1, kind: Kustomization, metadata: {name: web, namespace: team-a}, spec: {interval: 5m, \
         prune: true, path: ./web, sourceRef: {kind: GitRepository, name: apps}}}",
    )
    .unwrap();
    let ran = run_in(home.path(), &["convert", "flux", path]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(
        ran.stderr.contains("Kustomization web: not converted: spec: ") && ran.stderr.contains("--cluster"),
        "{}",
        ran.stderr
    );
    let ran = run_in(
        home.path(),
        &[
            "convert",
            "flux",
            "--cluster",
            "fleet/east",
            "-n",
            "farwater-admin",
            "--name-suffix",
            "-east",
            path,
        ],
    );
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let converted: serde_json::Value = serde_saphyr::from_str(&ran.stdout).unwrap();
    assert_eq!(
        converted["metadata"],
        serde_json::json!({"name": "web-east", "namespace": "farwater-admin"})
    );
    assert_eq!(
        converted["spec"]["clusterRef"],
        serde_json::json!({"name": "east", "namespace": "fleet"})
    );
    assert!(!ran.stderr.contains("ClusterGrant"), "{}", ran.stderr);
    let ran = run_in(
        home.path(),
        &["convert", "flux", "--cluster-selector", "env=prod", path],
    );
    assert!(
        ran.code == 0 && ran.stdout.contains("kind: ServiceSet"),
        "{}{}",
        ran.stdout,
        ran.stderr
    );
    assert!(
        ran.stderr
            .contains("namespace team-a of the hub has to be there, and needs a ClusterGrant"),
        "{}",
        ran.stderr
    );
    assert_eq!(
        run_in(home.path(), &["convert", "flux", "--cluster", "a/b/c", path]).code,
        2
    );

    fs::write(
        &file,
        "{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {name: web, namespace: argocd}, spec: {project: shop, destination: \
         {server: 'https://10.0.0.1', namespace: web}, source: {repoURL: 'https://git.example.com/a/b', path: web, kustomize: {commonLabels: \
         {a: b}}}}}",
    )
    .unwrap();
    let convert = ["convert", "argocd", "--destination", "https://10.0.0.1=east", path];
    let ran = run_in(home.path(), &convert);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(
        ran.stderr
            .contains("Application web: spec.source.kustomize.commonLabels: "),
        "{}",
        ran.stderr
    );
    let ran = run_in(home.path(), &[&convert[..], &["--allow-losses"]].concat());
    assert!(
        ran.code == 0 && ran.stdout.contains("suspend: true"),
        "{}{}",
        ran.stdout,
        ran.stderr
    );
}

#[tokio::test]
async fn a_test_message_says_what_became_of_it() {
    let home = tempfile::tempdir().unwrap();
    let manifest = home.path().join("provider.yaml");
    let metadata = "metadata: {name: hook, namespace: farwater-admin}";
    let spec = "spec: {type: generic, address: 'https://hooks.example.com/a', secretRef: {name: nothing}}";
    let kind = "apiVersion: farwater.dev/v1alpha1\nkind: NotificationProvider";
    fs::write(&manifest, format!("{kind}\n{metadata}\n{spec}\n")).unwrap();
    let mut kubectl = Command::new(Tools::find().unwrap().kubectl());
    kubectl
        .arg("apply")
        .arg("-f")
        .arg(&manifest)
        .env_clear()
        .env("HOME", home.path());
    let applied: Ran = kubectl
        .env("KUBECONFIG", hub().await.kubeconfig())
        .output()
        .unwrap()
        .into();
    assert_eq!(applied.code, 0, "{}", applied.stderr);
    let ran = run(&["notify", "test", "farwater-admin/hook"]).await;
    let expected = "farwater-admin/hook did not take the message: Secret nothing does not exist\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (1, expected), "{}", ran.stderr);
    assert_eq!(run(&["notify", "test", "farwater-admin/nobody"]).await.code, 4);
}
