//! What a service gets from the hub sealed, its Secrets and its parameters: state directory, then cluster, then hub, sealed in each
//! of them.
//!
//! They are opened for an attempt and forgotten after it. What is kept for the time that the hub is away is the ciphertext, which
//! only this agent's key opens.

use std::{fmt, path::PathBuf};

use farwater_api::{
    Digest,
    parameters::Parameters,
    protocol::{Deployment, SealedSecrets, Secrets},
};
use farwater_fleet::{ownership::service_label, plan::RenderedObject};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    bundles::Shelf,
    hub::{Caller, HubClient, HubError, chain},
    identity::{Identity, KeyError, write_private},
    kubernetes::{ApiError, Kubernetes},
    secrets::{self, Held},
};

const PURPOSE: &str = "sealed";

/// What is sealed of a service, each by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Secrets,
    Parameters,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secrets => "Secrets",
            Self::Parameters => "parameters",
        })
    }
}

impl Part {
    const ALL: [Self; 2] = [Self::Secrets, Self::Parameters];

    fn file_name(self, service: &str) -> String {
        match self {
            Self::Secrets => format!("{}.json", service_label(service)),
            Self::Parameters => format!("{}.parameters.json", service_label(service)),
        }
    }

    /// Of the Secret in the agent's namespace.
    fn secret_name(self, service: &str) -> String {
        match self {
            Self::Secrets => format!("farwater-sealed-{}", service_label(service)),
            Self::Parameters => format!("farwater-parameters-{}", service_label(service)),
        }
    }

