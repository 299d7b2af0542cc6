//! Renderers: how the files of a service become objects.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Digest,
    path_pattern::{self, PathPattern},
    schemas,
};

/// Maximum number of renderers of one service.
pub const MAX_RENDERERS: usize = 16;
/// Maximum size of a service's renderers and patches, in bytes of JSON: a cluster may have thousands of services, and
/// an agent receives them with each change. Put larger patches in a file.
pub const MAX_RENDER_BYTES: usize = 64 << 10;

/// Kind of the answer of `servicedeployments/NAME/bundle`.
pub const BUNDLE_KIND: &str = "ServiceBundle";
/// Maximum size of the archive in that answer, compressed.
pub const MAX_SHOWN_BUNDLE: usize = 16 << 20;

/// A canonical archive of a user's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalFiles {
    /// Digest of the uncompressed archive.
    pub digest: Digest,
    /// Folder inside the archive.
    pub path: String,
    /// The archive, as zstd in base64.
    pub archive: String,
}

/// Files that are assigned to a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleAnswer {
    /// Revision, as in the source's status.
    pub revision: String,
    pub files: LocalFiles,
}

/// Renderer for one folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Renderer {
    /// Folder, relative to `spec.path` and within it. Empty or `.`: `spec.path` itself. Raw manifests leave out the
    /// folders of the other renderers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub path: String,
    /// Type of the renderer.
    #[serde(default, rename = "type", skip_serializing_if = "is_default")]
    pub kind: RendererType,
    /// Name of the plugin in the agent's configuration. Only for type `Plugin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub plugin: Option<String>,
    /// Options for raw manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<RawOptions>,
    /// Options for a chart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helm: Option<HelmOptions>,
    /// Options for a kustomization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kustomize: Option<KustomizeOptions>,
}

/// Type of a renderer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RendererType {
    /// `Helm` for a folder with a Chart.yaml; `Kustomize` for one with a kustomization.yaml, kustomization.yml or
    /// Kustomization; otherwise `Raw`. Only files at the root of the folder count.
    #[default]
    Auto,
    /// Manifests without rendering.
    Raw,
    /// A chart.
    Helm,
    /// A kustomization.
    Kustomize,
    /// A program from the agent's configuration.
    Plugin,
}

/// Selects the manifests of a folder: files named `*.yaml`, `*.yml` and `*.json` that `include`, `exclude` and the
/// folder's `.sourceignore` files do not leave out. Patterns follow the rules of `.gitignore`, with braces for
/// alternatives (`{a,b}/*.yaml`), and are relative to the renderer's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RawOptions {
    /// Whether to read the folders below too. Default: true.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub recurse: bool,
    /// Patterns of files to read. A file matches by its own path or by that of a folder around it. Empty: all files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    pub include: Vec<String>,
    /// Patterns of files to leave out, matched as in `include`. Empty: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    pub exclude: Vec<String>,
    /// Whether a folder without manifests is valid and has no objects. If false, such a folder is an error.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allow_empty: bool,
}

impl RawOptions {
    /// All files of a folder and of the folders below.
    pub const ALL: Self = Self {
        recurse: true,
        include: Vec::new(),
        exclude: Vec::new(),
        allow_empty: false,
    };
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

/// Options of `helm template`. The chart's own values come first, then `valuesFiles` in their order, then `values`;
/// later ones take precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HelmOptions {
    /// Name of the release. Empty: the service's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 53),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub release_name: Option<String>,
    /// Values files, relative to the chart's folder. A path that begins with `/` is relative to the root of the source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024)))]
    pub values_files: Vec<String>,
    /// Whether to skip values files that do not exist.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ignore_missing_values_files: bool,
    /// Values, in the chart's own structure. Not for secrets: they are readable in the hub and in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::free_form")]
    pub values: Option<Map<String, Value>>,
    /// Whether to leave out the definitions in the charts' `crds` folders. By default they are applied and upgraded.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skip_crds: bool,
    /// Whether to leave out hooks that are tests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skip_tests: bool,
    /// Whether to accept values that the chart's schema rejects.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skip_schema_validation: bool,
    /// Whether the template function `lookup` reads the cluster, with the service's account. If false, it finds
    /// nothing. The result of rendering with it is not cached.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lookup: bool,
    /// Post-renderers for the rendered objects and hooks, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub post_renderers: Vec<PostRenderer>,
}

/// A post-renderer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PostRenderer {
    /// Options of Kustomize as a post-renderer.
    pub kustomize: KustomizePostRenderer,
}

