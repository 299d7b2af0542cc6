//! Vault as a backend of secrets: with a token, and with a role for which the hub gets its own token.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};
use farwater_api::ADMIN_NAMESPACE;
use farwater_e2e::Fleet;
use farwater_testkit::Vault;
use serde_json::{Value, json};

use super::canary::{Marks, right, values, wrong};

/// Length of the common prefix of tokens that Vault creates.
const BEGINNING: usize = 9;

pub struct Vaults {
    folder: tempfile::TempDir,
    vault: Vault,
    role: String,
}

/// A token for Vault, which accepts no dots in a chosen one.
fn token(text: &str) -> String {
    text.replace('.', "-")
}

impl Vaults {
    pub async fn start(marks: &mut Marks) -> Result<Self> {
        let vault = Vault::start().await?;
        vault
            .put("sys/mounts/kv", &json!({"type": "kv", "options": {"version": "2"}}))
            .await?;
        let policy = "path \"kv/data/*\" { capabilities = [\"read\"] }";
        vault.put("sys/policies/acl/reader", &json!({"policy": policy})).await?;
        for input in ["vault", "role"] {
            vault
                .put(&format!("kv/data/team/{input}"), &json!({"data": values(input)}))
                .await?;
        }
        let chosen = json!({"id": token(&right("vault-token")), "policies": ["reader"], "period": "1h"});
        vault.put("auth/token/create", &chosen).await?;
        vault.put("sys/auth/approle", &json!({"type": "approle"})).await?;
        vault
            .put(
                "auth/approle/role/hub",
                &json!({"token_policies": ["reader"], "token_ttl": "1h"}),
            )
            .await?;
        vault
            .put(
                "auth/approle/role/hub/custom-secret-id",
                &json!({"secret_id": right("secret-id")}),
            )
            .await?;
        let role = vault.get("auth/approle/role/hub/role-id").await?;
        let role = role["data"]["role_id"].as_str().context("a role has an id")?.to_owned();
        let signed = json!({"role_id": role, "secret_id": right("secret-id")});
        let signed = vault.put("auth/approle/login", &signed).await?;
        let minted = signed["auth"]["client_token"].as_str().context("a token")?;
        marks.add(minted.get(..BEGINNING).context("a token")?);
        let all = Self {
            folder: tempfile::tempdir()?,
            vault,
            role,
        };
        all.hand(wrong)?;
        Ok(all)
    }

    /// Sets the hub's credentials from now on.
    fn hand(&self, which: fn(&str) -> String) -> Result<()> {
        fs::write(self.path("token"), token(&which("vault-token")))?;
        Ok(fs::write(self.path("secret-id"), which("secret-id"))?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The hub's configuration for both.
    pub fn configuration(&self) -> Result<PathBuf> {
        let of = |name: &str, auth: Value| {
            let (address, authority) = (self.vault.url(), self.vault.ca_file());
            let vault = json!({"address": address, "caFile": authority, "mounts": {"kv": 2}, "auth": auth});
            json!({"name": name, "vault": vault, "allow": [{"namespaces": [ADMIN_NAMESPACE], "paths": ["kv/team"]}]})
        };
        let backends = [
            of("by-token", json!({"token": {"file": self.path("token")}})),
            of(
                "by-role",
                json!({"appRole": {"roleId": self.role, "secretIdFile": self.path("secret-id")}}),
            ),
        ];
        let path = self.path("backends.yaml");
        fs::write(&path, json!({"refreshSeconds": 10, "backends": backends}).to_string())?;
        Ok(path)
    }

    /// Checks that a service gets the values once Vault accepts the hub.
    pub async fn sign_in(&self, fleet: &Fleet, marks: &Marks, service: &str) -> Result<()> {
        let waits = fleet.until_condition(service, "Ready", "False", "Vault").await?;
        marks.check(service, &serde_json::to_string(&waits)?)?;
        self.hand(right)
    }

    /// The credentials are revoked, and then Vault is stopped.
    pub async fn refuse(&mut self, fleet: &Fleet, marks: &Marks, service: &str) -> Result<()> {
        self.hand(wrong)?;
        self.vault
            .put("sys/leases/revoke-prefix/auth/approle", &json!({}))
            .await?;
        let refused = fleet.until_condition(service, "SecretsStale", "True", "Vault").await?;
        marks.check(service, &serde_json::to_string(&refused)?)?;
        self.vault.kill();
        fleet
            .until_condition(service, "SecretsStale", "True", "Vault can't be reached")
            .await?;
        Ok(())
    }
}

/// Spec fields of a service that gets the values.
pub fn parameters() -> Value {
    let from = |path: &str, backend: &str| json!({"from": {"secret": path, "backend": backend}});
    json!([from("kv/team/vault", "by-token"), from("kv/team/role", "by-role")])
}
