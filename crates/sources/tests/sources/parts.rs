//! Submodules and large files from real servers.

use std::{path::PathBuf, rc::Rc, time::Duration};

use farwater_api::{Digest, git_repository::GitReference};
use farwater_bundle::{Archive, Limits, ObjectId, RelPath, archive, closure};
use farwater_sources::{
    Address, Git, GitError, GitLimits, GitReason, LargeFile, Links, Mirror, ModulesError, Reads, Reference, Remote,
    SecretData, Snapshot, Submodule, Synced, Web,
};
use farwater_testkit::{
    git::{Auth, Fault, GitServer, Repository},
    lfs::pointer,
    ssh::{Key, SshServer},
};

/// Timeout for calls that must succeed, also on a machine that is busy with other tests.
const TIMEOUT: Duration = Duration::from_secs(240);
const ALL: Reads = Reads {
    submodules: true,
    lfs: true,
};

/// Missing large files, by the URL of their repository.
type Missing = Vec<(String, Vec<LargeFile>)>;

struct Bench {
    server: GitServer,
    git: Git,
    dir: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let git = Git::new(GitLimits::default(), crate::near(), &dir.path().join("home")).unwrap();
        Self {
            server: GitServer::start().await.unwrap(),
            git,
            dir,
        }
    }

    fn mirror(&self) -> PathBuf {
        self.dir.path().join("mirror")
    }

    fn remote(&self, name: &str) -> Remote {
        Remote::new(&self.server.url(name), None).unwrap()
    }

    async fn sync(&self, name: &str) -> ObjectId {
        self.try_sync(name).await.unwrap().revision.commit
    }

    async fn try_sync(&self, name: &str) -> Result<Synced, GitError> {
        let main = GitReference {
            branch: Some("main".into()),
            ..Default::default()
        };
        let reference = Reference::parse(Some(&main)).unwrap();
        self.git
            .sync(&self.remote(name), &reference, &self.mirror(), TIMEOUT)
            .await
    }

    async fn modules(&self, name: &str, commit: ObjectId) -> Result<Vec<Submodule>, ModulesError> {
        Git::submodules(&self.mirror(), None, &self.server.url(name), commit).await
    }

    async fn fetch(&self, module: &Submodule) -> Result<(), GitError> {
        let remote = Remote::new(module.address.as_str(), None).unwrap();
        self.git.fetch_module(&remote, module, &self.mirror(), TIMEOUT).await
    }

    /// The missing large files of a folder, and its files with their contents if none is missing.
    fn read(&self, commit: ObjectId, path: &str, reads: Reads) -> Result<(Missing, Files), String> {
        let mirror = Mirror::open(&self.mirror()).unwrap();
        let (snapshot, root) = Snapshot::open(&mirror, commit, reads).unwrap();
        let (snapshot, limits) = (Rc::new(snapshot), Limits::default());
        let path = RelPath::parse_folder(path).unwrap();
        let found = closure(&snapshot, &root, &path, &limits).map_err(|error| error.to_string())?;
        let missing = snapshot
            .resolve_pointers(&found, &limits)
            .map_err(|error| error.to_string())?;
        if !missing.is_empty() {
            return Ok((missing, Files::default()));
        }
        let bytes = archive::pack(&snapshot, &found, &limits).map_err(|error| error.to_string())?;
        let digest = Digest::of(&bytes);
        let archive = Archive::read(bytes, &limits).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let files = archive
            .files()
            .map(|(path, bytes)| (path.to_string(), text(bytes)))
            .collect();
        Ok((
            Vec::new(),
            Files {
                files,
                digest: Some(digest),
                content: Some(found.content_id),
            },
        ))
    }
}

#[derive(Debug, Default, PartialEq)]
struct Files {
    files: Vec<(String, String)>,
    digest: Option<Digest>,
    content: Option<Digest>,
}

