//! Channels: the protocol of each type of provider.

use std::{collections::BTreeMap, time::Duration};

use farwater_api::{
    NotificationProviderSpec,
    notification_provider::{ADDRESS_KEY, MIN_SIGNING_TOKEN, PASSWORD_KEY, ProviderType, TOKEN_KEY, USERNAME_KEY},
    notification_rule::EventSeverity,
};
use farwater_fleet::notify::{CommitNews, News, RolloutNews, ServiceNews, tell_services};
use farwater_sources::SecretData;
use farwater_store::StoreError;
use k8s_openapi::ByteString;
use serde::Deserialize as _;
use zeroize::Zeroizing;

use super::{
    chat::{Chat, ChatHook},
    email::Email,
    git_hosts::GitHost,
    line::{Fault, Line, Trouble},
    teams::Teams,
    webhook::Webhook,
};
use crate::{
    replica::Replica,
    resources::{self, Name},
};

/// Maximum number of services that a message names.
const MAX_NAMED: usize = 20;

/// Content of a message.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    Rollout(&'a RolloutNews),
    Services(&'a [ServiceNews]),
    Commit(&'a CommitNews),
    /// A test that a person requested.
    Test,
}

/// One message.
#[derive(Clone, Debug)]
pub struct Letter<'a> {
    /// The same for each attempt to send it.
    pub id: String,
    pub thread: String,
    /// Number of the message in its thread.
    pub sequence: i64,
    pub content: Content<'a>,
    /// The news of the thread that was sent last.
    pub before: Option<News>,
    /// The provider's id of the thread's message; empty: it has none.
    pub remote: String,
}

/// Result of a message that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    Taken {
        /// The provider's id of the message.
        remote: String,
    },
    /// It is not worth a message.
    Skipped,
}

/// The text of a message.
pub struct Words {
    pub title: String,
    pub details: Vec<String>,
    pub severity: EventSeverity,
    /// Whether something has ended well.
    pub is_good: bool,
}

impl Content<'_> {
    pub fn words(&self) -> Words {
        use farwater_fleet::notify::{CommitState, Course};
        match self {
            Self::Rollout(news) => Words {
                title: news.title(),
                details: news.details(),
                severity: news.course.severity(),
                is_good: news.course == Course::Complete,
            },
            Self::Services(services) => {
                let (title, details) = tell_services(services, MAX_NAMED);
                let is_good = services.iter().all(|service| service.is_well);
                let severity = if is_good {
                    EventSeverity::Info
                } else {
                    EventSeverity::Error
                };
                Words {
                    title,
                    details,
                    severity,
                    is_good,
                }
            }
            Self::Commit(news) => Words {
                title: format!("{}: {}", news.context, news.description),
                details: vec![news.commit.clone()],
                severity: EventSeverity::Info,
                is_good: news.state == CommitState::Succeeded,
            },
            Self::Test => Words {
                title: "a test of this notification provider".to_owned(),
                details: vec!["a person requested this test message".to_owned()],
                severity: EventSeverity::Info,
                is_good: true,
            },
        }
    }
}

impl Letter<'_> {
    /// Whether it is worth a message of its own, for providers whose messages can't be edited.
    pub fn is_turn(&self, with_steps: bool) -> bool {
        match (&self.content, &self.before) {
            (Content::Rollout(news), Some(News::Rollout(before))) => news.is_turn_from(Some(before), with_steps),
            _ => true,
        }
    }
}

pub enum Channel {
    Webhook(Box<Webhook>),
    Chat(Chat),
    ChatHook(ChatHook),
    Teams(Teams),
    GitHost(GitHost),
    Email(Box<Email>),
}

impl Channel {
    /// Opens the channel of a provider's spec and its Secrets, as they are now.
    pub async fn open(
        replica: &Replica,
        name: &Name,
        spec: &NotificationProviderSpec,
    ) -> Result<Result<Self, Trouble>, StoreError> {
        let secret = match &spec.secret_ref {
            Some(reference) => match load_data(replica, &name.namespace, &reference.name).await? {
                Ok(data) => data,
                Err(trouble) => return Ok(Err(trouble)),
            },
            None => SecretData::new(),
        };
        let tls = match &spec.cert_secret_ref {
            Some(reference) => match load_data(replica, &name.namespace, &reference.name).await? {
                Ok(data) => Some(data),
                Err(trouble) => return Ok(Err(trouble)),
            },
            None => None,
        };
        Ok(Self::make(replica, spec, &secret, tls.as_ref()))
    }

