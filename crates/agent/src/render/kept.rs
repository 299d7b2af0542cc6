//! What charts make up, such as passwords, certificates and names, is made once for each version of a service.
//!
//! Rendered again, for another cache, another definition in the cluster or a lost state folder, such a chart would give a running database
//! another password. So its render is kept in a Secret of the agent's namespace, and only another version or other parameters render anew.

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
/// Largest render that is read back, once it is unpacked.
const MAX_UNPACKED: usize = 64 << 20;
/// Functions of templates whose results nothing decides. A word that isn't one of them costs a Secret and nothing else.
const MADE_UP: [&str; 12] = [
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
];

/// Renders that are kept, by the services' uids, as they were read or written last.
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

/// What decides about a render, but for what the cluster has; none where nothing in it is made up. What lies packed in a chart isn't read
/// for that.
pub fn key_of(archive: &Archive, deployment: &Deployment, parameters: &Map<String, Value>) -> Option<Digest> {
    let makes_up =
        |text: &[u8]| MADE_UP.iter().any(|name| text.windows(name.len()).any(|part| part == name.as_bytes()));
    let mut files = archive.files();
    files
        .any(|(path, text)| {
            let path = path.as_str();
            path.ends_with(".tgz") || (path.contains("templates/") && makes_up(text))
        })
        .then(|| {
            Digest::of_json(&json!([
                deployment.bundle,
                deployment.path,
                deployment.renderers,
                deployment.patches,
                deployment.target_namespace,
                parameters,
            ]))
        })
}

impl KeptRenders {
    /// The render of this very version, if it is kept.
    pub async fn find(&self, kubernetes: &Kubernetes, uid: &str, key: Digest) -> Result<Option<Render>, ApiError> {
        let known = lock(&self.0).get(uid).filter(|(known, _)| *known == key).map(|(_, bytes)| Arc::clone(bytes));
        let bytes = match known {
            Some(bytes) => bytes,
            None => match secrets::load(kubernetes, &name(uid)).await? {
                Some(bytes) => Arc::new(bytes),
                None => return Ok(None),
            },
        };
        let damaged = || ApiError::Unusable(format!("the render that is kept in Secret {} is damaged", name(uid)));
        let text = zstd::bulk::decompress(&bytes, MAX_UNPACKED).map_err(|_| damaged())?;
        let kept: Kept = serde_json::from_slice(&text).map_err(|_| damaged())?;
        if kept.key != key {
            return Ok(None);
        }
        lock(&self.0).insert(uid.to_owned(), (key, bytes));
        let objects = kept.objects.into_iter().map(|(origin, manifest)| RenderedObject { manifest, origin });
        Ok(Some(Render { objects: objects.collect(), errors: Vec::new() }))
    }

    /// Keeps a render before anything of it is applied.
    pub async fn keep(&self, kubernetes: &Kubernetes, uid: &str, key: Digest, render: &Render) -> Result<(), ApiError> {
        let objects = render.objects.iter().map(|object| (object.origin.clone(), object.manifest.clone()));
        let unusable = |error: &dyn std::fmt::Display| ApiError::Unusable(format!("keep the render: {error}"));
        let text = serde_json::to_vec(&Kept { key, objects: objects.collect() }).map_err(|error| unusable(&error))?;
        let bytes = compress(&text).map_err(|error| unusable(&error))?;
        if bytes.len() > MAX_BYTES {
            let limit = MAX_BYTES;
            tracing::warn!(
                uid,
                bytes = bytes.len(),
                limit,
                "a render is too large to be kept: what it makes up changes when it is rendered again"
            );
            return Ok(());
        }
        let held = if lock(&self.0).contains_key(uid) { Held::Already } else { Held::NotYet };
        secrets::save(kubernetes, PURPOSE, &name(uid), &bytes, held).await?;
        lock(&self.0).insert(uid.to_owned(), (key, Arc::new(bytes)));
        Ok(())
    }

    /// Of a service that is gone.
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
