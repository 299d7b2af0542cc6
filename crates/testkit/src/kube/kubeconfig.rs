//! The kubeconfig of a plane, with one cluster and one context per user.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{ADMIN, Plane, flags::Settings};

/// Written as JSON, which is valid YAML. Contains no paths, so that it can be copied.
pub(super) fn write(path: &Path, settings: &Settings) -> Result<()> {
    let ca = fs::read(settings.ca()).context("read the server's CA")?;
    let users = settings
        .tokens
        .iter()
        .map(|(user, token)| json!({"name": user, "user": {"token": token}}));
    let contexts = settings
        .tokens
        .iter()
        .map(|(user, _)| json!({"name": user, "context": {"cluster": "plane", "user": user, "namespace": "default"}}));
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "plane",
            "cluster": {"server": settings.url(), "certificate-authority-data": STANDARD.encode(ca)},
        }],
        "users": users.collect::<Vec<_>>(),
        "contexts": contexts.collect::<Vec<_>>(),
        "current-context": ADMIN,
    });
    save(path, &config)
}

impl Plane {
    /// A kubeconfig for a program that uses the current context: as one of [`super::USERS`] or [`super::AUDITED`].
    pub fn kubeconfig_of(&self, user: &str) -> Result<PathBuf> {
        let text = fs::read(&self.kubeconfig).with_context(|| format!("read {}", self.kubeconfig.display()))?;
        let mut config: Value = serde_json::from_slice(&text)?;
        config["current-context"] = user.into();
        let path = self.kubeconfig.with_file_name(format!("kubeconfig-{user}"));
        save(&path, &config)?;
        Ok(path)
    }
}

fn save(path: &Path, config: &Value) -> Result<()> {
    let text = serde_json::to_vec_pretty(config)?;
    let file = fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    file.and_then(|mut file| file.write_all(&text))
        .with_context(|| format!("write {}", path.display()))
}
