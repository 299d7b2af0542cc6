//! Why a source serves no newer revision. Each cause has its own sentence and next command.

use farwater_api::{AnySource, Condition, SourceKind, service_sources::SourceReference};
use jiff::Timestamp;

use super::{Finding, Link, NextStep, Standing, ago, find};
use crate::conditions::holding;

/// Explains a source by itself: that it is in order, or why it isn't.
pub fn explain_source(source: &AnySource, reference: &SourceReference, namespace: &str, now: Timestamp) -> Finding {
    let status = &source.status;
    judge(source, reference, namespace, now).unwrap_or_else(|| {
        let serves = status
            .revision
            .as_deref()
            .map_or("its charts".to_owned(), str::to_owned);
        let finding = Finding {
            standing: Standing::Healthy,
            link: None,
            sentence: format!("{} {} serves {serves}", reference.kind, reference.name),
            evidence: Vec::new(),
            first: None,
            next: None,
        };
        let fetched = status.last_fetch_time.as_ref();
        let changed = fetched
            .map(|time| format!("its last change was {} ago", ago(time.0, now)))
            .unwrap_or_default();
        let suspended = if source.suspend {
            "it is suspended: the hub does not fetch it"
        } else {
            ""
        };
        finding.because(changed).because(suspended)
    })
}

/// None: it is in order.
pub(super) fn judge(
    source: &AnySource,
    reference: &SourceReference,
    namespace: &str,
    now: Timestamp,
) -> Option<Finding> {
    let SourceReference { kind, name } = reference;
    let status = &source.status;
    let ready = find(&status.conditions, "Ready");
    let of = format!("{kind} {name}");
    let trying = holding(&status.conditions, "Reconciling").is_some();
    let is_refused = ready.is_some_and(|c| c.status == "False") && !trying;
    if status.stale_since.is_some() || is_refused {
        let finding = Finding::broken(Link::Source, describe(source, ready, now)).condition(&of, ready);
        return Some(remedy(finding, source, reference, namespace, ready));
    }
    // A chart repository has no revision of its own.
    if status.revision.is_none() && ready.is_none_or(|ready| ready.status != "True") {
        let finding = if source.suspend {
            Finding::broken(Link::Source, format!("{of} is suspended and was never fetched")).next(patch(
                reference,
                namespace,
                r#"{"spec":{"suspend":false}}"#,
            ))
        } else {
            Finding::progressing(Link::Source, format!("{} has not been fetched yet", source.url))
                .next(wait(reference, namespace))
        };
        return Some(finding.condition(&of, ready));
    }
    None
}

/// Only a silent server *has not answered*; a server that refuses has answered.
fn describe(source: &AnySource, ready: Option<&Condition>, now: Timestamp) -> String {
    let status = &source.status;
    let serving = status
        .revision
        .as_deref()
        .map_or("no revision was ever fetched".to_owned(), |revision| {
            format!("{revision} stays in use")
        });
    let age = status
        .stale_since
        .as_ref()
        .map(|since| format!(" for {}", ago(since.0, now)))
        .unwrap_or_default();
    let url = &source.url;
    let cause = ready
        .filter(|ready| ready.status != "True")
        .map(|ready| cause(&ready.message, url));
    match ready.map(|ready| ready.reason.as_str()) {
        Some("Unreachable" | "Timeout") => format!("{url} has not answered{age}; {serving}"),
        _ => match cause.filter(|cause| !cause.is_empty()) {
            Some(cause) => format!("{url} can't be fetched{age}: {cause}; {serving}"),
            None => format!("{url} can't be fetched{age}; {serving}"),
        },
    }
}

/// The cause from the hub's message `fetch from URL: CAUSE (EVIDENCE); REMEDY; WHAT IS KEPT`. For display only: no
/// decision depends on it.
fn cause<'a>(message: &'a str, url: &str) -> &'a str {
    let behind = message
        .split_once(&format!("{url}: "))
        .map_or(message, |(_, behind)| behind);
    let cause = behind.split("; ").next().unwrap_or(behind);
    cause.split(" (").next().unwrap_or(cause).trim_end_matches('.')
}

