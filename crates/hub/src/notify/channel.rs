//! Channels: how each type of provider is spoken to.

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
    controllers::resources::{self, Name},
    delivery::Delivery,
};

/// Services that a message names.
const MAX_NAMED: usize = 20;

/// What is told.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    Rollout(&'a RolloutNews),
    Services(&'a [ServiceNews]),
    Commit(&'a CommitNews),
    /// A person asks for it.
    Test,
}

/// One message.
#[derive(Clone, Debug)]
pub struct Letter<'a> {
    /// The same however often it is sent.
    pub id: String,
    pub thread: String,
    /// Counts the messages of a thread.
    pub sequence: i64,
    pub content: Content<'a>,
    /// What was told last of the thread.
    pub before: Option<News>,
    /// What the provider calls the thread's message; empty: nothing.
    pub remote: String,
}

/// What became of a message that nobody refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    Taken {
        /// What the provider calls it.
        remote: String,
    },
    /// It is not worth one.
    Skipped,
}

/// A message in words.
pub struct Words {
    pub title: String,
    pub details: Vec<String>,
    pub severity: EventSeverity,
    /// Something has ended well.
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
                let severity = if is_good { EventSeverity::Info } else { EventSeverity::Error };
                Words { title, details, severity, is_good }
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
    /// Whether it is worth a message, where none can be edited.
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
    /// By a provider's spec and its Secrets, as they are now.
    pub async fn open(
        delivery: &Delivery,
        name: &Name,
        spec: &NotificationProviderSpec,
    ) -> Result<Result<Self, Trouble>, StoreError> {
        let secret = match &spec.secret_ref {
            Some(reference) => match load_data(delivery, &name.namespace, &reference.name).await? {
                Ok(data) => data,
                Err(trouble) => return Ok(Err(trouble)),
            },
            None => SecretData::new(),
        };
        let tls = match &spec.cert_secret_ref {
            Some(reference) => match load_data(delivery, &name.namespace, &reference.name).await? {
                Ok(data) => Some(data),
                Err(trouble) => return Ok(Err(trouble)),
            },
            None => None,
        };
        Ok(Self::make(delivery, spec, &secret, tls.as_ref()))
    }

    fn make(
        delivery: &Delivery,
        spec: &NotificationProviderSpec,
        secret: &SecretData,
        tls: Option<&SecretData>,
    ) -> Result<Self, Trouble> {
        let secret_name = spec.secret_ref.as_ref().map_or("", |reference| reference.name.as_str());
        let token = text(secret, TOKEN_KEY, secret_name)?;
        let secret_address = text(secret, ADDRESS_KEY, secret_name)?;
        let address = secret_address.clone().or_else(|| spec.address.clone().map(Zeroizing::new));
        let lacking = |key: &str| ("SecretIncomplete", format!("Secret {secret_name:?} has no {key:?}"));
        let web = delivery.mirrors.web();
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
                    Ok(Self::Chat(Chat::open(web, address.as_ref().map(|a| a.as_str()), &token, tls, channel)?))
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
                Ok(Self::GitHost(GitHost::open(web, spec.r#type, address, &token, tls, &delivery.url)?))
            }
            ProviderType::Email => {
                let username = text(secret, USERNAME_KEY, secret_name)?;
                let login = match (username, text(secret, PASSWORD_KEY, secret_name)?) {
                    (None, None) => None,
                    (Some(username), Some(password)) => Some((username.as_str().to_owned(), password)),
                    (Some(_), None) => return Err(lacking(PASSWORD_KEY)),
                    (None, Some(_)) => return Err(lacking(USERNAME_KEY)),
                };
                let (address, options) =
                    (spec.address.as_deref().unwrap_or_default(), spec.email.clone().unwrap_or_default());
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

/// Between two messages to a provider, whatever they are about: Slack takes one a second, GitHub 80 a minute.
pub fn gap(kind: ProviderType) -> Duration {
    Duration::from_millis(match kind {
        ProviderType::Slack | ProviderType::MsTeams | ProviderType::Email => 1000,
        ProviderType::GitHub => 750,
        ProviderType::Generic | ProviderType::GitLab | ProviderType::Gitea => 50,
    })
}

/// Between two messages of one thread. GitHub keeps a thousand statuses of a commit under one context.
pub fn every(kind: ProviderType, sequence: i64) -> Duration {
    Duration::from_secs(match kind {
        ProviderType::GitHub if sequence > 100 => 60,
        kind if kind.is_git_host() => 10,
        ProviderType::Generic => 1,
        _ => 3,
    })
}

/// What messages are signed with.
pub fn signing_token(data: &SecretData, secret: &str) -> Result<Zeroizing<String>, Trouble> {
    let token = text(data, TOKEN_KEY, secret)?;
    let token = token.ok_or_else(|| ("SecretIncomplete", format!("Secret {secret:?} has no {TOKEN_KEY:?}")))?;
    if token.len() < MIN_SIGNING_TOKEN {
        let why = format!(
            "{TOKEN_KEY:?} of Secret {secret} has {} bytes; at least {MIN_SIGNING_TOKEN} are needed, as of: openssl rand -hex 32",
            token.len()
        );
        return Err(("SecretInvalid", why));
    }
    Ok(token)
}

pub async fn load_data(
    delivery: &Delivery,
    namespace: &str,
    secret: &str,
) -> Result<Result<SecretData, Trouble>, StoreError> {
    let found = resources::load_secret(&delivery.store, &Name::new(namespace, secret)).await?;
    let Some(found) = found else {
        return Ok(Err(("SecretNotFound", format!("Secret {secret} does not exist"))));
    };
    let data = Option::<BTreeMap<String, ByteString>>::deserialize(&found.object["data"]);
    let Ok(data) = data.map(Option::unwrap_or_default) else {
        return Ok(Err(("SecretInvalid", format!("Secret {secret} holds data that is not base64"))));
    };
    Ok(Ok(data.into_iter().map(|(key, value)| (key, value.0)).collect()))
}

/// A value on one line; line breaks at its end, as `echo` leaves them, are none of it.
fn text(data: &SecretData, key: &str, secret: &str) -> Result<Option<Zeroizing<String>>, Trouble> {
    let Some(bytes) = data.get(key) else { return Ok(None) };
    let wrong = || ("SecretInvalid", format!("{key:?} of Secret {secret} is not text on one line"));
    let text = std::str::from_utf8(bytes).map_err(|_| wrong())?.trim_end_matches(['\r', '\n']);
    if text.chars().any(char::is_control) {
        return Err(wrong());
    }
    Ok(Some(Zeroizing::new(text.to_owned())).filter(|text| !text.is_empty()))
}
