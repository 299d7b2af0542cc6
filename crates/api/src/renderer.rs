//! How the files of a service become its objects.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    path_pattern::{self, PathPattern},
    plan::LocalFiles,
    schemas,
};

/// Renderers of one service.
pub const MAX_RENDERERS: usize = 16;
/// Bytes of a service's renderers and patches, as JSON: a cluster may have thousands of services, and an agent gets them with each
/// change. What needs more is a file.
pub const MAX_RENDER_BYTES: usize = 64 << 10;

/// The kind that `servicedeployments/NAME/bundle` answers with.
pub const BUNDLE_KIND: &str = "ServiceBundle";
/// Largest archive that is sent there, compressed.
pub const MAX_SHOWN_BUNDLE: usize = 16 << 20;

/// The files that are assigned to a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleAnswer {
    /// As in the source's status.
    pub revision: String,
    pub files: LocalFiles,
}

/// What makes objects of one folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Renderer {
    /// Folder, relative to `spec.path` and within it; empty or `.` is that folder itself. Raw manifests leave out the folders of
    /// the other renderers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub path: String,
    #[serde(default, rename = "type", skip_serializing_if = "is_default")]
    pub kind: RendererType,
    /// Of type `Plugin`: its name in the agent's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub plugin: Option<String>,
    /// For manifests as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<RawOptions>,
    /// For a chart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helm: Option<HelmOptions>,
    /// For a kustomization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kustomize: Option<KustomizeOptions>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RendererType {
    /// `Helm` for a folder with a Chart.yaml, `Kustomize` for one with a kustomization.yaml, kustomization.yml or Kustomization,
    /// else `Raw`. Only files at the root of the folder count.
    #[default]
    Auto,
    /// The manifests as they are.
    Raw,
    Helm,
    Kustomize,
    /// A program that the agent was configured with.
    Plugin,
}

/// Selects the manifests of a folder: files named `*.yaml`, `*.yml` and `*.json` that `include`, `exclude` and the folder's
/// `.sourceignore` files don't leave out. Patterns are written as in `.gitignore`, and with braces for alternatives (`{a,b}/*.yaml`), and
/// count from the renderer's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RawOptions {
    /// Whether the folders below are read too; `true` by default.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub recurse: bool,
    /// Files that match one of these patterns, or whose folder does; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    pub include: Vec<String>,
    /// Files to leave out: those that match one of these patterns, or whose folder does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    pub exclude: Vec<String>,
    /// Whether a folder without manifests is valid and means no objects. If false, such a folder is an error.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allow_empty: bool,
}

impl RawOptions {
    /// All of a folder, with the folders below.
    pub const ALL: Self = Self { recurse: true, include: Vec::new(), exclude: Vec::new(), allow_empty: false };
}

impl Default for RawOptions {
    fn default() -> Self {
        Self::ALL
    }
}

const fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

/// As for `helm template`. The chart's own values come first, then those of the files in their order, then the inline ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HelmOptions {
    /// The service's name if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 53),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub release_name: Option<String>,
    /// Relative to the chart's folder; one that begins with `/` counts from the root of the source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024)))]
    pub values_files: Vec<String>,
    /// Whether values files that are not there are passed over.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ignore_missing_values_files: bool,
    /// Only the chart knows their shape. No place for secrets: they are readable in the hub and in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::free_form")]
    pub values: Option<Map<String, Value>>,
    /// Leaves out the definitions of the charts' `crds` folders. They are applied, and upgraded, without it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skip_crds: bool,
    /// Leaves out hooks that are tests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skip_tests: bool,
    /// Takes values that the chart's schema refuses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skip_schema_validation: bool,
    /// Lets the templates' function `lookup` read the cluster, as the account that the service is applied as. Without it every
    /// lookup finds nothing. What was rendered with it is not cached.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lookup: bool,
    /// What the rendered objects and hooks go through, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub post_renderers: Vec<PostRenderer>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PostRenderer {
    pub kustomize: KustomizePostRenderer,
}

/// Either a folder, or patches and images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KustomizePostRenderer {
    /// Folder of a kustomization that names `helm-output.yaml` among its resources; relative to the chart's folder, or to the root
    /// of the source if it begins with `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub patches: Vec<Patch>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub images: Vec<Image>,
}

/// What comes on top of the kustomization's own fields of these names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KustomizeOptions {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name_prefix: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name_suffix: Option<String>,
    /// Each takes the place of the kustomization's entry for the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub images: Vec<Image>,
    /// After the kustomization's own, relative to its folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024)))]
    pub components: Vec<String>,
    /// Which files a kustomization may read besides other kustomizations.
    #[serde(default, skip_serializing_if = "is_default")]
    pub load_restrictor: LoadRestrictor,
}

/// Named as the values of `kustomize build --load-restrictor`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LoadRestrictor {
    /// Those of its own folder.
    #[default]
    LoadRestrictionsRootOnly,
    /// Any of the service's files.
    LoadRestrictionsNone,
}

/// An image's name without a tag, and what takes its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    #[schemars(length(min = 1, max = 512))]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub new_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub new_tag: Option<String>,
    /// Comes before `newTag`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 160))]
    pub digest: Option<String>,
}

/// A change of rendered objects, as in a kustomization.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Patch {
    /// YAML or JSON: a strategic merge patch, or the operations of a JSON patch (RFC 6902), which needs a target.
    #[schemars(length(min = 1, max = 16_384))]
    pub patch: String,
    /// Which objects; the one that a strategic merge patch itself names if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<PatchTarget>,
}

