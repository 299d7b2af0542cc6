//! The interface of all backends.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// Maximum number of values of one reference.
pub const MAX_VALUES: usize = 256;
/// Maximum size of the names and values of one reference, in bytes: the limit of a service's Secrets on the way to its
/// agent.
pub const MAX_VALUES_BYTES: usize = 384 << 10;

/// A place in a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// Namespace of the object that names the reference. The hub's configuration says what the namespace may read.
    pub namespace: String,
    /// A folder, a secret of Vault with its mount, or a text for a program.
    pub path: String,
}

impl Reference {
    /// Short id of the reference in this backend.
    pub fn id(&self, backend: &str) -> String {
        let mut hash = Sha256::new();
        for part in [backend, &self.namespace, &self.path] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hex::encode(hash.finalize())
    }
}

/// Bytes that are never printed, and are wiped when they are dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Zeroizing<Vec<u8>>);

impl SecretBytes {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(bytes.into()))
    }

    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(…)")
    }
}

/// Values by unique names, in order.
pub type Values = Vec<(String, SecretBytes)>;

/// Whether a retry may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// The backend has answered. A retry fails until a person changes the backend or the configuration.
    Lasting,
    /// The backend is unavailable, and a retry may succeed.
    Passing,
}

/// Why a reference has no values. The text names places and never a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct BackendError {
    pub outlook: Outlook,
    problem: String,
    /// Pause that the backend asks for. None: it asks for none.
    pub retry_after: Option<Duration>,
}

impl BackendError {
    pub fn lasting(problem: impl Into<String>) -> Self {
        Self {
            outlook: Outlook::Lasting,
            problem: shorten(problem.into()),
            retry_after: None,
        }
    }

    pub fn passing(problem: impl Into<String>) -> Self {
        Self {
            outlook: Outlook::Passing,
            problem: shorten(problem.into()),
            retry_after: None,
        }
    }

    pub(crate) fn after(self, retry_after: Option<Duration>) -> Self {
        Self { retry_after, ..self }
    }

    pub fn is_passing(&self) -> bool {
        self.outlook == Outlook::Passing
    }
}

fn shorten(text: String) -> String {
    const LONGEST: usize = 300;
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// One place that holds values.
#[async_trait]
pub trait Backend: Send + Sync {
    /// All values of a reference, in order, or an error; never some of them. The caller limits the time.
    async fn read(&self, reference: &Reference) -> Result<Values, BackendError>;
}

/// Checks the number and size of the values.
pub(crate) fn check_size(reference: &Reference, values: &Values) -> Result<(), BackendError> {
    let bytes: usize = values
        .iter()
        .map(|(name, value)| name.len() + value.expose().len())
        .sum();
    let path = &reference.path;
    if values.len() > MAX_VALUES {
        let problem = format!("{path} has {} values; the maximum is {MAX_VALUES}", values.len());
        return Err(BackendError::lasting(problem));
    }
    if bytes > MAX_VALUES_BYTES {
        let problem = format!("{path} has {bytes} bytes; the maximum is {MAX_VALUES_BYTES}");
        return Err(BackendError::lasting(problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_an_error_and_never_a_smaller_set() {
        let reference = Reference {
            path: "kv/web".into(),
            ..Reference::default()
        };
        let value = |bytes: usize| SecretBytes::new(vec![0; bytes]);
        let many = |count: usize| (0..count).map(|n| (n.to_string(), value(1))).collect::<Values>();
        assert!(check_size(&reference, &many(MAX_VALUES)).is_ok());
        assert!(
            check_size(&reference, &many(MAX_VALUES + 1))
                .unwrap_err()
                .to_string()
                .contains("257 values")
        );
        let large = vec![("a".to_owned(), value(MAX_VALUES_BYTES))];
        let error = check_size(&reference, &large).unwrap_err();
        assert!(!error.is_passing() && error.to_string().contains("bytes"), "{error}");
    }

    #[test]
    fn references_have_ids_of_their_own() {
        let id = |backend: &str, namespace: &str, path: &str| {
            Reference {
                namespace: namespace.into(),
                path: path.into(),
            }
            .id(backend)
        };
        assert_eq!(id("a", "b", "c"), id("a", "b", "c"));
        for other in [id("ab", "", "c"), id("a", "bc", ""), id("", "ab", "c")] {
            assert_ne!(other, id("a", "b", "c"));
        }
    }

    #[test]
    fn a_value_is_not_printed() {
        assert_eq!(format!("{:?}", SecretBytes::new("hunter2")), "SecretBytes(…)");
    }
}
