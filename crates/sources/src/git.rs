//! The network side of Git: listing a remote's references, and fetching into a bare mirror when they have moved.
//!
//! The `git` program is used instead of a library, because it works with every server, and its fetch can be limited
//! from outside. [`run`] makes it safe.

mod aside;
mod error;
mod leftovers;
mod output;
mod pin;
mod push;
mod refs;
mod resolve;
mod run;

use std::{
    collections::HashMap,
    fmt, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use farwater_bundle::ObjectId;

use self::run::{Call, URL};
use crate::{
    credentials::SshAccess,
    mint::Mint,
    mirror::Mirror,
    reference::{Reference, check_name},
    remote::Remote,
    session::Session,
    ssh::{Identities, Identity},
    web::Web,
};
use resolve::Wanted;

pub(crate) use self::error::Problem;
pub use self::{
    error::{GitError, GitReason},
    push::{PUSHED, Push, PushedBranch},
};

/// The one reference of a mirror. The hub chooses its name, so a renamed branch (`a` to `a/b`) can't conflict with it.
const TRACKED: &str = "refs/farwater/tracked";
/// All references of a remote, fetched only if a server doesn't serve a commit by its id.
const ALL: &str = "refs/farwater/all";
/// The revision that was last looked up besides the followed one.
const ASIDE: &str = "refs/farwater/aside";
/// The name of a remote's default branch.
const HEAD: &str = "HEAD";
/// Branch to follow if HEAD has no target, as in a bare repository that was created with another name for its first
/// branch.
const FALLBACK: &str = "main";
/// Where the default branch was, beside [`TRACKED`], which is where HEAD was.
const DEFAULT: &str = "refs/farwater/default";
/// File with the branch that the remote's HEAD named when it was last looked up.
const DEFAULT_FILE: &str = "farwater-default";
/// File with the URL that a mirror's objects came from.
pub(crate) const URL_FILE: &str = "farwater-url";

/// Limits for a remote.
#[derive(Clone, Copy, Debug)]
pub struct GitLimits {
    /// References that a remote may list when all of a kind are requested (semver ranges).
    pub refs: usize,
    /// Bytes of references.
    pub refs_bytes: usize,
    /// Bytes that one mirror may take on disk.
    pub mirror_bytes: u64,
    /// Packs in a mirror before they are merged; each fetch adds one.
    pub packs: usize,
}

/// 100,000 references are some 8 MB of text; 2 GiB holds the histories of the largest public GitOps repositories
/// many times over; git's own limit of packs is 50.
impl Default for GitLimits {
    fn default() -> Self {
        Self {
            refs: 100_000,
            refs_bytes: 32 << 20,
            mirror_bytes: 2 << 30,
            packs: 40,
        }
    }
}

/// The revision that a source is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// The branch or tag. None: a commit was requested.
    pub name: Option<String>,
    pub commit: ObjectId,
    /// The object of the reference: for an annotated tag the tag's own id, otherwise the commit's.
    pub object: ObjectId,
}

/// As Flux writes revisions: `main@sha1:<commit>`.
impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}@")?;
        }
        write!(f, "{}:{}", self.commit.algorithm(), self.commit)
    }
}

/// The result of a successful check of a remote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    pub revision: Revision,
    /// Whether objects were fetched. An unmoved reference costs one request and no fetch.
    pub fetched: bool,
    /// The previous commit of the branch, if it is not an ancestor of the new one, i.e. the history was rewritten.
    pub rewritten: Option<ObjectId>,
}

/// The `git` program, prepared for untrusted remotes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Git(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    program: PathBuf,
    ssh: PathBuf,
    /// An empty home folder, without configuration and credentials.
    home: PathBuf,
    limits: GitLimits,
    /// For requests without git, and for restrictions on links.
    web: Web,
    mint: Mint,
    identities: Identities,
    /// Allows one fetch at a time for each mirror.
    locks: Mutex<HashMap<PathBuf, Weak<tokio::sync::Mutex<()>>>>,
}

impl Git {
    /// Uses the `git` and `ssh` on the path. They run in `home`, which is emptied first of the remains of an earlier
    /// killed process.
    pub fn new(limits: GitLimits, web: Web, home: &Path) -> io::Result<Self> {
        let home = std::path::absolute(home)?;
        match std::fs::remove_dir_all(&home) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::DirBuilder::new().mode(0o700).create(&home)?;
        let (mint, identities, locks) = (Mint::default(), Identities::default(), Mutex::default());
        let (program, ssh) = (find_program("git"), find_program("ssh"));
        Ok(Self(Arc::new(Inner {
            program,
            ssh,
            home,
            limits,
            web,
            mint,
            identities,
            locks,
        })))
    }