    fn info(self, identity: &Identity, service: &str, mac: Digest) -> Vec<u8> {
        let (installation, cluster) = (&identity.installation, &identity.cluster.uid);
        match self {
            Self::Secrets => SealedSecrets::info(installation, cluster, service, &mac),
            Self::Parameters => SealedSecrets::info_of_parameters(installation, cluster, service, &mac),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SealedError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("open the service's {0}: they are not sealed to this agent")]
    NotOurs(Part),
    #[error("read the service's {0}")]
    Content(Part, #[source] serde_json::Error),
    #[error("store the service's {0}")]
    Store(Part, #[source] std::io::Error),
    #[error("the service's {0} are not kept here any more")]
    NotKept(Part),
    #[error("remove the service's {0} from the cluster")]
    Remove(Part, #[source] ApiError),
}

/// What is kept of one service: the newest only.
#[derive(Serialize, Deserialize)]
struct Kept {
    mac: Digest,
    sealed: SealedSecrets,
}

/// Where it may be had from, and what becomes of it.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    pub shelf: Shelf,
    pub hub: &'a HubClient,
    pub caller: &'a Caller<'a>,
    pub kubernetes: &'a Kubernetes,
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
        access: Access<'_>,
    ) -> Result<Secrets, SealedError> {
        let opened = self.open_part(Part::Secrets, service, deployment.secrets, access).await?;
        Ok(opened.unwrap_or_default())
    }

    /// The parameters that a deployment names; none where it names none.
    pub async fn open_parameters(
        &self,
        service: &str,
        deployment: &Deployment,
        access: Access<'_>,
    ) -> Result<Option<Parameters>, SealedError> {
        self.open_part(Part::Parameters, service, deployment.parameters, access).await
    }

    async fn open_part<T: DeserializeOwned>(
        &self,
        part: Part,
        service: &str,
        mac: Option<Digest>,
        access: Access<'_>,
    ) -> Result<Option<T>, SealedError> {
        let Access { shelf, caller, kubernetes, .. } = access;
        let Some(mac) = mac else {
            if shelf == Shelf::Kept && self.path(part, service).exists() {
                self.discard_part(part, service, kubernetes).await?;
            }
            return Ok(None);
        };
        let kept = self.open_kept(part, service, mac, caller.identity, kubernetes).await?;
        let (opened, is_former) = match (kept, shelf) {
            (Some(kept), _) => kept,
            (None, Shelf::Kept) => return self.fetch(part, service, mac, access).await.map(Some),
            (None, Shelf::Passing) => return Ok(Some(get(part, service, mac, access).await?.1)),
            (None, Shelf::Nothing) => return Err(SealedError::NotKept(part)),
        };
        if is_former && shelf == Shelf::Kept {
            // Sealed to a key of before: replaced as soon as the hub answers, and good until then.
            if let Err(error) = self.fetch::<T>(part, service, mac, access).await {
                tracing::debug!(error = chain(&error), service, "can't get {part} sealed to the new key yet");
            }
        }
        Ok(Some(opened))
    }

    /// What is kept here or in the cluster, and whether it is sealed to a key of before.
    async fn open_kept<T: DeserializeOwned>(
        &self,
        part: Part,
        service: &str,
        mac: Digest,
        identity: &Identity,
        kubernetes: &Kubernetes,
    ) -> Result<Option<(T, bool)>, SealedError> {
        let path = self.path(part, service);
        let open = |bytes: &[u8]| open_kept(part, bytes, identity, service, mac);
        if let Some(opened) = std::fs::read(&path).ok().and_then(|bytes| open(&bytes)) {
            return Ok(Some(opened));
        }
        if let Ok(Some(bytes)) = secrets::load(kubernetes, &part.secret_name(service)).await
            && let Some(opened) = open(&bytes)
        {
            write_private(&path, &bytes).map_err(|error| SealedError::Store(part, error))?;
            return Ok(Some(opened));
        }
        Ok(None)
    }

    /// From the hub, and kept.
    async fn fetch<T: DeserializeOwned>(
        &self,
        part: Part,
        service: &str,
        mac: Digest,
        access: Access<'_>,
    ) -> Result<T, SealedError> {
        let (kept, opened) = get(part, service, mac, access).await?;
        let bytes = serde_json::to_vec(&kept).map_err(|error| SealedError::Content(part, error))?;
        write_private(&self.path(part, service), &bytes).map_err(|error| SealedError::Store(part, error))?;
        let name = part.secret_name(service);
        if let Err(error) = secrets::save(access.kubernetes, PURPOSE, &name, &bytes, Held::Already).await {
            tracing::warn!(%error, service, "can't keep a service's sealed {part} in the cluster");
        }
        Ok(opened)
    }

    /// Of a service that is gone.
    pub async fn discard(&self, service: &str, kubernetes: &Kubernetes) -> Result<(), SealedError> {
        for part in Part::ALL {
            self.discard_part(part, service, kubernetes).await?;
        }
        Ok(())
    }

    /// Of a service that is gone, or that names none any more.
    async fn discard_part(&self, part: Part, service: &str, kubernetes: &Kubernetes) -> Result<(), SealedError> {
        match std::fs::remove_file(self.path(part, service)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(SealedError::Store(part, error)),
            _ => {}
        }
        match secrets::remove(kubernetes, &part.secret_name(service)).await {
            Err(error) if !error.is_not_found() => Err(SealedError::Remove(part, error)),
            _ => Ok(()),
        }
    }

    fn path(&self, part: Part, service: &str) -> PathBuf {
        self.folder.join(part.file_name(service))
    }
}

/// From the hub, sealed and opened.
async fn get<T: DeserializeOwned>(
    part: Part,
    service: &str,
    mac: Digest,
    Access { hub, caller, .. }: Access<'_>,
) -> Result<(Kept, T), SealedError> {
    let sealed = match part {
        Part::Secrets => hub.secrets(caller, service, mac).await?,
        Part::Parameters => hub.parameters(caller, service, mac).await?,
    };
    let identity = caller.identity;
    let kept = Kept { mac, sealed };
    let opened = identity.keys.open(&kept.sealed, &part.info(identity, service, mac))?;
    let opened = opened.ok_or(SealedError::NotOurs(part))?;
    let content = serde_json::from_slice(&opened.plain).map_err(|error| SealedError::Content(part, error))?;
    Ok((kept, content))
}

/// `None`: of an older version, damaged, or sealed to a key that is gone; there is a better copy elsewhere.
fn open_kept<T: DeserializeOwned>(
    part: Part,
    bytes: &[u8],
    identity: &Identity,
    service: &str,
    mac: Digest,
) -> Option<(T, bool)> {
    let kept: Kept = serde_json::from_slice(bytes).ok()?;
    if kept.mac != mac {
        return None;
    }
    let opened = identity.keys.open(&kept.sealed, &part.info(identity, service, mac)).ok()??;
    Some((serde_json::from_slice(&opened.plain).ok()?, opened.is_former))
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
