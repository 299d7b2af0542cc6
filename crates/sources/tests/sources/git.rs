//! Git::sync and Mirror with a real server.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use farwater_api::git_repository::GitReference;
use farwater_bundle::{Archive, Limits, RelPath};
use farwater_sources::{Git, GitError, GitLimits, GitReason, Mirror, Named, Reference, Remote, Retry, Synced};
use farwater_testkit::git::{Auth, Fault, GitServer, Repository};

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
        Self::with(GitServer::start().await.unwrap(), GitLimits::default())
    }

    fn with(server: GitServer, limits: GitLimits) -> Self {
        let repository = server.create("r").unwrap();
        let dir = tempfile::tempdir().unwrap();
        Self {
            server,
            repository,
            git: Git::new(limits, crate::near(), &dir.path().join("home")).unwrap(),
            dir,
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("mirror")
    }

    fn remote(&self) -> Remote {
        Remote::new(&self.server.url("r"), None).unwrap()
    }

    async fn sync(&self, reference: &Reference) -> Result<Synced, GitError> {
        self.git.sync(&self.remote(), reference, &self.path(), TIMEOUT).await
    }

    async fn main(&self) -> Result<Synced, GitError> {
        self.sync(&branch("main")).await
    }

    /// The files in a folder of the fetched commit, and the bundle's digest.
    async fn bundle(&self, synced: &Synced, path: &str) -> Result<(Vec<String>, String), String> {
        let mirror = Mirror::open(&self.path()).unwrap();
        let limits = Limits::default();
        let path = RelPath::parse_folder(path).unwrap();
        let closure = mirror
            .closure(synced.revision.commit, path, limits)
            .await
            .map_err(|e| e.to_string())?;
        let packed = mirror.pack(closure, limits).await.map_err(|e| e.to_string())?;
        let archive = Archive::open(&packed.compressed, &packed.digest, &limits).unwrap();
        Ok((
            archive.files().map(|(p, _)| p.to_string()).collect(),
            packed.digest.to_string(),
        ))
    }
}

fn branch(name: &str) -> Reference {
    Reference::parse(Some(&GitReference {
        branch: Some(name.into()),
        ..Default::default()
    }))
    .unwrap()
}

fn secret(data: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    data.iter()
        .map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec()))
        .collect()
}

fn reason(result: Result<Synced, GitError>) -> GitReason {
    result.unwrap_err().reason
}

#[tokio::test]
async fn a_branch_is_followed_and_fetched_only_when_it_moves() {
    let bench = Bench::new().await;
    let first = bench
        .repository
        .commit("main", &[("a/x.yaml", "1"), ("b/y.yaml", "1")])
        .unwrap();
    let synced = bench.main().await.unwrap();
    assert_eq!(synced.revision.to_string(), format!("main@sha1:{first}"));
    assert!(synced.fetched && synced.rewritten.is_none());
    let counts = bench.server.counts();
    let again = bench.main().await.unwrap();
    assert!(!again.fetched);
    let after = bench.server.counts();
    assert_eq!((after.requests - counts.requests, after.fetches), (2, counts.fetches));
    let (files, digest) = bench.bundle(&again, "a").await.unwrap();
    assert_eq!(files, ["a/x.yaml"]);
    bench.repository.change("main", &[("b/y.yaml", Some("2"))]).unwrap();
    let before = bench.server.counts();
    let moved = bench.main().await.unwrap();
    let after = bench.server.counts();
    assert_eq!(
        (after.ls_refs, after.fetches),
        (before.ls_refs + 1, before.fetches + 1),
        "one visit"
    );
    assert!(moved.fetched && moved.rewritten.is_none() && moved.revision != synced.revision);
    assert_eq!(
        bench.bundle(&moved, "a").await.unwrap().1,
        digest,
        "a commit outside the closure"
    );
    bench.repository.change("main", &[("a/x.yaml", Some("2"))]).unwrap();
    assert_ne!(bench.bundle(&bench.main().await.unwrap(), "a").await.unwrap().1, digest);
}