    pub(crate) fn web(&self) -> &Web {
        &self.0.web
    }

    pub(crate) fn mint(&self) -> &Mint {
        &self.0.mint
    }

    pub(crate) async fn unlock(&self, access: &SshAccess) -> Result<Arc<Identity>, String> {
        self.0.identities.unlock(access).await
    }

    /// Checks the remote and fetches into the mirror if the followed reference has moved. `timeout` limits each of the
    /// two.
    ///
    /// The mirror is created if it is missing, and recreated if it belongs to another URL.
    pub async fn sync(
        &self,
        remote: &Remote,
        reference: &Reference,
        mirror: &Path,
        timeout: Duration,
    ) -> Result<Synced, GitError> {
        // git runs in a folder of its own.
        let mirror = std::path::absolute(mirror)
            .map_err(|error| GitError::new("prepare a mirror of", remote, GitReason::Disk, error.to_string()))?;
        let mirror = mirror.as_path();
        let lock = self.lock(mirror);
        let _one_at_a_time = lock.lock().await;
        let session = &self.open(remote, timeout).await?;

        let known = known_mirror(remote, mirror).await;
        let before = match &known {
            Some(known) => tracked(known).await,
            None => None,
        };
        let branch = known_branch(reference, mirror).await;
        let followed = branch
            .as_deref()
            .filter(|_| before.as_ref().is_some_and(Tracked::is_whole));
        let place = (known.as_ref(), mirror);
        let name = self.update(session, reference, followed, place, timeout).await?;

        let missing = || GitError::new("read", remote, GitReason::MirrorIncomplete, reference.to_string());
        // A recreated mirror must be opened again.
        let opened = if before.is_some() {
            known
        } else {
            open_mirror(mirror).await
        }
        .ok_or_else(missing)?;
        let now = tracked(&opened).await.ok_or_else(missing)?;
        let commit = now.commit.ok_or_else(missing)?;
        let fetched = before.as_ref() != Some(&now);
        let is_same_branch = branch.is_some() && branch == name;
        let left = before.and_then(|before| before.commit).filter(|_| is_same_branch);
        let rewritten = match left {
            Some(left) if left != commit && !is_ancestor(&opened, left, commit).await => Some(left),
            _ => None,
        };

        if fetched {
            self.tidy(remote, mirror, timeout).await;
        }
        Ok(Synced {
            revision: Revision {
                name,
                commit,
                object: now.id,
            },
            fetched,
            rewritten,
        })
    }

    /// Fetches a reference if it has moved, and returns its name in the mirror. `followed`: the branch that the mirror
    /// has completely.
    async fn update(
        &self,
        session: &Session<'_>,
        reference: &Reference,
        followed: Option<&str>,
        (known, mirror): (Option<&Mirror>, &Path),
        timeout: Duration,
    ) -> Result<Option<String>, GitError> {
        let is_default = *reference == Reference::Default;
        if let (Some(branch), Some(known)) = (followed, known)
            && self
                .follow(session, branch, is_default, (known, mirror), timeout)
                .await?
        {
            return Ok(Some(branch.to_owned()));
        }
        self.look_up(session, reference, (known, mirror), timeout).await
    }

    /// Fetches a branch into a mirror that already has it, in one connection instead of two: git checks it before the
    /// fetch and fetches nothing if it hasn't moved. False: the branch no longer exists, or the remote's default branch
    /// is at another commit and so is another branch.
    async fn follow(
        &self,
        session: &Session<'_>,
        branch: &str,
        is_default: bool,
        (known, mirror): (&Mirror, &Path),
        timeout: Duration,
    ) -> Result<bool, GitError> {
        clean(session.remote, mirror).await?;
        let full = format!("refs/heads/{branch}");
        let specs = match is_default {
            true => vec![format!("+{HEAD}:{TRACKED}"), format!("+{full}:{DEFAULT}")],
            false => vec![format!("+{full}:{TRACKED}")],
        };
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        match self.fetch_refspecs(session, &specs, (mirror, mirror), timeout).await {
            Err(error) if error.reason.is_refused_commit() => return Ok(false),
            other => other?,
        }
        let known = known.clone();
        Ok(!is_default || spawn(move || known.reference(TRACKED) == known.reference(DEFAULT)).await)
    }

