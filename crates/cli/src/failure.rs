//! The message of a command that fails: one sentence with the cause, one line of evidence, and one line with the next
//! step.

use std::{error::Error as _, io, path::Path};

use farwater_api::refusal;

use crate::{exit, text};

#[derive(Clone, Debug)]
pub struct Failure {
    pub code: u8,
    pub cause: String,
    pub evidence: Option<String>,
    pub next: Option<String>,
    /// The object that made the refused one, as arguments: `serviceset/web -n team-a`. None: the hub named none.
    pub owner: Option<String>,
}

pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub fn new(code: u8, cause: impl Into<String>) -> Self {
        Self {
            code,
            cause: cause.into(),
            evidence: None,
            next: None,
            owner: None,
        }
    }

    pub fn usage(cause: impl Into<String>) -> Self {
        Self::new(exit::USAGE, cause)
    }

    pub fn evidence(mut self, line: impl Into<String>) -> Self {
        self.evidence = Some(line.into());
        self
    }

    pub fn next(mut self, line: impl Into<String>) -> Self {
        self.next = Some(line.into());
        self
    }

    pub fn file(action: &str, path: &Path, source: &io::Error) -> Self {
        Self::usage(format!("can't {action} {}", path.display())).evidence(source.to_string())
    }

    /// A failed request. `attempt` is what the command tried to do; the error gives the cause.
    pub fn request(attempt: &str, server: &str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::refused(attempt, status),
            kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
                unreachable_hub(attempt, server, &root_cause(error))
            }
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => Self::new(
                exit::UNREACHABLE,
                format!("can't {attempt}: {server} does not answer as a hub"),
            )
            .evidence(root_cause(error))
            .next("check the address: is it a Farwater hub?"),
            other => Self::new(exit::INTERNAL, format!("can't {attempt}")).evidence(root_cause(other)),
        }
    }

    fn refused(attempt: &str, status: &kube::core::Status) -> Self {
        let message = if status.message.is_empty() {
            status.reason.clone()
        } else {
            status.message.clone()
        };
        let failure = |code| Self::new(code, format!("can't {attempt}")).evidence(message.clone());
        match status.code {
            401 => Self::new(
                exit::DENIED,
                format!("can't {attempt}: the hub does not accept your token"),
            )
            .evidence(message.clone())
            .next("{program} login URL --token-file FILE"),
            403 => Self::forbidden(status, failure),
            // If an object is missing, the hub names it. Without a name, the hub doesn't know the path.
            404 if status.details.as_ref().is_some_and(|details| !details.name.is_empty()) => failure(exit::MISSING),
            404 => Self::new(
                exit::UNREACHABLE,
                format!("can't {attempt}: the hub does not serve this"),
            )
            .evidence(message.clone())
            .next("check the address and the hub's version: {program} version"),
            400 | 405 | 409 | 410 | 413 | 415 | 422 => failure(exit::CONFLICT),
            429 | 500..=599 => failure(exit::UNREACHABLE).next("try again; if it stays so, read the hub's log"),
            _ => failure(exit::INTERNAL),
        }
    }

    /// Of all refusals with this status, only a missing right depends on who the user is. The others have causes.
    fn forbidden(status: &kube::core::Status, failure: impl Fn(u8) -> Self) -> Self {
        for cause in status.details.iter().flat_map(|details| &details.causes) {
            let what = &cause.message;
            match cause.reason.as_str() {
                refusal::OWNED => {
                    let next = format!("{{program}} get {what} -o yaml # this one decides about it");
                    return Self {
                        owner: Some(what.clone()),
                        ..failure(exit::CONFLICT).next(next)
                    };
                }
                refusal::NOT_GRANTED => {
                    let next = format!("{{program}} get clusters -n {what} # those that are granted");
                    return failure(exit::DENIED).next(next);
                }
                refusal::GRANT_EXCEEDED => {
                    let next = format!("{{program}} get clustergrants {what} -o yaml # an administrator can change it");
                    return failure(exit::DENIED).next(next);
                }
                refusal::NOT_PROPOSED => {
                    let next = "add --propose; then another person gives the command without it";
                    return failure(exit::DENIED).next(next);
                }
                _ => {}
            }
        }
        failure(exit::DENIED).next("{program} version # shows who you are")
    }

    pub fn is_missing(&self) -> bool {
        self.code == exit::MISSING
    }

    pub fn is_denied(&self) -> bool {
        self.code == exit::DENIED
    }

    /// The message for standard error. Control characters are removed from texts of servers.
    pub fn render(&self, program: &str) -> String {
        let mut lines = format!("{program}: {}\n", text::plain(&self.cause));
        if let Some(evidence) = &self.evidence {
            lines += &format!("  {}\n", text::plain(evidence));
        }
        if let Some(next) = &self.next {
            lines += &format!("  next: {}\n", text::plain(&next.replace("{program}", program)));
        }
        lines
    }
}

