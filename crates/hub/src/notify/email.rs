//! E-mail: one thread of mails per thread of notifications. Connections are only opened to addresses that were checked.
//! Nothing is sent without TLS unless the provider allows it, and credentials never are.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::notification_provider::EmailOptions;
use farwater_sources::{SecretData, Web};
use lettre::{
    Message,
    message::{
        Mailbox,
        header::{ContentType, HeaderName, HeaderValue},
    },
    transport::smtp::{
        authentication::{Credentials, Mechanism},
        client::{AsyncSmtpConnection, Certificate, TlsParameters},
        extension::ClientId,
    },
};
use tokio::time::timeout;
use url::Url;
use zeroize::Zeroizing;

use super::{
    channel::{Letter, Sent},
    line::{Fault, Trouble, describe_reason},
};

/// Time limit for sending a mail.
const TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(10);
const SUBMISSION: u16 = 587;
const SUBMISSIONS: u16 = 465;

pub struct Email {
    web: Web,
    host: String,
    port: u16,
    /// Whether TLS begins with the first byte.
    is_implicit: bool,
    login: Option<(String, Zeroizing<String>)>,
    tls: TlsParameters,
    options: EmailOptions,
}

impl Email {
    pub fn open(
        web: &Web,
        address: &str,
        login: Option<(String, Zeroizing<String>)>,
        tls: Option<&SecretData>,
        options: EmailOptions,
    ) -> Result<Self, Trouble> {
        let wrong = || {
            (
                "AddressInvalid",
                "its address is none of a mail server: smtp://HOST or smtps://HOST".to_owned(),
            )
        };
        let url = Url::parse(address.trim()).map_err(|_| wrong())?;
        let host = url.host_str().ok_or_else(wrong)?.to_owned();
        let is_implicit = match url.scheme() {
            "smtps" => true,
            "smtp" => false,
            _ => return Err(wrong()),
        };
        let port = url.port().unwrap_or(if is_implicit { SUBMISSIONS } else { SUBMISSION });
        let invalid = |what: &str| {
            (
                "SecretInvalid",
                format!("the ca.crt of the Secret that certSecretRef names is {what}"),
            )
        };
        let mut builder = TlsParameters::builder(host.trim_matches(['[', ']']).to_owned());
        if let Some(pem) = tls.and_then(|data| data.get("ca.crt")) {
            builder =
                builder.add_root_certificate(Certificate::from_pem(pem).map_err(|_| invalid("no PEM certificate"))?);
        }
        let tls = builder.build_rustls().map_err(|_| invalid("not taken"))?;
        Ok(Self {
            web: web.clone(),
            host,
            port,
            is_implicit,
            login,
            tls,
            options,
        })
    }

    pub async fn send(&self, letter: &Letter<'_>) -> Result<Sent, Fault> {
        if !letter.is_turn(false) {
            return Ok(Sent::Skipped);
        }
        let id = format!("<{}@{}>", letter.id, self.domain());
        let mail = self.compose(letter, &id)?;
        match timeout(TIMEOUT, self.deliver(&mail)).await {
            Ok(sent) => sent?,
            Err(_) => {
                return Err(Fault::new(format!(
                    "{}: no answer within {} s",
                    self.host,
                    TIMEOUT.as_secs()
                )));
            }
        }
        // The other mails of a thread are replies to the first one.
        let remote = if letter.remote.is_empty() {
            id
        } else {
            letter.remote.clone()
        };
        Ok(Sent::Taken { remote })
    }

    fn domain(&self) -> &str {
        self.options
            .from
            .rsplit_once('@')
            .map_or("farwater", |(_, domain)| domain)
    }

