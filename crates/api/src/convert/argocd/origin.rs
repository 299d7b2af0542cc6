//! Converts the origin of an Application's files to a source.

use serde_json::{Map, Value, json};

use super::{
    super::{Fields, NotConverted, Told, clean_path, is_object_name, ours},
    Input,
};
use crate::{SourceKind, digest::Digest};

/// Maximum length of a created name: people read names in tables.
const MAX_NAME: usize = 63;

/// One of `spec.sources`.
pub(super) struct Origin {
    /// The source itself.
    pub object: Value,
    /// `sourceRef` of the service.
    pub reference: Value,
    /// `{name, version}`, for a repository of charts.
    pub chart: Option<Value>,
    /// Path below the root, normalised.
    pub path: String,
    /// Name that other sources use in `$NAME/file`.
    pub name: Option<String>,
    /// Whether it has files of its own, and is not only a target of references.
    pub has_files: bool,
}

pub(super) fn read(
    fields: &mut Fields,
    namespace: &str,
    input: &mut Input<'_>,
    told: &mut Told,
) -> Result<Origin, NotConverted> {
    let at = fields.path.clone();
    let url = fields
        .text("repoURL")?
        .ok_or_else(|| NotConverted::Malformed(format!("{at}.repoURL is missing")))?;
    let revision = fields.text("targetRevision")?;
    let chart = fields.text("chart")?;
    let stated = fields.text("path")?;
    let name = fields.text("ref")?;
    fields.pass(&["name"], "no counterpart: only people read it", told);
    let has_files = chart.is_some() || stated.is_some() || name.is_none();
    let path = clean_path(stated.as_deref().unwrap_or_default())
        .ok_or_else(|| NotConverted::impossible(format!("{at}.path"), "it leads out of the repository"))?;

    let revision_path = format!("{at}.targetRevision");
    let (kind, url, reference) = match &chart {
        Some(_) if url.contains("://") => (SourceKind::HelmRepository, url, None),
        Some(_) => (SourceKind::HelmRepository, format!("oci://{url}"), None),
        None if url.starts_with("oci://") => (SourceKind::OciRepository, url, of_artifact(revision.as_deref())),
        None => {
            let reference = of_git(revision.as_deref(), &revision_path, told)?;
            (SourceKind::GitRepository, url, reference)
        }
    };
    let mut spec = Map::from_iter([("url".to_owned(), url.clone().into())]);
    if let Some(reference) = &reference {
        spec.insert("ref".to_owned(), reference.clone());
    }
    let chart = chart.map(|name| json!({"name": name, "version": revision.as_deref().unwrap_or("*")}));
    let object_name = name_source(
        kind,
        namespace,
        &url,
        reference.as_ref(),
        &Value::from(spec.clone()),
        input,
    )?;
    if let Some(secret) = input.credentials(&url) {
        let what = format!(
            "Argo CD has its credentials in Secret {secret}; bring them into namespace {namespace} of the hub and name them in \
             spec.secretRef of {kind} {object_name}",
            kind = kind.as_str()
        );
        told.note(&format!("{at}.repoURL"), what);
    }
    let metadata = json!({"name": object_name, "namespace": namespace});
    Ok(Origin {
        object: ours(kind.as_str(), metadata, spec.into()),
        reference: json!({"kind": kind.as_str(), "name": object_name}),
        chart,
        path,
        name,
        has_files,
    })
}

/// A tag, a digest or a range. None: `latest`, in both products.
fn of_artifact(revision: Option<&str>) -> Option<Value> {
    let revision = revision.filter(|revision| *revision != "latest")?;
    Some(match revision {
        digest if digest.starts_with("sha256:") => json!({"digest": digest}),
        range if is_range(range) => json!({"semver": range}),
        tag => json!({"tag": tag}),
    })
}

/// A branch, a tag, a commit or a range of tags. Argo CD determines which by asking the repository. None: the default
/// branch.
fn of_git(revision: Option<&str>, path: &str, told: &mut Told) -> Result<Option<Value>, NotConverted> {
    let Some(revision) = revision.filter(|revision| *revision != "HEAD") else {
        return Ok(None);
    };
    if let Some(branch) = revision.strip_prefix("refs/heads/") {
        return Ok(Some(json!({"branch": branch})));
    }
    if let Some(tag) = revision.strip_prefix("refs/tags/") {
        return Ok(Some(json!({"tag": tag})));
    }
    if revision.starts_with("refs/") {
        return Ok(Some(json!({"name": revision})));
    }
    let is_hex = revision.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex && revision.len() == 40 {
        return Ok(Some(json!({"commit": revision.to_ascii_lowercase()})));
    }
    if is_range(revision) {
        return Ok(Some(json!({"semver": revision})));
    }
    // Argo CD resolves it as a branch, a tag or a commit, depending on which one exists. A wrong guess finds nothing,
    // so nothing is deployed.
    if looks_like_version(revision) {
        told.note(path, format!("{revision} is taken for a tag"));
        return Ok(Some(json!({"tag": revision})));
    }
    if is_hex && revision.len() >= 7 {
        return Err(NotConverted::impossible(
            path,
            "a commit is named by all of its 40 digits",
        ));
    }
    told.note(path, format!("{revision} is taken for a branch"));
    Ok(Some(json!({"branch": revision})))
}

