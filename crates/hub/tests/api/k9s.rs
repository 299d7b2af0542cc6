//! k9s in a terminal, used as people use it; only what it draws and what the hub holds afterwards is looked at.
//!
//! `cargo xtask campaign k9s` runs these: k9s takes minutes to build, and most changes of the hub can't break it alone.

use std::{fs, path::PathBuf, time::Duration};

use farwater_testkit::{Terminal, Tools, process::bare_command};
use tempfile::TempDir;

use crate::support::{Kubectl, Served};

/// k9s draws anew each two seconds, and needs a few to start on two busy cores.
const PATIENCE: Duration = Duration::from_secs(60);

const OBJECTS: &str = "
apiVersion: farwater.dev/v1alpha1
kind: ClusterGrant
metadata: {name: team}
spec: {clusterSelector: {}, namespaces: [team], verbs: [deploy], serviceAccountName: team}
---
apiVersion: farwater.dev/v1alpha1
kind: Cluster
metadata: {name: east, namespace: team}
spec: {}
---
apiVersion: farwater.dev/v1alpha1
kind: GitRepository
metadata: {name: infra, namespace: team}
spec: {url: https://git.example.com/infra.git}
---
apiVersion: farwater.dev/v1alpha1
kind: ServiceDeployment
metadata: {name: shop, namespace: team}
spec: {clusterRef: {name: east}, sourceRef: {name: infra}, path: deploy/shop, targetNamespace: shopping}
---
apiVersion: farwater.dev/v1alpha1
kind: ServiceDeployment
metadata: {name: mail, namespace: team}
spec: {clusterRef: {name: east}, sourceRef: {name: infra}, path: deploy/mail, targetNamespace: mailing}
";

const ENTER: &str = "\r";
const ESCAPE: &str = "\u{1b}";
const CONTROL_D: &str = "\u{4}";
const TAB: &str = "\t";

/// A running k9s with a home of its own.
struct K9s {
    terminal: Terminal,
    log: PathBuf,
    /// Goes after the program that writes there.
    _home: TempDir,
}

impl K9s {
    fn start(served: &Served, arguments: &[&str]) -> Self {
        let home = TempDir::new().unwrap();
        let log = home.path().join("k9s.log");
        // It would ask GitHub for a newer one.
        fs::write(home.path().join("config.yaml"), "k9s: {skipLatestRevCheck: true}\n").unwrap();
        let mut command = bare_command(Tools::find_k9s().unwrap().k9s());
        command
            .env("HOME", home.path())
            .env("K9S_CONFIG_DIR", home.path())
            .arg("--kubeconfig")
            .arg(&served.running.admin_kubeconfig)
            .arg("--logFile")
            .arg(&log)
            .arg("--splashless")
            .args(arguments);
        let terminal = Terminal::start("k9s", command, &log).unwrap();
        Self {
            terminal,
            log,
            _home: home,
        }
    }

    fn press(&self, keys: &[&str]) {
        self.terminal.press(&keys.concat()).unwrap();
    }

    async fn until(&self, what: &str, expected: impl Fn(&Screen) -> bool) {
        let expected = |text: &str| expected(&Screen(text.lines().map(one_space).collect()));
        if let Err(error) = self.terminal.wait_until(what, PATIENCE, expected).await {
            panic!("{error:#}");
        }
    }

    /// Ends it as a user does, and answers with the errors of its log.
    fn quit(mut self) -> Vec<String> {
        self.press(&[":quit", ENTER]);
        let status = self.terminal.wait_for_end(PATIENCE);
        assert!(
            status.is_some_and(|status| status.success()),
            "{status:?}\n{}",
            self.terminal.screen()
        );
        let log = fs::read_to_string(&self.log).unwrap();
        assert!(log.contains("K9s starting up"), "{log}");
        errors_of(&log)
    }
}

/// The errors of a log, but for those of a table that was left while it was being read: k9s ends the request and says first
/// "Refresh failed", then that the table's reader ended as its context was canceled; or, in one line, that the context was canceled.
fn errors_of(log: &str) -> Vec<String> {
    let left = |line: &&str| line.contains("Reconciler exited") && line.contains("context canceled");
    let mut left = log.lines().filter(left).count();
    let mut is_of_a_left_table = |line: &str| {
        let is = left > 0 && line.contains("Refresh failed");
        left -= usize::from(is);
        is || line.contains("Flash error") && line.ends_with("\"context canceled\"")
    };
    log.lines()
        .filter(|line| line.contains("ERR") && !is_of_a_left_table(line))
        .map(str::to_owned)
        .collect()
}

/// Lines of what is shown, without the spaces that align it.
struct Screen(Vec<String>);

impl Screen {
    fn has(&self, text: &str) -> bool {
        self.0.iter().any(|line| line.contains(text))
    }

    /// A row of a table that begins with these cells.
    fn has_row(&self, cells: &str) -> bool {
        self.0.iter().any(|line| line.starts_with(&format!("│ {cells} ")))
    }
}

fn one_space(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn objects(served: &Served) -> Kubectl<'_> {
    let kubectl = served.newest();
    kubectl.run(&["create", "namespace", "team"]).await;
    kubectl.feed(&["create", "-f", "-"], OBJECTS).await;
    kubectl
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in campaign k9s"]
async fn k9s_shows_follows_and_deletes_our_kinds() {
    let served = Served::start().await;
    let kubectl = objects(&served).await;
    let k9s = K9s::start(&served, &["--all-namespaces", "--command", "servicedeployments"]);
    k9s.until("both deployments", |screen| {
        screen.has_row("team mail") && screen.has_row("team shop")
    })
    .await;
    k9s.until("why they are not ready", |screen| {
        screen.has_row("team shop False GitRepository infra has no revision yet east deploy/shop")
    })
    .await;
    let path = r#"{"spec":{"path":"deploy/store"}}"#;
    kubectl
        .run(&[
            "patch",
            "servicedeployment",
            "shop",
            "-n",
            "team",
            "--type=merge",
            "-p",
            path,
        ])
        .await;
    k9s.until("the change of another", |screen| {
        screen.has("east deploy/store") && !screen.has("deploy/shop")
    })
    .await;

    k9s.press(&[":clusters", ENTER]);
    k9s.until("the cluster", |screen| {
        screen.has_row("team east False no agent has joined; run: farwater cluster join east")
    })
    .await;

    k9s.press(&[":servicedeployments", ENTER]);
    k9s.until("both deployments again", |screen| {
        screen.has_row("team mail") && screen.has_row("team shop")
    })
    .await;
    k9s.press(&["/shop", ENTER]);
    let only_shop = |screen: &Screen| screen.has_row("team shop") && !screen.has_row("team mail");
    k9s.until("the one that is searched", only_shop).await;
    k9s.press(&["d"]);
    k9s.until("its description", |screen| {
        screen.has("Kind: ServiceDeployment") && screen.has("Target Namespace: shopping")
    })
    .await;
    k9s.press(&[ESCAPE]);
    k9s.until("the one that is searched", only_shop).await;
    k9s.press(&["y"]);
    k9s.until("its YAML", |screen| {
        screen.has("apiVersion: farwater.dev/v1alpha1") && screen.has("targetNamespace: shopping")
    })
    .await;
    k9s.press(&[ESCAPE]);
    k9s.until("the one that is searched", only_shop).await;
    k9s.press(&[CONTROL_D]);
    k9s.until("the question", |screen| {
        screen.has("Delete servicedeployments team/shop?")
    })
    .await;
    // From "Cancel" to "OK".
    k9s.press(&[TAB, ENTER]);
    k9s.until("it to be gone", |screen| {
        !screen.has("team/shop") && !screen.has_row("team shop")
    })
    .await;
    kubectl
        .refuse(&["get", "servicedeployment", "shop", "-n", "team"], "")
        .await;
    kubectl.run(&["get", "servicedeployment", "mail", "-n", "team"]).await;
    assert_eq!(k9s.quit(), [""; 0]);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in campaign k9s"]
async fn k9s_shows_a_reader_of_one_namespace_what_it_may_read() {
    let served = Served::start().await;
    let kubectl = objects(&served).await;
    let in_team = async |args: &[&str]| kubectl.run(&[args, &["-n", "team"]].concat()).await;
    in_team(&["create", "serviceaccount", "reader"]).await;
    let verbs = "--verb=get,list,watch";
    in_team(&[
        "create",
        "role",
        "reader",
        verbs,
        "--resource=servicedeployments.farwater.dev",
    ])
    .await;
    in_team(&[
        "create",
        "rolebinding",
        "reader",
        "--role=reader",
        "--serviceaccount=team:reader",
    ])
    .await;
    let token = in_team(&["create", "token", "reader"]).await;
    let k9s = K9s::start(
        &served,
        &[
            "--token",
            token.trim(),
            "--namespace",
            "team",
            "--command",
            "servicedeployments",
        ],
    );
    k9s.until("both deployments", |screen| {
        screen.has_row("mail False") && screen.has_row("shop False")
    })
    .await;
    k9s.press(&[":clusters", ENTER]);
    k9s.until("the refusal", |screen| {
        screen.has("list access denied for user on \"team\":farwater.")
    })
    .await;
    // Dismissed, or it would take the next keys.
    k9s.press(&[ENTER]);
    k9s.until("the deployments", |screen| {
        screen.has_row("shop False") && !screen.has("access denied")
    })
    .await;
    let errors = k9s.quit();
    assert!(
        errors.len() == 1 && errors[0].contains("list access denied"),
        "{errors:?}"
    );
    served.stop().await;
}