/// What is left out matches all. Names, kinds and groups are regular expressions over the whole text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PatchTarget {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub namespace: Option<String>,
    /// As in a list request: `app=web,tier!=cache`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub label_selector: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub annotation_selector: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What is wrong with options that a schema lets pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Of `spec.renderers`.
    pub index: usize,
    /// Below it, with a dot in front.
    pub field: String,
    pub why: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spec.renderers[{}]{} {}", self.index, self.field, self.why)
    }
}

pub fn problems(renderers: &[Renderer]) -> Vec<Problem> {
    let mut found = Vec::new();
    for (index, renderer) in renderers.iter().enumerate() {
        let mut fail = |field: &str, why| found.push(Problem { index, field: field.to_owned(), why });
        let is_plugin = renderer.kind == RendererType::Plugin;
        if is_plugin != renderer.plugin.is_some() {
            fail(".plugin", "a renderer of type Plugin, and no other, names its plugin");
        }
        if renderer.path.split('/').any(|name| name == "..") || renderer.path.starts_with('/') {
            fail(".path", "must lie within spec.path");
        }
        if renderer.raw.is_some() && !matches!(renderer.kind, RendererType::Auto | RendererType::Raw) {
            fail(".raw", "is for renderers of type Raw or Auto");
        }
        if renderer.helm.is_some() && !matches!(renderer.kind, RendererType::Auto | RendererType::Helm) {
            fail(".helm", "is for renderers of type Helm or Auto");
        }
        if renderer.kustomize.is_some() && !matches!(renderer.kind, RendererType::Auto | RendererType::Kustomize) {
            fail(".kustomize", "is for renderers of type Kustomize or Auto");
        }
        for (field, patterns) in
            renderer.raw.iter().flat_map(|raw| [("include", &raw.include), ("exclude", &raw.exclude)])
        {
            for (n, pattern) in patterns.iter().enumerate() {
                let parsed = path_pattern::alternatives(pattern).and_then(|all| {
                    all.iter().try_for_each(|one| PathPattern::parse(one).map(drop))?;
                    Ok(all.iter().any(|one| one.starts_with('!')))
                });
                let why = match parsed {
                    Err(problem) => problem.0,
                    Ok(true) => "begins with !: put excluded files into exclude",
                    Ok(false) => continue,
                };
                fail(&format!(".raw.{field}[{n}]"), why);
            }
        }
        for (m, post) in renderer.helm.iter().flat_map(|helm| &helm.post_renderers).enumerate() {
            let inline = !post.kustomize.patches.is_empty() || !post.kustomize.images.is_empty();
            if post.kustomize.path.is_some() == inline {
                fail(&format!(".helm.postRenderers[{m}].kustomize"), "has either a path, or patches and images");
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(yaml: serde_json::Value, expected: &[&str]) {
        let renderers: Vec<Renderer> = serde_json::from_value(yaml).unwrap();
        let fields: Vec<_> =
            problems(&renderers).iter().map(|found| format!("[{}]{}", found.index, found.field)).collect();
        assert_eq!(fields, expected);
    }

    #[test]
    fn options_of_another_renderer_are_refused() {
        use serde_json::json;
        check(
            json!([{}, {"path": "chart", "helm": {"values": {"a": 1}}}, {"type": "Plugin", "plugin": "jsonnet"}]),
            &[],
        );
        check(json!([{"type": "Raw", "helm": {}}, {"type": "Helm", "kustomize": {}}]), &["[0].helm", "[1].kustomize"]);
        check(json!([{"type": "Plugin"}, {"plugin": "jsonnet"}]), &["[0].plugin", "[1].plugin"]);
        check(json!([{"raw": {"recurse": false, "exclude": ["setup/", "*.tmpl.yaml"]}}]), &[]);
        check(json!([{"type": "Kustomize", "raw": {}}]), &["[0].raw"]);
        check(
            json!([{"raw": {"include": ["!a", "../a", "{a,b}/c"], "exclude": ["a", "[a", "{a,/}", "{{a}}", "{a,!b}"]}}]),
            &[
                "[0].raw.include[0]",
                "[0].raw.include[1]",
                "[0].raw.exclude[1]",
                "[0].raw.exclude[2]",
                "[0].raw.exclude[3]",
                "[0].raw.exclude[4]",
            ],
        );
        check(
            json!([{"path": "../other"}, {"path": "/etc"}, {"path": "a/../../b"}]),
            &["[0].path", "[1].path", "[2].path"],
        );
        check(
            json!([{"helm": {"postRenderers": [{"kustomize": {}}, {"kustomize": {"path": "x", "images": [{"name": "a"}]}}]}}]),
            &["[0].helm.postRenderers[0].kustomize", "[0].helm.postRenderers[1].kustomize"],
        );
    }

    #[test]
    fn what_is_not_set_is_not_written() {
        let renderer: Renderer = serde_json::from_str("{}").unwrap();
        assert_eq!(serde_json::to_string(&renderer).unwrap(), "{}");
        let raw: RawOptions = serde_json::from_str(r#"{"recurse":true}"#).unwrap();
        assert_eq!((serde_json::to_string(&raw).unwrap(), raw), ("{}".to_owned(), RawOptions::default()));
    }
}