#[tokio::test]
async fn without_a_reference_the_default_branch_is_followed_and_named() {
    let bench = Bench::new().await;
    let sync = async || bench.sync(&Reference::Default).await.unwrap();
    let head = |to: &str| {
        bench
            .repository
            .git(&["symbolic-ref", "HEAD", &format!("refs/heads/{to}")], b"")
            .unwrap()
    };
    let shown = |branch: &str, commit: &str| format!("{branch}@sha1:{commit}");

    // The bare repository's HEAD names a branch that doesn't exist.
    head("master");
    let main = bench.repository.commit("main", &[("a", "1")]).unwrap();
    assert_eq!(sync().await.revision.to_string(), shown("main", &main));
    let trunk = bench.repository.commit("trunk", &[("a", "2")]).unwrap();
    head("trunk");
    let changed = sync().await;
    assert_eq!(changed.revision.to_string(), shown("trunk", &trunk));
    assert!(changed.fetched && changed.rewritten.is_none());

    let before = bench.server.counts();
    assert!(!sync().await.fetched);
    let after = bench.server.counts();
    assert_eq!(
        (after.ls_refs, after.fetches),
        (before.ls_refs + 1, before.fetches),
        "only asked"
    );
    let next = bench.repository.change("trunk", &[("a", Some("3"))]).unwrap();
    assert_eq!(sync().await.revision.to_string(), shown("trunk", &next));
    let moved = bench.server.counts();
    assert_eq!(
        (moved.ls_refs, moved.fetches),
        (after.ls_refs + 1, after.fetches + 1),
        "one visit"
    );

    head("main");
    assert_eq!(sync().await.revision.to_string(), shown("main", &main));
    bench.repository.delete_branch("main").unwrap();
    head("trunk");
    assert_eq!(
        sync().await.revision.to_string(),
        shown("trunk", &next),
        "the branch before is gone"
    );
    bench
        .repository
        .git(&["update-ref", "--no-deref", "HEAD", &trunk], b"")
        .unwrap();
    assert_eq!(
        sync().await.revision.to_string(),
        shown("HEAD", &trunk),
        "no branch at all"
    );
    head("gone");
    let error = bench.sync(&Reference::Default).await.unwrap_err();
    assert_eq!(
        error.reason,
        GitReason::ReferenceMissing("the default branch".to_owned())
    );
    assert!(error.evidence.contains("the branches trunk"), "{}", error.evidence);
}

#[tokio::test]
async fn a_server_whose_pack_breaks_off_was_reached_and_says_why() {
    let bench = Bench::new().await;
    bench.repository.commit("main", &[("a", "1"), ("b", "2")]).unwrap();
    let blob = bench.repository.git(&["rev-parse", "main:b"], b"").unwrap();
    let object = bench
        .repository
        .path()
        .join("objects")
        .join(&blob[..2])
        .join(&blob[2..]);
    std::fs::remove_file(object).unwrap();
    let error = bench.main().await.unwrap_err();
    assert_eq!(
        (&error.reason, error.retry()),
        (&GitReason::BrokenOff, Retry::Later),
        "{error}"
    );
    assert!(
        error.evidence.contains("the server says: ") && error.evidence.contains(&blob),
        "{}",
        error.evidence
    );
}

#[tokio::test]
async fn another_revision_is_found_beside_the_one_that_is_followed() {
    let bench = Bench::new().await;
    let find = async |name: &str| {
        let found = bench
            .git
            .find(&bench.remote(), &Named::parse(name).unwrap(), &bench.path(), TIMEOUT)
            .await;
        found.map(|revision| revision.to_string())
    };
    let first = bench.repository.commit("main", &[("a", "1")]).unwrap();
    // `find` works before any reference was synced.
    assert_eq!(find("main").await.unwrap(), format!("main@sha1:{first}"));
    let followed = bench.main().await.unwrap();
    let other = bench.repository.commit("other", &[("a", "2")]).unwrap();
    let tag = bench.repository.annotated_tag("v1", &other).unwrap();
    assert_ne!(tag, other);
    bench.repository.set_ref("refs/tags/both", &first).unwrap();
    bench.repository.set_ref("refs/heads/both", &other).unwrap();
    assert_eq!(find("other").await.unwrap(), format!("other@sha1:{other}"));
    assert_eq!(find("v1").await.unwrap(), format!("v1@sha1:{other}"));
    assert_eq!(
        find("both").await.unwrap(),
        format!("both@sha1:{other}"),
        "a branch comes before a tag"
    );
    assert_eq!(find(&first).await.unwrap(), format!("sha1:{first}"));
    let counts = bench.server.counts();
    assert_eq!(find(&other).await.unwrap(), format!("sha1:{other}"));
    assert_eq!(bench.server.counts(), counts, "what is here is not asked for");

    let missing = find("nosuch").await.unwrap_err();
    assert_eq!(
        missing.reason,
        GitReason::ReferenceMissing("branch or tag nosuch".into())
    );
    assert!(missing.evidence.contains("main, other"), "{}", missing.evidence);
    let missing = find(&"1".repeat(40)).await.unwrap_err();
    assert!(matches!(missing.reason, GitReason::ReferenceMissing(_)), "{missing}");

    // The followed branch has not moved, and is not fetched again.
    let again = bench.main().await.unwrap();
    assert_eq!(
        (again.revision, again.fetched, again.rewritten),
        (followed.revision, false, None)
    );
}

