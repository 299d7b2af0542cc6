//! Converts a renderer's options to a request for its program.

use std::collections::BTreeMap;

use farwater_api::renderer::{HelmOptions, KustomizeOptions, LoadRestrictor};
use farwater_bundle::{BASES, PathError, RelPath, bases_of, manifests::KUSTOMIZATIONS};

use super::{Input, Task};
use crate::{
    files::Files,
    message::{Helm, Kustomize, KustomizePostRenderer, PostRenderer, Release, Request},
};

static NO_HELM: HelmOptions = HelmOptions {
    release_name: None,
    values_files: Vec::new(),
    ignore_missing_values_files: false,
    values: None,
    skip_crds: false,
    skip_tests: false,
    skip_schema_validation: false,
    lookup: false,
    post_renderers: Vec::new(),
};
static NO_KUSTOMIZE: KustomizeOptions = KustomizeOptions {
    name_prefix: None,
    name_suffix: None,
    images: Vec::new(),
    components: Vec::new(),
    load_restrictor: LoadRestrictor::LoadRestrictionsRootOnly,
};

pub(super) fn helm<'a>(input: &'a Input<'_>, task: &'a Task<'_>) -> Result<Request<'a>, PathError> {
    let options = task.stated.helm.as_ref().unwrap_or(&NO_HELM);
    let place = |reference: &String| resolve(&task.folder, reference).map(|path| text(&path).to_owned());
    let post_renderers = options.post_renderers.iter().map(|post| {
        let path = post.kustomize.path.as_ref().map(place).transpose()?;
        let (patches, images) = (&post.kustomize.patches[..], &post.kustomize.images[..]);
        Ok(PostRenderer {
            kustomize: KustomizePostRenderer { path, patches, images },
        })
    });
    let helm = Helm {
        chart: text(&task.folder),
        release: Release {
            name: options.release_name.as_deref().unwrap_or(input.release.name),
            namespace: input.release.namespace,
            is_upgrade: input.release.is_upgrade,
        },
        values_files: options.values_files.iter().map(place).collect::<Result<_, _>>()?,
        ignore_missing_values_files: options.ignore_missing_values_files,
        values: options.values.as_ref(),
        capabilities: input.capabilities,
        skip_crds: options.skip_crds,
        skip_tests: options.skip_tests,
        skip_schema_validation: options.skip_schema_validation,
        lookup: options.lookup,
        post_renderers: post_renderers.collect::<Result<_, PathError>>()?,
    };
    Ok(Request {
        helm: Some(helm),
        ..Request::default()
    })
}

pub(super) fn kustomize<'a>(input: &'a Input<'_>, task: &'a Task<'_>) -> Request<'a> {
    let options = task.stated.kustomize.as_ref().unwrap_or(&NO_KUSTOMIZE);
    let kustomize = Kustomize {
        path: text(&task.folder),
        load_outside: options.load_restrictor == LoadRestrictor::LoadRestrictionsNone,
        name_prefix: options.name_prefix.as_deref(),
        name_suffix: options.name_suffix.as_deref(),
        images: &options.images,
        components: &options.components,
        capabilities: input.capabilities,
        namespace: input.release.namespace,
    };
    Request {
        kustomize: Some(kustomize),
        ..Request::default()
    }
}

/// A path relative to the chart's folder, or with `/` relative to the root of the source.
pub(super) fn resolve(folder: &RelPath, reference: &str) -> Result<RelPath, PathError> {
    match reference.strip_prefix('/') {
        Some(from_root) => RelPath::root().join_clean(from_root),
        None => folder.join_clean(reference),
    }
}

/// A path for programs: the root is a dot.
fn text(path: &RelPath) -> &str {
    if path.is_root() { "." } else { path.as_str() }
}

/// The mounted remote bases, by the texts that name them.
pub(super) fn bases(files: &Files<'_>) -> BTreeMap<String, String> {
    let Ok(folder) = RelPath::parse(BASES) else {
        return BTreeMap::new();
    };
    if !files.keys().any(|path| path.is_within(&folder)) {
        return BTreeMap::new();
    }
    let kustomizations = files
        .iter()
        .filter(|(path, _)| KUSTOMIZATIONS.contains(&path.file_name()));
    let texts = kustomizations.filter_map(|(_, file)| std::str::from_utf8(file.bytes).ok());
    let named = texts
        .flat_map(bases_of)
        .filter_map(|(words, base)| Some((words, base.place()?)));
    let is_there = |place: &RelPath| files.keys().any(|path| path.is_within(place));
    named
        .filter(|(_, place)| is_there(place))
        .map(|(words, place)| (words, place.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_values_file_is_found_from_the_chart_or_from_the_root() {
        let folder = RelPath::parse("apps/web").unwrap();
        let check = |reference: &str| {
            resolve(&folder, reference)
                .map(|path| path.to_string())
                .map_err(|e| e.to_string())
        };
        assert_eq!(check("values-prod.yaml").unwrap(), "apps/web/values-prod.yaml");
        assert_eq!(check("../values.yaml").unwrap(), "apps/values.yaml");
        assert_eq!(check("/shared/values.yaml").unwrap(), "shared/values.yaml");
        assert!(
            check("../../../etc/passwd")
                .unwrap_err()
                .contains("leads out of the repository")
        );
        assert!(check("/../etc/passwd").is_err());
    }
}
