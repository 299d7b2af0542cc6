//! Repositories over ssh, with a real sshd.

use std::{path::Path, time::Duration};

use farwater_bundle::{RelPath, yaml::edit::FieldValue};
use farwater_sources::{
    Edit, Git, GitError, GitLimits, GitReason, Mirror, Push, PushedBranch, Reference, Remote, Retry, SecretData, Synced,
};
use farwater_testkit::ssh::{Key, SshServer};

/// Timeout for calls that must succeed, also on a machine that is busy with other tests.
const TIMEOUT: Duration = Duration::from_secs(240);

struct Bench {
    server: SshServer,
    git: Git,
    dir: tempfile::TempDir,
}

impl Bench {
    async fn with(keys: &[&Key]) -> Self {
        let server = SshServer::start(keys).await.unwrap();
        server.create("r").unwrap().commit("main", &[("a.yaml", "1")]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let git = Git::new(GitLimits::default(), crate::near(), &dir.path().join("home")).unwrap();
        Self { server, git, dir }
    }

    async fn ask(&self, url: &str, secret: &SecretData, timeout: Duration) -> Result<Synced, GitError> {
        let remote = Remote::new(url, Some(secret)).unwrap();
        let reference = Reference::parse(None).unwrap();
        self.git
            .sync(&remote, &reference, &self.dir.path().join("mirror"), timeout)
            .await
    }

    async fn sync(&self, secret: &SecretData) -> Result<Synced, GitError> {
        self.ask(&self.server.url("r"), secret, TIMEOUT).await
    }
}

fn secret(key: &Key, known_hosts: &str, passphrase: &str) -> SecretData {
    let data = [
        ("identity", key.private.as_str()),
        ("known_hosts", known_hosts),
        ("password", passphrase),
    ];
    let given = data.into_iter().filter(|(_, value)| !value.is_empty());
    given
        .map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()))
        .collect()
}

fn running_with(text: &Path) -> Vec<String> {
    let text = text.display().to_string();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let ours = |entry: &std::fs::DirEntry| {
        let folder = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        folder.display().to_string().starts_with(&text)
    };
    let name = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
    all.filter(ours).map(name).collect()
}

#[tokio::test]
async fn a_repository_is_read_with_keys_of_every_kind() {
    let kinds = [
        ("ed25519", "", ""),
        ("ed25519", "a passphrase", ""),
        ("ecdsa", "", ""),
        ("ecdsa-384", "", "PEM"),
        ("ecdsa-521", "", "PKCS8"),
        ("rsa", "a passphrase", ""),
        ("rsa", "", "PEM"),
        ("rsa", "", "PKCS8"),
    ];
    let keys: Vec<_> = kinds
        .iter()
        .map(|(kind, phrase, form)| Key::make(kind, phrase, form).unwrap())
        .collect();
    let bench = Bench::with(&keys.iter().collect::<Vec<_>>()).await;
    for (key, kind) in keys.iter().zip(kinds) {
        let synced = bench.sync(&secret(key, &bench.server.known_hosts(), kind.1)).await;
        let synced = synced.unwrap_or_else(|error| panic!("{kind:?}: {error}\n{}", bench.server.log()));
        assert_eq!(synced.revision.name.as_deref(), Some("main"), "{kind:?}");
    }
    let commands = bench.server.commands();
    assert!(
        commands
            .lines()
            .all(|line| line.starts_with("version=2 git-upload-pack '")),
        "{commands}"
    );
    assert!(running_with(bench.dir.path()).is_empty());
}

