//! The interface of every place that holds values of secrets.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// Values that one reference may have.
pub const MAX_VALUES: usize = 256;
/// Names and values of one reference together: as much as a service's Secrets may have on their way.
pub const MAX_VALUES_BYTES: usize = 384 << 10;

/// What is read, at a backend that is chosen already.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// Of the object that names it: what this namespace may read decides the hub's configuration.
    pub namespace: String,
    /// Where: a folder, a secret of Vault with its mount, what a program understands.
    pub path: String,
}

impl Reference {
    /// The same for the same reference to the same backend, and short.
    pub fn id(&self, backend: &str) -> String {
        let mut hash = Sha256::new();
        for part in [backend, &self.namespace, &self.path] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hex::encode(hash.finalize())
    }
}

/// Bytes that nobody prints, and that are wiped when they are dropped.
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

/// By their names, in order, each once.
pub type Values = Vec<(String, SecretBytes)>;

/// Whether asking again helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// The backend has answered: nothing changes until somebody changes something, here or there.
    Lasting,
    /// The backend can't be asked now; it is likely to come back by itself.
    Passing,
}

/// Why a reference has no values. The text names places and never a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct BackendError {
    pub outlook: Outlook,
    problem: String,
    /// How long the backend wants to be left alone.
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
    /// All values of a reference, in order, or an error: never a smaller set. The caller bounds the time.
    async fn read(&self, reference: &Reference) -> Result<Values, BackendError>;
}

/// Holds an answer to the limits.
pub(crate) fn check_size(reference: &Reference, values: &Values) -> Result<(), BackendError> {
    let bytes: usize = values
        .iter()
        .map(|(name, value)| name.len() + value.expose().len())
        .sum();
    let path = &reference.path;
    if values.len() > MAX_VALUES {
        let problem = format!(
            "{path} has {} values; at most {MAX_VALUES} are read of one",
            values.len()
        );
        return Err(BackendError::lasting(problem));
    }
    if bytes > MAX_VALUES_BYTES {
        let problem = format!("{path} has {bytes} bytes; at most {MAX_VALUES_BYTES} are read of one");
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
