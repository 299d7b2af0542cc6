//! Webhook deliveries of Git hosts: headers, payloads and signatures as GitHub, GitLab and Gitea document them, and
//! generic ones of scripts.

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use farwater_api::receiver::ReceiverType;
use http::{HeaderMap, HeaderName, HeaderValue, Request, header};
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    GitHub,
    GitLab,
    Gitea,
    Generic,
}

impl Host {
    pub const ALL: [Self; 4] = [Self::GitHub, Self::GitLab, Self::Gitea, Self::Generic];

    pub fn receiver_type(self) -> ReceiverType {
        match self {
            Self::GitHub => ReceiverType::GitHub,
            Self::GitLab => ReceiverType::GitLab,
            Self::Gitea => ReceiverType::Gitea,
            Self::Generic => ReceiverType::GenericHmac,
        }
    }

    /// The host's name for the push of a branch.
    fn event(self, event: &str) -> &str {
        if self == Self::GitLab && event == "push" {
            "Push Hook"
        } else {
            event
        }
    }
}

/// A host's webhook, with its secret.
#[derive(Clone, Debug)]
pub struct Sender {
    host: Host,
    token: String,
    is_form: bool,
}

/// Content of a push.
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    /// URL of the repository: `https://…/team/infra.git`.
    pub url: &'a str,
    pub branch: &'a str,
    pub before: &'a str,
    pub after: &'a str,
    /// Size of the commit messages in bytes.
    pub size: usize,
}

impl Sender {
    /// With a token `whsec_…`, GitLab signs deliveries.
    pub fn new(host: Host, token: &str) -> Self {
        Self {
            host,
            token: token.to_owned(),
            is_form: false,
        }
    }

    /// Sends forms, GitHub's default content type.
    #[must_use]
    pub fn with_forms(self) -> Self {
        Self { is_form: true, ..self }
    }

    /// Delivers a push of a branch to a path.
    pub fn push(&self, path: &str, push: Push<'_>) -> Request<Bytes> {
        self.request(path, "push", self.payload(push).to_string().as_bytes())
    }

