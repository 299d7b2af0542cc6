//! Renders of charts that generate passwords, certificates or names. They are generated once for each version of a
//! service.
//!
//! Rendered again, with another cache, another definition in the cluster or a lost state folder, such a chart would
//! give a running database another password. So its render is stored in a Secret in the agent's namespace, and only
//! another version or other parameters cause a new render.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use farwater_api::{Digest, protocol::Deployment};
use farwater_bundle::Archive;
use farwater_fleet::{
    ownership::service_label,
    plan::{Render, RenderedObject},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    kubernetes::{ApiError, Kubernetes},
    secrets::{self, Held, MAX_BYTES, compress},
    sync::lock,
};

const PURPOSE: &str = "rendered";
/// Most bytes of a decompressed render.
const MAX_UNPACKED: usize = 64 << 20;
/// Template functions with random results. The render of a template that only mentions one of these names is stored
/// too; such a template sees new capabilities of its cluster at its next version.
const MADE_UP: [&str; 14] = [
    "randAlpha",
    "randNumeric",
    "randAscii",
    "randBytes",
    "randInt",
    "genPrivateKey",
    "genCA",
    "genSelfSigned",
    "genSigned",
    "uuidv4",
    "htpasswd",
    "encryptAES",
    "bcrypt",
    "shuffle",
];

/// The stored renders by the uid of the service, as last read or written.
#[derive(Default)]
pub struct KeptRenders(Mutex<BTreeMap<String, Packed>>);

/// A render's key, and its bytes.
type Packed = (Digest, Arc<Vec<u8>>);

#[derive(Serialize, Deserialize)]
struct Kept {
    key: Digest,
    /// Origins and manifests.
    objects: Vec<(String, Value)>,
}

/// A digest of a render's inputs, without those from the cluster. None: its charts generate nothing, or look up in the
/// cluster what they generated before.
pub fn key_of(archive: &Archive, deployment: &Deployment, parameters: &Map<String, Value>) -> Option<Digest> {
    let looks_up = deployment
        .renderers
        .iter()
        .any(|renderer| renderer.helm.as_ref().is_some_and(|helm| helm.lookup));
    let mut files = archive.files();
    let is_made_up = !looks_up
        && files.any(|(path, text)| match path.as_str() {
            // The agent unpacks no charts, so an archive counts as a chart that generates values.
            path if path.ends_with(".tgz") => path.contains("charts/"),
            path => path.contains("templates/") && makes_up(text),
        });
    is_made_up.then(|| {
        Digest::of_json(&json!([
            archive.digest(),
            deployment.path,
            deployment.renderers,
            deployment.patches,
            deployment.target_namespace,
            parameters,
        ]))
    })
}

fn makes_up(text: &[u8]) -> bool {
    MADE_UP
        .iter()
        .any(|name| text.windows(name.len()).any(|part| part == name.as_bytes()))
}

impl KeptRenders {
    /// The stored render of exactly this version. None: it is not stored.
    pub async fn find(&self, kubernetes: &Kubernetes, uid: &str, key: Digest) -> Result<Option<Render>, ApiError> {
        let known = lock(&self.0)
            .get(uid)
            .filter(|(known, _)| *known == key)
            .map(|(_, bytes)| Arc::clone(bytes));
        let bytes = match known {
            Some(bytes) => bytes,
            None => match secrets::load(kubernetes, &name(uid)).await? {
                Some(bytes) => Arc::new(bytes),
                None => return Ok(None),
            },
        };
        let text = zstd::bulk::decompress(&bytes, MAX_UNPACKED).ok();
        let Some(kept) = text.and_then(|text| serde_json::from_slice::<Kept>(&text).ok()) else {
            tracing::warn!(
                uid,
                secret = name(uid),
                "the kept render is damaged: the chart generates its values again"
            );
            return Ok(None);
        };
        if kept.key != key {
            return Ok(None);
        }
        lock(&self.0).insert(uid.to_owned(), (key, bytes));
        let objects = kept
            .objects
            .into_iter()
            .map(|(origin, manifest)| RenderedObject { manifest, origin });
        Ok(Some(Render {
            objects: objects.collect(),
            errors: Vec::new(),
        }))
    }

    /// Stores a render before any of it is applied.
    pub async fn keep(&self, kubernetes: &Kubernetes, uid: &str, key: Digest, render: &Render) -> Result<(), ApiError> {
        let objects = render
            .objects
            .iter()
            .map(|object| (object.origin.clone(), object.manifest.clone()));
        let unusable = |error: &dyn std::fmt::Display| ApiError::Unusable(format!("keep the render: {error}"));
        let text = serde_json::to_vec(&Kept {
            key,
            objects: objects.collect(),
        })
        .map_err(|error| unusable(&error))?;
        let bytes = compress(&text).map_err(|error| unusable(&error))?;
        if bytes.len() > MAX_BYTES || text.len() > MAX_UNPACKED {
            let limit = MAX_BYTES;
            tracing::warn!(
                uid,
                bytes = bytes.len(),
                limit,
                "a render is too large to be kept: its generated values change with each render"
            );
            return Ok(());
        }
        let held = if lock(&self.0).contains_key(uid) {
            Held::Already
        } else {
            Held::NotYet
        };
        secrets::save(kubernetes, PURPOSE, &name(uid), &bytes, held).await?;
        lock(&self.0).insert(uid.to_owned(), (key, Arc::new(bytes)));
        Ok(())
    }

    /// Deletes the render of a service that is gone.
    pub async fn discard(&self, kubernetes: &Kubernetes, uid: &str) -> Result<(), ApiError> {
        lock(&self.0).remove(uid);
        match secrets::remove(kubernetes, &name(uid)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

fn name(uid: &str) -> String {
    format!("farwater-rendered-{}", service_label(uid))
}