#[tokio::test]
async fn many_fetches_do_not_leave_many_packs() {
    let bench = Bench::with(
        GitServer::start().await.unwrap(),
        GitLimits {
            packs: 3,
            ..GitLimits::default()
        },
    );
    let mut all = Vec::new();
    for n in 0..6 {
        bench.repository.commit("main", &[("a", &n.to_string())]).unwrap();
        all.push(bench.main().await.unwrap());
    }
    let files = |folder: &str| {
        std::fs::read_dir(bench.path().join("objects").join(folder))
            .unwrap()
            .flatten()
    };
    let packs = files("pack")
        .filter(|f| f.path().extension().is_some_and(|e| e == "pack"))
        .count();
    assert!(packs <= 3, "{packs}");
    let loose: Vec<_> = files("")
        .map(|entry| entry.file_name())
        .filter(|name| name.len() == 2)
        .collect();
    assert!(loose.is_empty(), "objects in files of their own: {loose:?}");
    for synced in &all {
        assert!(bench.bundle(synced, ".").await.is_ok());
    }
}

#[tokio::test]
async fn tags_ranges_and_commits_are_resolved() {
    let bench = Bench::new().await;
    let r = &bench.repository;
    let mut commits = Vec::new();
    for version in ["v1.0.0", "v1.2.0", "v2.0.0-rc.1"] {
        commits.push(r.commit("main", &[("v", version)]).unwrap());
        r.annotated_tag(version, commits.last().unwrap()).unwrap();
    }
    r.set_ref("refs/tags/light", &commits[0]).unwrap();
    let parse = |field: &str, value: &str| {
        let mut reference = GitReference::default();
        let slot = match field {
            "tag" => &mut reference.tag,
            "semver" => &mut reference.semver,
            _ => &mut reference.commit,
        };
        *slot = Some(value.to_owned());
        Reference::parse(Some(&reference)).unwrap()
    };
    for (field, value, revision) in [
        ("tag", "v1.0.0", format!("v1.0.0@sha1:{}", commits[0])),
        ("tag", "light", format!("light@sha1:{}", commits[0])),
        ("semver", "^1", format!("v1.2.0@sha1:{}", commits[1])),
        ("semver", ">=2.0.0-0", format!("v2.0.0-rc.1@sha1:{}", commits[2])),
        ("commit", &commits[1], format!("sha1:{}", commits[1])),
    ] {
        let synced = bench.sync(&parse(field, value)).await.unwrap();
        assert_eq!(synced.revision.to_string(), revision, "{field} {value}");
        assert_eq!(bench.bundle(&synced, ".").await.unwrap().0, ["v"]);
    }
    assert!(matches!(
        reason(bench.sync(&parse("semver", "^3")).await),
        GitReason::ReferenceMissing(_)
    ));
    let unknown = "1234567890123456789012345678901234567890";
    assert!(matches!(
        reason(bench.sync(&parse("commit", unknown)).await),
        GitReason::ReferenceMissing(_)
    ));
}

