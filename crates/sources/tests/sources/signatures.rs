//! Commits and tags signed by git itself, with keys of ssh-keygen and GnuPG.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use farwater_api::git_repository::GitReference;
use farwater_sources::{Git, GitLimits, Keys, KeysError, Mirror, Reference, Remote, Revision, SecretData, VerifyMode};
use farwater_testkit::{
    git::{GitServer, Repository},
    packages::{Package, require},
    ssh::Key,
    wait_for,
};

/// Timeout for calls that must succeed, also on a machine that is busy with other tests.
const TIMEOUT: Duration = Duration::from_secs(240);

struct Bench {
    server: GitServer,
    repository: Repository,
    git: Git,
    dir: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let server = GitServer::start().await.unwrap();
        let repository = server.create("r").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let git = Git::new(GitLimits::default(), crate::near(), &dir.path().join("home")).unwrap();
        repository.commit("main", &[("a.yaml", "1")]).unwrap();
        Self {
            server,
            repository,
            git,
            dir,
        }
    }

    /// Commits on top of the branch, signed as `config` says. Empty: not signed.
    fn commit(&self, config: &[String]) -> String {
        let mut args: Vec<&str> = config.iter().flat_map(|setting| ["-c", setting]).collect();
        args.extend([
            "commit-tree",
            "-m",
            "signed",
            "-p",
            "refs/heads/main",
            "refs/heads/main^{tree}",
        ]);
        if !config.is_empty() {
            args.push("-S");
        }
        let commit = self.repository.git(&args, b"").unwrap();
        self.repository.set_ref("refs/heads/main", &commit).unwrap();
        commit
    }

    fn tag(&self, name: &str, config: &[String]) {
        let mut args: Vec<&str> = config.iter().flat_map(|setting| ["-c", setting]).collect();
        let sign = if config.is_empty() { "-a" } else { "-s" };
        args.extend(["tag", "-f", sign, "-m", "release", name, "refs/heads/main"]);
        self.repository.git(&args, b"").unwrap();
    }

    async fn revision(&self, reference: GitReference) -> (Mirror, Revision) {
        let remote = Remote::new(&self.server.url("r"), None).unwrap();
        let path = self.dir.path().join("mirror");
        let reference = Reference::parse(Some(&reference)).unwrap();
        let synced = self.git.sync(&remote, &reference, &path, TIMEOUT).await.unwrap();
        (Mirror::open(&path).unwrap(), synced.revision)
    }

    /// Why the signature of the branch's head is refused. None: it is accepted.
    async fn head(&self, keys: &Arc<Keys>) -> Option<String> {
        let (mirror, revision) = self.revision(GitReference::default_branch()).await;
        mirror.verify(&revision, VerifyMode::Head, keys).await.unwrap()
    }

    async fn tagged(&self, name: &str, mode: VerifyMode, keys: &Arc<Keys>) -> Option<String> {
        let (mirror, revision) = self
            .revision(GitReference {
                tag: Some(name.into()),
                ..Default::default()
            })
            .await;
        mirror.verify(&revision, mode, keys).await.unwrap()
    }
}

trait DefaultBranch {
    fn default_branch() -> Self;
}

impl DefaultBranch for GitReference {
    fn default_branch() -> Self {
        Self {
            branch: Some("main".into()),
            ..Self::default()
        }
    }
}

fn keys(values: &[&str]) -> Arc<Keys> {
    let data: SecretData = values
        .iter()
        .enumerate()
        .map(|(n, value)| (n.to_string(), value.as_bytes().to_vec()))
        .collect();
    Arc::new(Keys::read(&data).unwrap())
}

/// Git's settings to sign with an ssh key.
fn by_ssh(dir: &Path, key: &Key) -> Vec<String> {
    let path = tempfile::Builder::new()
        .prefix("key-")
        .tempfile_in(dir)
        .unwrap()
        .into_temp_path()
        .keep()
        .unwrap();
    std::fs::write(&path, &key.private).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(path.with_extension("pub"), &key.public).unwrap();
    vec![
        "gpg.format=ssh".to_owned(),
        format!("user.signingkey={}", path.display()),
    ]
}

/// A GnuPG with a home of its own.
struct Gpg {
    home: tempfile::TempDir,
}