    fn make(
        replica: &Replica,
        spec: &NotificationProviderSpec,
        secret: &SecretData,
        tls: Option<&SecretData>,
    ) -> Result<Self, Trouble> {
        let secret_name = spec.secret_ref.as_ref().map_or("", |reference| reference.name.as_str());
        let token = text(secret, TOKEN_KEY, secret_name)?;
        let secret_address = text(secret, ADDRESS_KEY, secret_name)?;
        let address = secret_address
            .clone()
            .or_else(|| spec.address.clone().map(Zeroizing::new));
        let lacking = |key: &str| lacking(secret_name, key);
        let web = replica.access.mirrors.web();

        match spec.r#type {
            ProviderType::Generic => {
                let token = signing_token(secret, secret_name)?;
                let address = address.ok_or_else(|| lacking(ADDRESS_KEY))?;
                Ok(Self::Webhook(Box::new(Webhook::open(web, &address, &token, tls)?)))
            }
            ProviderType::Slack => match token {
                Some(token) => {
                    let channel = spec.channel.clone();
                    let channel = channel.ok_or(("ChannelMissing", "name a channel in spec.channel".to_owned()))?;
                    let address = address.as_ref().map(|address| address.as_str());
                    Ok(Self::Chat(Chat::open(web, address, &token, tls, channel)?))
                }
                None => {
                    let address = secret_address.ok_or_else(|| lacking(TOKEN_KEY))?;
                    Ok(Self::ChatHook(ChatHook(Line::open(web, &address, None, tls)?)))
                }
            },
            ProviderType::MsTeams => {
                let address = secret_address.ok_or_else(|| lacking(ADDRESS_KEY))?;
                Ok(Self::Teams(Teams(Line::open(web, &address, None, tls)?)))
            }
            ProviderType::GitHub | ProviderType::GitLab | ProviderType::Gitea => {
                let token = token.ok_or_else(|| lacking(TOKEN_KEY))?;
                let address = spec.address.as_deref().unwrap_or_default();
                Ok(Self::GitHost(GitHost::open(
                    web,
                    spec.r#type,
                    address,
                    &token,
                    tls,
                    &replica.url,
                )?))
            }
            ProviderType::Email => {
                let login = login(secret, secret_name)?;
                let address = spec.address.as_deref().unwrap_or_default();
                let options = spec.email.clone().unwrap_or_default();
                Ok(Self::Email(Box::new(Email::open(web, address, login, tls, options)?)))
            }
        }
    }

    pub async fn send(&self, letter: &Letter<'_>) -> Result<Sent, Fault> {
        match self {
            Self::Webhook(webhook) => webhook.send(letter).await,
            Self::Chat(chat) => chat.send(letter).await,
            Self::ChatHook(hook) => hook.send(letter).await,
            Self::Teams(teams) => teams.send(letter).await,
            Self::GitHost(host) => host.send(letter).await,
            Self::Email(email) => email.send(letter).await,
        }
    }
}

fn lacking(secret_name: &str, key: &str) -> Trouble {
    ("SecretIncomplete", format!("Secret {secret_name:?} has no {key:?}"))
}

/// User and password of a mail server. None: the Secret has neither.
fn login(secret: &SecretData, secret_name: &str) -> Result<Option<(String, Zeroizing<String>)>, Trouble> {
    let username = text(secret, USERNAME_KEY, secret_name)?;
    match (username, text(secret, PASSWORD_KEY, secret_name)?) {
        (None, None) => Ok(None),
        (Some(username), Some(password)) => Ok(Some((username.as_str().to_owned(), password))),
        (Some(_), None) => Err(lacking(secret_name, PASSWORD_KEY)),
        (None, Some(_)) => Err(lacking(secret_name, USERNAME_KEY)),
    }
}

/// Least time between two messages to a provider, of any threads: Slack accepts one per second, GitHub 80 per minute.
pub fn gap(kind: ProviderType) -> Duration {
    Duration::from_millis(match kind {
        ProviderType::Slack | ProviderType::MsTeams | ProviderType::Email => 1000,
        ProviderType::GitHub => 750,
        ProviderType::Generic | ProviderType::GitLab | ProviderType::Gitea => 50,
    })
}

/// Least time between two messages of one thread. GitHub keeps a thousand statuses of a commit per context.
pub fn every(kind: ProviderType, sequence: i64) -> Duration {
    Duration::from_secs(match kind {
        ProviderType::GitHub if sequence > 100 => 60,
        kind if kind.is_git_host() => 10,
        ProviderType::Generic => 1,
        _ => 3,
    })
}

/// The token that messages are signed with.
pub fn signing_token(data: &SecretData, secret: &str) -> Result<Zeroizing<String>, Trouble> {
    let token = text(data, TOKEN_KEY, secret)?;
    let token = token.ok_or_else(|| ("SecretIncomplete", format!("Secret {secret:?} has no {TOKEN_KEY:?}")))?;
    if token.len() < MIN_SIGNING_TOKEN {
        let why = format!(
            "{TOKEN_KEY:?} of Secret {secret} has {} bytes; at least {MIN_SIGNING_TOKEN} are needed: create one with openssl rand -hex 32",
            token.len()
        );
        return Err(("SecretInvalid", why));
    }
    Ok(token)
}

pub async fn load_data(
    replica: &Replica,
    namespace: &str,
    secret: &str,
) -> Result<Result<SecretData, Trouble>, StoreError> {
    let found = resources::load_secret(&replica.store, &Name::new(namespace, secret)).await?;
    let Some(found) = found else {
        return Ok(Err(("SecretNotFound", format!("Secret {secret} does not exist"))));
    };
    let data = Option::<BTreeMap<String, ByteString>>::deserialize(&found.object["data"]);
    let Ok(data) = data.map(Option::unwrap_or_default) else {
        return Ok(Err((
            "SecretInvalid",
            format!("Secret {secret} holds data that is not base64"),
        )));
    };
    Ok(Ok(data.into_iter().map(|(key, value)| (key, value.0)).collect()))
}

/// A value on one line, without the line breaks at its end that `echo` adds.
fn text(data: &SecretData, key: &str, secret: &str) -> Result<Option<Zeroizing<String>>, Trouble> {
    let Some(bytes) = data.get(key) else { return Ok(None) };
    let wrong = || {
        (
            "SecretInvalid",
            format!("{key:?} of Secret {secret} is not text on one line"),
        )
    };
    let text = std::str::from_utf8(bytes)
        .map_err(|_| wrong())?
        .trim_end_matches(['\r', '\n']);
    if text.chars().any(char::is_control) {
        return Err(wrong());
    }
    Ok(Some(Zeroizing::new(text.to_owned())).filter(|text| !text.is_empty()))
}