fn unreachable_hub(attempt: &str, server: &str, root: &str) -> Failure {
    let failure = Failure::new(
        exit::UNREACHABLE,
        format!("can't {attempt}: the hub at {server} can't be reached"),
    )
    .evidence(root);
    let lower = root.to_lowercase();
    if lower.contains("certificate") || lower.contains("unknownissuer") || lower.contains("unknown issuer") {
        failure.next("give the hub's own authority: {program} login URL --token-file FILE --ca DATA-DIR/keys/ca.crt")
    } else {
        failure.next("is it running? {program} hub --data-dir DIR --listen ADDR")
    }
}

/// The message of an error followed by those of its causes. A cause is left out if the text so far ends with it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let said = inner.to_string();
        if !text.ends_with(&said) {
            text += &format!(": {said}");
        }
        source = inner.source();
    }
    text
}

/// The innermost error says what happened. The errors around it repeat each other.
fn root_cause(error: &kube::Error) -> String {
    let mut root = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        root = inner.to_string();
        source = inner.source();
    }
    root
}

/// The known name that is most similar to the given one. None: none is similar enough.
pub fn suggest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::normalized_damerau_levenshtein(given, name), name))
        // With three letters, one swap still counts as a typo. Names that share only half of their letters are
        // different words.
        .filter(|(score, _)| *score > 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_recognised_and_strangers_are_not() {
        assert_eq!(suggest("clsuters", ["clusters", "gitrepositories"]), Some("clusters"));
        assert_eq!(suggest("wbe", ["web", "database"]), Some("web"));
        assert_eq!(suggest("payments", ["web", "database"]), None);
    }

    #[test]
    fn a_cause_is_said_once() {
        #[derive(Debug, thiserror::Error)]
        enum Outer {
            #[error("app: {source}")]
            Repeats { source: std::fmt::Error },
            #[error("app")]
            Silent { source: std::fmt::Error },
        }
        let cause = std::fmt::Error.to_string();
        for error in [
            Outer::Repeats {
                source: std::fmt::Error,
            },
            Outer::Silent {
                source: std::fmt::Error,
            },
        ] {
            assert_eq!(chain(&error), format!("app: {cause}"));
        }
    }

    #[test]
    fn the_next_step_of_a_refusal_depends_on_its_cause() {
        let refused = |causes: serde_json::Value| {
            let status = serde_json::json!({
                "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no", "metadata": {},
                "details": {"name": "web", "kind": "servicedeployments", "causes": causes},
            });
            let status: kube::core::Status = serde_json::from_value(status).unwrap();
            Failure::request("change web", "https://hub", &kube::Error::Api(Box::new(status)))
        };
        let check = |reason: &str, what: &str, code: u8, next: &str| {
            let failure = refused(serde_json::json!([{"reason": reason, "message": what}]));
            assert_eq!((failure.code, failure.next.as_deref()), (code, Some(next)), "{reason}");
            failure.owner
        };
        let version = "{program} version # shows who you are";
        assert_eq!(refused(serde_json::json!([])).next.as_deref(), Some(version));
        check("NamespaceTerminating", "gone", exit::DENIED, version);
        let clusters = "{program} get clusters -n team-a # those that are granted";
        check(refusal::NOT_GRANTED, "team-a", exit::DENIED, clusters);
        let grant = "{program} get clustergrants prod -o yaml # an administrator can change it";
        check(refusal::GRANT_EXCEEDED, "prod", exit::DENIED, grant);
        let propose = "add --propose; then another person gives the command without it";
        check(refusal::NOT_PROPOSED, "ClusterGrant prod", exit::DENIED, propose);
        let owner = "serviceset/web -n team-a";
        let next = format!("{{program}} get {owner} -o yaml # this one decides about it");
        let named = check(refusal::OWNED, owner, exit::CONFLICT, &next);
        assert_eq!(named.as_deref(), Some(owner));
    }

    #[test]
    fn a_servers_text_cannot_move_the_cursor() {
        let failure = Failure::usage("bad")
            .evidence("\u{1b}[2Jgone\nsecond")
            .next("{program} get");
        assert_eq!(
            failure.render("farwater"),
            "farwater: bad\n  [2Jgone second\n  next: farwater get\n"
        );
    }
}
