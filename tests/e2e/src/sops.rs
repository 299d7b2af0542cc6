//! Files as SOPS encrypts them.

use std::fs;

use anyhow::{Result, ensure};
use farwater_testkit::{Tools, process::bare_command};

use crate::Fleet;

/// Encrypts `data` and `stringData` of a file for one recipient.
pub fn encrypt(recipient: &str, plain: &str) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file.yaml");
    fs::write(&file, plain)?;
    let mut command = bare_command(Tools::find_sops()?.sops());
    command
        .env("HOME", folder.path())
        .args(["--disable-version-check", "encrypt", "--age", recipient]);
    let output = command
        .args(["--encrypted-regex", "^(data|stringData)$"])
        .arg(&file)
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The recipient of a cluster, once its agent has published it.
pub async fn until_age_key(fleet: &Fleet, cluster: &str) -> Result<String> {
    fleet
        .until("the cluster's key to be shown", || async {
            Ok(age_key(fleet, cluster).ok())
        })
        .await
}

pub fn age_key(fleet: &Fleet, cluster: &str) -> Result<String> {
    Ok(fleet
        .cli()
        .expect(0, &["cluster", "age-key", cluster])?
        .stdout
        .trim()
        .to_owned())
}
