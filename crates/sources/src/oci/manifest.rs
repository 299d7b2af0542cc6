//! Manifests: OCI's image manifest, and docker's equivalent.

use std::collections::BTreeMap;

use farwater_api::Digest;
use farwater_bundle::path::escape;
use serde::Deserialize;

use super::Selection;

pub const FLUX_CONFIG: &str = "application/vnd.cncf.flux.config.v1+json";
pub const FLUX_LAYER: &str = "application/vnd.cncf.flux.content.v1.tar+gzip";
pub const CHART_CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";
pub const CHART_LAYER: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";
pub(super) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const TITLE: &str = "org.opencontainers.image.title";
/// Most layers of one artifact: OCI images have up to 127.
const MAX_LAYERS: usize = 256;

/// Accepted media types. Indexes are included so that our own error can name them.
pub(super) fn accepted() -> String {
    [OCI_MANIFEST, DOCKER_MANIFEST, INDEXES[0], INDEXES[1]].join(", ")
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    manifests: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    pub config: Config,
    #[serde(default)]
    pub layers: Vec<Layer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    #[serde(default)]
    pub media_type: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Layer {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    #[serde(default)]
    pub annotations: Option<BTreeMap<String, String>>,
}

impl Layer {
    /// The name of a file that is a layer.
    pub(super) fn title(&self) -> Option<&str> {
        self.annotation(TITLE).filter(|title| !title.is_empty())
    }

    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(name).map(String::as_str)
    }
}

impl Manifest {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        // serde would read a list's items as fields in order.
        if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return Err("it is no JSON object".to_owned());
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| escape(error.to_string().as_bytes()))?;
        let kind = manifest.media_type.as_deref().unwrap_or_default();
        if manifest.manifests.is_some() || INDEXES.contains(&kind) {
            return Err("it is an index of several images; name one of them by its digest".to_owned());
        }
        if manifest.layers.len() > MAX_LAYERS {
            return Err(format!("it has over {MAX_LAYERS} layers"));
        }
        Ok(manifest)
    }

    /// The layer that contains the files.
    pub(super) fn layer(&self, selection: &Selection) -> Result<&Layer, String> {
        let kinds = || {
            let mut kinds: Vec<_> = self
                .layers
                .iter()
                .map(|layer| escape(layer.media_type.as_bytes()))
                .collect();
            kinds.dedup();
            kinds.truncate(5);
            if kinds.is_empty() {
                "it has no layers".to_owned()
            } else {
                format!("it has layers of {}", kinds.join(", "))
            }
        };
        let found = match &selection.media_type {
            Some(kind) => self.layers.iter().find(|layer| layer.media_type == *kind),
            // A chart's provenance may precede it.
            None => self
                .layers
                .iter()
                .find(|layer| layer.media_type == super::CHART_LAYER)
                .or(self.layers.first()),
        };
        found.ok_or_else(|| match &selection.media_type {
            Some(kind) => format!("it has no layer of {}; {}", escape(kind.as_bytes()), kinds()),
            None => kinds(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(kind: &str) -> String {
        format!(r#"{{"mediaType":"{kind}","digest":"{}","size":3}}"#, Digest::of(kind))
    }

    #[test]
    fn a_layer_is_chosen_by_its_media_type() {
        let text = format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"{CHART_CONFIG}"}},"layers":[{},{}]}}"#,
            layer("application/vnd.cncf.helm.chart.provenance.v1.prov"),
            layer(CHART_LAYER)
        );
        let manifest = Manifest::parse(text.as_bytes()).unwrap();
        let choose = |kind: Option<&str>| {
            let selection = Selection {
                media_type: kind.map(str::to_owned),
                copies: false,
            };
            manifest.layer(&selection).map(|layer| layer.digest)
        };
        assert_eq!(choose(None), Ok(Digest::of(CHART_LAYER)));
        assert_eq!(choose(Some(CHART_LAYER)), Ok(Digest::of(CHART_LAYER)));
        assert!(
            choose(Some("x"))
                .unwrap_err()
                .starts_with("it has no layer of x; it has layers of")
        );
    }

    #[test]
    fn hostile_manifests_are_errors() {
        let many = format!(r#"{{"layers":[{}]}}"#, vec![layer("x"); MAX_LAYERS + 1].join(","));
        for text in [
            "",
            "[]",
            "null",
            "{",
            "\u{0}",
            r#"{"layers":{}}"#,
            r#"{"layers":[{}]}"#,
            r#"{"layers":[{"digest":"sha256:x"}]}"#,
            r#"{"layers":[{"digest":"sha512:00"}]}"#,
            r#"{"layers":[{"digest":"../../etc"}]}"#,
            r#"{"config":1}"#,
            r#"{"manifests":[]}"#,
            r#"{"mediaType":"application/vnd.oci.image.index.v1+json"}"#,
            r#"{"layers":[{"digest":1}]}"#,
            r#"{"mediaType":"application/vnd.docker.distribution.manifest.list.v2+json"}"#,
            &many,
            &"[".repeat(100_000),
        ] {
            let error = Manifest::parse(text.as_bytes()).unwrap_err();
            assert!(!error.contains(char::is_control), "{error:?}");
        }
        let empty = Manifest::parse(b"{}").unwrap();
        assert_eq!(empty.layer(&Selection::default()).unwrap_err(), "it has no layers");
    }
}
