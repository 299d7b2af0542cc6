//! SOPS's metadata of a file: the key `sops` at the top, or in dotenv variables `sops_…`.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use crate::{
    Identity, SopsError,
    age::{self, AgeError},
    scalar,
    value::{DataKey, Map, Value, get},
};

pub(crate) const SOPS: &str = "sops";
const FLAT: &str = "sops_";
/// Lists of keys of other kinds than age, with names for people.
const OTHERS: [(&str, &str); 6] = [
    ("pgp", "PGP"),
    ("kms", "AWS KMS"),
    ("gcp_kms", "GCP KMS"),
    ("azure_kv", "Azure Key Vault"),
    ("hc_vault", "Vault"),
    ("hckms", "Huawei KMS"),
];
/// Other lists.
const LISTS: [&str; 2] = ["age", "key_groups"];
/// Maximum number of recipients of a file, far more than clusters that share a secret.
const MAX_RECIPIENTS: usize = 10_000;

pub(crate) struct Metadata {
    mac: Zeroizing<String>,
    /// Time in RFC 3339 without fractions. The MAC is bound to it.
    last_modified: String,
    pub(crate) mac_only_encrypted: bool,
    recipients: Vec<Recipient>,
    /// Unsupported kinds of keys.
    others: Vec<&'static str>,
}

struct Recipient {
    name: String,
    /// The data key, encrypted as an age file.
    sealed: String,
}

/// Removes the metadata from all documents, and returns that of the first one. None: it is no SOPS file.
pub(crate) fn take(documents: &mut [Map]) -> Result<Option<Map>, SopsError> {
    let mut found = None;
    for (number, document) in documents.iter_mut().enumerate() {
        let Some(at) = document.iter().position(|(key, _)| key == SOPS) else {
            continue;
        };
        let (_, value) = document.remove(at);
        match (number, value) {
            (0, Value::Map(map)) if get(&map, "mac").is_some() => found = Some(map),
            (0, _) => return Ok(None),
            _ if found.is_none() => return Err(SopsError::Metadata("`sops` in its first document")),
            _ => {}
        }
    }
    Ok(found)
}

/// The same for dotenv: `sops_age__list_0__map_enc` and so on.
pub(crate) fn take_flat(documents: &mut [Map]) -> Option<Map> {
    let document = documents.first_mut()?;
    let (flat, rest): (Map, Map) = std::mem::take(document)
        .into_iter()
        .partition(|(key, _)| key.starts_with(FLAT));
    *document = rest;
    let mut map = Map::new();
    let mut lists: BTreeMap<&str, Vec<Map>> = BTreeMap::new();
    for (key, value) in flat {
        let key = &key[FLAT.len()..];
        let Some((list, rest)) = key.split_once("__list_") else {
            map.push((key.to_owned(), value));
            continue;
        };
        let Some(list) = LISTS
            .iter()
            .chain(OTHERS.iter().map(|(name, _)| name))
            .find(|name| **name == list)
        else {
            continue;
        };
        let (index, field) = rest.split_once("__map_").unwrap_or((rest, ""));
        let items = lists.entry(list).or_default();
        let index = index.parse().unwrap_or(0).min(MAX_RECIPIENTS);
        if items.len() <= index {
            items.resize_with(index + 1, Map::new);
        }
        items[index].push((field.to_owned(), value));
    }
    map.extend(lists.into_iter().map(|(name, items)| {
        (
            name.to_owned(),
            Value::List(items.into_iter().map(Value::Map).collect()),
        )
    }));
    get(&map, "mac").is_some().then_some(map)
}

impl Metadata {
    pub(crate) fn read(map: Map) -> Result<Self, SopsError> {
        let text = |name: &'static str| {
            let found = get(&map, name).and_then(Value::as_str).map(str::to_owned);
            found.filter(|text| !text.is_empty()).ok_or(SopsError::Metadata(name))
        };
        let list = |name: &str| match get(&map, name) {
            Some(Value::List(items)) => items.as_slice(),
            _ => &[],
        };
        let others: Vec<_> = OTHERS
            .iter()
            .filter(|(name, _)| !list(name).is_empty())
            .map(|(_, title)| *title)
            .collect();
        let ages = list("age");
        if ages.is_empty() && others.is_empty() && !list("key_groups").is_empty() {
            return Err(SopsError::KeyGroups);
        }
        if ages.len() > MAX_RECIPIENTS {
            return Err(SopsError::Metadata("`age`, which has too many recipients"));
        }
        let read = |item: &Value| {
            let Value::Map(item) = item else { return None };
            let text = |name| Some(get(item, name)?.as_str()?.to_owned());
            Some(Recipient {
                name: text("recipient")?,
                sealed: text("enc")?,
            })
        };
        let recipients = ages.iter().map(|item| read(item).ok_or(SopsError::Metadata("`age`")));
        let mac_only_encrypted = match get(&map, "mac_only_encrypted") {
            Some(Value::Bool(value)) => *value,
            Some(Value::Text(text)) => matches!(text.as_slice(), b"true" | b"True" | b"1"),
            _ => false,
        };
        let last_modified = match get(&map, "lastmodified") {
            Some(Value::Time(text)) => text.clone(),
            _ => text("lastmodified")?,
        };
        Ok(Self {
            mac: Zeroizing::new(text("mac")?),
            last_modified: scalar::to_seconds(&last_modified).ok_or(SopsError::Metadata("lastmodified"))?,
            mac_only_encrypted,
            recipients: recipients.collect::<Result<_, _>>()?,
            others,
        })
    }

    /// The data key, decrypted with the first identity among the recipients, and the name of that recipient.
    pub(crate) fn open(&self, identities: &[Identity]) -> Result<(DataKey, String), SopsError> {
        if self.recipients.is_empty() {
            return Err(SopsError::NoAge(self.others.join(", ")));
        }
        for identity in identities {
            let Some(recipient) = self
                .recipients
                .iter()
                .find(|recipient| recipient.name == identity.recipient())
            else {
                continue;
            };
            let opened = age::decrypt(&recipient.sealed, identity)
                .map_err(|error: AgeError| SopsError::DataKey(error.text()))?;
            return Ok((DataKey::new(&opened)?, recipient.name.clone()));
        }
        Err(SopsError::NotOurs(
            self.recipients.iter().map(|recipient| shown(&recipient.name)).collect(),
        ))
    }

    /// The MAC of the file when it was written.
    pub(crate) fn open_mac(&self, key: &DataKey) -> Result<String, SopsError> {
        let opened = key.open(&self.mac, &self.last_modified);
        opened
            .and_then(|mac| mac.as_str().map(str::to_owned))
            .ok_or(SopsError::Mac)
    }
}

/// Shortens a recipient's name. It is public, but may contain any text.
fn shown(name: &str) -> String {
    name.chars().filter(char::is_ascii_graphic).take(80).collect()
}
