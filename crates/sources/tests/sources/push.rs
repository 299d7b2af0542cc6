//! Edits of a file that are pushed to the hub's own branch on a real server.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use farwater_bundle::{ObjectId, RelPath, yaml::edit::FieldValue};
use farwater_sources::{
    Edit, FileError, Git, GitError, GitLimits, GitReason, Mirror, Push, PushedBranch, Reference, Remote,
};
use farwater_testkit::git::{Auth, GitServer, Repository};

/// Timeout for calls that must succeed, also on a machine that is busy with other tests.
const TIMEOUT: Duration = Duration::from_secs(240);
const PROD: &str = "# who runs this\nspec:\n  ref: {commit: abc} # promoted\n";

struct Bench {
    _server: GitServer,
    repository: Repository,
    git: Git,
    remote: Remote,
    dir: tempfile::TempDir,
    branch: PushedBranch,
}

impl Bench {
    async fn new() -> Self {
        let server = GitServer::start().await.unwrap();
        let repository = server.create("r").unwrap();
        repository.git(&["config", "http.receivepack", "true"], b"").unwrap();
        server.set_auth(Auth::Basic {
            username: "bot".to_owned(),
            password: "hunter2".to_owned(),
        });
        let secret: BTreeMap<String, Vec<u8>> = [("username", "bot"), ("password", "hunter2")]
            .map(|(k, v)| (k.to_owned(), v.as_bytes().to_vec()))
            .into();
        let remote = Remote::new(&server.url("r"), Some(&secret)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let git = Git::new(GitLimits::default(), crate::near(), &dir.path().join("home")).unwrap();
        let branch = PushedBranch::new("web/production").unwrap();
        Self {
            _server: server,
            repository,
            git,
            remote,
            dir,
            branch,
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("mirror")
    }

    /// Fetches `main`, and returns the mirror and the commit.
    async fn fetch(&self) -> (Mirror, ObjectId) {
        let main = Reference::Branch("main".to_owned());
        let synced = self.git.sync(&self.remote, &main, &self.path(), TIMEOUT).await.unwrap();
        (Mirror::open(&self.path()).unwrap(), synced.revision.commit)
    }

    async fn push(&self, commit: ObjectId, from: Option<ObjectId>) -> Result<(), GitError> {
        let push = Push {
            branch: &self.branch,
            commit,
            from,
        };
        self.git.push(&self.remote, &self.path(), &push, TIMEOUT).await
    }

    async fn pushed(&self) -> Option<ObjectId> {
        self.git.ask_branch(&self.remote, &self.branch, TIMEOUT).await.unwrap()
    }

    fn show(&self, what: &str) -> String {
        self.repository
            .git(&["show", "--no-patch", "--format=%an %at%n%P%n%s", what], b"")
            .unwrap()
    }
}

fn edit(path: &str, field: &str, value: &str) -> Edit {
    Edit {
        path: RelPath::parse(path).unwrap(),
        field: field.parse().unwrap(),
        value: FieldValue {
            text: value.to_owned(),
            is_string: true,
        },
        message: "Promote it".to_owned(),
        time: 1_800_000_000,
    }
}

#[tokio::test]
async fn an_edit_is_one_commit_that_is_pushed_from_where_the_branch_was_seen() {
    let bench = Bench::new().await;
    let files = [
        ("env/prod.yaml", PROD),
        ("env/z", "z"),
        ("a", "-> env/prod.yaml"),
        ("README", "x"),
    ];
    let first = bench.repository.commit("main", &files).unwrap();
    let (mirror, base) = bench.fetch().await;
    let made = mirror
        .commit_edit(base, edit("env/prod.yaml", "spec.ref.commit", "def"))
        .await
        .unwrap()
        .unwrap();
    let again = mirror
        .commit_edit(base, edit("env/prod.yaml", "spec.ref.commit", "def"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(made, again, "the same edit is the same commit");
    let nothing = mirror
        .commit_edit(base, edit("env/prod.yaml", "spec.ref.commit", "abc"))
        .await
        .unwrap();
    assert_eq!(nothing, None);

    assert_eq!(bench.pushed().await, None);
    bench.push(made, None).await.unwrap();
    assert_eq!(bench.pushed().await, Some(made));
    assert_eq!(
        bench.repository.branch("main").unwrap(),
        first,
        "what is followed stays"
    );
    assert_eq!(
        bench.show(&made.to_string()),
        format!("Farwater 1800000000\n{first}\nPromote it")
    );
    let text = bench
        .repository
        .git(&["show", &format!("{made}:env/prod.yaml")], b"")
        .unwrap();
    assert_eq!(text, PROD.trim_end().replace("abc", "def"));
    let changed = bench
        .repository
        .git(&["diff", "--name-only", &first, &made.to_string()], b"")
        .unwrap();
    assert_eq!(changed, "env/prod.yaml");
    bench.repository.git(&["fsck", "--strict"], b"").unwrap();

    // A push must follow the branch's last commit, and no other.
    let next = mirror
        .commit_edit(base, edit("env/prod.yaml", "spec.ref.commit", "fed"))
        .await
        .unwrap()
        .unwrap();
    for from in [None, Some(base)] {
        let refused = bench.push(next, from).await.unwrap_err();
        assert_eq!(refused.reason, GitReason::BranchMoved, "{refused}");
    }
    bench.push(next, Some(made)).await.unwrap();
    assert_eq!(bench.pushed().await, Some(next));
    let theirs = bench
        .repository
        .change("farwater/promote/web/production", &[("README", Some("y"))])
        .unwrap();
    let refused = bench.push(made, Some(next)).await.unwrap_err();
    assert_eq!(refused.reason, GitReason::BranchMoved, "{refused}");
    assert_eq!(
        bench.pushed().await.unwrap().to_string(),
        theirs,
        "somebody's work stays"
    );

    // A server that refuses pushes says why.
    bench
        .repository
        .git(&["config", "receive.hideRefs", "refs/heads/farwater"], b"")
        .unwrap();
    let other = PushedBranch::new("web/other").unwrap();
    let push = Push {
        branch: &other,
        commit: made,
        from: None,
    };
    let refused = bench
        .git
        .push(&bench.remote, &bench.path(), &push, TIMEOUT)
        .await
        .unwrap_err();
    assert_eq!(refused.reason, GitReason::PushRefused, "{refused}");
    assert!(refused.evidence.contains("hidden ref"), "{refused}");
}

#[tokio::test]
async fn what_is_no_file_of_the_repository_is_refused_by_name() {
    let bench = Bench::new().await;
    let big = format!("x: y\n# {}", "z".repeat(1 << 20));
    let files = [
        ("env/prod.yaml", PROD),
        ("link", "-> env/prod.yaml"),
        ("folder", "-> env"),
        ("big", big.as_str()),
    ];
    bench.repository.commit("main", &files).unwrap();
    let (mirror, base) = bench.fetch().await;
    let check = async |path: &str, field: &str, expected: &str| {
        let error = mirror.commit_edit(base, edit(path, field, "def")).await.unwrap_err();
        let cause = std::error::Error::source(&error)
            .map(|cause| format!(": {cause}"))
            .unwrap_or_default();
        assert_eq!(format!("{error}{cause}"), expected);
        assert!(!FileError::is_of_mirror(&error));
    };
    check(
        "link",
        "x",
        "link is a link, or behind one; name the file that it leads to",
    )
    .await;
    check(
        "folder/prod.yaml",
        "x",
        "folder/prod.yaml is a link, or behind one; name the file that it leads to",
    )
    .await;
    check("env", "x", "env is a folder").await;
    check("env/none.yaml", "x", "env/none.yaml does not exist").await;
    check("env/prod.yaml/x", "x", "env/prod.yaml/x does not exist").await;
    check("big", "x", "big has over 1 MiB; name a smaller file").await;
    check(
        "env/prod.yaml",
        "spec.tag",
        "field spec.tag of env/prod.yaml: no document has this field",
    )
    .await;
    for name in ["", "../main", "a//b", "a b", "a.lock"] {
        assert!(PushedBranch::new(name).is_err(), "{name:?}");
    }
    assert_eq!(PushedBranch::new("p/s").unwrap().as_str(), "farwater/promote/p/s");
}