impl Files {
    fn names(&self) -> Vec<&str> {
        self.files.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn content_of(&self, name: &str) -> &str {
        self.files
            .iter()
            .find(|(known, _)| known == name)
            .map_or("", |(_, content)| content)
    }
}

/// Commits files and a submodule at `apps/lib`, with a `.gitmodules` that names it.
fn commit_with(repository: &Repository, url: &str, module: &str) -> String {
    let blob = |text: &str| repository.write_object("blob", text.as_bytes()).unwrap();
    let listed = format!("[submodule \"lib\"]\n\tpath = apps/lib\n\turl = {url}\n");
    let (own, listed) = (blob("own"), blob(&listed));
    let apps = repository
        .write_tree(&[("160000", b"lib", module), ("100644", b"own.yaml", &own)])
        .unwrap();
    let root = repository
        .write_tree(&[("100644", b".gitmodules", &listed), ("40000", b"apps", &apps)])
        .unwrap();
    repository.commit_tree("main", &root).unwrap()
}

#[tokio::test]
async fn a_submodule_lies_at_its_path_at_the_commit_that_is_named() {
    let bench = Bench::new().await;
    let (parent, lib) = (
        bench.server.create("parent").unwrap(),
        bench.server.create("lib").unwrap(),
    );
    let first = lib.commit("main", &[("deploy/a.yaml", "1"), ("README", "x")]).unwrap();
    lib.commit("main", &[("deploy/a.yaml", "2")]).unwrap();
    commit_with(&parent, "../lib.git", &first);
    let commit = bench.sync("parent").await;
    let refused = bench.read(commit, "apps", Reads::default()).unwrap_err();
    assert!(refused.contains("recurseSubmodules"), "{refused}");
    assert!(bench.read(commit, "apps", ALL).is_err(), "it was not fetched");
    let modules = bench.modules("parent", commit).await.unwrap();
    assert_eq!((modules.len(), modules[0].path.as_str()), (1, "apps/lib"));
    assert_eq!(modules[0].address.as_str(), bench.server.url("lib"));
    assert!(!Git::has_module(&bench.mirror(), &modules[0]).await);
    bench.fetch(&modules[0]).await.unwrap();
    assert!(Git::has_module(&bench.mirror(), &modules[0]).await);
    let (_, files) = bench.read(commit, "apps", ALL).unwrap();
    assert_eq!(
        files.names(),
        ["apps/lib/README", "apps/lib/deploy/a.yaml", "apps/own.yaml"]
    );
    assert_eq!(
        files.content_of("apps/lib/deploy/a.yaml"),
        "1",
        "not what its branch is at"
    );
    let (_, inner) = bench.read(commit, "apps/lib/deploy", ALL).unwrap();
    assert_eq!(inner.names(), ["apps/lib/deploy/a.yaml"]);

    // With another commit of the submodule, the content of the folder and of the files changes.
    let second = lib.branch("main").unwrap();
    commit_with(&parent, "../lib.git", &second);
    let commit = bench.sync("parent").await;
    let modules = bench.modules("parent", commit).await.unwrap();
    bench.fetch(&modules[0]).await.unwrap();
    let (_, next) = bench.read(commit, "apps", ALL).unwrap();
    assert!(next.content != files.content && next.digest != files.digest);
}

#[tokio::test]
async fn submodules_of_submodules_are_found_and_those_of_hostile_files_refused() {
    let bench = Bench::new().await;
    let names = ["parent", "middle", "leaf"];
    let [parent, middle, leaf] = names.map(|name| bench.server.create(name).unwrap());
    let at = leaf.commit("main", &[("x.yaml", "leaf")]).unwrap();
    let at = commit_with(&middle, "../leaf.git", &at);
    commit_with(&parent, &bench.server.url("middle"), &at);
    let commit = bench.sync("parent").await;
    let outer = bench.modules("parent", commit).await.unwrap();
    bench.fetch(&outer[0]).await.unwrap();
    let url = bench.server.url("parent");
    let inner = Git::submodules(&bench.mirror(), Some(&outer[0]), &url, outer[0].commit)
        .await
        .unwrap();
    bench.fetch(&inner[0]).await.unwrap();
    let (_, files) = bench.read(commit, "apps", ALL).unwrap();
    assert_eq!(files.content_of("apps/lib/apps/lib/x.yaml"), "leaf");

    for url in [
        "file:///etc",
        "ext::sh -c id",
        "/etc",
        "../../../../x",
        "https://u:p@h/x",
    ] {
        commit_with(&parent, url, &at);
        let commit = bench.sync("parent").await;
        let error = bench.modules("parent", commit).await.unwrap_err();
        assert!(matches!(error, ModulesError::Address { .. }), "{url}: {error}");
    }
    // An address that git itself refuses.
    commit_with(&parent, "--upload-pack=id", &at);
    assert_eq!(bench.try_sync("parent").await.unwrap_err().reason, GitReason::Malformed);
}

#[tokio::test]
async fn a_repository_in_the_internet_leads_into_no_private_network() {
    let bench = Bench::new().await;
    let lib = bench.server.create("lib").unwrap();
    let commit: ObjectId = lib.commit("main", &[("a", "1")]).unwrap().parse().unwrap();
    let public = Address::parse("https://git.public.invalid/team/infra.git").unwrap();
    let module = |url: &str| Submodule {
        path: RelPath::parse_folder("lib").unwrap(),
        address: Address::parse(url).unwrap(),
        commit,
    };
    let strict = Git::new(GitLimits::default(), Web::default(), &bench.dir.path().join("strict")).unwrap();
    let fetch = async |git: &Git, from: &Address, url: &str| {
        let remote = Remote::new(url, None).unwrap().linked(from);
        git.fetch_module(&remote, &module(url), &bench.mirror(), TIMEOUT).await
    };
    let url = bench.server.url("lib");
    for url in [
        &url,
        &url.replace("127.0.0.1", "localhost"),
        "http://169.254.169.254/latest",
        "https://[::1]/x",
    ] {
        let error = fetch(&strict, &public, url).await.unwrap_err();
        assert_eq!(error.reason, GitReason::LinkRefused, "{url}: {error}");
        assert!(error.to_string().contains("--allow-private-links"), "{error}");
    }
    assert_eq!(bench.server.counts().requests, 0);
    // No link leads to this machine unless that is allowed, not even one from an address of this machine.
    let error = fetch(&strict, &Address::parse("http://127.0.0.2/r").unwrap(), &url)
        .await
        .unwrap_err();
    assert_eq!(error.reason, GitReason::LinkRefused, "{error}");
    let web = Web::new(Links::new(["127.0.0.0/8".parse().unwrap()]));
    let git = Git::new(GitLimits::default(), web, &bench.dir.path().join("allowed")).unwrap();
    fetch(&git, &public, &url).await.unwrap();
}

#[tokio::test]
async fn what_a_kustomization_names_must_be_public() {
    let bench = Bench::new().await;
    let base = bench.server.create("base").unwrap();
    let tagged = base.commit("main", &[("a", "1")]).unwrap();
    base.set_ref("refs/tags/v1", &tagged).unwrap();
    base.git(&["symbolic-ref", "HEAD", "refs/heads/main"], b"").unwrap();
    let commit = base.commit("main", &[("a", "2")]).unwrap();
    let remote = Remote::new(&bench.server.url("base"), None).unwrap().public();
    let sync = async |git: &Git, reference: &str| {
        git.sync(
            &remote,
            &Reference::of_base(reference).unwrap(),
            &bench.mirror(),
            TIMEOUT,
        )
        .await
    };
    let strict = Git::new(GitLimits::default(), Web::default(), &bench.dir.path().join("strict")).unwrap();
    let error = sync(&strict, "main").await.unwrap_err();
    assert_eq!(error.reason, GitReason::LinkRefused, "{error}");
    assert_eq!(bench.server.counts().requests, 0);
    let web = Web::new(Links::new(["127.0.0.0/8".parse().unwrap()]));
    let git = Git::new(GitLimits::default(), web, &bench.dir.path().join("allowed")).unwrap();
    // References as in kustomize's `ref`: a branch, a tag, a commit, or none.
    for (reference, shown) in [("main", "main"), ("v1", "v1"), ("", "main"), (commit.as_str(), "")] {
        let revision = sync(&git, reference).await.unwrap().revision;
        assert_eq!(revision.name.unwrap_or_default(), shown);
        assert_eq!(revision.commit.to_string() == commit, reference != "v1", "{reference}");
    }
    let error = sync(&git, "none").await.unwrap_err();
    assert!(error.to_string().contains("branch or tag none"), "{error}");
}

impl Bench {
    async fn fetch_large(&self, name: &str, files: &[LargeFile]) -> Result<(), GitError> {
        self.git
            .fetch_large_files(&self.remote(name), files, &self.mirror(), TIMEOUT)
            .await
    }
}

#[tokio::test]
async fn pointers_become_what_they_stand_for() {
    let bench = Bench::new().await;
    let repository = bench.server.create("r").unwrap();
    let put = |content: &str| bench.server.lfs(|lfs| lfs.put(content.as_bytes()));
    let (one, two) = (put("large one"), put("large two"));
    repository
        .commit(
            "main",
            &[("a/one.bin", &one), ("a/two.bin", &two), ("b/plain.yaml", "x")],
        )
        .unwrap();
    let commit = bench.sync("r").await;
    let (_, plain) = bench.read(commit, "a", Reads::default()).unwrap();
    assert_eq!(plain.content_of("a/one.bin"), one);
    let (missing, _) = bench.read(commit, "a", ALL).unwrap();
    assert_eq!(
        (missing.len(), missing[0].0.as_str(), missing[0].1.len()),
        (1, bench.server.url("r").as_str(), 2)
    );
    bench
        .server
        .lfs(|lfs| lfs.header = Some(("X-Token".into(), "t".into())));
    bench.fetch_large("r", &missing[0].1).await.unwrap();
    let (_, files) = bench.read(commit, "a", ALL).unwrap();
    assert_eq!(
        (files.content_of("a/one.bin"), files.content_of("a/two.bin")),
        ("large one", "large two")
    );
    let downloads = bench.server.lfs(|lfs| std::mem::take(&mut lfs.downloads));
    assert!(downloads.len() == 2 && downloads.iter().all(|(_, headers)| headers["x-token"] == "t"));
    assert_eq!(bench.server.lfs(|lfs| lfs.batches.clone()), [2]);
    // A folder without large files needs none, and its content doesn't depend on the option.
    let (none, of_b) = bench.read(commit, "b", ALL).unwrap();
    assert!(none.is_empty() && of_b.digest == bench.read(commit, "b", Reads::default()).unwrap().1.digest);
}

#[tokio::test]
async fn a_large_file_that_is_not_what_was_promised_is_not_taken() {
    let bench = Bench::new().await;
    let repository = bench.server.create("r").unwrap();
    let kept = bench.server.lfs(|lfs| lfs.put(b"the right one"));
    repository
        .commit(
            "main",
            &[("a/x.bin", &kept), ("b/gone.bin", &pointer(b"nobody has it"))],
        )
        .unwrap();
    let commit = bench.sync("r").await;
    let missing = |path: &str| bench.read(commit, path, ALL).unwrap().0.remove(0).1;
    for forged in [
        &b"the wrong 1!!"[..],
        b"far longer than what the pointer says",
        b"short",
    ] {
        bench.server.lfs(|lfs| lfs.forged = Some(forged.to_vec()));
        let error = bench.fetch_large("r", &missing("a")).await.unwrap_err();
        assert_eq!(error.reason, GitReason::ServerError, "{error}");
    }
    bench.server.lfs(|lfs| lfs.forged = None);
    let error = bench.fetch_large("r", &missing("b")).await.unwrap_err();
    assert_eq!(error.reason, GitReason::NotFound, "{error}");
    bench.fetch_large("r", &missing("a")).await.unwrap();
    assert!(bench.read(commit, "a", ALL).unwrap().0.is_empty());
    // A file that is damaged on the disk is noticed and fetched again.
    let folder = bench.mirror().join("farwater-large");
    let file = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    std::fs::write(file, "the wrong 1!!").unwrap();
    assert!(bench.read(commit, "a", ALL).unwrap_err().contains("x.bin"));
    bench.fetch_large("r", &missing("a")).await.unwrap();
    assert_eq!(
        bench.read(commit, "a", ALL).unwrap().1.content_of("a/x.bin"),
        "the right one"
    );
}

#[tokio::test]
async fn submodules_and_large_files_have_limits() {
    let bench = Bench::new().await;
    let (parent, lib) = (
        bench.server.create("parent").unwrap(),
        bench.server.create("lib").unwrap(),
    );
    let (mut state, mut noise) = (1u64, String::new());
    while noise.len() < 8 << 20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        noise.push_str(&format!("{state:016x}"));
    }
    let module = lib.commit("main", &[("big", &noise)]).unwrap();
    commit_with(&parent, "../lib.git", &module);
    let commit = bench.sync("parent").await;
    let modules = bench.modules("parent", commit).await.unwrap();
    let limits = GitLimits {
        mirror_bytes: 1 << 20,
        ..GitLimits::default()
    };
    let git = Git::new(limits, crate::near(), &bench.dir.path().join("small")).unwrap();
    bench.server.set_fault(Fault::Slow {
        bytes: 128 << 10,
        pause: Duration::from_millis(100),
    });
    let fetched = git
        .fetch_module(&bench.remote("lib"), &modules[0], &bench.mirror(), TIMEOUT)
        .await;
    assert_eq!(fetched.unwrap_err().reason, GitReason::TooLarge { limit: 1 << 20 });
    bench.server.set_fault(Fault::None);

