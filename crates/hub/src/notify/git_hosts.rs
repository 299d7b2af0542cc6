//! Statuses of commits: GitHub, GitLab, Gitea and Forgejo.

use farwater_api::notification_provider::ProviderType;
use farwater_fleet::notify::{CommitNews, CommitState, News};
use farwater_sources::{SecretData, Web};
use http::HeaderName;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use url::Url;
use zeroize::Zeroizing;

use super::{
    channel::{Content, Letter, Sent},
    line::{Fault, Line, Trouble},
};

const GITHUB: &str = "github.com";
/// For a path of one segment, in which a slash is encoded.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// GitLab's error for a status that already has this state.
const SAME_STATE: &str = "Cannot transition status";

pub struct GitHost {
    kind: ProviderType,
    /// Line to the repository in the host's API.
    line: Line,
    /// The hub's own address, for a link to its page.
    hub: String,
}

impl GitHost {
    pub fn open(
        web: &Web,
        kind: ProviderType,
        repository: &str,
        token: &Zeroizing<String>,
        tls: Option<&SecretData>,
        hub: &str,
    ) -> Result<Self, Trouble> {
        let api = api_of(kind, repository).ok_or((
            "AddressInvalid",
            "spec.address names no repository: https://HOST/OWNER/NAME".to_owned(),
        ))?;
        Ok(Self {
            kind,
            line: Line::open(web, &api, Some(token), tls)?,
            hub: hub.to_owned(),
        })
    }

    pub async fn send(&self, letter: &Letter<'_>) -> Result<Sent, Fault> {
        match letter.content {
            Content::Commit(news) => self.set_status(news, letter.before.as_ref()).await,
            Content::Test => {
                self.line.get(self.line.url().clone()).await?;
                Ok(Sent::Taken { remote: String::new() })
            }
            Content::Rollout(_) | Content::Services(_) => Ok(Sent::Skipped),
        }
    }

    async fn set_status(&self, news: &CommitNews, before: Option<&News>) -> Result<Sent, Fault> {
        let is_same_state = matches!(before, Some(News::Commit(before)) if before.state == news.state);
        // GitLab can't update a running status, only end it.
        if self.kind == ProviderType::GitLab && is_same_state && news.state == CommitState::Running {
            return Ok(Sent::Skipped);
        }
        // The commit comes from a mirror: it is hexadecimal digits, or not a commit.
        if news.commit.is_empty() || !news.commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(Sent::Skipped);
        }
        let address = format!("{}/statuses/{}", self.line.url(), news.commit);
        let url = Url::parse(&address).map_err(|_| Fault::new("its address can't be read"))?;
        let accept = match self.kind {
            ProviderType::GitHub => vec![(HeaderName::from_static("x-github-api-version"), "2022-11-28".to_owned())],
            _ => Vec::new(),
        };
        match self
            .line
            .post(url, &accept, self.body(news).to_string().into_bytes())
            .await
        {
            Ok(_) => Ok(Sent::Taken { remote: String::new() }),
            Err(fault) if self.kind == ProviderType::GitLab && fault.why.contains(SAME_STATE) => {
                Ok(Sent::Taken { remote: String::new() })
            }
            // The commit was not pushed to this repository.
            Err(fault) if fault.why.contains("(HTTP 404") => Err(Fault {
                of_message: true,
                ..fault
            }),
            Err(fault) => Err(fault),
        }
    }

    fn body(&self, news: &CommitNews) -> Value {
        let (name, state) = match (self.kind, news.state) {
            (ProviderType::GitLab, CommitState::Running) => ("name", "running"),
            (ProviderType::GitLab, CommitState::Succeeded) => ("name", "success"),
            (ProviderType::GitLab, CommitState::Failed) => ("name", "failed"),
            (ProviderType::GitLab, CommitState::Superseded) => ("name", "canceled"),
            (_, CommitState::Running) => ("context", "pending"),
            (_, CommitState::Succeeded) => ("context", "success"),
            (_, CommitState::Failed) => ("context", "failure"),
            (_, CommitState::Superseded) => ("context", "error"),
        };
        let mut body = json!({"state": state, name: news.context, "description": news.description});
        // The set is unknown if an older hub saved the status.
        if !news.set.is_empty() {
            body["target_url"] = page_of(&self.hub, &news.set).into();
        }
        body
    }
}

/// Address of a set on the page.
fn page_of(hub: &str, set: &str) -> String {
    format!(
        "{}/ui/?set={}",
        hub.trim_end_matches('/'),
        utf8_percent_encode(set, SEGMENT)
    )
}

/// Address of a repository in its host's API.
fn api_of(kind: ProviderType, repository: &str) -> Option<String> {
    let url = Url::parse(repository).ok()?;
    let host = url.host_str()?;
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let path = url.path().trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    if !path.contains('/') {
        return None;
    }
    let root = format!("{}://{host}{port}", url.scheme());
    Some(match kind {
        ProviderType::GitHub if host == GITHUB => format!("https://api.github.com/repos/{path}"),
        ProviderType::GitHub => format!("{root}/api/v3/repos/{path}"),
        ProviderType::GitLab => format!("{root}/api/v4/projects/{}", utf8_percent_encode(path, SEGMENT)),
        _ => format!("{root}/api/v1/repos/{path}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_found_in_its_hosts_api() {
        let check = |kind, repository: &str, expected: Option<&str>| {
            assert_eq!(api_of(kind, repository).as_deref(), expected, "{repository}");
        };
        use ProviderType::{GitHub, GitLab, Gitea};
        check(
            GitHub,
            "https://github.com/team/infra.git",
            Some("https://api.github.com/repos/team/infra"),
        );
        check(
            GitHub,
            "https://ghe.example.com/team/infra",
            Some("https://ghe.example.com/api/v3/repos/team/infra"),
        );
        check(
            GitLab,
            "https://git.example.com/a/b/infra/",
            Some("https://git.example.com/api/v4/projects/a%2Fb%2Finfra"),
        );
        check(
            Gitea,
            "http://127.0.0.1:3000/a/b",
            Some("http://127.0.0.1:3000/api/v1/repos/a/b"),
        );
        check(GitHub, "https://github.com/team", None);
    }
}
