//! The planted secrets, and how to recognize them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

/// Inputs with values for services, and the number of values.
pub const HANDED: [(&str, usize); 15] = [
    // Keys that a service selects: from a Secret of the hub, from each kind of backend, from a Secret in the cluster.
    ("own", 20),
    ("files", 20),
    ("environment", 10),
    ("program", 10),
    ("cluster", 10),
    // From a context: its Secret, its own configuration, and a nested value.
    ("shared", 20),
    ("context", 25),
    ("deep", 25),
    // Encrypted in Git: a manifest, and a chart's values.
    ("sops", 10),
    ("values", 10),
    // Secrets that the cluster also gets.
    ("handed", 20),
    // For a plugin.
    ("plugin", 20),
    // Credentials: of one repository, of all repositories with a prefix, and of webhooks.
    ("password", 1),
    ("prefix", 1),
    ("token", 4),
];

/// Credentials of the hub, in the same form. The last one of each is always refused.
pub const SHOWN: [(&str, usize); 17] = [
    // For Vault, with a token and with a role, and Vault's own values.
    ("vault-token", 2),
    ("vault", 10),
    ("secret-id", 2),
    ("role", 10),
    // For sources: passphrase of a key, and passwords of a proxy, a registry, a chart repository and a credential
    // program.
    ("phrase", 2),
    ("proxy", 2),
    ("docker", 1),
    ("chart", 2),
    ("said", 3),
    // Headers that an LFS server asks the hub to send.
    ("lfs", 4),
    // For notifications: a webhook, chats, a mail server and code hosts.
    ("hook", 2),
    ("chat", 3),
    ("mail", 1),
    ("code", 1),
    // For promotions: gates, and the host for pull requests.
    ("keeper", 2),
    ("gauge", 2),
    ("pusher", 2),
];

/// Prefix of each canary, so that a canary that is cut at the end is still recognized.
const BEGINNING: &str = "canary-";
/// Range of each line of a key, so that a key that is cut or wrapped differently is still recognized. All keys of a
/// kind have the same beginning.
const STRETCH: std::ops::Range<usize> = 40..64;

pub fn canary(input: &str, n: usize) -> String {
    let half = format!("{BEGINNING}{input}-{n:03}");
    format!("{half}.{half}")
}

pub fn right(input: &str) -> String {
    canary(input, 0)
}

pub fn wrong(input: &str) -> String {
    canary(input, count(input).saturating_sub(1))
}

pub fn count(input: &str) -> usize {
    HANDED
        .iter()
        .chain(&SHOWN)
        .find(|(name, _)| *name == input)
        .map_or(0, |(_, count)| *count)
}

fn key(input: &str, n: usize) -> String {
    format!("{input}{n}")
}

pub fn keys(input: &str) -> Vec<String> {
    (0..count(input)).map(|n| key(input, n)).collect()
}

/// Values by key.
pub fn values(input: &str) -> Map<String, Value> {
    (0..count(input))
        .map(|n| (key(input, n), canary(input, n).into()))
        .collect()
}

/// Lines of YAML, each with a key and the path of its value for a template.
pub fn lines(input: &str, place: &str) -> String {
    keys(input)
        .iter()
        .map(|key| format!("  {key}: {{{{ {place}.{key} | quote }}}}\n"))
        .collect()
}

/// Recognizes a secret: a part of it in plain text, and in base64 at any offset.
#[derive(Debug)]
pub struct Marks {
    texts: Vec<Vec<u8>>,
    /// By the first two bytes: whether a secret begins with them. So a text is searched once, whatever the number of
    /// secrets.
    beginnings: Vec<bool>,
}

impl Marks {
    /// Marks of canaries.
    pub fn new() -> Self {
        let mut marks = Self {
            texts: Vec::new(),
            beginnings: vec![false; 1 << 16],
        };
        marks.add(BEGINNING);
        marks
    }

    /// Generated secrets that are no canaries.
    pub fn add(&mut self, text: &str) {
        self.insert(text);
        for before in 0..3 {
            self.insert(&in_base64(text, before));
        }
    }

    /// A private key, PEM. Its last line may contain only the public half, which is not secret.
    pub fn add_key(&mut self, pem: &str) {
        let lines: Vec<&str> = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let Some((_, lines)) = lines.split_last() else { return };
        lines
            .iter()
            .filter_map(|line| line.get(STRETCH))
            .for_each(|stretch| self.add(stretch));
    }

    fn insert(&mut self, text: &str) {
        let bytes = text.as_bytes().to_vec();
        assert!(
            bytes.len() >= BEGINNING.len(),
            "{text:?} is so short that it may be anything"
        );
        self.beginnings[two_at(&bytes, 0)] = true;
        self.texts.push(bytes);
    }

    /// Position of the first mark in the text.
    pub fn find(&self, bytes: &[u8]) -> Option<usize> {
        let last = bytes.len().saturating_sub(1);
        let begins = |at: &usize| self.beginnings[two_at(bytes, *at)];
        let is_one = |at: &usize| self.texts.iter().any(|text| bytes[*at..].starts_with(text));
        (0..last).filter(begins).find(is_one)
    }

    /// Fails with the text around a found mark.
    pub fn check(&self, what: &str, text: &str) -> anyhow::Result<()> {
        let Some(at) = self.find(text.as_bytes()) else {
            return Ok(());
        };
        let (before, after) = text.split_at(at);
        let before: String = before
            .chars()
            .rev()
            .take(200)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect();
        anyhow::bail!(
            "{what} shows one: {before}»{}",
            after.chars().take(200).collect::<String>()
        )
    }
}

fn two_at(bytes: &[u8], at: usize) -> usize {
    (usize::from(bytes[at]) << 8) | usize::from(bytes[at + 1])
}

/// Base64 of a text after so many bytes, without the characters that depend on its neighbours.
fn in_base64(text: &str, before: usize) -> String {
    let all = [&[0; 2][..before], text.as_bytes()].concat();
    let (first, last) = ((before * 8).div_ceil(6), all.len() * 8 / 6);
    STANDARD.encode(&all)[first..last].to_owned()
}

#[test]
fn a_mark_is_found_wherever_it_stands() {
    let mut marks = Marks::new();
    for before in ["", "a", "ab", "abc"] {
        for after in ["", "z", "zz"] {
            let text = format!("{before}{}{after}", canary("own", 7));
            assert!(marks.find(text.as_bytes()).is_some());
            assert!(marks.find(STANDARD.encode(&text).as_bytes()).is_some(), "{text}");
            assert!(
                marks
                    .find(STANDARD.encode(&text[..before.len() + 9]).as_bytes())
                    .is_some(),
                "{text}"
            );
        }
    }
    assert_eq!(marks.find(b""), None);
    assert_eq!(marks.find(b"canary"), None);
    let body = format!("{}abcdefghijklmnopqrstuvwx", "0123456789".repeat(4));
    marks.add_key(&format!("-----BEGIN KEY-----\n{body}\nshort\n-----END KEY-----\n"));
    assert_eq!(marks.find(body.as_bytes()), Some(40));
    assert_eq!(marks.find(STANDARD.encode(format!("x{body}")).as_bytes()), Some(55));
}
