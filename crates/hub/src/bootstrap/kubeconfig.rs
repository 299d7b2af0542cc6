//! `admin.kubeconfig`: the administrator's way in.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::ADMIN_NAMESPACE;
use farwater_store::StoreError;
use jiff::Timestamp;
use serde_json::Value;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::{
    auth::{Access, TokenError},
    identity::{DataDir, FileError, Identity, write_private},
};

const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, Error)]
pub enum KubeconfigError {
    #[error("read {path}")]
    Read { path: String, source: std::io::Error },
    #[error("read {path}: {problem}; remove the file to have one made with a new token")]
    Parse { path: String, problem: String },
    #[error(transparent)]
    Write(#[from] FileError),
    #[error("make the administrator's token")]
    Token(#[from] TokenError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Writes the administrator's kubeconfig if it is missing, and updates its address and authority if they have changed.
/// Its token is kept; a token that the store doesn't have is replaced. A removed file gets a new token, and the old
/// token stays valid, because the file may have been moved to where it is used.
pub async fn ensure_admin_kubeconfig(
    data: &DataDir,
    identity: &Identity,
    access: &Access,
    url: &str,
    now: Timestamp,
) -> Result<(), KubeconfigError> {
    let path = data.admin_kubeconfig();
    let shown = || path.display().to_string();
    let text = match std::fs::metadata(&path).and_then(|file| match file.len() {
        ..=MAX_BYTES => std::fs::read_to_string(&path),
        size => Err(std::io::Error::new(
            std::io::ErrorKind::FileTooLarge,
            format!("{size} bytes"),
        )),
    }) {
        Ok(text) => Some(Zeroizing::new(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(source) => return Err(KubeconfigError::Read { path: shown(), source }),
    };
    let present = match text {
        Some(text) => {
            let parsed = parse(&text).map_err(|problem| KubeconfigError::Parse { path: shown(), problem })?;
            access.find(&parsed.token).await?.map(|_| parsed)
        }
        None => None,
    };
    let authority = BASE64.encode(identity.ca_pem());
    let token = match present {
        Some(present) if present.server == url && present.authority == authority => return Ok(()),
        Some(present) => present.token,
        None => access.issue_administrator_token(now).await?.token,
    };
    write_private(&path, render(url, &authority, &token).as_bytes())?;
    Ok(())
}

struct Present {
    server: String,
    authority: String,
    token: Zeroizing<String>,
}

fn parse(text: &str) -> Result<Present, String> {
    let config: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let field = |value: &Value, name: &str| {
        value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("its first {name} can't be found"))
    };
    let cluster = &config["clusters"][0]["cluster"];
    Ok(Present {
        server: field(&cluster["server"], "server")?,
        authority: field(&cluster["certificate-authority-data"], "authority")?,
        token: Zeroizing::new(field(&config["users"][0]["user"]["token"], "token")?),
    })
}

/// All values are made by the hub and need no quoting: a URL, base64 and a token.
fn render(url: &str, authority: &str, token: &str) -> Zeroizing<String> {
    Zeroizing::new(format!(
        "apiVersion: v1
kind: Config
current-context: farwater
clusters:
  - name: farwater
    cluster:
      server: {url}
      certificate-authority-data: {authority}
contexts:
  - name: farwater
    context:
      cluster: farwater
      user: farwater-admin
      namespace: {ADMIN_NAMESPACE}
users:
  - name: farwater-admin
    user:
      token: {token}
"
    ))
}
