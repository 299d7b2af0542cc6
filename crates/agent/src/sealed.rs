//! The Secrets that a service gets from the hub: state directory, then cluster, then hub, sealed in each of them.
//!
//! They are opened for an attempt and forgotten after it. What is kept for the time that the hub is away is the ciphertext, which
//! only this agent's key opens.

use std::path::PathBuf;

use farwater_api::{
    Digest,
    protocol::{Deployment, SealedSecrets, Secrets},
};
use farwater_fleet::{ownership::service_label, plan::RenderedObject};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    bundles::Shelf,
    hub::{Caller, HubClient, HubError, chain},
    identity::{Identity, KeyError, write_private},
    kubernetes::{ApiError, Kubernetes},
    secrets::{self, Held},
};

const PURPOSE: &str = "sealed";

#[derive(Debug, thiserror::Error)]
pub enum SealedError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("open the service's Secrets: they are not sealed to this agent")]
    NotOurs,
    #[error("read the service's Secrets")]
    Content(#[source] serde_json::Error),
    #[error("store the service's Secrets")]
    Store(#[source] std::io::Error),
    #[error("the service's Secrets are not kept here any more")]
    NotKept,
    #[error("remove the service's Secrets from the cluster")]
    Remove(#[source] ApiError),
}

/// What is kept of one service: the newest only.
#[derive(Serialize, Deserialize)]
struct Kept {
    mac: Digest,
    sealed: SealedSecrets,
}

pub struct Sealed {
    folder: PathBuf,
}

impl Sealed {
    /// `folder` exists and only its owner may read it.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The Secrets that a deployment names.
    pub async fn open(
        &self,
        service: &str,
        deployment: &Deployment,
        shelf: Shelf,
        hub: &HubClient,
        caller: &Caller<'_>,
        kubernetes: &Kubernetes,
    ) -> Result<Secrets, SealedError> {
        let path = self.path(service);
        let Some(mac) = deployment.secrets else {
            if shelf == Shelf::Kept && path.exists() {
                self.discard(service, kubernetes).await?;
            }
            return Ok(Secrets::default());
        };
        let kept = self.open_kept(service, mac, caller.identity, kubernetes).await?;
        let (secrets, is_former) = match (kept, shelf) {
            (Some(kept), _) => kept,
            (None, Shelf::Kept) => return self.fetch(service, mac, hub, caller, kubernetes).await,
            (None, Shelf::Passing) => return Ok(get(service, mac, hub, caller).await?.1),
            (None, Shelf::Nothing) => return Err(SealedError::NotKept),
        };
        if is_former && shelf == Shelf::Kept {
            // Sealed to a key of before: replaced as soon as the hub answers, and good until then.
            if let Err(error) = self.fetch(service, mac, hub, caller, kubernetes).await {
                tracing::debug!(error = chain(&error), service, "can't get Secrets sealed to the new key yet");
            }
        }
        Ok(secrets)
    }

    /// What is kept here or in the cluster, and whether it is sealed to a key of before.
    async fn open_kept(
        &self,
        service: &str,
        mac: Digest,
        identity: &Identity,
        kubernetes: &Kubernetes,
    ) -> Result<Option<(Secrets, bool)>, SealedError> {
        let path = self.path(service);
        if let Some(opened) = std::fs::read(&path).ok().and_then(|bytes| open_kept(&bytes, identity, service, mac)) {
            return Ok(Some(opened));
        }
        if let Ok(Some(bytes)) = secrets::load(kubernetes, &secret_name(service)).await
            && let Some(opened) = open_kept(&bytes, identity, service, mac)
        {
            write_private(&path, &bytes).map_err(SealedError::Store)?;
            return Ok(Some(opened));
        }
        Ok(None)
    }

    /// From the hub, and kept.
    async fn fetch(
        &self,
        service: &str,
        mac: Digest,
        hub: &HubClient,
        caller: &Caller<'_>,
        kubernetes: &Kubernetes,
    ) -> Result<Secrets, SealedError> {
        let (kept, secrets) = get(service, mac, hub, caller).await?;
        let bytes = serde_json::to_vec(&kept).map_err(SealedError::Content)?;
        write_private(&self.path(service), &bytes).map_err(SealedError::Store)?;
        if let Err(error) = secrets::save(kubernetes, PURPOSE, &secret_name(service), &bytes, Held::Already).await {
            tracing::warn!(%error, service, "can't keep a service's sealed Secrets in the cluster");
        }
        Ok(secrets)
    }

    /// Of a service that is gone, or that names no Secrets any more.
    pub async fn discard(&self, service: &str, kubernetes: &Kubernetes) -> Result<(), SealedError> {
        match std::fs::remove_file(self.path(service)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(SealedError::Store(error)),
            _ => {}
        }
        match secrets::remove(kubernetes, &secret_name(service)).await {
            Err(error) if !error.is_not_found() => Err(SealedError::Remove(error)),
            _ => Ok(()),
        }
    }

    fn path(&self, service: &str) -> PathBuf {
        self.folder.join(format!("{}.json", service_label(service)))
    }
}

/// From the hub, sealed and opened.
async fn get(service: &str, mac: Digest, hub: &HubClient, caller: &Caller<'_>) -> Result<(Kept, Secrets), SealedError> {
    let identity = caller.identity;
    let kept = Kept { mac, sealed: hub.secrets(caller, service, mac).await? };
    let opened = identity.keys.open(&kept.sealed, &info(identity, service, mac))?.ok_or(SealedError::NotOurs)?;
    let secrets = serde_json::from_slice(&opened.plain).map_err(SealedError::Content)?;
    Ok((kept, secrets))
}

/// `None`: of an older version, damaged, or sealed to a key that is gone; there is a better copy elsewhere.
fn open_kept(bytes: &[u8], identity: &Identity, service: &str, mac: Digest) -> Option<(Secrets, bool)> {
    let kept: Kept = serde_json::from_slice(bytes).ok()?;
    if kept.mac != mac {
        return None;
    }
    let opened = identity.keys.open(&kept.sealed, &info(identity, service, mac)).ok()??;
    Some((serde_json::from_slice(&opened.plain).ok()?, opened.is_former))
}

fn info(identity: &Identity, service: &str, mac: Digest) -> Vec<u8> {
    SealedSecrets::info(&identity.installation, &identity.cluster.uid, service, &mac)
}

fn secret_name(service: &str) -> String {
    format!("farwater-sealed-{}", service_label(service))
}

/// The Secrets as the service's objects, beside those of its bundle.
pub fn render(secrets: Secrets, target_namespace: &str) -> impl Iterator<Item = RenderedObject> {
    let namespace = target_namespace.to_owned();
    secrets.0.into_iter().map(move |(name, value)| RenderedObject {
        origin: format!("Secret {name} of the hub"),
        manifest: json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace},
            "type": value.secret_type,
            "data": value.data,
        }),
    })
}