    fn compose(&self, letter: &Letter<'_>, id: &str) -> Result<Message, Fault> {
        let words = letter.content.words();
        let mailbox = |address: &str| {
            let address = address
                .parse()
                .map_err(|_| Fault::new("an address in spec.email can't be read"))?;
            Ok::<_, Fault>(Mailbox::new(None, address))
        };
        let mut message = Message::builder()
            .from(mailbox(&self.options.from)?)
            .subject(words.title.clone())
            .message_id(Some(id.to_owned()))
            .header(ContentType::TEXT_PLAIN);
        for to in &self.options.to {
            message = message.to(mailbox(to)?);
        }
        if !letter.remote.is_empty() {
            message = message
                .in_reply_to(letter.remote.clone())
                .references(letter.remote.clone());
        }
        let text = format!("{}\n\n{}\n", words.title, words.details.join("\n"));
        let mut message = message
            .body(text)
            .map_err(|error| Fault::of_message(error.to_string()))?;
        // Prevents absence notes as answers.
        let automatic = HeaderValue::new(
            HeaderName::new_from_ascii_str("Auto-Submitted"),
            "auto-generated".to_owned(),
        );
        message.headers_mut().insert_raw(automatic);
        Ok(message)
    }

    async fn deliver(&self, mail: &Message) -> Result<(), Fault> {
        let found = self.web.guarded_addresses(&self.host, self.port).await;
        let addresses =
            found.map_err(|(reason, evidence)| Fault::new(describe_reason(&self.host, &reason, &evidence)))?;
        let hello = ClientId::Domain(self.domain().to_owned());
        let implicit = self.is_implicit.then(|| self.tls.clone());
        let connected =
            AsyncSmtpConnection::connect_tokio1(&addresses[..], Some(CONNECT), &hello, implicit, None).await;
        let mut connection = connected.map_err(|error| self.fault("can't be reached", &error))?;
        let sent = self.converse(&mut connection, &hello, mail).await;
        // A mail that was accepted is sent, however the connection ends. If TLS has failed, no further command is
        // possible.
        if sent.is_ok() {
            drop(connection.quit().await);
        }
        sent
    }

    async fn converse(
        &self,
        connection: &mut AsyncSmtpConnection,
        hello: &ClientId,
        mail: &Message,
    ) -> Result<(), Fault> {
        let mut is_private = self.is_implicit;
        if !is_private && connection.can_starttls() {
            let upgraded = connection.starttls(self.tls.clone(), hello).await;
            upgraded.map_err(|error| self.fault("does not begin TLS", &error))?;
            is_private = true;
        }
        if !is_private && (self.login.is_some() || !self.options.allow_clear_text) {
            let remedy = match &self.login {
                Some(_) => "credentials are never sent in the clear",
                None => "set spec.email.allowClearText if mails may cross the network in the clear",
            };
            return Err(Fault::new(format!("{} offers no STARTTLS; {remedy}", self.host)));
        }
        if let Some((username, password)) = &self.login {
            let credentials = Credentials::new(username.clone(), password.as_str().to_owned());
            let known = connection
                .auth(&[Mechanism::Plain, Mechanism::Login], &credentials)
                .await;
            known.map_err(|error| self.fault("refuses the credentials", &error))?;
        }
        let sent = connection.send(mail.envelope(), &mail.formatted()).await;
        sent.map(drop).map_err(|error| {
            let of_message = error.is_permanent();
            Fault {
                of_message,
                ..self.fault("does not take the mail", &error)
            }
        })
    }

    fn fault(&self, what: &str, error: &lettre::transport::smtp::Error) -> Fault {
        let mut said = error.to_string();
        // A server may repeat what it received.
        if let Some((username, password)) = &self.login {
            let pair = Zeroizing::new(BASE64.encode(format!("\0{username}\0{}", password.as_str())));
            let alone = Zeroizing::new(BASE64.encode(password.as_bytes()));
            for secret in [password, &pair, &alone] {
                said = said.replace(secret.as_str(), "***");
            }
        }
        let said: String = said.chars().filter(|one| !one.is_control()).take(200).collect();
        Fault::new(format!("{} {what}: {said}", self.host))
    }
}