#[tokio::test]
async fn an_edit_is_pushed_over_ssh() {
    let key = Key::make("ed25519", "", "").unwrap();
    let bench = Bench::with(&[&key]).await;
    let secret = secret(&key, &bench.server.known_hosts(), "");
    let repository = bench.server.create("writable").unwrap();
    let first = repository.commit("main", &[("a.yaml", "tag: a\n")]).unwrap();
    let (url, path) = (bench.server.url("writable"), bench.dir.path().join("mirror"));
    let base = bench.ask(&url, &secret, TIMEOUT).await.unwrap().revision.commit;
    let edit = Edit {
        path: RelPath::parse("a.yaml").unwrap(),
        field: "tag".parse().unwrap(),
        value: FieldValue {
            text: "b".to_owned(),
            is_string: true,
        },
        message: "Promote it".to_owned(),
        time: 1_800_000_000,
    };
    let commit = Mirror::open(&path)
        .unwrap()
        .commit_edit(base, edit)
        .await
        .unwrap()
        .unwrap();
    let (remote, branch) = (
        Remote::new(&url, Some(&secret)).unwrap(),
        PushedBranch::new("web/production").unwrap(),
    );
    let push = Push {
        branch: &branch,
        commit,
        from: None,
    };
    bench.git.push(&remote, &path, &push, TIMEOUT).await.unwrap();
    assert_eq!(
        bench.git.ask_branch(&remote, &branch, TIMEOUT).await.unwrap(),
        Some(commit)
    );
    let commands = bench.server.commands();
    assert!(
        commands.lines().any(|line| line.contains("git-receive-pack '")),
        "{commands}"
    );
    assert_eq!(repository.branch("main").unwrap(), first);
}

#[tokio::test]
async fn what_is_wrong_is_told_apart_and_nothing_secret_is_told() {
    let (key, stranger) = (
        Key::make("ed25519", "hunter2", "").unwrap(),
        Key::make("ed25519", "", "").unwrap(),
    );
    let mut bench = Bench::with(&[&key]).await;
    let hosts = bench.server.known_hosts();
    let good = secret(&key, &hosts, "hunter2");
    let expect = |result: Result<Synced, GitError>, reason: GitReason| {
        let error = result.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.reason, reason, "{text}");
        assert!(!text.contains("hunter2") && !text.contains("PRIVATE KEY"), "{text}");
        error.retry()
    };
    expect(
        bench.sync(&secret(&stranger, &hosts, "")).await,
        GitReason::Unauthorized,
    );
    let elsewhere = format!("other.example {}", hosts.split_once(' ').unwrap().1);
    expect(
        bench.sync(&secret(&key, &elsewhere, "hunter2")).await,
        GitReason::HostKeyUnknown,
    );
    let error = bench.sync(&secret(&key, &hosts, "wrong")).await.unwrap_err();
    assert!(
        matches!(&error.reason, GitReason::KeyUnusable(why) if why.contains("password")),
        "{error}"
    );
    let error = bench.sync(&secret(&key, &hosts, "")).await.unwrap_err();
    assert!(
        matches!(&error.reason, GitReason::KeyUnusable(why) if why.contains("encrypted")),
        "{error}"
    );
    expect(
        bench.ask(&bench.server.url("nosuch"), &good, TIMEOUT).await,
        GitReason::NotFound,
    );
    bench.sync(&good).await.unwrap();

    bench.server.stop();
    assert_eq!(expect(bench.sync(&good).await, GitReason::Unreachable), Retry::Later);
    bench.server.change_host_key().unwrap();
    bench.server.resume().await.unwrap();
    assert_eq!(
        expect(bench.sync(&good).await, GitReason::HostKeyChanged),
        Retry::AfterChange
    );
    bench
        .sync(&secret(&key, &bench.server.known_hosts(), "hunter2"))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_server_that_says_nothing_is_left_in_time_and_no_process_with_it() {
    let key = Key::make("ed25519", "", "").unwrap();
    let bench = Bench::with(&[&key]).await;
    let good = secret(&key, &bench.server.known_hosts(), "");
    bench.sync(&good).await.unwrap();
    bench.server.pause().unwrap();
    let error = bench
        .ask(&bench.server.url("r"), &good, Duration::from_secs(3))
        .await
        .unwrap_err();
    assert_eq!(error.reason, GitReason::Timeout(3), "{error}");
    bench.server.unpause().unwrap();
    farwater_testkit::wait_for("the processes to end", Duration::from_secs(30), || async {
        Ok(running_with(bench.dir.path()).is_empty().then_some(()))
    })
    .await
    .unwrap();
    let left: Vec<_> = std::fs::read_dir(bench.dir.path().join("home"))
        .unwrap()
        .flatten()
        .collect();
    assert!(left.is_empty(), "{left:?}");
    bench.sync(&good).await.unwrap();
}