fn remedy(
    finding: Finding,
    source: &AnySource,
    reference: &SourceReference,
    namespace: &str,
    ready: Option<&Condition>,
) -> Finding {
    let SourceReference { kind, name } = reference;
    let patch = |spec: &str| patch(reference, namespace, spec);
    let create = |secret: &str| format!("create secret generic {secret} -n {namespace} {LOGIN}");
    let is_git_over_http = *kind == SourceKind::GitRepository && source.url.starts_with("http");

    match (ready.map_or("", |ready| ready.reason.as_str()), &source.secret) {
        ("AuthenticationFailed", Some(secret)) if is_git_over_http => {
            let login = r#"{"stringData":{"username":"USER","password":"TOKEN"}}"#;
            let next = format!("patch secret {secret} -n {namespace} --type merge -p '{login}'");
            finding.next(NextStep::Kubectl(next))
        }
        ("AuthenticationFailed" | "HostKeyNotTrusted" | "SecretInvalid" | "SecretUnreadable", Some(secret)) => {
            finding.next(NextStep::Kubectl(format!("edit secret {secret} -n {namespace}")))
        }
        ("AuthenticationFailed" | "HostKeyNotTrusted", None) => finding
            .first(NextStep::Kubectl(create("NAME")))
            .next(patch(r#"{"spec":{"secretRef":{"name":"NAME"}}}"#)),
        ("SecretNotFound", _) => {
            let missing = ready.and_then(|ready| missing_secret(&ready.message));
            finding.next(NextStep::Kubectl(create(missing.unwrap_or("NAME"))))
        }
        ("ReferenceNotFound", _) => finding.next(correct_reference(source, reference, namespace)),
        ("RepositoryNotFound" | "HostNotFound" | "Redirected", _) => finding.next(patch(r#"{"spec":{"url":"URL"}}"#)),
        ("Unreachable" | "Timeout" | "AnswerBrokenOff" | "ServerError" | "Throttled", _) => {
            finding.next(wait(reference, namespace))
        }
        _ => finding.next(NextStep::Farwater(format!(
            "get {} {name} -n {namespace} -o yaml",
            kind.plural()
        ))),
    }
}

/// Corrects the field that the source uses, because the API refuses a second one beside it.
fn correct_reference(source: &AnySource, reference: &SourceReference, namespace: &str) -> NextStep {
    let field = match (&source.follows, reference.kind) {
        (Some(("pipeline", pipeline)), _) => {
            return NextStep::Farwater(format!("pipeline status {pipeline} -n {namespace}"));
        }
        (Some((field, _)), _) => field,
        (None, SourceKind::OciRepository) => "tag",
        (None, _) => "branch",
    };
    patch(
        reference,
        namespace,
        &format!(r#"{{"spec":{{"ref":{{"{field}":"{}"}}}}}}"#, field.to_uppercase()),
    )
}

const LOGIN: &str = "--from-literal=username=USER --from-literal=password=TOKEN";

fn patch(reference: &SourceReference, namespace: &str, spec: &str) -> NextStep {
    let SourceReference { kind, name } = reference;
    NextStep::Kubectl(format!(
        "patch {} {name} -n {namespace} --type merge -p '{spec}'",
        kind.plural()
    ))
}

/// The command that fetches the source now.
fn wait(SourceReference { kind, name }: &SourceReference, namespace: &str) -> NextStep {
    NextStep::Farwater(format!(
        "wait {}/{name} -n {namespace} --fetch",
        kind.as_str().to_lowercase()
    ))
}

/// The first missing Secret in a message such as `Secret NAME does not exist`. None: the message names none.
pub(super) fn missing_secret(message: &str) -> Option<&str> {
    let named = message.split("Secret ").skip(1);
    named
        .filter_map(|rest| rest.split_once(" does not exist"))
        .map(|(name, _)| name)
        .find(|name| !name.contains(' '))
}