    /// Fetches a reference into the mirror, which is created if missing. Returns the name of the reference in the
    /// mirror.
    async fn look_up(
        &self,
        session: &Session<'_>,
        reference: &Reference,
        (known, mirror): (Option<&Mirror>, &Path),
        timeout: Duration,
    ) -> Result<Option<String>, GitError> {
        let remote = session.remote;
        let wanted = self.resolve(session, reference, timeout).await?;
        self.prepare(remote, mirror, &wanted.id).await?;
        let there = match known {
            Some(known) => tracked(known).await,
            None => None,
        };
        if !there.is_some_and(|there| there.is_whole() && there.id == wanted.id) {
            self.fetch(session, &wanted, TRACKED, mirror, None, timeout).await?;
        }
        if *reference == Reference::Default {
            let branch = wanted
                .name
                .as_deref()
                .filter(|name| wanted.refspec == HEAD && *name != HEAD);
            remember_default(remote, mirror, branch).await?;
        }
        Ok(wanted.name)
    }

    /// Creates the mirror, or cleans up after a killed fetch.
    async fn prepare(&self, remote: &Remote, mirror: &Path, id: &ObjectId) -> Result<(), GitError> {
        let fail = |error: io::Error| GitError::new("prepare a mirror of", remote, GitReason::Disk, error.to_string());
        if is_mirror_of(remote, mirror).await {
            return clean(remote, mirror).await;
        }
        // Objects of another repository must not be reachable under this one's name.
        match tokio::fs::remove_dir_all(mirror).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
            _ => {}
        }
        tokio::fs::create_dir_all(mirror).await.map_err(fail)?;
        let format = format!("--object-format={}", id.algorithm());
        let call = Call {
            what: "prepare a mirror of",
            timeout: Duration::from_secs(30),
            max_output: 4096,
            watch: None,
        };
        let path = mirror.to_string_lossy();
        self.run_here(
            call,
            remote,
            &["init", "--quiet", "--bare", "--template=", &format, "--", &path],
        )
        .await?;
        tokio::fs::write(mirror.join(URL_FILE), remote.url())
            .await
            .map_err(fail)
    }

    /// `whole`: the folder whose size is limited, if that is not only the mirror.
    async fn fetch(
        &self,
        session: &Session<'_>,
        wanted: &Wanted,
        into: &str,
        mirror: &Path,
        whole: Option<&Path>,
        timeout: Duration,
    ) -> Result<(), GitError> {
        let places = (mirror, whole.unwrap_or(mirror));
        let direct = format!("+{}:{into}", wanted.refspec);
        let result = self.fetch_refspecs(session, &[&direct], places, timeout).await;
        match result {
            // Servers need not serve a commit by its id. Then fetch everything and look for the commit.
            Err(error) if wanted.is_commit && error.reason.is_refused_commit() => {
                let specs = [
                    format!("+refs/heads/*:{ALL}/heads/*"),
                    format!("+refs/tags/*:{ALL}/tags/*"),
                ];
                self.fetch_refspecs(session, &[&specs[0], &specs[1]], places, timeout)
                    .await?;
                let call = Call {
                    what: "find a commit in",
                    timeout,
                    max_output: 4096,
                    watch: None,
                };
                let dir = git_dir(mirror);
                let id = wanted.id.to_string();
                self.run_here(call, session.remote, &[&dir, "update-ref", into, &id])
                    .await
                    .map(drop)
                    .map_err(|_| {
                        GitError::new(
                            "find a commit in",
                            session.remote,
                            GitReason::ReferenceMissing(format!("commit {id}")),
                            String::new(),
                        )
                    })
            }
            other => other,
        }
    }

    async fn fetch_refspecs(
        &self,
        session: &Session<'_>,
        specs: &[&str],
        (mirror, whole): (&Path, &Path),
        timeout: Duration,
    ) -> Result<(), GitError> {
        let watch = Some((whole, self.0.limits.mirror_bytes));
        let call = Call {
            what: "fetch from",
            timeout,
            max_output: 64 << 10,
            watch,
        };
        let dir = git_dir(mirror);
        let mut args = vec![
            dir.as_str(),
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
        ];
        args.extend(["--no-recurse-submodules", "--prune", "--force", "--", URL]);
        args.extend(specs);
        self.run(call, session, &args).await.map(drop)
    }

    /// Merges the packs of many small fetches. Only small ones are rewritten, so that a large repository isn't repacked
    /// again and again. Unreachable objects are deleted when the mirror is half full. A failure does no harm.
    async fn tidy(&self, remote: &Remote, mirror: &Path, timeout: Duration) {
        let limits = self.0.limits;
        let path = mirror.to_owned();
        let (packs, bytes) = spawn(move || (leftovers::count_packs(&path), leftovers::size(&path))).await;
        if packs <= limits.packs {
            return;
        }
        let call = Call {
            what: "repack the mirror of",
            timeout,
            max_output: 64 << 10,
            watch: None,
        };
        let dir = git_dir(mirror);
        let small = [&dir, "repack", "--quiet", "-d", "--geometric=2"];
        let all = [&dir, "gc", "--quiet", "--prune=1.hour.ago"];
        let result = self
            .run_here(
                call,
                remote,
                if bytes > limits.mirror_bytes / 2 {
                    &all[..]
                } else {
                    &small
                },
            )
            .await;
        if let Err(error) = result {
            tracing::warn!(url = remote.url(), %error, "mirror was not repacked");
        }
    }

    fn lock(&self, mirror: &Path) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.locks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(mirror).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        locks.insert(mirror.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

/// The program's path. With a path it is started by `posix_spawn`; by name it would be started by `fork`, which copies
/// the page tables of all our memory, and each page that is written meanwhile.
fn find_program(name: &str) -> PathBuf {
    // A program that is missing now may be installed later.
    which::which(name).unwrap_or_else(|_| name.into())
}

/// The mirror's reference: its own id, and its commit if all objects are there.
#[derive(PartialEq, Eq)]
struct Tracked {
    id: ObjectId,
    commit: Option<ObjectId>,
}

impl Tracked {
    fn is_whole(&self) -> bool {
        self.commit.is_some()
    }
}

async fn open_mirror(mirror: &Path) -> Option<Mirror> {
    let path = mirror.to_owned();
    spawn(move || Mirror::open(&path).ok()).await
}

/// The mirror, if it is one of this remote.
async fn known_mirror(remote: &Remote, mirror: &Path) -> Option<Mirror> {
    if is_mirror_of(remote, mirror).await {
        open_mirror(mirror).await
    } else {
        None
    }
}

/// The branch that a reference names, as far as the mirror knows it. None: it names no branch.
async fn known_branch(reference: &Reference, mirror: &Path) -> Option<String> {
    match reference {
        Reference::Branch(branch) => Some(branch.clone()),
        Reference::Default => known_default(mirror).await,
        _ => None,
    }
}

async fn tracked(mirror: &Mirror) -> Option<Tracked> {
    let mirror = mirror.clone();
    spawn(move || {
        let id = mirror.reference(TRACKED)?;
        Some(Tracked {
            id,
            commit: mirror.peel_to_commit(&id).ok(),
        })
    })
    .await
}

/// The stored name of the branch that the remote's HEAD named.
async fn known_default(mirror: &Path) -> Option<String> {
    let noted = tokio::fs::read_to_string(mirror.join(DEFAULT_FILE)).await.ok()?;
    check_name("branch", &noted).ok()
}

/// Stores it. None: HEAD names no branch.
async fn remember_default(remote: &Remote, mirror: &Path, branch: Option<&str>) -> Result<(), GitError> {
    let noted = tokio::fs::write(mirror.join(DEFAULT_FILE), branch.unwrap_or_default()).await;
    noted.map_err(|error| GitError::new("prepare a mirror of", remote, GitReason::Disk, error.to_string()))
}

/// Removes the remains of a killed fetch.
async fn clean(remote: &Remote, mirror: &Path) -> Result<(), GitError> {
    let path = mirror.to_owned();
    spawn(move || leftovers::remove(&path))
        .await
        .map_err(|error| GitError::new("prepare a mirror of", remote, GitReason::Disk, error.to_string()))
}

async fn is_mirror_of(remote: &Remote, mirror: &Path) -> bool {
    let known = tokio::fs::read_to_string(mirror.join(URL_FILE)).await;
    known.is_ok_and(|known| known == remote.url()) && mirror.join("HEAD").exists()
}

async fn is_ancestor(mirror: &Mirror, before: ObjectId, now: ObjectId) -> bool {
    let mirror = mirror.clone();
    spawn(move || mirror.is_ancestor(&before, &now)).await
}

fn git_dir(mirror: &Path) -> String {
    format!("--git-dir={}", mirror.display())
}

/// Runs blocking work. A panic in it panics here.
pub(crate) async fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only at the end of the runtime, when nothing waits any more.
            Err(_) => std::future::pending().await,
        },
    }
}