#[tokio::test]
async fn a_commit_that_a_server_hands_out_only_by_branch_is_found() {
    let bench = Bench::new().await;
    bench
        .repository
        .git(&["config", "uploadpack.allowAnySHA1InWant", "false"], b"")
        .unwrap();
    let old = bench.repository.commit("main", &[("v", "1")]).unwrap();
    bench.repository.commit("main", &[("v", "2")]).unwrap();
    let reference = Reference::parse(Some(&GitReference {
        commit: Some(old.clone()),
        ..Default::default()
    }))
    .unwrap();
    assert_eq!(
        bench.sync(&reference).await.unwrap().revision.to_string(),
        format!("sha1:{old}")
    );
}

#[tokio::test]
async fn an_empty_repository_and_a_missing_one_are_told_apart() {
    let bench = Bench::new().await;
    let error = bench.main().await.unwrap_err();
    assert_eq!(
        (error.reason.clone(), error.retry()),
        (GitReason::Empty, Retry::AfterChange)
    );
    assert!(
        error.to_string().ends_with("the repository is empty; push a commit"),
        "{error}"
    );
    let remote = Remote::new(&bench.server.url("nothing"), None).unwrap();
    let result = bench.git.sync(&remote, &branch("main"), &bench.path(), TIMEOUT).await;
    assert_eq!(reason(result), GitReason::NotFound);
}

#[tokio::test]
async fn a_deleted_branch_is_an_error_that_names_the_others() {
    let bench = Bench::new().await;
    bench.repository.commit("main", &[("a", "1")]).unwrap();
    bench.repository.commit("develop", &[("a", "1")]).unwrap();
    let synced = bench.main().await.unwrap();
    bench.repository.delete_branch("main").unwrap();
    let error = bench.main().await.unwrap_err();
    assert_eq!(error.reason, GitReason::ReferenceMissing("branch main".into()));
    assert_eq!(error.evidence, "the remote has the branches develop");
    assert!(
        bench.bundle(&synced, ".").await.is_ok(),
        "what was fetched stays readable"
    );
    bench.repository.commit("main/next", &[("a", "2")]).unwrap();
    assert!(
        bench.sync(&branch("main/next")).await.is_ok(),
        "a name that the old one stood in the way of"
    );
}

#[tokio::test]
async fn a_force_push_is_followed_and_reported() {
    let bench = Bench::new().await;
    let old = bench.repository.commit("main", &[("a", "1")]).unwrap();
    let before = bench.main().await.unwrap();
    bench.repository.rewrite("main", &[("a", "2")]).unwrap();
    let synced = bench.main().await.unwrap();
    assert_eq!(synced.rewritten.map(|id| id.to_string()), Some(old.clone()));
    assert!(
        bench.bundle(&before, ".").await.is_ok(),
        "the old commit stays readable for a rollback"
    );
    let tip = bench.repository.change("main", &[("a", Some("3"))]).unwrap();
    bench.main().await.unwrap();
    bench
        .repository
        .set_ref("refs/heads/main", &synced.revision.commit.to_string())
        .unwrap();
    assert_eq!(
        bench.main().await.unwrap().rewritten.map(|id| id.to_string()),
        Some(tip),
        "moved back"
    );
}

#[tokio::test]
async fn credentials_are_checked_and_never_shown() {
    let bench = Bench::with(GitServer::start_tls().await.unwrap(), GitLimits::default());
    bench.repository.commit("main", &[("a", "1")]).unwrap();
    bench.server.set_auth(Auth::Basic {
        username: "robot".into(),
        password: "hunter2!".into(),
    });
    let ca = bench.server.ca().unwrap();
    let sync = async |data: &[(&str, &str)]| {
        let remote = Remote::new(&bench.server.url("r"), Some(&secret(data))).unwrap();
        bench.git.sync(&remote, &branch("main"), &bench.path(), TIMEOUT).await
    };
    assert_eq!(reason(sync(&[("ca.crt", ca)]).await), GitReason::CredentialsMissing);
    let error = sync(&[("ca.crt", ca), ("username", "robot"), ("password", "wrong-secret")])
        .await
        .unwrap_err();
    assert_eq!(
        (error.reason.clone(), error.reason.code()),
        (GitReason::Unauthorized, "AuthenticationFailed")
    );
    assert!(!format!("{error} {error:?}").contains("wrong-secret"));
    assert!(error.to_string().contains("correct the Secret"), "{error}");
    assert!(
        sync(&[("ca.crt", ca), ("username", "robot"), ("password", "hunter2!")])
            .await
            .is_ok()
    );
    bench.server.set_auth(Auth::Bearer("t0ken".into()));
    assert_eq!(
        reason(sync(&[("ca.crt", ca), ("bearerToken", "other")]).await),
        GitReason::Unauthorized
    );
    assert!(sync(&[("ca.crt", ca), ("bearerToken", "t0ken")]).await.is_ok());
    let on_disk = std::fs::read_to_string(bench.path().join("config")).unwrap();
    assert!(!on_disk.contains("t0ken") && !on_disk.contains("hunter2"));
}

