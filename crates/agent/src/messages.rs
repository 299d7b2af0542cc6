//! Texts that leave the agent: short, and without values of fields.
//!
//! An API server quotes the values that it refuses. A field's value may be a password (an environment variable, a
//! Secret's data), so an error is reduced to its reason, the fields and the rules that they broke.

use farwater_api::FIELD_MANAGER;
use serde_json::Value;

/// Longest message of a report, in bytes.
pub const MAX_MESSAGE: usize = 1024;
const MAX_CAUSES: usize = 5;

/// Cuts a text at a character boundary and drops control characters.
pub fn shorten(text: &str) -> String {
    let mut out: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_MESSAGE)
        .collect();
    if out.len() > MAX_MESSAGE {
        let mut end = MAX_MESSAGE - '…'.len_utf8();
        while !out.is_char_boundary(end) {
            end -= 1;
        }
        out.truncate(end);
        out.push('…');
    }
    out
}

/// A `metav1.Status` of a failure in one line: the reason, the webhook if one refused or failed, then each field with
/// the rule that it broke, without values.
pub fn explain_status(status: &Value, about_secret: bool) -> String {
    let reason = status["reason"].as_str().filter(|r| !r.is_empty()).unwrap_or("Error");
    let message = status["message"].as_str().unwrap_or_default();
    let webhook = split_webhook(message);
    let causes = causes(status)
        .filter(|cause| cause["field"].as_str().is_some_and(|f| !f.is_empty()))
        .map(|cause| explain_cause(cause, about_secret));
    if let Some(causes) = list(causes) {
        let webhook = webhook.map_or_else(String::new, |(webhook, _)| format!("{webhook}: "));
        return shorten(&format!("{reason}: {webhook}{causes}"));
    }

    if let Some((webhook, rest)) = webhook {
        // The rest may be the webhook's own words; only known sentences of the API server are harmless.
        let rest = if about_secret {
            ""
        } else {
            rest.split(", got ").next().unwrap_or_default()
        };
        return shorten(&format!("{reason}: {webhook}{}", without_quotes(rest, false)));
    }
    if let Some(fields) = mistyped_fields(message) {
        return shorten(&format!("{reason}: {fields}"));
    }

    // The authorizer's sentence names the user and the action, but no values.
    let names_fields = message.contains("strict decoding error") && !message.contains(" value");
    let harmless = message.contains("is forbidden: User ")
        || names_fields
        || matches!(reason, "NotFound" | "AlreadyExists" | "Conflict");
    if message.is_empty() || (about_secret && !harmless) {
        return reason.to_owned();
    }
    shorten(&format!("{reason}: {}", without_quotes(message, harmless)))
}

/// Beginnings of API servers' sentences about a webhook; the webhook's name follows (`k8s.io/apiserver`:
/// `webhook/errors/statuserror.go`, `util/webhook/error.go`).
const ABOUT_WEBHOOK: [&str; 4] = [
    "admission webhook \"",
    "failed calling webhook \"",
    "Internal error occurred: admission webhook \"",
    "Internal error occurred: failed calling webhook \"",
];

/// Splits a sentence about a webhook after the webhook's name. None: the sentence doesn't begin with one.
fn split_webhook(message: &str) -> Option<(&str, &str)> {
    let start = ABOUT_WEBHOOK.iter().find(|begin| message.starts_with(**begin))?.len();
    let end = start + message[start..].find('"')?;
    let is_of_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.');
    (end > start && message[start..end].bytes().all(is_of_name)).then(|| message.split_at(end + 1))
}

fn explain_cause(cause: &Value, about_secret: bool) -> String {
    let field = cause["field"].as_str().unwrap_or_default();
    let kind = cause["reason"].as_str().unwrap_or("FieldValueInvalid");
    let message = cause["message"].as_str().unwrap_or_default();
    // `Invalid value: "x": must be …`: the rule follows the value.
    let rule = rule_of(message);
    if rule.is_empty() || about_secret {
        format!("{field} ({kind})")
    } else {
        format!("{field}: {rule}")
    }
}

fn rule_of(message: &str) -> &str {
    match message.split_once(" value: ") {
        Some((_, rest)) => rest.rsplit_once(": ").map_or("", |(_, rule)| rule),
        None => message,
    }
}

fn causes(status: &Value) -> impl Iterator<Item = &Value> {
    status["details"]["causes"].as_array().into_iter().flatten()
}

