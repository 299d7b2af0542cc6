//! Hostile archives, charts and Git repositories, from a real registry, a web server and a Git server. Each is an error
//! or harmless. The process that reads them, with the programs that it starts, doesn't grow, and opens no file that it
//! doesn't open for good ones.
#![allow(clippy::unwrap_used)]

mod inputs;
mod trees;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

use farwater_api::git_repository::GitReference;
use farwater_bundle::{Archive, Limits, Overlay, RelPath, archive, charts, closure, closure_of};
use farwater_sources::{
    Access, Artifacts, Git, GitLimits, Links, Mirror, Reads, Reference, Remote, Snapshot, WantedChart, Web, helm,
    oci::{self, Follow, Place, Selection},
};
use farwater_testkit::{
    Origin, Registry,
    git::GitServer,
    packages,
    packages::Package,
    process::bare_command,
    registry::{FLUX_CONFIG, FLUX_LAYER, Layer, SignIn},
};
use serde::{Deserialize, Serialize};
use url::Url;

use inputs::CANARY;

/// Variable with the job of the reading process.
const JOB: &str = "FARWATER_HOSTILE_JOB";
const STRACE: Package = Package {
    program: "strace",
    debian: "strace",
};
/// Even a busy machine reads the largest of them in some seconds.
const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_RESIDENT_KIB: u64 = 512 << 10;

