//! Receivers of notifications. Each gets first a refused credential, then its own. At the end they all refuse and
//! repeat what they received.

use anyhow::{Context as _, Result, ensure};
use farwater_api::notification_provider::ProviderType;
use farwater_e2e::Fleet;
use farwater_testkit::{
    chat::{self, ChatServer},
    code_host::{self, CodeHost},
    fake::Said,
    hook::Hook,
    smtp::{self, SmtpServer, Tls},
};
use serde_json::{Value, json};

use super::{
    canary::{Marks, canary, right, wrong},
    objects::{change_secret, create, put_secret},
};

const HOSTS: [ProviderType; 3] = [ProviderType::GitHub, ProviderType::GitLab, ProviderType::Gitea];

pub struct Tells {
    hook: Hook,
    chat: ChatServer,
    mail: SmtpServer,
    hosts: Vec<CodeHost>,
}

/// A provider and its Secret.
struct Provider {
    name: &'static str,
    spec: Value,
    wrong: Value,
    right: Value,
    /// Its secret text.
    secret: String,
}

impl Tells {
    pub async fn start(marks: &mut Marks) -> Result<Self> {
        let chat = ChatServer::start().await?;
        let mut hosts = Vec::new();
        for kind in HOSTS {
            hosts.push(CodeHost::start(kind).await?);
        }
        [chat::TOKEN, smtp::PASSWORD, code_host::TOKEN]
            .into_iter()
            .for_each(|token| marks.add(token));
        for (address, separator) in [(chat.hook(), '/'), (chat.flow(), '=')] {
            let (_, secret) = address.rsplit_once(separator).context("an address that is a secret")?;
            marks.add(secret);
        }
        Ok(Self {
            hook: Hook::start(&right("hook")).await?,
            chat,
            mail: SmtpServer::start(Tls::Offered, true).await?,
            hosts,
        })
    }

    fn providers(&self) -> Vec<Provider> {
        let token = |token: &str| json!({"token": token});
        let address = |address: &str| json!({"address": address});
        let login = |password: &str| json!({"username": smtp::USERNAME, "password": password});
        let (hook, flow) = (self.chat.hook(), self.chat.flow());
        // Another value in the last part of each.
        let elsewhere = |address: &str, separator: char, n: usize| {
            let (start, _) = address.rsplit_once(separator).unwrap_or_default();
            format!("{start}{separator}{}", canary("chat", n))
        };
        let slack = json!({"type": "slack", "address": self.chat.api(), "channel": chat::CHANNEL});
        let mail = json!({
            "type": "email", "address": self.mail.url(), "certSecretRef": {"name": "mail-authority"},
            "email": {"from": "hub@example.com", "to": ["ops@example.com"]},
        });
        let mut all = vec![
            Provider {
                name: "hook",
                spec: json!({"type": "generic", "address": self.hook.url()}),
                wrong: token(&wrong("hook")),
                right: token(&right("hook")),
                secret: right("hook"),
            },
            Provider {
                name: "chat",
                spec: slack,
                wrong: token(&canary("chat", 0)),
                right: token(chat::TOKEN),
                secret: chat::TOKEN.to_owned(),
            },
            Provider {
                name: "chat-hook",
                spec: json!({"type": "slack"}),
                wrong: address(&elsewhere(&hook, '/', 1)),
                right: address(&hook),
                secret: hook,
            },
            Provider {
                name: "chat-flow",
                spec: json!({"type": "msteams"}),
                wrong: address(&elsewhere(&flow, '=', 2)),
                right: address(&flow),
                secret: flow,
            },
            Provider {
                name: "mail",
                spec: mail,
                wrong: login(&wrong("mail")),
                right: login(smtp::PASSWORD),
                secret: smtp::PASSWORD.to_owned(),
            },
        ];
        all.extend(HOSTS.into_iter().zip(&self.hosts).map(|(kind, host)| Provider {
            name: kind.as_str(),
            spec: json!({"type": kind, "address": host.url()}),
            wrong: token(&wrong("code")),
            right: token(code_host::TOKEN),
            secret: code_host::TOKEN.to_owned(),
        }));
        all
    }

    /// Checks that all receivers get messages about all sets and services, once their Secrets are right.
    pub async fn sign_in(&self, fleet: &Fleet, marks: &Marks) -> Result<()> {
        put_secret(fleet, "mail-authority", &json!({"ca.crt": self.mail.authority()})).await?;
        for Provider {
            name,
            mut spec,
            wrong,
            right,
            secret,
        } in self.providers()
        {
            put_secret(fleet, name, &wrong).await?;
            spec["secretRef"] = json!({"name": name});
            create(fleet, "NotificationProvider", name, spec).await?;
            test(fleet, marks, name, 1)?;
            change_secret(fleet, name, &right).await?;
            self.set_fault(Some(&secret));
            let told = test(fleet, marks, name, 1)?;
            ensure!(told.contains("***"), "{name} says nothing again: {told}");
            self.set_fault(None);
            test(fleet, marks, name, 0)?;
            let all = ["ServiceSet", "ServiceDeployment"].map(|kind| json!({"kind": kind, "name": "*"}));
            let rule = json!({"providerRef": {"name": name}, "eventSources": all});
            create(fleet, "NotificationRule", name, rule).await?;
        }
        Ok(())
    }

    /// Makes all receivers refuse messages, with this text.
    fn set_fault(&self, words: Option<&str>) {
        let said = words.map(|words| Said {
            status: 500,
            body: format!("not with {words}"),
            headers: Vec::new(),
        });
        self.hook.set_fault(said.clone());
        self.chat.set_fault(said.clone());
        self.hosts.iter().for_each(|host| host.set_fault(said.clone()));
        self.mail
            .set_fault(words.map(|words| format!("451 not with {words}")).as_deref());
    }

    /// Adds this commit to the hosts.
    pub fn push(&self, commit: &str) {
        self.hosts.iter().for_each(|host| host.push(commit));
    }

    /// Checks that all got messages about the set, and that no message contains a secret.
    pub async fn check_told(&self, fleet: &Fleet, marks: &Marks, commit: &str, set: &str) -> Result<()> {
        let context = format!("farwater/farwater-admin/{set}");
        let is_of_set = |text: &str| text.contains(set) && text.contains("is complete");
        fleet
            .until("all to be told", || async {
                let chats = [self.chat.posted(), self.chat.hooked(), self.chat.cards()];
                let is_told = chats
                    .iter()
                    .all(|all| all.iter().any(|message| is_of_set(&message.text)))
                    && self.hook.taken().iter().any(|body| body["type"] == "rollout")
                    && self
                        .mail
                        .mails()
                        .iter()
                        .any(|mail| mail.header("Subject").is_some_and(is_of_set))
                    && self.hosts.iter().all(|host| host.status(commit, &context).is_some());
                Ok(is_told.then_some(()))
            })
            .await?;
        let taken = serde_json::to_string(&self.hook.taken())?;
        marks.check(
            "messages",
            &format!("{taken} {:?} {:?}", self.chat.posted(), self.mail.mails()),
        )?;
        let statuses: Vec<_> = self.hosts.iter().map(CodeHost::taken).collect();
        marks.check("statuses of commits", &format!("{statuses:?}"))
    }
}

/// Sends an empty test message. Returns the CLI's output.
fn test(fleet: &Fleet, marks: &Marks, provider: &str, code: i32) -> Result<String> {
    let ran = fleet.cli().expect(code, &["notify", "test", provider])?;
    let said = format!("{}\n{}", ran.stdout, ran.stderr);
    marks.check("a test of a provider", &said)?;
    Ok(said)
}