    let one = |name: &str| format!("[submodule \"{name}\"]\n\tpath = {name}\n\turl = ../lib.git\n");
    let names: Vec<String> = (0..101).map(|n| format!("m{n:03}")).collect();
    let listed: String = names.iter().map(|name| one(name)).collect();
    let listed = parent.write_object("blob", listed.as_bytes()).unwrap();
    let mut entries = vec![("100644", &b".gitmodules"[..], listed.as_str())];
    entries.extend(names.iter().map(|name| ("160000", name.as_bytes(), module.as_str())));
    parent
        .commit_tree("main", &parent.write_tree(&entries).unwrap())
        .unwrap();
    let commit = bench.sync("parent").await;
    let error = bench.modules("parent", commit).await.unwrap_err();
    assert!(matches!(error, ModulesError::TooMany { .. }), "{error}");

    // Refused before any part of it is requested.
    let huge = pointer(b"x").replace("size 1\n", "size 99999999999\n");
    lib.commit("main", &[("a/huge.bin", &huge)]).unwrap();
    std::fs::remove_dir_all(bench.mirror()).unwrap();
    let commit = bench.sync("lib").await;
    let error = bench.read(commit, "a", ALL).unwrap_err();
    assert!(
        error.contains("a/huge.bin") && error.contains("stands for 99999999999 bytes"),
        "{error}"
    );
}

