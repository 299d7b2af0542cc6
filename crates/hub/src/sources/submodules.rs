//! The submodules of a revision, recursively: each is fetched from its own remote, with the credentials meant for that
//! remote.

use std::collections::{HashSet, VecDeque};

use farwater_bundle::ObjectId;
use farwater_sources::{Address, Git, MAX_DEPTH, MAX_MODULES, ModulesError, Submodule};

use super::{access::Way, git::mirror_path};
use crate::{errors::SourceFailure, memory::turns::Asks, replica::Replica};

/// Fetches what the source's mirror lacks of a commit's submodules. If any of them is missing, the commit is not
/// served.
pub async fn fetch_submodules(
    replica: &Replica,
    source_uid: &str,
    way: &Way,
    url: &str,
    commit: ObjectId,
) -> Result<(), SourceFailure> {
    let mirror = mirror_path(&replica.access.mirrors, source_uid)?;
    let first = Git::submodules(&mirror, None, url, commit).await.map_err(unreadable)?;
    let mut pending: VecDeque<_> = first.into_iter().map(|module| (module, 1)).collect();
    let (mut seen, mut used): (HashSet<(String, ObjectId)>, Vec<Address>) = (HashSet::new(), Vec::new());

    while let Some((module, depth)) = pending.pop_front() {
        if !seen.insert((module.address.as_str().to_owned(), module.commit)) {
            continue;
        }
        if seen.len() > MAX_MODULES {
            let message = format!("commit {commit} has over {MAX_MODULES} submodules, with those of submodules");
            return Err(SourceFailure::lasting("SubmodulesInvalid", message));
        }
        used.push(module.address.clone());
        if !Git::has_module(&mirror, &module).await {
            fetch_module(replica, way, &module, &mirror).await?;
        }
        let inner = Git::submodules(&mirror, Some(&module), url, module.commit)
            .await
            .map_err(unreadable)?;
        if depth == MAX_DEPTH && !inner.is_empty() {
            let message = format!(
                "submodule {}: submodules are nested more than {MAX_DEPTH} deep",
                module.path
            );
            return Err(SourceFailure::lasting("SubmodulesInvalid", message));
        }
        pending.extend(inner.into_iter().map(|module| (module, depth + 1)));
    }

    if !seen.is_empty() {
        replica.access.mirrors.git.trim_modules(&mirror, used).await;
    }
    Ok(())
}

async fn fetch_module(
    replica: &Replica,
    way: &Way,
    module: &Submodule,
    mirror: &std::path::Path,
) -> Result<(), SourceFailure> {
    let name = |failure: SourceFailure| SourceFailure {
        message: format!("submodule {}: {}", module.path, failure.message),
        ..failure
    };
    let remote = way.to(replica, module.address.as_str()).await.map_err(name)?;
    let turn = replica
        .memory
        .checks
        .turns
        .wait_to_enter(module.address.as_str(), Asks::Repository, way.timeout)
        .await;
    let turn = turn.map_err(name)?;
    let fetched = {
        let _place = replica.access.mirrors.git_place().await;
        replica
            .access
            .mirrors
            .git
            .fetch_module(&remote, module, mirror, way.timeout)
            .await
    };
    turn.end(fetched.as_ref().err().map(|error| error.reason.code()));
    fetched.map_err(|error| name(error.into()))
}

fn unreadable(error: ModulesError) -> SourceFailure {
    let message = crate::errors::chain(&error);
    match error.is_damage() {
        true => SourceFailure::passing("MirrorFailed", message),
        false => SourceFailure::lasting("SubmodulesInvalid", message),
    }
}
