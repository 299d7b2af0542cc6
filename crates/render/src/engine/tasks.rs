//! The renderers of a service with their folders.

use farwater_api::renderer::{RawOptions, Renderer, RendererType};
use farwater_bundle::{BASES, RelPath};

use super::{Input, error::RenderError, request};
use crate::detect::detect;

/// A renderer with its folder.
pub(super) struct Task<'a> {
    pub(super) stated: &'a Renderer,
    pub(super) kind: RendererType,
    /// The real folder.
    pub(super) folder: RelPath,
}

impl Task<'_> {
    pub(super) fn raw(&self) -> &RawOptions {
        static ALL: RawOptions = RawOptions::ALL;
        self.stated.raw.as_ref().unwrap_or(&ALL)
    }
}

/// The renderers with their folders, and errors of those without one.
pub(super) fn plan<'a>(input: &Input<'_>, stated: &'a [Renderer]) -> (Vec<Task<'a>>, Vec<RenderError>) {
    let (mut tasks, mut problems) = (Vec::new(), Vec::new());
    for renderer in stated {
        let outside = || RenderError::Outside {
            path: renderer.path.clone(),
        };
        let folder = match input.path.join_clean(&renderer.path) {
            Ok(folder) if folder.is_within(input.path) => folder,
            _ => {
                problems.push(outside());
                continue;
            }
        };
        let Ok(real) = input.archive.folder(&folder) else {
            // Reading it as raw manifests reports what is missing.
            tasks.push(Task {
                stated: renderer,
                kind: RendererType::Raw,
                folder,
            });
            continue;
        };
        let kind = match renderer.kind {
            RendererType::Auto => detect(input.archive, &real),
            kind => kind,
        };
        // Options that no renderer would read.
        let wanted = [
            (
                renderer.helm.is_some() && kind != RendererType::Helm,
                "Helm",
                "Chart.yaml",
            ),
            (
                renderer.kustomize.is_some() && kind != RendererType::Kustomize,
                "Kustomize",
                "kustomization.yaml",
            ),
        ];
        for (_, options, file) in wanted.into_iter().filter(|(lost, ..)| *lost) {
            problems.push(RenderError::Options {
                folder: real.clone(),
                options,
                file,
            });
        }
        if renderer.raw.is_some() && kind != RendererType::Raw {
            problems.push(RenderError::RawOptions { folder: real.clone() });
        }
        problems.extend(unknown_values(input, renderer, &real));
        tasks.push(Task {
            stated: renderer,
            kind,
            folder: real,
        });
    }
    (tasks, problems)
}

/// Errors for optional values files outside the service's folder that are missing here: the bundle may lack a file that
/// the repository has.
fn unknown_values(input: &Input<'_>, renderer: &Renderer, folder: &RelPath) -> Vec<RenderError> {
    let Some(helm) = renderer.helm.as_ref().filter(|helm| helm.ignore_missing_values_files) else {
        return Vec::new();
    };
    let files = helm
        .values_files
        .iter()
        .filter_map(|file| request::resolve(folder, file).ok());
    let unknown = files.filter(|file| !file.is_within(input.path) && input.archive.file(file).is_err());
    unknown
        .map(|file| RenderError::UnknownValues {
            folder: folder.clone(),
            file,
        })
        .collect()
}

/// Folders within a task's folder that other renderers read, or that are bases of their kustomizations.
pub(super) fn others(tasks: &[Task<'_>], task: &Task<'_>) -> Vec<RelPath> {
    let within = tasks
        .iter()
        .map(|other| &other.folder)
        .filter(|folder| **folder != task.folder);
    let bases = RelPath::parse(BASES).ok();
    within
        .cloned()
        .chain(bases)
        .filter(|folder| folder.is_within(&task.folder))
        .collect()
}
