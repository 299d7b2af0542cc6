//! Looks up another revision of a repository than the followed one.

use std::{path::Path, time::Duration};

use farwater_bundle::ObjectId;

use super::{ASIDE, Git, GitError, GitReason, Revision, URL, Wanted, spawn};
use crate::{mirror::Mirror, reference::Named, remote::Remote, session::Session};

impl Git {
    /// Finds a branch, a tag or a commit (a branch before a tag of the same name), and fetches missing objects. The
    /// mirror's followed reference is not changed.
    pub async fn find(
        &self,
        remote: &Remote,
        named: &Named,
        mirror: &Path,
        timeout: Duration,
    ) -> Result<Revision, GitError> {
        let mirror = &std::path::absolute(mirror)
            .map_err(|error| GitError::new("prepare a mirror of", remote, GitReason::Disk, error.to_string()))?;
        let lock = self.lock(mirror);
        let _one_at_a_time = lock.lock().await;
        let session = &self.open(remote, timeout).await?;
        let wanted = match named {
            Named::Commit(id) => Wanted {
                name: None,
                refspec: id.to_string(),
                id: *id,
                is_commit: true,
            },
            Named::Name(name) => self.look_for(session, name, timeout).await?,
        };
        self.prepare(remote, mirror, &wanted.id).await?;
        let commit = match commit_of(mirror, wanted.id).await {
            Some(commit) => Some(commit),
            None => {
                self.fetch(session, &wanted, ASIDE, mirror, None, timeout).await?;
                commit_of(mirror, wanted.id).await
            }
        };
        let missing = || GitError::new("read", remote, GitReason::MirrorIncomplete, wanted.id.to_string());
        Ok(Revision {
            commit: commit.ok_or_else(missing)?,
            object: wanted.id,
            name: wanted.name,
        })
    }

    pub(super) async fn look_for(
        &self,
        session: &Session<'_>,
        name: &str,
        timeout: Duration,
    ) -> Result<Wanted, GitError> {
        let places = [format!("refs/heads/{name}"), format!("refs/tags/{name}")];
        let refs = self
            .list_refs(session, &["--", URL, &places[0], &places[1]], timeout)
            .await?;
        let found = places.into_iter().find_map(|place| Some((refs.get(&place)?, place)));
        match found {
            Some((id, refspec)) => Ok(Wanted {
                name: Some(name.to_owned()),
                refspec,
                id,
                is_commit: false,
            }),
            None => {
                let missing = |evidence| {
                    let reason = GitReason::ReferenceMissing(format!("branch or tag {name}"));
                    GitError::new("find a reference in", session.remote, reason, evidence)
                };
                Err(self
                    .explain_missing(session, "--heads", "refs/heads/", timeout, missing)
                    .await)
            }
        }
    }
}

/// The commit of an id, if all objects that lead to it are here.
async fn commit_of(mirror: &Path, id: ObjectId) -> Option<ObjectId> {
    let path = mirror.to_owned();
    spawn(move || Mirror::open(&path).ok()?.peel_to_commit(&id).ok()).await
}