#[tokio::test]
async fn an_unknown_authority_is_not_trusted() {
    let bench = Bench::with(GitServer::start_tls().await.unwrap(), GitLimits::default());
    let error = bench.main().await.unwrap_err();
    assert_eq!(error.reason, GitReason::Untrusted);
    assert!(error.to_string().contains("ca.crt"), "{error}");
}

#[tokio::test]
async fn a_certificate_that_has_ended_is_told_apart_and_waited_for() {
    let mut bench = Bench::with(GitServer::start_tls().await.unwrap(), GitLimits::default());
    bench.repository.commit("main", &[("a", "1")]).unwrap();
    let ca = secret(&[("ca.crt", bench.server.ca().unwrap())]);
    let sync = async |bench: &Bench| {
        let remote = Remote::new(&bench.server.url("r"), Some(&ca)).unwrap();
        bench.git.sync(&remote, &branch("main"), &bench.path(), TIMEOUT).await
    };
    sync(&bench).await.unwrap();
    bench.server.set_expired(true).await.unwrap();
    let error = sync(&bench).await.unwrap_err();
    assert_eq!(
        (&error.reason, error.retry()),
        (&GitReason::CertificateExpired, Retry::Later),
        "{error}"
    );
    bench.server.set_expired(false).await.unwrap();
    sync(&bench).await.unwrap();
}

#[tokio::test]
async fn servers_that_fail_in_every_way_give_typed_errors_in_time() {
    let mut bench = Bench::new().await;
    bench.repository.commit("main", &[("a", "1")]).unwrap();
    for (fault, reason, retry) in [
        (Fault::Status(500), GitReason::ServerError, Retry::Later),
        (Fault::Status(503), GitReason::ServerError, Retry::Later),
        (Fault::Status(429), GitReason::Throttled, Retry::Later),
        (Fault::Status(403), GitReason::Forbidden, Retry::AfterChange),
        (Fault::Status(404), GitReason::NotFound, Retry::AfterChange),
        (
            Fault::Redirect("http://127.0.0.1:9/".into()),
            GitReason::Redirected,
            Retry::AfterChange,
        ),
        (Fault::Cut(40), GitReason::BrokenOff, Retry::Later),
    ] {
        bench.server.set_fault(fault.clone());
        let error = bench.main().await.unwrap_err();
        assert_eq!(
            (error.reason.clone(), error.retry()),
            (reason, retry),
            "{fault:?}: {error}"
        );
    }
    let short = Duration::from_secs(1);
    for fault in [
        Fault::Stall,
        Fault::StallPack,
        Fault::Slow {
            bytes: 1,
            pause: Duration::from_millis(200),
        },
    ] {
        bench.server.set_fault(fault.clone());
        let started = Instant::now();
        let result = bench
            .git
            .sync(&bench.remote(), &branch("main"), &bench.path(), short)
            .await;
        assert_eq!(reason(result), GitReason::Timeout(1), "{fault:?}");
        assert!(started.elapsed() < Duration::from_secs(60), "{fault:?}");
    }
    bench.server.set_fault(Fault::Delay(Duration::from_millis(100)));
    assert!(bench.main().await.is_ok(), "after a killed fetch the mirror works");
    bench.server.set_fault(Fault::None);
    bench.server.stop().await;
    let error = bench.main().await.unwrap_err();
    assert_eq!(error.reason, GitReason::Unreachable, "{error}");
    bench.server.resume().await.unwrap();
    assert!(bench.main().await.is_ok());
}

