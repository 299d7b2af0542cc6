//! Pushes one commit to a branch of the hub's own, for people to merge.
//!
//! Only branches below [`PUSHED`] are pushed to, and only if the branch is exactly where it was observed, so commits
//! that others have pushed meanwhile stay.

use std::{fmt, path::Path, time::Duration};

use farwater_bundle::ObjectId;

use super::{Git, GitError, GitReason, URL, git_dir, run::Call};
use crate::{
    reference::{ReferenceError, check_name},
    remote::Remote,
};

/// Prefix of all branches that the hub pushes to.
pub const PUSHED: &str = "farwater/promote/";

/// A branch below [`PUSHED`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedBranch(String);

impl PushedBranch {
    /// `rest` is the name below [`PUSHED`].
    pub fn new(rest: &str) -> Result<Self, ReferenceError> {
        check_name("branch", &format!("{PUSHED}{rest}")).map(Self)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn reference(&self) -> String {
        format!("refs/heads/{}", self.0)
    }
}

impl fmt::Display for PushedBranch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A commit and the branch to push it to.
#[derive(Clone, Debug)]
pub struct Push<'a> {
    pub branch: &'a PushedBranch,
    /// A commit in the mirror.
    pub commit: ObjectId,
    /// The present commit of the branch. None: the branch must not exist.
    pub from: Option<ObjectId>,
}

impl Git {
    /// The commit of a branch. None: the branch does not exist.
    pub async fn ask_branch(
        &self,
        remote: &Remote,
        branch: &PushedBranch,
        timeout: Duration,
    ) -> Result<Option<ObjectId>, GitError> {
        let session = &self.open(remote, timeout).await?;
        let name = branch.reference();
        let refs = self.list_refs(session, &["--heads", "--", URL, &name], timeout).await?;
        Ok(refs.get(&name))
    }

    /// Moves a branch to a commit. [`GitReason::BranchMoved`]: it was at another commit than `from`, and is unchanged.
    pub async fn push(
        &self,
        remote: &Remote,
        mirror: &Path,
        push: &Push<'_>,
        timeout: Duration,
    ) -> Result<(), GitError> {
        let mirror = &std::path::absolute(mirror)
            .map_err(|error| GitError::new("push to", remote, GitReason::Disk, error.to_string()))?;
        let lock = self.lock(mirror);
        let _one_at_a_time = lock.lock().await;
        let mut session = self.open(remote, timeout).await?;
        session.pushes = true;
        let name = push.branch.reference();
        let from = push.from.map(|id| id.to_string()).unwrap_or_default();
        let lease = format!("--force-with-lease={name}:{from}");
        let spec = format!("{}:{name}", push.commit);
        let dir = git_dir(mirror);
        let mut args = vec![
            dir.as_str(),
            "push",
            "--quiet",
            "--no-verify",
            "--no-follow-tags",
            "--no-signed",
        ];
        args.extend(["--no-recurse-submodules", lease.as_str(), "--", URL, spec.as_str()]);
        let call = Call {
            what: "push to",
            timeout,
            max_output: 64 << 10,
            watch: None,
        };
        self.run(call, &session, &args).await.map(drop).map_err(|mut error| {
            if error.reason == GitReason::Forbidden {
                // The credentials allow reading only.
                error.reason = GitReason::PushRefused;
            }
            error
        })
    }
}
