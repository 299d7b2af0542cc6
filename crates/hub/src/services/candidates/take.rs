//! The files that a service takes of each of its sources.

use farwater_api::{Digest, service_sources::SourceReference, source::BUILT_IN_REVISION};
use farwater_fleet::assignment::{Candidate, Part, Trouble};
use farwater_sources::Reads;
use farwater_store::{
    StoreError,
    delivery::{ChartRow, Revision, load_chart, load_revision},
};

use super::{
    Known,
    ingredient::{FoundSource, Ingredient},
};
use crate::{
    replica::Replica,
    sources::{SourceSpec, artifacts, combine::Files, git},
};

/// Files of a source at its served revision, and their description.
pub(super) struct Taken {
    pub(super) part: Part,
    pub(super) files: Files,
    /// A problem that exists although something is served.
    pub(super) problem: Option<String>,
}

pub(super) enum Take {
    Files(Box<Taken>),
    Trouble(Trouble),
    /// No fetch has looked for it yet.
    Pending(String),
}

impl Ingredient {
    pub(super) fn take(&self) -> Take {
        let SourceReference { kind, name } = &self.reference;
        let Some(found) = &self.found else {
            return Take::Trouble(Trouble::SourceMissing {
                kind: *kind,
                name: name.clone(),
            });
        };
        let part = |revision: String| Part {
            kind: *kind,
            name: name.clone(),
            source_uid: found.object.uid.clone(),
            url: found.address().to_owned(),
            chart: self.chart.clone(),
            revision,
            reads: found
                .revision
                .as_ref()
                .map(|revision| word_of(reads_of(revision)))
                .unwrap_or_default(),
            path: git::clean_path(&self.path).unwrap_or_else(|_| self.path.clone()),
            mount_path: self.mount_path.clone().unwrap_or_default(),
            dependency: false,
        };
        let Some(chart) = &self.chart else {
            return self.take_revision(found, part);
        };
        let Some(row) = &found.chart else {
            return Take::Pending(format!(
                "chart {} {} of {kind} {name} is looked for",
                chart.name, chart.version
            ));
        };
        match take_chart(row) {
            Ok((revision, key)) => {
                let problem = Some(row.problem.clone()).filter(|problem| !problem.is_empty());
                Take::Files(Box::new(Taken {
                    part: part(revision),
                    files: Files::Artifact(key),
                    problem,
                }))
            }
            Err(message) => Take::Trouble(Trouble::ChartMissing { message }),
        }
    }

    fn take_revision(&self, found: &FoundSource, part: impl FnOnce(String) -> Part) -> Take {
        let SourceReference { kind, name } = &self.reference;
        if found.is_built_in() {
            let part = part(BUILT_IN_REVISION.to_owned());
            return Take::Files(Box::new(Taken {
                part,
                files: Files::BuiltIn,
                problem: None,
            }));
        }
        let Some(revision) = &found.revision else {
            return Take::Trouble(Trouble::SourceEmpty {
                kind: *kind,
                name: name.clone(),
            });
        };
        let text = git::format_revision(&revision.reference, &revision.commit);
        let files = match &found.object.spec {
            SourceSpec::Git(_) => Files::Commit {
                commit: revision.commit.clone(),
                reads: reads_of(revision),
            },
            SourceSpec::Oci(_) | SourceSpec::File(_) => match artifacts::artifact_key(revision) {
                Some(key) => Files::Artifact(key),
                None => {
                    return Take::Trouble(Trouble::SourceEmpty {
                        kind: *kind,
                        name: name.clone(),
                    });
                }
            },
            SourceSpec::BuiltIn => Files::BuiltIn,
            SourceSpec::Helm(_) => {
                let message = format!("{kind} {name} holds charts; say which one in chart");
                return Take::Trouble(Trouble::Bundle {
                    revision: text,
                    message,
                });
            }
        };
        Take::Files(Box::new(Taken {
            part: part(text),
            files,
            problem: None,
        }))
    }
}

/// Returns the version as `1.2.3@sha256:…`, and the key of the archive.
pub(super) fn take_chart(row: &ChartRow) -> Result<(String, Digest), String> {
    match row.digest.parse() {
        Ok(digest) if !row.version.is_empty() => Ok((format!("{}@{digest}", row.version), digest)),
        _ => Err(row.problem.clone()),
    }
}

fn reads_of(revision: &Revision) -> Reads {
    Reads {
        submodules: revision.taken.submodules,
        lfs: revision.taken.lfs,
    }
}

/// The parts of a commit that were read besides its own files, as a candidate stores it, e.g. `submodules lfs`.
fn word_of(reads: Reads) -> String {
    let words = [(reads.submodules, "submodules"), (reads.lfs, "lfs")];
    words
        .into_iter()
        .filter(|(is_read, _)| *is_read)
        .map(|(_, word)| word)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the known candidate, with the addresses that it was fetched from last, if it is still made of exactly what
/// is served now.
pub(super) async fn is_current(
    replica: &Replica,
    known: &Known,
    taken: &[Taken],
) -> Result<Option<Candidate>, StoreError> {
    let Known {
        candidate: known,
        is_untouched,
    } = known;
    let stated: Vec<&Part> = known.parts.iter().filter(|part| !part.dependency).collect();
    let Some(first) = taken.first() else { return Ok(None) };
    let mut next = known.clone();
    next.source.clone_from(&first.part.url);
    if stated.is_empty() {
        // A single folder of a Git repository.
        let is_plain = taken.len() == 1 && matches!(first.files, Files::Commit { .. });
        let is_same = (*is_untouched || known.revision == first.part.revision) && known.path == first.part.path;
        let same = is_plain && is_same && known.reads == first.part.reads;
        return Ok(same.then_some(next));
    }

    if stated.len() != taken.len() {
        return Ok(None);
    }
    for (part, now) in stated.iter().zip(taken) {
        let mut same = Part {
            url: part.url.clone(),
            ..now.part.clone()
        };
        if *is_untouched {
            same.revision.clone_from(&part.revision);
        }
        if **part != same || !is_same_artifact(known, part, &now.files) {
            return Ok(None);
        }
    }

    for part in known.parts.iter().filter(|part| part.dependency) {
        if !is_served(replica, part).await? {
            return Ok(None);
        }
    }

    let mut urls = taken.iter().map(|taken| &taken.part.url);
    for part in next.parts.iter_mut().filter(|part| !part.dependency) {
        if let Some(url) = urls.next() {
            part.url.clone_from(url);
        }
    }
    Ok(Some(next))
}

/// Whether a chart or a base that others depend on has the revision that is served now.
async fn is_served(replica: &Replica, part: &Part) -> Result<bool, StoreError> {
    let mut tables = replica.store.tables().await?;
    let now = match &part.chart {
        None => load_revision(&mut tables, &part.source_uid)
            .await?
            .map(|revision| git::format_revision(&revision.reference, &revision.commit)),
        Some(chart) => load_chart(&mut tables, &part.source_uid, (&chart.name, &chart.version))
            .await?
            .and_then(|row| Some(take_chart(&row).ok()?.0)),
    };
    Ok(now.as_ref() == Some(&part.revision))
}

/// The revision identifies an artifact's manifest. The source's spec says which part of the artifact is read, so the
/// keys are compared too.
fn is_same_artifact(known: &Candidate, part: &Part, files: &Files) -> bool {
    match files {
        Files::Commit { .. } | Files::BuiltIn => true,
        Files::Artifact(key) => part.chart.is_some() || known.artifacts.is_empty() || known.artifacts.contains(key),
    }
}