/// The job of the reading process.
#[derive(Deserialize, Serialize)]
struct Job {
    data: PathBuf,
    /// Artifacts, by their addresses.
    artifacts: Vec<String>,
    /// Repositories with a chart `web`.
    repositories: Vec<String>,
    /// A Git repository, and branches of it.
    git: String,
    branches: Vec<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Outcome {
    errors: usize,
    harmless: usize,
    resident_kib: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_archives_charts_and_trees_are_errors_or_harmless() {
    if let Some(job) = std::env::var_os(JOB) {
        return read_all(Path::new(&job)).await;
    }
    packages::require(&[STRACE]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("canary"), CANARY).unwrap();
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    let mut artifacts = Vec::new();
    for (n, content) in inputs::archives(folder.path()).into_iter().enumerate() {
        let tag = format!("case-{n}");
        registry
            .push("apps", &tag, FLUX_CONFIG, &[Layer::new(FLUX_LAYER, content)])
            .await
            .unwrap();
        artifacts.push(format!("{}:{tag}", registry.url("apps")));
    }
    let pages = folder.path().join("pages");
    let origin = Origin::of_folder(&pages, None).await.unwrap();
    let mut repositories = Vec::new();
    for (n, repository) in inputs::repositories().into_iter().enumerate() {
        let place = pages.join(n.to_string());
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("index.yaml"), repository.index).unwrap();
        std::fs::write(place.join("web.tgz"), repository.archive).unwrap();
        repositories.push(format!("{}/{n}", origin.url()));
    }
    let server = GitServer::start().await.unwrap();
    let (git, branches) = (server.url("r"), trees::trees(&server, folder.path()));
    let (artifacts_total, trees_total) = (artifacts.len(), branches.len());
    let total = artifacts_total + repositories.len() + trees_total;
    assert!(total >= 300 && trees_total >= 100, "{total} cases");

    // The first of each kind is a good one. The files that are opened for them are all that may be opened for the
    // others.
    let good = Job {
        data: folder.path().join("good"),
        artifacts: artifacts[..1].to_vec(),
        repositories: repositories[..1].to_vec(),
        git: git.clone(),
        branches: branches[..1].to_vec(),
    };
    let (outcome, usual) = run(folder.path(), &good);
    assert_eq!((outcome.errors, outcome.harmless), (0, 3), "{outcome:?}");
    let hostile = Job {
        data: folder.path().join("hostile"),
        artifacts,
        repositories,
        git,
        branches,
    };
    let begun = Instant::now();
    let (outcome, opened) = run(folder.path(), &hostile);
    let took = begun.elapsed();
    eprintln!("{artifacts_total} archives and {trees_total} trees of {total} cases in {took:?}: {outcome:?}");
    let strange: Vec<_> = opened.difference(&usual).collect();
    assert!(strange.is_empty(), "opened: {strange:?}");
    assert!(
        outcome.errors + outcome.harmless == total && outcome.errors > total / 2,
        "{outcome:?}"
    );
    assert!(
        outcome.resident_kib <= MAX_RESIDENT_KIB,
        "{} MiB",
        outcome.resident_kib >> 10
    );
    assert_eq!(std::fs::read_to_string(folder.path().join("canary")).unwrap(), CANARY);
}

/// A client for servers on this machine, which all of these are.
fn near() -> Web {
    Web::new(Links::new(["127.0.0.0/8".parse().unwrap()]))
}

/// Reads in another process. Returns the outcome, and the files that it opened outside its folder.
fn run(folder: &Path, job: &Job) -> (Outcome, BTreeSet<String>) {
    std::fs::create_dir(&job.data).unwrap();
    let (file, log) = (job.data.join("job.json"), folder.join("strace.log"));
    std::fs::write(&file, serde_json::to_vec(job).unwrap()).unwrap();
    let mut command = bare_command(STRACE.program);
    // Stops only at these calls, because Git makes many others.
    command
        .args([
            "-f",
            "--seccomp-bpf",
            "-qq",
            "-y",
            "-e",
            "signal=none",
            "-e",
            "trace=open,openat,openat2,creat",
            "-o",
        ])
        .arg(&log);
    command
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"]);
    command
        .arg("hostile_archives_charts_and_trees_are_errors_or_harmless")
        .env(JOB, &file);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let outcome = serde_json::from_slice(&std::fs::read(job.data.join("outcome.json")).unwrap()).unwrap();
    let log = std::fs::read_to_string(&log).unwrap();
    (
        outcome,
        log.lines().filter_map(|line| opened(line, &job.data)).collect(),
    )
}

/// Reads a line such as `1234 openat(AT_FDCWD</there>, "path", …`. Returns the path, unless it is in `data` or is one
/// of the process's own.
fn opened(line: &str, data: &Path) -> Option<String> {
    let (call, rest) = line.split_once('"')?;
    let path = Path::new(rest.split_once('"')?.0);
    let folder = call
        .split_once('<')
        .and_then(|(_, rest)| rest.split_once('>'))
        .map_or("", |(folder, _)| folder);
    let path = Path::new(folder).join(path);
    let plain = !path.components().any(|part| part == std::path::Component::ParentDir);
    // The allocator may count processors at any time, and a link to another host needs a name lookup.
    let own = plain && (path.starts_with(data) || path.starts_with("/sys/devices/system/cpu") || is_resolvers(&path));
    (!own).then(|| path.display().to_string())
}

fn is_resolvers(path: &Path) -> bool {
    ["host.conf", "hosts", "nsswitch.conf", "resolv.conf"]
        .iter()
        .any(|name| path == Path::new("/etc").join(name))
}

async fn read_all(file: &Path) {
    let job: Job = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let web = near();
    let mut outcome = Outcome::default();
    let mut note = |what: &str, read: Result<(), String>| match read {
        Ok(()) => outcome.harmless += 1,
        Err(error) => {
            assert!(
                !error.contains(CANARY) && !error.contains(char::is_control),
                "{what}: {error:?}"
            );
            outcome.errors += 1;
        }
    };
    for url in &job.artifacts {
        note(url, read_artifact(&web, url, &job.data).await);
    }
    for url in &job.repositories {
        note(url, read_chart(&web, url, &job.data).await);
    }
    let git = Git::new(GitLimits::default(), near(), &job.data.join("home")).unwrap();
    for branch in &job.branches {
        note(
            branch,
            read_tree(&git, &job.git, branch, &job.data.join("mirror")).await,
        );
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    outcome.resident_kib = peak.trim().trim_end_matches(" kB").parse().unwrap();
    std::fs::write(job.data.join("outcome.json"), serde_json::to_vec(&outcome).unwrap()).unwrap();
}

async fn read_artifact(web: &Web, url: &str, data: &Path) -> Result<(), String> {
    let place = Place::parse(url).unwrap();
    let follow = Follow::Tag(place.tag().unwrap().to_owned());
    let site = web.site(&place.base(true), Access::default()).unwrap();
    let artifacts = Artifacts::at(&data.join("apps"));
    let registry = oci::Registry::new(site, &place);
    let pulled = oci::sync(
        &registry,
        &artifacts,
        (&follow, &Selection::default(), None),
        None,
        TIMEOUT,
    )
    .await;
    make_bundle(&artifacts, &pulled.map_err(|error| error.to_string())?.digest)
}

async fn read_chart(web: &Web, url: &str, data: &Path) -> Result<(), String> {
    let stated = Url::parse(url).unwrap();
    let site = web.site(&stated, Access::default()).unwrap();
    let artifacts = Artifacts::at(&data.join(stated.path().trim_matches('/')));
    helm::sync_index(&site, &artifacts, TIMEOUT)
        .await
        .map_err(|error| error.to_string())?;
    let wanted = WantedChart {
        name: "web".to_owned(),
        version: "*".to_owned(),
    };
    let found = helm::find_chart(web, &site, &artifacts, &wanted, None, TIMEOUT).await;
    make_bundle(&artifacts, &found.map_err(|error| error.to_string())?.digest)
}

/// Reads a branch with everything that it references. All branches share one mirror: a refused one leaves it unchanged.
async fn read_tree(git: &Git, url: &str, branch: &str, mirror: &Path) -> Result<(), String> {
    let limits = Limits::default();
    let stated = GitReference {
        branch: Some(branch.to_owned()),
        ..Default::default()
    };
    let reference = Reference::parse(Some(&stated)).unwrap();
    let synced = git
        .sync(&Remote::new(url, None).unwrap(), &reference, mirror, TIMEOUT)
        .await;
    let commit = synced.map_err(|error| error.to_string())?.revision.commit;
    let modules = Git::submodules(mirror, None, url, commit)
        .await
        .map_err(|error| error.to_string())?;
    for module in &modules {
        let remote = Remote::new(module.address.as_str(), None).map_err(|error| error.to_string())?;
        git.fetch_module(&remote, module, mirror, TIMEOUT)
            .await
            .map_err(|error| error.to_string())?;
    }
    let opened = Mirror::open(mirror).map_err(|error| error.to_string())?;
    let reads = Reads {
        submodules: true,
        lfs: true,
    };
    let (snapshot, root) = Snapshot::open(&opened, commit, reads).map_err(|error| error.to_string())?;
    let snapshot = Rc::new(snapshot);
    let closure = closure(&snapshot, &root, &RelPath::root(), &limits).map_err(|error| error.to_string())?;
    for (url, files) in snapshot
        .resolve_pointers(&closure, &limits)
        .map_err(|error| error.to_string())?
    {
        let remote = Remote::new(&url, None).map_err(|error| error.to_string())?;
        let fetched = git.fetch_large_files(&remote, &files, mirror, TIMEOUT).await;
        fetched.map_err(|error| error.to_string())?;
    }
    check_bytes(
        &archive::pack(&snapshot, &closure, &limits).map_err(|error| error.to_string())?,
        &limits,
    );
    Ok(())
}

/// Makes a bundle as the hub does.
fn make_bundle(artifacts: &Artifacts, key: &farwater_api::Digest) -> Result<(), String> {
    let limits = Limits::default();
    let members = artifacts.open(key).map_err(|error| error.to_string())?;
    let (mut overlay, root) = (Overlay::default(), members.root);
    overlay.add(members.tree);
    let closure = closure_of(&overlay, &root, &[RelPath::root()], &limits).map_err(|error| error.to_string())?;
    for folder in &closure.charts {
        let missing = charts::missing_dependencies(&overlay, &root, folder, &limits);
        for missing in missing.map_err(|error| error.to_string())? {
            let place = charts::place_of(folder, &missing.name).ok_or("its name is no folder's")?;
            assert!(
                place.as_str().starts_with(folder.as_str()),
                "{place} is not below {folder}"
            );
            if let Some(path) = missing.repository.strip_prefix("file://") {
                let path = folder.join_clean(path).map_err(|error| error.to_string())?;
                overlay
                    .folder(&root, &path)
                    .map_err(|error| error.to_string())?
                    .ok_or("there is no such folder")?;
            }
        }
    }
    check_bytes(
        &archive::pack(&overlay, &closure, &limits).map_err(|error| error.to_string())?,
        &limits,
    );
    Ok(())
}

/// Checks that a bundle can be read, and contains nothing from outside.
fn check_bytes(bytes: &[u8], limits: &Limits) {
    let digest = farwater_api::Digest::of(bytes);
    let archive = Archive::open(&archive::compress(bytes).unwrap(), &digest, limits).unwrap();
    for (path, content) in archive.files() {
        assert!(
            !content.windows(CANARY.len()).any(|part| part == CANARY.as_bytes()),
            "{path} holds the canary"
        );
    }
}