#[tokio::test]
async fn credentials_for_large_files_stay_with_their_host() {
    let (bench, other) = (Bench::new().await, GitServer::start().await.unwrap());
    let repository = bench.server.create("r").unwrap();
    let pointers = [b"one", b"two"].map(|content| {
        other.lfs(|lfs| lfs.put(content));
        bench.server.lfs(|lfs| lfs.put(content))
    });
    let unknown = pointer(b"three");
    repository
        .commit(
            "main",
            &[
                ("a/x.bin", &pointers[0]),
                ("b/y.bin", &pointers[1]),
                ("c/z.bin", &unknown),
            ],
        )
        .unwrap();
    let commit = bench.sync("r").await;
    bench.server.set_auth(Auth::Basic {
        username: "u".into(),
        password: "hunter2".into(),
    });
    let data = SecretData::from([
        ("username".into(), b"u".to_vec()),
        ("password".into(), b"hunter2".to_vec()),
    ]);
    let remote = Remote::new(&bench.server.url("r"), Some(&data)).unwrap();
    let fetch = async |path: &str| {
        let missing = bench.read(commit, path, ALL).unwrap().0.remove(0).1;
        bench
            .git
            .fetch_large_files(&remote, &missing, &bench.mirror(), TIMEOUT)
            .await
    };
    // To another host: named by the API's answer, and by a redirect.
    bench.server.lfs(|lfs| lfs.elsewhere = Some(other.origin()));
    fetch("a").await.unwrap();
    let (_, headers) = other.lfs(|lfs| lfs.downloads.remove(0));
    assert!(!headers.contains_key("authorization"), "{headers:?}");
    let redirect = format!("{}/r.git/info/lfs/files/", other.origin());
    bench
        .server
        .lfs(|lfs| (lfs.elsewhere, lfs.redirect) = (None, Some(redirect)));
    bench
        .server
        .lfs(|lfs| lfs.header = Some(("X-Token".into(), "hunter3".into())));
    fetch("b").await.unwrap();
    let (_, headers) = other.lfs(|lfs| lfs.downloads.remove(0));
    assert!(
        !headers.contains_key("authorization") && !headers.contains_key("x-token"),
        "{headers:?}"
    );
    let (_, own) = bench.server.lfs(|lfs| lfs.downloads.remove(0));
    assert!(own.contains_key("authorization") && own["x-token"] == "hunter3");
    let wrong = SecretData::from([
        ("username".into(), b"u".to_vec()),
        ("password".into(), b"hunter4".to_vec()),
    ]);
    let wrong = Remote::new(&bench.server.url("r"), Some(&wrong)).unwrap();
    let third = bench.read(commit, "c", ALL).unwrap().0.remove(0).1;
    let error = bench
        .git
        .fetch_large_files(&wrong, &third, &bench.mirror(), TIMEOUT)
        .await
        .unwrap_err();
    assert!(
        error.reason == GitReason::Unauthorized && !error.to_string().contains("hunter4"),
        "{error}"
    );
}