    /// Delivers an event with a payload.
    pub fn request(&self, path: &str, event: &str, payload: &[u8]) -> Request<Bytes> {
        let body = if self.is_form { form(payload) } else { payload.to_vec() };
        let mut request = Request::new(Bytes::from(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = path.parse().unwrap_or_default();
        *request.headers_mut() = self.headers(event, request.body());
        request
    }

    pub fn headers(&self, event: &str, body: &[u8]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut set = |name: &'static str, value: &str| {
            let value = HeaderValue::from_str(value).unwrap_or(HeaderValue::from_static(""));
            headers.insert(HeaderName::from_static(name), value);
        };
        set(
            header::CONTENT_TYPE.as_str(),
            if self.is_form { FORM } else { "application/json" },
        );
        let (event, mac) = (self.host.event(event), self.mac(body));
        match self.host {
            Host::GitHub => {
                set("user-agent", "GitHub-Hookshot/044aadd");
                set("x-github-delivery", DELIVERY);
                set("x-github-event", event);
                set("x-github-hook-id", "292430182");
                set("x-hub-signature-256", &format!("sha256={mac}"));
            }
            Host::GitLab => {
                set("user-agent", "GitLab/18.5.0");
                set("x-gitlab-event", event);
                set("x-gitlab-event-uuid", DELIVERY);
                set("x-gitlab-instance", "https://git.example.com");
                set("idempotency-key", DELIVERY);
                match self.token.strip_prefix("whsec_") {
                    Some(key) => {
                        set("webhook-id", DELIVERY);
                        set("webhook-timestamp", TIME);
                        set("webhook-signature", &format!("v1,{}", signature(key, body)));
                    }
                    None => set("x-gitlab-token", &self.token),
                }
            }
            Host::Gitea => {
                set("user-agent", "Go-http-client/1.1");
                for name in ["x-gitea-event", "x-gogs-event", "x-github-event"] {
                    set(name, event);
                }
                set("x-gitea-delivery", DELIVERY);
                set("x-gitea-signature", &mac);
                set("x-hub-signature-256", &format!("sha256={mac}"));
            }
            Host::Generic => set("x-signature", &format!("sha256={mac}")),
        }
        headers
    }

    fn mac(&self, body: &[u8]) -> String {
        hex::encode(hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, self.token.as_bytes()),
            body,
        ))
    }

    /// A payload with the fields that a receiver may read, if the host has them, and others.
    fn payload(&self, push: Push<'_>) -> Value {
        let Push {
            url,
            branch,
            before,
            after,
            size,
        } = push;
        let page = url.trim_end_matches(".git");
        let reference = format!("refs/heads/{branch}");
        let commits: Vec<Value> = (0..size.div_ceil(1_000))
            .map(|n| {
                json!({
                    "id": after, "message": "x".repeat(size.min(1_000)), "timestamp": "2026-01-01T00:00:00Z",
                    "url": format!("{page}/commit/{n}"), "author": {"name": "Ann", "email": "ann@example.com"},
                    "added": [], "removed": [], "modified": ["apps/web/web.yaml"],
                })
            })
            .collect();
        match self.host {
            Host::GitHub => json!({
                "ref": reference, "before": before, "after": after,
                "repository": {
                    "id": 186_853_002, "node_id": "MDEw", "name": "infra", "full_name": "team/infra", "private": true,
                    "owner": {"name": "team", "login": "team", "id": 1, "url": "https://api.example.com/users/team"},
                    "html_url": page, "url": page, "clone_url": url, "ssh_url": "git@git.example.com:none/none.git",
                    "git_url": "git://git.example.com/none/none.git", "default_branch": "main", "topics": [],
                },
                "pusher": {"name": "ann", "email": "ann@example.com"}, "sender": {"login": "ann", "id": 2},
                "created": false, "deleted": false, "forced": false, "base_ref": null,
                "compare": format!("{page}/compare/a...b"), "commits": commits, "head_commit": null,
            }),
            Host::GitLab => json!({
                "object_kind": "push", "event_name": "push", "before": before, "after": after, "ref": reference,
                "ref_protected": true, "checkout_sha": after, "user_id": 4, "user_name": "Ann", "project_id": 15,
                "project": {
                    "id": 15, "name": "infra", "web_url": page, "git_ssh_url": "git@git.example.com:none/none.git",
                    "git_http_url": url, "namespace": "team", "path_with_namespace": "team/infra", "default_branch": "main",
                    "homepage": page, "url": url, "ssh_url": "git@git.example.com:none/none.git", "http_url": url,
                },
                "commits": commits, "total_commits_count": 1, "push_options": {},
                "repository": {"name": "infra", "url": url, "homepage": page, "git_http_url": url, "visibility_level": 0},
            }),
            Host::Gitea => json!({
                "ref": reference, "before": before, "after": after, "compare_url": format!("{page}/compare/a...b"),
                "commits": commits, "total_commits": 1, "head_commit": null,
                "repository": {
                    "id": 140, "owner": {"id": 1, "login": "team", "username": "team"}, "name": "infra",
                    "full_name": "team/infra", "html_url": page, "ssh_url": "ssh://git@git.example.com:2222/none/none.git",
                    "clone_url": url, "default_branch": "main",
                },
                "pusher": {"id": 1, "login": "ann"}, "sender": {"id": 1, "login": "ann"},
            }),
            Host::Generic => json!({"url": url, "ref": reference, "after": after, "commits": commits}),
        }
    }
}

const FORM: &str = "application/x-www-form-urlencoded";
const DELIVERY: &str = "72d3162e-cc78-11e3-81ab-4c9367dc0958";
/// A time years ago, because a receiver must not depend on it.
const TIME: &str = "1700000000";

/// Signs as in Standard Webhooks: the id, the time and the body.
fn signature(key: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &BASE64.decode(key).unwrap_or_default());
    let mut context = hmac::Context::with_key(&key);
    for part in [DELIVERY.as_bytes(), b".", TIME.as_bytes(), b".", body] {
        context.update(part);
    }
    BASE64.encode(context.sign())
}

fn form(payload: &[u8]) -> Vec<u8> {
    let mut text = "payload=".to_owned();
    for byte in payload {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => text.push(char::from(*byte)),
            b' ' => text.push('+'),
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_what_browsers_send() {
        assert_eq!(form(b"{\"a\": 1}"), b"payload=%7B%22a%22%3A+1%7D");
    }

    #[test]
    fn a_delivery_is_as_long_as_asked_for() {
        let push = Push {
            url: "https://h/a.git",
            branch: "main",
            before: "0",
            after: "1",
            size: 100_000,
        };
        for host in Host::ALL {
            let request = Sender::new(host, "a token of some length").push("/hook/0", push);
            assert!(
                (100_000..200_000).contains(&request.body().len()),
                "{host:?} {}",
                request.body().len()
            );
        }
    }
}
