//! From a bundle to the objects that a service states.

use std::collections::BTreeSet;

use farwater_api::protocol::Deployment;
use farwater_bundle::{Archive, RelPath, manifests};
use farwater_fleet::plan::{GroupVersionKind, Render, RenderedObject};

use crate::handed::Handed;

/// Reads the manifests of the service's folder. What can't be read makes the render incomplete, never smaller in
/// silence.
pub fn render(archive: &Archive, deployment: &Deployment, handed: &Handed) -> Render {
    let folder = match RelPath::parse_folder(&deployment.path) {
        Ok(folder) => folder,
        Err(error) => return Render { objects: Vec::new(), errors: vec![error.to_string()] },
    };
    let read = manifests::read(archive, &folder, &deployment.target_namespace);
    let errors = read.errors().iter().map(|e| crate::messages::shorten(&handed.veil.conceal(&e.to_string()))).collect();
    let objects = match read {
        manifests::Manifests::Complete(objects) | manifests::Manifests::Partial { objects, .. } => objects,
    };
    let objects = objects.into_iter().map(|m| RenderedObject { origin: m.origin.to_string(), manifest: m.value });
    Render { objects: objects.collect(), errors }
}

/// The kinds that a render uses.
pub fn kinds(render: &Render) -> BTreeSet<GroupVersionKind> {
    let kind = |object: &RenderedObject| {
        let api_version = object.manifest["apiVersion"].as_str()?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Some(GroupVersionKind {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: object.manifest["kind"].as_str()?.to_owned(),
        })
    };
    render.objects.iter().filter_map(kind).collect()
}
