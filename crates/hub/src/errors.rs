//! Errors as text.

use farwater_sources::{GitError, Retry};
/// An error with its causes, for a log line or a condition.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Why a source can't be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFailure {
    /// Reason of the condition.
    pub reason: &'static str,
    pub message: String,
    /// Whether a person has to change something.
    pub lasting: bool,
}

impl SourceFailure {
    pub fn passing(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            lasting: false,
        }
    }

    pub fn lasting(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            lasting: true,
        }
    }
}

impl From<GitError> for SourceFailure {
    fn from(error: GitError) -> Self {
        let lasting = error.retry() == Retry::AfterChange;
        Self {
            reason: error.reason.code(),
            message: error.to_string(),
            lasting,
        }
    }
}