fn is_range(revision: &str) -> bool {
    let body = revision.trim_start_matches('v');
    let is_open = revision.starts_with(['^', '~', '>', '<', '=', '*']) || revision.contains([' ', ',', '|']);
    let is_wild =
        body.starts_with(|c: char| c.is_ascii_digit()) && body.split('.').any(|part| matches!(part, "*" | "x" | "X"));
    is_open || is_wild
}

/// `1.2.3`, `v1.2`, `v2.0.0-rc.1`, `web-1.2.3`. But `release-1.2` is usually the name of a branch.
fn looks_like_version(revision: &str) -> bool {
    let numbers = |text: &str| {
        let parts: Vec<&str> = text.strip_prefix('v').unwrap_or(text).split('.').collect();
        let are_numbers = parts
            .iter()
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        if are_numbers { parts.len() } else { 0 }
    };
    let first = revision.split(['-', '+']).next().unwrap_or_default();
    let last = revision.rsplit(['-', '/']).next().unwrap_or_default();
    numbers(first) >= 2 || numbers(last) >= 3
}

/// Names a source after the last two parts of its address and, unless it follows a branch named by the address alone,
/// its reference.
fn name_source(
    kind: SourceKind,
    namespace: &str,
    url: &str,
    reference: Option<&Value>,
    spec: &Value,
    input: &mut Input<'_>,
) -> Result<String, NotConverted> {
    let address = url
        .split_once("://")
        .map_or(url, |(_, rest)| rest)
        .trim_end_matches('/')
        .trim_end_matches(".git");
    let mut parts: Vec<&str> = address.split(['/', ':']).filter(|part| !part.is_empty()).collect();
    let followed = reference.and_then(|reference| reference.as_object()?.values().next()?.as_str());
    let tail = parts.split_off(parts.len().saturating_sub(2));
    let mut name = slug(&tail.join("-"));
    if let Some(followed) = followed {
        name = format!(
            "{name}-{}",
            slug(&followed.replace("sha256:", "").chars().take(20).collect::<String>())
        );
    }
    let name = name
        .chars()
        .take(MAX_NAME)
        .collect::<String>()
        .trim_matches(['-', '.'])
        .to_owned();
    let key = spec.to_string();
    let is_usable = |name: &str| is_object_name(name);
    let free = is_usable(&name) && input.taken.is_free_for((kind.as_str(), namespace, &name), &key);
    // Another address, or another reference of it, has this name.
    let name = if free {
        name
    } else {
        let start: String = name.chars().take(MAX_NAME - 13).collect();
        format!("{}-{}", start.trim_matches(['-', '.']), Digest::of(&key).short())
            .trim_matches('-')
            .to_owned()
    };
    input.taken.claim((kind.as_str(), namespace, &name), &key, url)?;
    Ok(name)
}

fn slug(text: &str) -> String {
    let mut slug = String::new();
    for c in text.to_ascii_lowercase().chars() {
        let c = if c.is_ascii_alphanumeric() { c } else { '-' };
        if !(c == '-' && slug.ends_with('-')) {
            slug.push(c);
        }
    }
    slug.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_followed_is_told_by_its_form() {
        for (revision, range, version) in [
            ("main", false, false),
            ("release-1.2", false, false),
            ("1.2.3", false, true),
            ("v1.2.3-rc.1", false, true),
            ("v2", false, false),
            ("kube-stack-78.5.0", false, true),
            ("web/v1.2.3", false, true),
            ("1.*", true, false),
            ("v1.x", true, false),
            ("^1.2", true, false),
            (">=1.0.0 <2.0.0", true, false),
            ("*", true, false),
            ("feature/x", false, false),
        ] {
            assert_eq!(
                (is_range(revision), looks_like_version(revision)),
                (range, version),
                "{revision}"
            );
        }
    }

    #[test]
    fn names_are_those_that_objects_may_have() {
        assert_eq!(slug("Acme_Shop--x"), "acme-shop-x");
        assert!(is_object_name(&slug("argoproj/Argo.CD")));
    }
}