/// The fields that other managers own with other values, each with its manager. Empty: only fields that we own
/// ourselves by other operations than applies. None: the refusal is not about conflicts.
pub fn field_conflicts(status: &Value) -> Option<String> {
    let conflicts = causes(status).filter(|cause| cause["reason"] == "FieldManagerConflict");
    let conflicts: Vec<(&str, &str)> = conflicts
        .map(|cause| {
            let message = cause["message"].as_str().unwrap_or_default();
            let manager = message.split('"').nth(1).unwrap_or("another manager");
            (cause["field"].as_str().unwrap_or_default(), manager)
        })
        .collect();
    if conflicts.is_empty() {
        return None;
    }
    let others = conflicts.into_iter().filter(|(_, manager)| *manager != FIELD_MANAGER);
    let named: Vec<String> = others
        .take(MAX_CAUSES)
        .map(|(field, manager)| format!("{field} ({manager})"))
        .collect();
    Some(shorten(&named.join(", ")))
}

/// Whether an apply was read by the schema of an older version of its kind, in which fields were applied or written
/// before, and which lacks a field. An unknown field of the manifest itself is reported for the "typed patch object"
/// instead.
pub fn is_of_other_version(status: &Value) -> bool {
    let message = status["message"].as_str().unwrap_or_default();
    status["code"] == 500
        && message.contains(": field not declared in schema")
        && !message.starts_with("failed to create typed ")
}

/// Whether an apply failed because of the merge: the result is invalid, or a list of the manifest has an element twice.
pub fn is_unmergeable(status: &Value) -> bool {
    let message = status["message"].as_str().unwrap_or_default();
    (status["code"] == 422 && causes(status).any(|cause| cause["field"].as_str().is_some_and(|f| !f.is_empty())))
        || message.contains("duplicate entries for key")
}

/// The fields that a refusal names.
pub fn fields_of(status: &Value) -> Vec<String> {
    causes(status)
        .filter_map(|cause| cause["field"].as_str().map(str::to_owned))
        .collect()
}

/// Phrases of API servers for a field that can't be changed once the object exists.
const IMMUTABLE: [&str; 5] = [
    "immutable",
    "updates to statefulset spec",
    "may not change once set",
    "cannot change",
    "can not be changed",
];

/// Whether only immutable fields were wrong, so that an object recreated from this manifest would be accepted.
pub fn is_immutable(status: &Value) -> bool {
    let is_rule = |cause: &Value| {
        let rule = rule_of(cause["message"].as_str().unwrap_or_default());
        IMMUTABLE.iter().any(|words| rule.contains(words))
    };
    status["code"] == 422 && causes(status).next().is_some() && causes(status).all(is_rule)
}

/// The first texts, and the number of the others. None: there are none.
fn list(texts: impl Iterator<Item = String>) -> Option<String> {
    let texts: Vec<String> = texts.collect();
    let more = texts.len().saturating_sub(MAX_CAUSES);
    let told = texts[..texts.len() - more].join("; ");
    match (told.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(told),
        (false, more) => Some(format!("{told}; and {more} more")),
    }
}

/// Parses `… (…; v1, Kind=Secret): .data.a: expected string, got &value.valueUnstructured{Value:5}`, or `errors:` and
/// one such line for each field. Returns the fields with the expected types. None: the message has another form.
fn mistyped_fields(message: &str) -> Option<String> {
    if !message.contains(", got ") {
        return None;
    }
    let fields = message.lines().filter_map(|line| {
        let (before, _) = line.split_once(", got ")?;
        let start = before
            .rfind(": .")
            .map_or_else(|| before.rfind(" .").map(|at| at + 1), |at| Some(at + 2));
        let text = before[start.or_else(|| before.rfind(' '))?..].trim();
        (!text.is_empty()).then(|| without_quotes(text, false))
    });
    list(fields)
}

/// Replaces quoted text, which may be a value, unless the sentence is known to quote only names. The keys of a list's
/// elements are names: `env[name="A"]`.
fn without_quotes(message: &str, harmless: bool) -> String {
    if harmless {
        return message.to_owned();
    }
    let mut out = String::with_capacity(message.len());
    let (mut rest, mut follows_key) = (message, false);
    while let Some((before, quoted)) = rest.split_once('"') {
        out.push_str(before);
        let end = end_of_quote(quoted);
        let (text, after) = quoted.split_at(end);
        follows_key = is_of_key(before, follows_key);
        out.push('"');
        out.push_str(if follows_key { text } else { "…" });
        out.push('"');
        rest = after.strip_prefix('"').unwrap_or_default();
    }
    out + rest
}

