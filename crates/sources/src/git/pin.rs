//! Submodules of a source: one commit each, in mirrors below the source's.

use std::{path::Path, time::Duration};

use farwater_bundle::ObjectId;

use super::{Git, GitError, GitReason, TRACKED, Wanted, leftovers, spawn};
use crate::{
    address::Address,
    mirror::{Mirror, MirrorError},
    modules::{self, ModulesError, Submodule},
    remote::Remote,
};

impl Git {
    /// The submodules that a commit of a source names, or a commit of one of its submodules.
    pub async fn submodules(
        source: &Path,
        of: Option<&Submodule>,
        url: &str,
        commit: ObjectId,
    ) -> Result<Vec<Submodule>, ModulesError> {
        let path = match of {
            Some(module) => modules::mirror_of(source, &module.address),
            None => source.to_owned(),
        };
        let base = of.map_or_else(|| Address::parse(url), |module| Ok(module.address.clone()));
        spawn(move || {
            let base = base.map_err(|source| ModulesError::Address {
                path: String::new(),
                source,
            })?;
            let unreadable = |error: MirrorError| ModulesError::Mirror {
                commit,
                source: error.into(),
            };
            let mirror = Mirror::open(&path).map_err(unreadable)?;
            modules::read(&mirror, &base, &commit)
        })
        .await
    }

    /// Whether a submodule's commit is already here.
    pub async fn has_module(source: &Path, module: &Submodule) -> bool {
        let (path, commit) = (modules::mirror_of(source, &module.address), module.commit);
        spawn(move || Mirror::open(&path).is_ok_and(|mirror| mirror.root_tree(&commit).is_ok())).await
    }

    /// Fetches a submodule's commit. All mirrors of a source share its size limit.
    pub async fn fetch_module(
        &self,
        remote: &Remote,
        module: &Submodule,
        source: &Path,
        timeout: Duration,
    ) -> Result<(), GitError> {
        let fail = |reason, evidence: String| GitError::new("fetch from", remote, reason, evidence);
        let source = &std::path::absolute(source).map_err(|error| fail(GitReason::Disk, error.to_string()))?;
        let lock = self.lock(source);
        let _one_at_a_time = lock.lock().await;
        let mirror = &modules::mirror_of(source, &module.address);
        let session = &self.open(remote, timeout).await?;
        let id = module.commit;
        let wanted = Wanted {
            name: None,
            refspec: id.to_string(),
            id,
            is_commit: true,
        };
        self.prepare(remote, mirror, &id).await?;
        // Each commit has its own reference, because two submodules may be of one repository.
        let into = format!("{TRACKED}-{id}");
        self.fetch(session, &wanted, &into, mirror, Some(source), timeout)
            .await?;
        match Self::has_module(source, module).await {
            true => Ok(()),
            false => Err(fail(GitReason::MirrorIncomplete, id.to_string())),
        }
    }

    /// Removes mirrors of submodules that a commit no longer names, if the source uses more than half of its limit.
    pub async fn trim_modules(&self, source: &Path, used: Vec<Address>) {
        let (path, limit) = (source.to_owned(), self.0.limits.mirror_bytes / 2);
        let removed = spawn(move || {
            if leftovers::size(&path) <= limit {
                return Ok(());
            }
            modules::retain(&path, &used)
        });
        if let Err(error) = removed.await {
            tracing::warn!(mirror = %source.display(), %error, "old mirrors of submodules were not removed");
        }
    }
}