impl Gpg {
    fn new() -> Self {
        require(&[Package {
            program: "gpg",
            debian: "gnupg",
        }])
        .unwrap();
        // The path of the agent's socket must be short.
        let home = tempfile::Builder::new().prefix("gpg").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        Self { home }
    }

    fn run(&self, args: &[&str]) -> String {
        let mut command = Command::new("gpg");
        command
            .arg("--homedir")
            .arg(self.home.path())
            .args(["--batch", "--yes", "--passphrase", ""])
            .args(args);
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "gpg {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Makes a key, and returns it as text.
    fn make(&self, user: &str, algorithm: &str, usage: &str, expire: &str) -> String {
        self.run(&["--quick-gen-key", user, algorithm, usage, expire]);
        self.public(user)
    }

    fn public(&self, user: &str) -> String {
        self.run(&["--armor", "--export", user])
    }

    fn fingerprint(&self, user: &str) -> String {
        let listed = self.run(&["--with-colons", "--list-keys", user]);
        let line = listed.lines().find(|line| line.starts_with("fpr:")).unwrap();
        line.split(':').nth(9).unwrap().to_owned()
    }

    fn sign_by(&self, user: &str) -> Vec<String> {
        let script = self.home.path().join("sign");
        let text = format!(
            "#!/bin/sh\nexec gpg --homedir {} --batch \"$@\"\n",
            self.home.path().display()
        );
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        vec![
            format!("gpg.program={}", script.display()),
            format!("user.signingkey={user}"),
        ]
    }
}

impl Drop for Gpg {
    fn drop(&mut self) {
        let home: PathBuf = self.home.path().into();
        let _ = Command::new("gpgconf")
            .arg("--homedir")
            .arg(home)
            .args(["--kill", "all"])
            .output();
    }
}

#[tokio::test]
async fn commits_are_verified_by_ssh_keys_of_every_kind() {
    let bench = Bench::new().await;
    let made: Vec<Key> = ["ed25519", "ecdsa", "ecdsa-384", "ecdsa-521", "rsa"]
        .map(|kind| Key::make(kind, "", "").unwrap())
        .into();
    let all: Vec<&str> = made.iter().map(|key| key.public.as_str()).collect();
    let all = keys(&all);
    assert!(bench.head(&all).await.unwrap().ends_with("is not signed"));
    for (n, key) in made.iter().enumerate() {
        bench.commit(&by_ssh(bench.dir.path(), key));
        assert_eq!(bench.head(&all).await, None, "{}", key.public);
        let other = keys(&[&made[(n + 1) % made.len()].public]);
        let why = bench.head(&other).await.unwrap();
        assert!(
            why.contains("is signed by a key that is not among the given ones: SHA256:"),
            "{why}"
        );
    }
    bench.commit(&[]);
    assert!(
        bench.head(&all).await.unwrap().ends_with("is not signed"),
        "one on top of signed ones"
    );
}

#[tokio::test]
async fn commits_are_verified_by_openpgp_keys() {
    let (bench, gpg) = (Bench::new().await, Gpg::new());
    for (user, algorithm) in [
        ("ed@example.com", "ed25519"),
        ("rsa@example.com", "rsa3072"),
        ("p@example.com", "nistp256"),
    ] {
        let public = gpg.make(user, algorithm, "sign", "never");
        bench.commit(&gpg.sign_by(user));
        assert_eq!(bench.head(&keys(&[&public])).await, None, "{algorithm}");
    }
    let stranger = gpg.make("stranger@example.com", "ed25519", "sign", "never");
    let why = bench.head(&keys(&[&stranger])).await.unwrap();
    assert!(why.contains("not among the given ones"), "{why}");

    // A key that only certifies, with a subkey that signs.
    gpg.make("sub@example.com", "ed25519", "cert", "never");
    let print = gpg.fingerprint("sub@example.com");
    let before = gpg.public("sub@example.com");
    gpg.run(&["--quick-add-key", &print, "ed25519", "sign", "never"]);
    bench.commit(&gpg.sign_by("sub@example.com"));
    assert_eq!(bench.head(&keys(&[&gpg.public("sub@example.com")])).await, None);
    assert!(bench.head(&keys(&[&before])).await.is_some(), "the subkey came later");
}

#[tokio::test]
async fn openpgp_keys_that_have_ended_or_were_taken_back_verify_nothing() {
    let (bench, gpg) = (Bench::new().await, Gpg::new());
    gpg.make("old@example.com", "ed25519", "sign", "never");
    bench.commit(&gpg.sign_by("old@example.com"));
    let good = gpg.public("old@example.com");
    assert_eq!(bench.head(&keys(&[&good])).await, None);
    let print = gpg.fingerprint("old@example.com");
    gpg.run(&["--quick-set-expire", &print, "seconds=1"]);
    let ended = keys(&[&gpg.public("old@example.com")]);
    let why = wait_for("the key to end", Duration::from_secs(30), async || {
        Ok(bench.head(&ended).await)
    })
    .await
    .unwrap();
    assert!(why.contains("has expired"), "{why}");

    gpg.make("lost@example.com", "ed25519", "sign", "never");
    bench.commit(&gpg.sign_by("lost@example.com"));
    let print = gpg.fingerprint("lost@example.com");
    let revocation = gpg.home.path().join("openpgp-revocs.d").join(format!("{print}.rev"));
    let text = std::fs::read_to_string(&revocation)
        .unwrap()
        .replace(":-----BEGIN", "-----BEGIN");
    std::fs::write(&revocation, text).unwrap();
    gpg.run(&["--import", &revocation.display().to_string()]);
    let why = bench.head(&keys(&[&gpg.public("lost@example.com")])).await.unwrap();
    assert!(why.contains("was revoked"), "{why}");
}

#[tokio::test]
async fn tags_are_verified_under_their_own_names() {
    let (bench, gpg) = (Bench::new().await, Gpg::new());
    let key = Key::make("ed25519", "", "").unwrap();
    let by_ssh = by_ssh(bench.dir.path(), &key);
    let public = gpg.make("tagger@example.com", "ed25519", "sign", "never");
    let all = keys(&[&key.public, &public]);
    use VerifyMode::{Head, Tag, TagAndHead};
    bench.tag("v1", &by_ssh);
    assert_eq!(bench.tagged("v1", Tag, &all).await, None);
    assert!(
        bench
            .tagged("v1", TagAndHead, &all)
            .await
            .unwrap()
            .contains("is not signed")
    );
    bench.tag("v2", &gpg.sign_by("tagger@example.com"));
    assert_eq!(bench.tagged("v2", Tag, &all).await, None);
    bench.tag("v3", &[]);
    assert!(
        bench
            .tagged("v3", Tag, &all)
            .await
            .unwrap()
            .contains("tag v3 is not signed")
    );
    let head = bench.commit(&by_ssh);
    bench.repository.set_ref("refs/tags/v4", &head).unwrap();
    let why = bench.tagged("v4", Tag, &all).await.unwrap();
    assert!(why.contains("lightweight"), "{why}");
    assert_eq!(bench.tagged("v4", Head, &all).await, None);
    bench.tag("v5", &by_ssh);
    assert_eq!(bench.tagged("v5", TagAndHead, &all).await, None);
    // An old release is presented as a new one.
    let old = bench.repository.git(&["rev-parse", "refs/tags/v1"], b"").unwrap();
    bench.repository.set_ref("refs/tags/v9", &old).unwrap();
    let why = bench.tagged("v9", Tag, &all).await.unwrap();
    assert!(why.contains("under another name"), "{why}");
}

#[tokio::test]
async fn a_commit_that_was_changed_after_it_was_signed_is_refused() {
    let (bench, key) = (Bench::new().await, Key::make("ed25519", "", "").unwrap());
    let signed = bench.commit(&by_ssh(bench.dir.path(), &key));
    let text = bench.repository.git(&["cat-file", "commit", &signed], b"").unwrap();
    let forged = bench
        .repository
        .write_object("commit", (text.replace("\n\nsigned", "\n\nforged") + "\n").as_bytes());
    bench.repository.set_ref("refs/heads/main", &forged.unwrap()).unwrap();
    let all = keys(&[&key.public]);
    let why = bench.head(&all).await.unwrap();
    assert!(why.ends_with("is not what its signature was made for"), "{why}");
}

#[test]
fn a_private_key_among_the_public_ones_is_refused() {
    let key = Key::make("ed25519", "", "").unwrap();
    let data = SecretData::from([("oops".to_owned(), key.private.into_bytes())]);
    assert!(matches!(Keys::read(&data), Err(KeysError::Private { .. })));
}
