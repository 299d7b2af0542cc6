//! Secrets of the cluster itself, as parameters of a service: read as the service's account and in its target
//! namespace, so that a service gets nothing that its pods could not mount.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::{
    parameters::{MAX_PARAMETERS_BYTES, Parameters},
    protocol::{Deployment, MAX_SECRET_BYTES, ServiceAccount},
};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::kubernetes::{ApiError, Kubernetes, escape};

/// Keys with their values, sorted.
pub type Values = Vec<(String, Zeroizing<Vec<u8>>)>;

/// Why a Secret can't be used. Contains no value.
#[derive(Debug, thiserror::Error)]
pub enum ClusterSecretError {
    #[error("Secret {name} does not exist in namespace {namespace} of the cluster")]
    Missing { namespace: String, name: String },
    #[error("Secret {name} of the cluster has no key {key}")]
    Key { name: String, key: String },
    #[error("Secret {name} of the cluster: key {key} holds bytes that are no text (UTF-8)")]
    NotText { name: String, key: String },
    #[error("Secret {name} of the cluster has {bytes} bytes; at most {MAX_SECRET_BYTES} are taken: name the keys")]
    TooLarge { name: String, bytes: usize },
    #[error("the service is handed {bytes} bytes of Secrets of the cluster; at most {MAX_PARAMETERS_BYTES} are taken")]
    TooMuch { bytes: usize },
    #[error("read Secret {name} in namespace {namespace} of the cluster")]
    Read {
        namespace: String,
        name: String,
        source: Box<ApiError>,
    },
}

/// Adds values from the cluster's Secrets to a service's parameters.
pub async fn fill(
    kubernetes: &Kubernetes,
    deployment: &Deployment,
    parameters: &mut Parameters,
) -> Result<(), ClusterSecretError> {
    let mut wanted: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for from in std::mem::take(&mut parameters.from_cluster) {
        wanted.entry(from.secret).or_default().push((from.key, from.name));
    }
    let mut bytes = 0;
    for (secret, picked) in wanted {
        let keys: Vec<String> = picked.iter().map(|(key, _)| key.clone()).collect();
        let place = (deployment.target_namespace.as_str(), secret.as_str());
        let values: BTreeMap<String, Zeroizing<Vec<u8>>> =
            read(kubernetes, &deployment.ceiling.service_account, place, &keys)
                .await?
                .into_iter()
                .collect();
        for (key, name) in picked {
            let text = values.get(&key).and_then(|value| std::str::from_utf8(value).ok());
            let text = text.ok_or_else(|| ClusterSecretError::NotText {
                name: secret.clone(),
                key,
            })?;
            bytes += text.len();
            if bytes > MAX_PARAMETERS_BYTES {
                return Err(ClusterSecretError::TooMuch { bytes });
            }
            parameters.fill(&name, text.to_owned());
        }
    }
    Ok(())
}

/// The values of `keys`. No keys: all values.
pub async fn read(
    kubernetes: &Kubernetes,
    account: &ServiceAccount,
    (namespace, name): (&str, &str),
    keys: &[String],
) -> Result<Values, ClusterSecretError> {
    let path = format!("/api/v1/namespaces/{}/secrets/{}", escape(namespace), escape(name));
    match kubernetes.get(Some(account), &path, false).await {
        Ok(secret) => pick(&secret, name, keys),
        Err(error) if error.is_not_found() => Err(ClusterSecretError::Missing {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        Err(source) => Err(ClusterSecretError::Read {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            source: Box::new(source),
        }),
    }
}

/// Picks the keys. A missing key is an error, never a smaller set.
fn pick(secret: &Value, name: &str, keys: &[String]) -> Result<Values, ClusterSecretError> {
    let data = secret["data"].as_object();
    let missing = keys.iter().find(|key| data.is_none_or(|data| !data.contains_key(*key)));
    if let Some(key) = missing {
        return Err(ClusterSecretError::Key {
            name: name.to_owned(),
            key: key.clone(),
        });
    }
    let wanted = data
        .into_iter()
        .flatten()
        .filter(|(key, _)| keys.is_empty() || keys.contains(key));
    let values: Values = wanted
        .map(|(key, value)| {
            (
                key.clone(),
                STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default(),
            )
        })
        .map(|(key, value)| (key, Zeroizing::new(value)))
        .collect();
    let bytes: usize = values.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_SECRET_BYTES {
        return Err(ClusterSecretError::TooLarge {
            name: name.to_owned(),
            bytes,
        });
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(secret: &Value, keys: &[&str], expected: Result<&[(&str, &[u8])], &str>) {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let found = pick(secret, "db", &keys);
        match (found, expected) {
            (Ok(values), Ok(expected)) => {
                let values: Vec<_> = values
                    .iter()
                    .map(|(key, value)| (key.as_str(), value.as_slice()))
                    .collect();
                assert_eq!(values, expected);
            }
            (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected),
            (found, expected) => panic!("{:?} is not {expected:?}", found.map(|values| values.len())),
        }
    }

    #[test]
    fn named_keys_are_taken_and_a_missing_one_is_an_error() {
        let secret = json!({"data": {"user": "YWRtaW4=", "password": "aHVudGVyMg==", "empty": ""}});
        check(
            &secret,
            &[],
            Ok(&[("empty", b""), ("password", b"hunter2"), ("user", b"admin")]),
        );
        check(&secret, &["user"], Ok(&[("user", b"admin")]));
        check(
            &secret,
            &["user", "port"],
            Err("Secret db of the cluster has no key port"),
        );
        check(&json!({}), &["user"], Err("Secret db of the cluster has no key user"));
        check(&json!({}), &[], Ok(&[]));
        let large = json!({"data": {"a": STANDARD.encode(vec![0; MAX_SECRET_BYTES])}});
        let problem = "Secret db of the cluster has 393217 bytes; at most 393216 are taken: name the keys";
        check(&large, &[], Err(problem));
    }
}
