//! A mail server that delivers nothing and is strict. It refuses and records commands in the wrong order, bare line
//! feeds, credentials without TLS, and mails without required headers.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};
use tokio_rustls::TlsAcceptor;

use crate::{authority::Authority, https};

pub const USERNAME: &str = "farwater";
pub const PASSWORD: &str = "pa55-only-for-tests";
const MAX_LINE: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Offers STARTTLS, and accepts nothing before it.
    Offered,
    /// TLS from the first byte.
    Implicit,
    None,
}

#[derive(Clone, Debug)]
pub struct Mail {
    pub from: String,
    pub to: Vec<String>,
    /// Headers and body, with `\r\n`.
    pub text: String,
    pub was_private: bool,
}

impl Mail {
    pub fn header(&self, name: &str) -> Option<&str> {
        let head = self.text.split("\r\n\r\n").next().unwrap_or_default();
        head.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

#[derive(Default)]
struct State {
    mails: Vec<Mail>,
    refused: Vec<String>,
    /// Answer to a mail instead of accepting it. None: the mail is accepted.
    fault: Option<String>,
}

#[derive(Clone, Copy)]
struct Rules {
    tls: Tls,
    login: bool,
}

/// Ends when dropped.
pub struct SmtpServer {
    address: SocketAddr,
    authority: Authority,
    tls: Tls,
    state: Arc<Mutex<State>>,
    task: AbortHandle,
}

impl Drop for SmtpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SmtpServer {
    /// `login`: only this user may send mails.
    pub async fn start(tls: Tls, login: bool) -> Result<Self> {
        let authority = Authority::new("authority of a test's mail server")?;
        let mut configuration = https::configuration(&authority)?;
        configuration.alpn_protocols.clear();
        let acceptor = TlsAcceptor::from(Arc::new(configuration));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = Arc::<Mutex<State>>::default();
        let task = tokio::spawn(serve(listener, acceptor, Rules { tls, login }, Arc::clone(&state))).abort_handle();
        Ok(Self {
            address,
            authority,
            tls,
            state,
            task,
        })
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls == Tls::Implicit { "smtps" } else { "smtp" };
        format!("{scheme}://{}", self.address)
    }

    /// PEM of the authority of its certificate.
    pub fn authority(&self) -> &str {
        self.authority.pem()
    }

    pub fn mails(&self) -> Vec<Mail> {
        lock(&self.state).mails.clone()
    }

    pub fn refused(&self) -> Vec<String> {
        lock(&self.state).refused.clone()
    }

    pub fn set_fault(&self, fault: Option<&str>) {
        lock(&self.state).fault = fault.map(str::to_owned);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, rules: Rules, state: Arc<Mutex<State>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, state) = (acceptor.clone(), Arc::clone(&state));
        connections.spawn(async move {
            if let Err(error) = greet(stream, &acceptor, rules, &state).await {
                lock(&state).refused.push(error.to_string());
            }
        });
    }
}

async fn greet(stream: TcpStream, acceptor: &TlsAcceptor, rules: Rules, state: &Mutex<State>) -> Result<()> {
    if rules.tls == Tls::Implicit {
        let mut talk = Talk::new(acceptor.accept(stream).await?, rules, state, true);
        talk.say("220 mail.test ESMTP").await?;
        return talk.run().await.map(drop);
    }
    let mut talk = Talk::new(stream, rules, state, false);
    talk.say("220 mail.test ESMTP").await?;
    if talk.run().await? {
        let stream = talk.stream.into_inner();
        return Talk::new(acceptor.accept(stream).await?, rules, state, true)
            .run()
            .await
            .map(drop);
    }
    Ok(())
}

struct Talk<'a, S> {
    stream: BufReader<S>,
    rules: Rules,
    state: &'a Mutex<State>,
    is_private: bool,
    is_known: bool,
    has_greeted: bool,
    from: Option<String>,
    to: Vec<String>,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Talk<'a, S> {
    fn new(stream: S, rules: Rules, state: &'a Mutex<State>, is_private: bool) -> Self {
        let stream = BufReader::new(stream);
        Self {
            stream,
            rules,
            state,
            is_private,
            is_known: false,
            has_greeted: false,
            from: None,
            to: Vec::new(),
        }
    }

    async fn say(&mut self, line: &str) -> Result<()> {
        self.stream
            .get_mut()
            .write_all(format!("{line}\r\n").as_bytes())
            .await?;
        self.stream.get_mut().flush().await?;
        Ok(())
    }