/// The end of a quoted text.
fn end_of_quote(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at,
            _ => {}
        }
    }
    text.len()
}

/// Whether the text before a quote is the key of a list's element: `[name=`, `[containerPort=80,protocol=`, or
/// `,protocol=` after one.
fn is_of_key(before: &str, follows_key: bool) -> bool {
    let Some(before) = before.strip_suffix('=') else {
        return false;
    };
    let keys = match before.rsplit_once('[') {
        Some((_, keys)) => keys,
        None if follows_key => before.trim_start_matches(','),
        None => return false,
    };
    // Merge keys of built-in kinds.
    const KEYS: [&str; 12] = [
        "name",
        "containerPort",
        "port",
        "protocol",
        "mountPath",
        "devicePath",
        "ip",
        "uid",
        "type",
        "key",
        "topologyKey",
        "whenUnsatisfiable",
    ];
    keys.split(',')
        .all(|part| KEYS.contains(&part.split('=').next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(status: Value, about_secret: bool, expected: &str) {
        assert_eq!(explain_status(&status, about_secret), expected);
    }

    #[test]
    fn a_refused_field_keeps_its_rule_and_loses_its_value() {
        let status = json!({"reason": "Invalid", "message": "Pod \"a\" is invalid: spec.x: Invalid value: \"hunter2\": must be short",
            "details": {"causes": [{"reason": "FieldValueInvalid", "field": "spec.x", "message": "Invalid value: \"hunter2\": must be short"}]}});
        check(status.clone(), false, "Invalid: spec.x: must be short");
        check(status, true, "Invalid: spec.x (FieldValueInvalid)");
    }

    #[test]
    fn a_mistyped_field_loses_its_value() {
        let message = "failed to create typed patch object (web/a; /v1, Kind=Secret): .stringData.a: expected string, got &value.valueUnstructured{Value:12345}";
        check(
            json!({"reason": "", "message": message}),
            true,
            "Error: .stringData.a: expected string",
        );
    }

    #[test]
    fn what_only_looks_like_a_field_or_a_key_is_not_shown() {
        check(
            json!({"message": "unable to parse \"user:hunter2\": expected X, got Y"}),
            true,
            "Error: X",
        );
        check(
            json!({"message": "args [--password=\"hunter2\"], [token=\"hunter2\"]"}),
            false,
            "Error: args [--password=\"…\"], [token=\"…\"]",
        );
    }

    #[test]
    fn all_fields_of_an_answer_are_named() {
        let got = "expected string, got &value.valueUnstructured{Value:1.1}";
        let message = format!(
            "failed to create typed patch object (web/a; /v1, Kind=ConfigMap): errors:\n  .metadata.labels.version: {got}\n  \
             .metadata.annotations.x: {got}\n  .data.port: {got}"
        );
        let expected = "Error: .metadata.labels.version: expected string; .metadata.annotations.x: expected string; .data.port: expected string";
        check(json!({"message": message}), false, expected);
        let cause = |n: usize| json!({"field": format!("spec.f{n}"), "message": "must be short"});
        let causes: Vec<Value> = (0..7).map(cause).collect();
        let told = explain_status(&json!({"reason": "Invalid", "details": {"causes": causes}}), false);
        assert!(
            told.starts_with("Invalid: spec.f0: must be short; ") && told.ends_with("; and 2 more"),
            "{told}"
        );
    }

    #[test]
    fn keys_of_lists_are_names() {
        let message = ".spec.template.spec.containers[name=\"web\"].env: duplicate entries for key [name=\"A\"], value \"hunter2\", \
                       ports[containerPort=80,protocol=\"TCP\"]";
        check(
            json!({"message": message}),
            false,
            &format!("Error: {}", message.replace("hunter2", "…")),
        );
        check(
            json!({"message": "password=\"hunter2\""}),
            false,
            "Error: password=\"…\"",
        );
    }

    #[test]
    fn the_authorizers_sentence_stays() {
        let message = "roles \"a\" is forbidden: User \"system:serviceaccount:t:d\" cannot patch resource";
        check(
            json!({"reason": "Forbidden", "message": message}),
            true,
            &format!("Forbidden: {message}"),
        );
    }

    #[test]
    fn a_webhook_is_named_and_what_it_says_is_not_quoted() {
        let down = "Internal error occurred: failed calling webhook \"checks.example.com\": failed to call webhook: \
                    Post \"https://checks.team.svc:443/?timeout=5s\": dial tcp 10.0.0.1:443: connect: connection refused";
        let status = json!({"reason": "InternalError", "message": down, "details": {"causes": [{"message": down}]}});
        let named = "InternalError: Internal error occurred: failed calling webhook \"checks.example.com\"";
        let rest = ": failed to call webhook: Post \"…\": dial tcp 10.0.0.1:443: connect: connection refused";
        check(status.clone(), false, &format!("{named}{rest}"));
        check(status, true, named);
        let refused = "admission webhook \"checks.example.com\" denied the request: password \"hunter2\" is weak";
        let status = json!({"reason": "Conflict", "message": refused});
        let named = "Conflict: admission webhook \"checks.example.com\"";
        check(
            status.clone(),
            false,
            &format!("{named} denied the request: password \"…\" is weak"),
        );
        check(status.clone(), true, named);
        let mut with_field = status;
        with_field["details"] = json!({"causes": [{"field": "spec.x", "message": "must be short"}]});
        check(with_field, false, &format!("{named}: spec.x: must be short"));
        let confused = "failed calling webhook \"a.b.c\": expected AdmissionReview, got Secret 12345";
        check(
            json!({"message": confused}),
            false,
            "Error: failed calling webhook \"a.b.c\": expected AdmissionReview",
        );
    }

    #[test]
    fn what_only_looks_like_a_webhooks_name_is_not_shown() {
        for quoted in ["hunter2 is it", "", "a/b", "a\\\"b"] {
            let message = format!("admission webhook \"{quoted}\" denied");
            check(
                json!({"message": message}),
                false,
                "Error: admission webhook \"…\" denied",
            );
        }
        let message = "spec.x: admission webhook \"hunter2\" denied";
        check(
            json!({"message": message}),
            false,
            "Error: spec.x: admission webhook \"…\" denied",
        );
    }

    #[test]
    fn conflicts_name_other_managers_and_not_our_own_updates() {
        let conflict = |manager: &str, field: &str| json!({"reason": "FieldManagerConflict", "field": field, "message": format!("conflict with \"{manager}\" using v1")});
        let of = |causes: Vec<Value>| field_conflicts(&json!({"details": {"causes": causes}}));
        let (theirs, ours) = (
            conflict("hpa", ".spec.replicas"),
            conflict(FIELD_MANAGER, ".spec.paint"),
        );
        assert_eq!(of(vec![ours.clone(), theirs]).as_deref(), Some(".spec.replicas (hpa)"));
        assert_eq!(of(vec![ours]).as_deref(), Some(""));
        assert_eq!(of(vec![json!({"reason": "FieldValueInvalid"})]), None);
    }

    #[test]
    fn a_field_that_an_older_version_lacks_is_told_from_one_that_the_manifest_has_in_vain() {
        let is = |code: u16, message: &str| is_of_other_version(&json!({"code": code, "message": message}));
        let lacks = ".spec.paint: field not declared in schema";
        let prune = "failed to prune fields: failed to convert merged object to last applied version: ";
        assert!(is(500, &format!("{prune}{lacks}")) && is(500, lacks));
        assert!(is(500, &format!("failed to convert new object: {lacks}")));
        assert!(is(
            500,
            &format!("{prune}errors:\n  {lacks}\n  .spec.crew: field not declared in schema")
        ));
        assert!(!is(
            500,
            &format!("failed to create typed patch object (a/b; example.com/v2, Kind=Boat): {lacks}")
        ));
        assert!(!is(400, &format!("{prune}{lacks}")) && !is(500, "failed to prune fields: other"));
    }

    #[test]
    fn other_sentences_lose_what_they_quote() {
        let status =
            json!({"reason": "BadRequest", "message": "admission webhook denied: password \"hun\\\"ter2\" is weak"});
        check(
            status.clone(),
            false,
            "BadRequest: admission webhook denied: password \"…\" is weak",
        );
        check(status, true, "BadRequest");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let text = shorten(&"ä".repeat(2000));
        assert!(text.len() <= 1024 && text.ends_with('…'));
    }
}