#[tokio::test]
async fn a_killed_fetch_leaves_no_process_and_no_lock() {
    let bench = Bench::new().await;
    bench.repository.commit("main", &[("a", "1")]).unwrap();
    bench.server.set_fault(Fault::StallPack);
    let remote = bench.remote();
    let (git, path) = (bench.git.clone(), bench.path());
    let attempt = tokio::spawn(async move { git.sync(&remote, &branch("main"), &path, TIMEOUT).await });
    let asked = || async { Ok((bench.server.counts().fetches > 0).then_some(())) };
    farwater_testkit::wait_for("git to ask for objects", TIMEOUT, asked)
        .await
        .unwrap();
    attempt.abort();
    assert!(attempt.await.unwrap_err().is_cancelled());
    let mirror = bench.path().display().to_string();
    farwater_testkit::wait_for("git to be gone", TIMEOUT, || {
        let left = running_with(&mirror);
        async move { Ok(left.is_empty().then_some(())) }
    })
    .await
    .unwrap();
    std::fs::write(bench.path().join("packed-refs.lock"), "").unwrap();
    std::fs::create_dir_all(bench.path().join("refs/farwater")).unwrap();
    std::fs::write(bench.path().join("refs/farwater/tracked.lock"), "").unwrap();
    bench.server.set_fault(Fault::None);
    assert!(bench.main().await.unwrap().fetched);
}

/// Command lines of running processes that contain the text.
fn running_with(text: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
    lines
        .map(|l| String::from_utf8_lossy(&l).replace('\0', " "))
        .filter(|l| l.contains(text))
        .collect()
}

#[tokio::test]
async fn a_repository_huge_in_references_is_followed_by_branch_and_refused_by_range() {
    let limits = GitLimits {
        refs: 500,
        ..GitLimits::default()
    };
    let bench = Bench::with(GitServer::start().await.unwrap(), limits);
    let id = bench.repository.commit("main", &[("a", "1")]).unwrap();
    bench
        .repository
        .set_refs((0..2000).map(|n| format!("refs/tags/v0.0.{n}")), &id)
        .unwrap();
    bench
        .repository
        .set_refs((0..2000).map(|n| format!("refs/heads/b{n}")), &id)
        .unwrap();
    assert!(bench.main().await.is_ok());
    let reference = Reference::parse(Some(&GitReference {
        semver: Some("*".into()),
        ..Default::default()
    }))
    .unwrap();
    assert_eq!(
        reason(bench.sync(&reference).await),
        GitReason::TooManyRefs { limit: 500 }
    );
    let limits = GitLimits {
        refs_bytes: 1000,
        ..GitLimits::default()
    };
    let git = Git::new(limits, crate::near(), &bench.dir.path().join("second")).unwrap();
    let result = git.sync(&bench.remote(), &reference, &bench.path(), TIMEOUT).await;
    assert_eq!(reason(result), GitReason::AnswerTooLarge { limit: 1000 });
}

#[tokio::test]
async fn a_repository_over_the_disk_limit_is_stopped() {
    let limits = GitLimits {
        mirror_bytes: 1 << 20,
        ..GitLimits::default()
    };
    let bench = Bench::with(GitServer::start().await.unwrap(), limits);
    let mut state = 1u64;
    let mut noise = String::new();
    while noise.len() < 8 << 20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        noise.push_str(&format!("{:016x}", state));
    }
    bench.repository.commit("main", &[("big", &noise)]).unwrap();
    bench.server.set_fault(Fault::Slow {
        bytes: 128 << 10,
        pause: Duration::from_millis(100),
    });
    assert_eq!(reason(bench.main().await), GitReason::TooLarge { limit: 1 << 20 });
}

#[tokio::test]
async fn hostile_trees_are_refused_before_they_reach_a_mirror() {
    let bench = Bench::new().await;
    bench.repository.commit("main", &[("a", "1")]).unwrap();
    let synced = bench.main().await.unwrap();
    let blob = bench.repository.write_object("blob", b"x").unwrap();
    for name in [&b".."[..], b".git", b".GIT", b"git~1", b"a/b"] {
        let tree = bench.repository.write_tree(&[("100644", name, &blob)]).unwrap();
        bench.repository.commit_tree("main", &tree).unwrap();
        let error = bench.main().await.unwrap_err();
        assert_eq!(error.reason, GitReason::Malformed, "{error}");
        assert_eq!(
            bench.main().await.unwrap_err().reason,
            GitReason::Malformed,
            "the second time too"
        );
    }
    assert!(
        bench.bundle(&synced, ".").await.is_ok(),
        "the last good state stays in use"
    );
}