    /// Reads a line. None: the connection has ended.
    async fn hear(&mut self) -> Result<Option<String>> {
        let mut line = Vec::new();
        if self.stream.read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        ensure!(line.ends_with(b"\r\n"), "a bare line feed");
        ensure!(line.len() <= MAX_LINE, "a line of {} bytes", line.len());
        line.truncate(line.len() - 2);
        Ok(Some(String::from_utf8(line)?))
    }

    async fn refuse(&mut self, code: u16, why: &str) -> Result<()> {
        lock(self.state).refused.push(why.to_owned());
        self.say(&format!("{code} {why}")).await
    }

    /// Answers commands. Returns whether TLS begins now.
    async fn run(&mut self) -> Result<bool> {
        while let Some(line) = self.hear().await? {
            let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match verb.to_ascii_uppercase().as_str() {
                "EHLO" if !rest.is_empty() => {
                    self.has_greeted = true;
                    self.offer().await?;
                }
                "STARTTLS" if self.rules.tls == Tls::Offered && !self.is_private && self.has_greeted => {
                    ensure!(self.stream.buffer().is_empty(), "something was sent before TLS began");
                    self.say("220 go ahead").await?;
                    return Ok(true);
                }
                "AUTH" if !self.is_private => self.refuse(538, "credentials in the clear").await?,
                "AUTH" => self.know(rest).await?,
                "MAIL" if !self.is_private && self.rules.tls == Tls::Offered => {
                    self.refuse(530, "a mail before STARTTLS").await?;
                }
                "MAIL" if self.rules.login && !self.is_known => self.refuse(530, "a mail of nobody").await?,
                "MAIL" if self.has_greeted && self.from.is_none() => {
                    self.from = address(rest, "FROM:");
                    self.say("250 ok").await?;
                }
                "RCPT" if self.from.is_some() => {
                    self.to.extend(address(rest, "TO:"));
                    self.say("250 ok").await?;
                }
                "DATA" if !self.to.is_empty() => self.take().await?,
                "QUIT" => {
                    self.say("221 bye").await?;
                    return Ok(false);
                }
                _ => self.refuse(503, &format!("out of order: {line}")).await?,
            }
        }
        Ok(false)
    }

    async fn offer(&mut self) -> Result<()> {
        let mut offers = vec!["mail.test", "8BITMIME"];
        if self.rules.tls == Tls::Offered && !self.is_private {
            offers.push("STARTTLS");
        }
        if self.rules.login && (self.is_private || self.rules.tls == Tls::None) {
            offers.push("AUTH PLAIN LOGIN");
        }
        let last = offers.len() - 1;
        for (n, offer) in offers.into_iter().enumerate() {
            self.say(&format!("250{}{offer}", if n == last { ' ' } else { '-' }))
                .await?;
        }
        Ok(())
    }

    async fn know(&mut self, rest: &str) -> Result<()> {
        let expected = STANDARD.encode(format!("\0{USERNAME}\0{PASSWORD}"));
        match rest.split_once(' ') {
            Some(("PLAIN", given)) if given == expected => {
                self.is_known = true;
                self.say("235 welcome").await
            }
            _ => self.refuse(535, "wrong credentials").await,
        }
    }

    async fn take(&mut self) -> Result<()> {
        self.say("354 go ahead").await?;
        let mut text = String::new();
        loop {
            let line = self.hear().await?;
            ensure!(line.is_some(), "a mail that ends in its midst");
            let line = line.unwrap_or_default();
            if line == "." {
                break;
            }
            text.push_str(line.strip_prefix('.').unwrap_or(&line));
            text.push_str("\r\n");
        }
        let (from, to) = (self.from.take().unwrap_or_default(), std::mem::take(&mut self.to));
        let mail = Mail {
            from,
            to,
            text,
            was_private: self.is_private,
        };
        let fault = lock(self.state).fault.clone();
        if let Some(fault) = fault {
            return self.say(&fault).await;
        }
        let needed = ["From", "To", "Subject", "Date", "Message-ID"];
        if let Some(name) = needed.iter().find(|name| mail.header(name).is_none()) {
            return self.refuse(554, &format!("no {name}")).await;
        }
        lock(self.state).mails.push(mail);
        self.say("250 taken").await
    }
}

fn address(rest: &str, word: &str) -> Option<String> {
    let rest = rest.strip_prefix(word)?.trim();
    let (address, _) = rest.strip_prefix('<')?.split_once('>')?;
    Some(address.to_owned())
}
