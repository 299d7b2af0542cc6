//! Payloads: the JSON of a delivery, which some hosts send as the field of a form.

use std::borrow::Cow;

use farwater_api::receiver::ReceiverType;
use http::{HeaderMap, header};
use percent_encoding::percent_decode;

const FORM: &str = "application/x-www-form-urlencoded";
const FIELD: &[u8] = b"payload=";
/// Maximum length of an event's name.
const MAX_EVENT: usize = 64;

/// Returns the payload itself. Nothing is parsed before the signature was verified.
pub fn json<'a>(headers: &HeaderMap, body: &'a [u8]) -> Cow<'a, [u8]> {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .map(http::HeaderValue::as_bytes)
        .unwrap_or_default();
    if !kind.to_ascii_lowercase().starts_with(FORM.as_bytes()) {
        return Cow::Borrowed(body);
    }
    let field = body
        .split(|byte| *byte == b'&')
        .find_map(|field| field.strip_prefix(FIELD))
        .unwrap_or_default();
    let spaced: Vec<u8> = field
        .iter()
        .map(|byte| if *byte == b'+' { b' ' } else { *byte })
        .collect();
    Cow::Owned(percent_decode(&spaced).collect())
}

/// The event's name in the host's words; empty if hosts of this type name none.
pub fn event(kind: ReceiverType, headers: &HeaderMap) -> &str {
    let names: &[&str] = match kind {
        ReceiverType::GitHub => &["x-github-event"],
        ReceiverType::GitLab => &["x-gitlab-event"],
        ReceiverType::Gitea => &["x-gitea-event", "x-forgejo-event"],
        ReceiverType::GenericHmac => &[],
    };
    let event = names.iter().find_map(|name| headers.get(*name)?.to_str().ok());
    event.filter(|event| event.len() <= MAX_EVENT).unwrap_or_default()
}

/// Whether a receiver handles an event.
pub fn is_wanted(kind: ReceiverType, wanted: &[String], event: &str) -> bool {
    let pushes: &[&str] = match kind {
        ReceiverType::GenericHmac => return true,
        ReceiverType::GitHub | ReceiverType::Gitea => &["push"],
        ReceiverType::GitLab => &["Push Hook", "Tag Push Hook"],
    };
    if wanted.is_empty() {
        pushes.contains(&event)
    } else {
        wanted.iter().any(|name| name == event)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_form_holds_the_payload_in_a_field() {
        let mut headers = HeaderMap::new();
        assert_eq!(&*json(&headers, b"payload=%7B%7D"), b"payload=%7B%7D");
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/X-www-form-urlencoded; charset=utf-8"),
        );
        let check =
            |body: &str, expected: &str| assert_eq!(&*json(&headers, body.as_bytes()), expected.as_bytes(), "{body}");
        check("payload=%7B%22a%22%3A+%22b%2Bc%22%7D", "{\"a\": \"b+c\"}");
        check("a=1&payload=%7B%7D&b", "{}");
        check("a=1", "");
        check("payload=%7B%2", "{%2");
    }

    #[test]
    fn pushes_are_wanted_where_nothing_else_is_said() {
        let check = |kind, wanted: &[&str], event: &str, expected: bool| {
            let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            assert_eq!(is_wanted(kind, &wanted, event), expected, "{kind:?} {wanted:?} {event}");
        };
        check(ReceiverType::GitHub, &[], "push", true);
        check(ReceiverType::GitHub, &[], "ping", false);
        check(ReceiverType::GitHub, &["release"], "push", false);
        check(ReceiverType::GitHub, &["release"], "release", true);
        check(ReceiverType::GitLab, &[], "Tag Push Hook", true);
        check(ReceiverType::GitLab, &[], "Issue Hook", false);
        check(ReceiverType::GenericHmac, &["push"], "", true);
    }
}
