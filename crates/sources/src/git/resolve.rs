//! Looks up at the remote which reference to fetch.

use std::time::Duration;

use farwater_bundle::ObjectId;

use super::{
    FALLBACK, Git, HEAD,
    error::{GitError, GitReason},
    refs::RemoteRefs,
    run::{Call, URL},
};
use crate::{range::Range, reference::Reference, session::Session};

/// The reference to fetch.
pub(super) struct Wanted {
    pub(super) name: Option<String>,
    /// The remote's side of the refspec.
    pub(super) refspec: String,
    /// Its id at the remote: for an annotated tag the tag's own id.
    pub(super) id: ObjectId,
    pub(super) is_commit: bool,
}

impl Wanted {
    /// A branch or a tag, or another reference that has a name.
    pub(super) fn named(name: &str, refspec: String, id: ObjectId) -> Self {
        Self {
            name: Some(name.to_owned()),
            refspec,
            id,
            is_commit: false,
        }
    }
}

impl Git {
    /// Looks up a reference at the remote; changes nothing.
    pub(super) async fn resolve(
        &self,
        session: &Session<'_>,
        reference: &Reference,
        timeout: Duration,
    ) -> Result<Wanted, GitError> {
        let missing = |evidence| {
            GitError::new(
                "find a reference in",
                session.remote,
                GitReason::ReferenceMissing(reference.to_string()),
                evidence,
            )
        };
        match reference {
            // A commit never moves; the fetch shows whether it exists.
            Reference::Commit(id) => Ok(Wanted {
                name: None,
                refspec: id.to_string(),
                id: *id,
                is_commit: true,
            }),
            Reference::Branch(name) => {
                let full = format!("refs/heads/{name}");
                let refs = self.list_refs(session, &["--heads", "--", URL, &full], timeout).await?;
                match refs.get(&full) {
                    Some(id) => Ok(Wanted::named(name, full, id)),
                    None => Err(self
                        .explain_missing(session, "--heads", "refs/heads/", timeout, missing)
                        .await),
                }
            }
            Reference::Tag(name) => {
                let full = format!("refs/tags/{name}");
                let refs = self
                    .list_refs(session, &["--tags", "--refs", "--", URL, &full], timeout)
                    .await?;
                match refs.get(&full) {
                    Some(id) => Ok(Wanted::named(name, full, id)),
                    None => Err(self
                        .explain_missing(session, "--tags", "refs/tags/", timeout, missing)
                        .await),
                }
            }
            Reference::Full(name) => {
                let refs = self.list_refs(session, &["--", URL, name], timeout).await?;
                match refs.get(name) {
                    Some(id) => Ok(Wanted::named(name, name.clone(), id)),
                    None => Err(self.explain_missing(session, "", "refs/", timeout, missing).await),
                }
            }
            Reference::Named(name) => self.look_for(session, name, timeout).await,
            Reference::Default => self.resolve_default(session, timeout, missing).await,
            Reference::Semver(range) => self.resolve_range(session, range, timeout, missing).await,
        }
    }

    /// The tag that a range chooses.
    async fn resolve_range(
        &self,
        session: &Session<'_>,
        range: &Range,
        timeout: Duration,
        missing: impl Fn(String) -> GitError,
    ) -> Result<Wanted, GitError> {
        let refs = self
            .list_refs(session, &["--tags", "--refs", "--", URL], timeout)
            .await?;
        let names = refs.names().filter_map(|name| name.strip_prefix("refs/tags/"));
        let Some(name) = range.choose(names).map(str::to_owned) else {
            return Err(missing(format!("{} tags, none in the range", refs.len())));
        };
        let full = format!("refs/tags/{name}");
        let id = refs.get(&full).ok_or_else(|| missing(String::new()))?;
        Ok(Wanted::named(&name, full, id))
    }

    /// The branch that the remote's HEAD names, or the usual one.
    async fn resolve_default(
        &self,
        session: &Session<'_>,
        timeout: Duration,
        missing: impl Fn(String) -> GitError,
    ) -> Result<Wanted, GitError> {
        let fallback = format!("refs/heads/{FALLBACK}");
        let refs = self
            .list_refs(session, &["--symref", "--", URL, HEAD, &fallback], timeout)
            .await?;
        // A HEAD that names no branch has no other name.
        let head = refs.get(HEAD).map(|id| (refs.head().unwrap_or(HEAD), HEAD, id));
        match head.or_else(|| Some((FALLBACK, fallback.as_str(), refs.get(&fallback)?))) {
            Some((name, refspec, id)) => Ok(Wanted::named(name, refspec.to_owned(), id)),
            None => Err(self
                .explain_missing(session, "--heads", "refs/heads/", timeout, missing)
                .await),
        }
    }

    pub(super) async fn list_refs(
        &self,
        session: &Session<'_>,
        args: &[&str],
        timeout: Duration,
    ) -> Result<RemoteRefs, GitError> {
        let limits = &self.0.limits;
        let call = Call {
            what: "list the references of",
            timeout,
            max_output: limits.refs_bytes,
            watch: None,
        };
        let output = self
            .run(call, session, &[&["ls-remote", "--quiet"], args].concat())
            .await?;
        RemoteRefs::parse(&output, limits.refs)
            .map_err(|reason| GitError::new(call.what, session.remote, reason, String::new()))
    }

    /// Distinguishes an empty repository from one that lacks the reference, and names some existing ones.
    pub(super) async fn explain_missing(
        &self,
        session: &Session<'_>,
        kind: &str,
        prefix: &str,
        timeout: Duration,
        missing: impl Fn(String) -> GitError,
    ) -> GitError {
        const SHOWN: usize = 5;
        match self.list_refs(session, &["--", URL], timeout).await {
            Ok(all) if all.len() == 0 => {
                GitError::new("find a reference in", session.remote, GitReason::Empty, String::new())
            }
            Ok(all) => {
                let names: Vec<_> = all
                    .names()
                    .filter_map(|n| n.strip_prefix(prefix))
                    .filter(|n| !n.ends_with("^{}"))
                    .collect();
                let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
                let shown = farwater_bundle::path::escape(shown.as_bytes());
                let more = names.len().saturating_sub(SHOWN);
                let kind = match kind {
                    "--tags" => "tags",
                    "--heads" => "branches",
                    _ => "references",
                };
                missing(match (names.len(), more) {
                    (0, _) => format!("the remote has no {kind}"),
                    (_, 0) => format!("the remote has the {kind} {shown}"),
                    _ => format!("the remote has the {kind} {shown} and {more} more"),
                })
            }
            // The remote has just answered, so the reference is still missing.
            Err(_) => missing(String::new()),
        }
    }
}