#[tokio::test]
async fn names_that_git_takes_and_we_do_not_are_refused_in_the_bundle_only() {
    let bench = Bench::new().await;
    let r = &bench.repository;
    let blob = r.write_object("blob", b"x").unwrap();
    for (name, message) in [
        (
            &b"new\nline"[..],
            r#"bad: path "bad/new\nline" has a control character"#,
        ),
        (b"\xff\xfe", r#"bad: path "bad/\xff\xfe" is not UTF-8"#),
        (
            b"back\\slash",
            r#"bad: path "bad/back\\slash" has a slash or backslash in a name"#,
        ),
    ] {
        let bad = r.write_tree(&[("100644", name, &blob)]).unwrap();
        let good = r.write_tree(&[("100644", b"a.yaml", &blob)]).unwrap();
        let root = r
            .write_tree(&[("40000", b"bad", &bad), ("40000", b"good", &good)])
            .unwrap();
        r.commit_tree("main", &root).unwrap();
        let synced = bench.main().await.unwrap();
        assert_eq!(bench.bundle(&synced, "bad").await.unwrap_err(), message);
        assert_eq!(bench.bundle(&synced, "good").await.unwrap().0, ["good/a.yaml"]);
    }
}

#[tokio::test]
async fn symlinks_out_of_the_tree_are_refused() {
    let bench = Bench::new().await;
    let files = [
        ("a/l", "-> ../../../etc/passwd"),
        ("b/l", "-> /etc/passwd"),
        ("c/l", "-> ../d"),
        ("d/f", "1"),
    ];
    bench.repository.commit("main", &files).unwrap();
    let synced = bench.main().await.unwrap();
    for path in ["a", "b"] {
        let error = bench.bundle(&synced, path).await.unwrap_err();
        assert!(error.starts_with(&format!("{path}/l: is a symlink to ")), "{error}");
    }
    assert_eq!(bench.bundle(&synced, "c").await.unwrap().0, ["d/f"]);
}

#[tokio::test]
async fn another_url_makes_another_mirror() {
    let bench = Bench::new().await;
    bench.repository.commit("main", &[("secret", "1")]).unwrap();
    let synced = bench.main().await.unwrap();
    let other = bench.server.create("other").unwrap();
    other.commit("main", &[("public", "1")]).unwrap();
    let remote = Remote::new(&bench.server.url("other"), None).unwrap();
    let now = bench
        .git
        .sync(&remote, &branch("main"), &bench.path(), TIMEOUT)
        .await
        .unwrap();
    assert_eq!((now.fetched, now.rewritten), (true, None));
    assert!(
        bench.bundle(&synced, ".").await.is_err(),
        "objects of the old address are gone"
    );
}

#[tokio::test]
async fn repositories_with_long_object_ids_work() {
    let bench = Bench::new().await;
    let repository = Repository::create_with(&bench.server.root().join("long.git"), "sha256").unwrap();
    let id = repository.commit("main", &[("a/x.yaml", "1")]).unwrap();
    let remote = Remote::new(&bench.server.url("long"), None).unwrap();
    let synced = bench
        .git
        .sync(&remote, &branch("main"), &bench.path(), TIMEOUT)
        .await
        .unwrap();
    assert_eq!(synced.revision.to_string(), format!("main@sha256:{id}"));
    assert_eq!(bench.bundle(&synced, "a").await.unwrap().0, ["a/x.yaml"]);
    assert!(
        !bench
            .git
            .sync(&remote, &branch("main"), &bench.path(), TIMEOUT)
            .await
            .unwrap()
            .fetched
    );
}

#[tokio::test]
async fn nothing_is_left_beside_the_objects() {
    let bench = Bench::new().await;
    bench.repository.commit("main", &[("a", "1")]).unwrap();
    bench.main().await.unwrap();
    for name in ["hooks", "FETCH_HEAD", "logs", "info/attributes", "refs/heads/main"] {
        assert!(!bench.path().join(name).exists(), "{name}");
    }
}