#[tokio::test]
async fn a_repository_over_ssh_says_where_its_large_files_are() {
    let (bench, key) = (Bench::new().await, Key::make("ed25519", "", "").unwrap());
    let ssh = SshServer::start(&[&key]).await.unwrap();
    let pointer = bench.server.lfs(|lfs| lfs.put(b"over ssh"));
    ssh.create("r")
        .unwrap()
        .commit("main", &[("a/x.bin", &pointer)])
        .unwrap();
    let data = [("identity", key.private.clone()), ("known_hosts", ssh.known_hosts())];
    let data: SecretData = data
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into_bytes()))
        .collect();
    let remote = Remote::new(&ssh.url("r"), Some(&data)).unwrap();
    let synced = bench
        .git
        .sync(&remote, &Reference::parse(None).unwrap(), &bench.mirror(), TIMEOUT)
        .await
        .unwrap();
    let commit = synced.revision.commit;
    let missing = bench.read(commit, "a", ALL).unwrap().0.remove(0).1;
    let answer = format!(
        r#"{{"href": "{}/r.git/info/lfs", "header": {{"Authorization": "RemoteAuth t"}}, "expires_in": 600}}"#,
        bench.server.origin()
    );
    ssh.set_lfs_answer(&answer).unwrap();
    bench
        .git
        .fetch_large_files(&remote, &missing, &bench.mirror(), TIMEOUT)
        .await
        .unwrap();
    assert_eq!(
        bench.read(commit, "a", ALL).unwrap().1.content_of("a/x.bin"),
        "over ssh"
    );
    assert_eq!(bench.server.authorizations(), ["RemoteAuth t"]);
    ssh.set_lfs_answer("no json").unwrap();
    let error = bench
        .git
        .fetch_large_files(&remote, &missing, &bench.mirror(), TIMEOUT)
        .await
        .unwrap_err();
    assert_eq!(error.reason, GitReason::ServerError, "{error}");
}
