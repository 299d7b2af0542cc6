//! What is invalid in a provider's spec, whatever its Secret contains.

use farwater_api::notification_provider::{NotificationProviderSpec, ProviderType};

/// (field below `spec`, reason). No value is quoted, because an address may contain a secret by mistake.
pub fn problems(spec: &NotificationProviderSpec) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let kind = spec.r#type;
    if let Some(address) = &spec.address
        && let Err(why) = check_address(kind, address)
    {
        found.push(("address", why));
    }

    if spec.address.is_none() && kind == ProviderType::Email {
        found.push((
            "address",
            "name the mail server: smtp://HOST or smtps://HOST".to_owned(),
        ));
    }
    if spec.address.is_none() && kind.is_git_host() {
        found.push(("address", "name the repository: https://HOST/OWNER/NAME".to_owned()));
    }
    if spec.secret_ref.is_none() && kind != ProviderType::Email {
        let key = match kind {
            ProviderType::Slack => "a token, or the address of a webhook",
            ProviderType::MsTeams => "the address of a webhook",
            ProviderType::Generic => "the token that messages are signed with",
            _ => "a token",
        };
        found.push(("secretRef", format!("name a Secret with {key}")));
    }
    if spec.channel.is_some() && kind != ProviderType::Slack {
        found.push(("channel", "only Slack has channels".to_owned()));
    }
    if spec.commit_status.is_some() && !kind.is_git_host() {
        found.push(("commitStatus", "only Git hosts give statuses to commits".to_owned()));
    }

    match (&spec.email, kind) {
        (None, ProviderType::Email) => found.push(("email", "state sender and recipients".to_owned())),
        (Some(email), ProviderType::Email) => {
            if !is_mailbox(&email.from) {
                found.push(("email.from", "it is no address of the form NAME@HOST".to_owned()));
            }
            if !email.to.iter().all(|to| is_mailbox(to)) {
                found.push(("email.to", "each is an address of the form NAME@HOST".to_owned()));
            }
        }
        (Some(_), _) => found.push(("email", "only type email has this field".to_owned())),
        (None, _) => {}
    }
    found
}

pub(crate) fn check_address(kind: ProviderType, address: &str) -> Result<(), String> {
    let schemes: &[&str] = if kind == ProviderType::Email {
        &["smtp", "smtps"]
    } else {
        &["https", "http"]
    };
    let known = address.split_once("://").filter(|(scheme, _)| schemes.contains(scheme));
    let Some((_, rest)) = known else {
        return Err(format!("it begins with {}://", schemes.join(":// or ")));
    };
    if address.chars().any(|one| one.is_whitespace() || one.is_control()) {
        return Err("it has white space in it".to_owned());
    }

    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if host.is_empty() {
        return Err("it names no host".to_owned());
    }
    if host.contains('@') || rest.contains(['?', '#']) {
        return Err(
            "it has a user, a query or a fragment: put secrets into the Secret, as token or address".to_owned(),
        );
    }

    match kind {
        ProviderType::Email if !path.is_empty() => Err("a mail server has no path".to_owned()),
        ProviderType::MsTeams => {
            Err("the address of a webhook is a secret: put it into the Secret, as address".to_owned())
        }
        kind if kind.is_git_host() && !path.trim_matches('/').contains('/') => {
            Err("it names no repository: https://HOST/OWNER/NAME".to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether it is a plain address for an envelope: without display names, comments, quotes or other scripts.
fn is_mailbox(text: &str) -> bool {
    let is_plain = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b".!#$%&'*+-/=?^_`{|}~".contains(&b))
    };
    let is_host =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b));
    text.rsplit_once('@')
        .is_some_and(|(name, host)| is_plain(name) && is_host(host))
}