/// Post-renderer by Kustomize: either `path`, or `patches` and `images`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KustomizePostRenderer {
    /// Folder of a kustomization that lists `helm-output.yaml` in its resources. Relative to the chart's folder or, if
    /// it begins with `/`, to the root of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: Option<String>,
    /// Patches of the objects, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub patches: Vec<Patch>,
    /// Replacements of images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub images: Vec<Image>,
}

/// Options that are added to the kustomization's own fields of the same names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KustomizeOptions {
    /// Prefix of the names of objects. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name_prefix: Option<String>,
    /// Suffix of the names of objects. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name_suffix: Option<String>,
    /// Replacements of images. Each overrides the kustomization's entry for the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub images: Vec<Image>,
    /// Components that follow the kustomization's own, relative to its folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024)))]
    pub components: Vec<String>,
    /// Files that a kustomization may read besides other kustomizations.
    #[serde(default, skip_serializing_if = "is_default")]
    pub load_restrictor: LoadRestrictor,
}

/// Values of `kustomize build --load-restrictor`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LoadRestrictor {
    /// Only files in its own folder.
    #[default]
    LoadRestrictionsRootOnly,
    /// Any of the service's files.
    LoadRestrictionsNone,
}

/// A replacement of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Name of the image, without a tag.
    #[schemars(length(min = 1, max = 512))]
    pub name: String,
    /// New name. Empty: the name stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub new_name: Option<String>,
    /// New tag. Empty: the tag stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub new_tag: Option<String>,
    /// New digest. Takes precedence over `newTag`. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 160))]
    pub digest: Option<String>,
}

/// A patch of rendered objects, as in a kustomization.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Patch {
    /// Strategic merge patch, or JSON patch (RFC 6902), as YAML or JSON. A JSON patch needs `target`.
    #[schemars(length(min = 1, max = 16_384))]
    pub patch: String,
    /// Objects to patch. Empty: the object that the strategic merge patch names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<PatchTarget>,
}

/// Selects objects. An empty field matches all. Names, kinds and groups are regular expressions that must match the
/// whole text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PatchTarget {
    /// API group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub group: Option<String>,
    /// API version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub version: Option<String>,
    /// Kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub kind: Option<String>,
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub namespace: Option<String>,
    /// Label selector, such as `app=web,tier!=cache`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub label_selector: Option<String>,
    /// Annotation selector, in the same format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub annotation_selector: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A problem with options that the schema accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Index in `spec.renderers`.
    pub index: usize,
    /// Field below it, with a dot in front.
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
        let mut fail = |field: &str, why| {
            found.push(Problem {
                index,
                field: field.to_owned(),
                why,
            })
        };
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
        for (field, patterns) in renderer
            .raw
            .iter()
            .flat_map(|raw| [("include", &raw.include), ("exclude", &raw.exclude)])
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
                fail(
                    &format!(".helm.postRenderers[{m}].kustomize"),
                    "has either a path, or patches and images",
                );
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
        let fields: Vec<_> = problems(&renderers)
            .iter()
            .map(|found| format!("[{}]{}", found.index, found.field))
            .collect();
        assert_eq!(fields, expected);
    }

    #[test]
    fn options_of_another_renderer_are_refused() {
        use serde_json::json;
        check(
            json!([{}, {"path": "chart", "helm": {"values": {"a": 1}}}, {"type": "Plugin", "plugin": "jsonnet"}]),
            &[],
        );
        check(
            json!([{"type": "Raw", "helm": {}}, {"type": "Helm", "kustomize": {}}]),
            &["[0].helm", "[1].kustomize"],
        );
        check(
            json!([{"type": "Plugin"}, {"plugin": "jsonnet"}]),
            &["[0].plugin", "[1].plugin"],
        );
        check(
            json!([{"raw": {"recurse": false, "exclude": ["setup/", "*.tmpl.yaml"]}}]),
            &[],
        );
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
            &[
                "[0].helm.postRenderers[0].kustomize",
                "[0].helm.postRenderers[1].kustomize",
            ],
        );
    }

    #[test]
    fn what_is_not_set_is_not_written() {
        let renderer: Renderer = serde_json::from_str("{}").unwrap();
        assert_eq!(serde_json::to_string(&renderer).unwrap(), "{}");
        let raw: RawOptions = serde_json::from_str(r#"{"recurse":true}"#).unwrap();
        assert_eq!(
            (serde_json::to_string(&raw).unwrap(), raw),
            ("{}".to_owned(), RawOptions::default())
        );
    }
}
