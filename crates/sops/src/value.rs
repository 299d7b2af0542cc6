//! The values of a file, their encryption, and the MAC over all of them: `sops.go` and `aes/cipher.go` of SOPS 3.

use aws_lc_rs::digest::{Context, SHA512};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use zeroize::Zeroizing;

use crate::{ENCRYPTED, SopsError, gcm::Cipher, scalar};

/// Entries in the order of the file. The MAC covers the order.
pub(crate) type Map = Vec<(String, Value)>;

/// Has no `Debug`, because values are secret.
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Bytes, like strings in Go.
    Text(Zeroizing<Vec<u8>>),
    /// A timestamp in Go's format, RFC 3339.
    Time(String),
    /// An encrypted comment of a list.
    Comment,
    List(Vec<Value>),
    Map(Map),
}

pub(crate) fn get<'a>(map: &'a Map, key: &str) -> Option<&'a Value> {
    map.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

impl Value {
    pub(crate) fn text(text: impl Into<Vec<u8>>) -> Self {
        Self::Text(Zeroizing::new(text.into()))
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// The bytes that the MAC covers. None for a null or a comment.
    fn hashed(&self) -> Option<Zeroizing<Vec<u8>>> {
        let text = match self {
            Self::Text(text) => return Some(text.clone()),
            Self::Bool(true) => "True".to_owned(),
            Self::Bool(false) => "False".to_owned(),
            Self::Int(value) => value.to_string(),
            Self::Float(value) => scalar::float(*value),
            Self::Time(text) => text.clone(),
            Self::Null | Self::Comment | Self::List(_) | Self::Map(_) => return None,
        };
        Some(Zeroizing::new(text.into_bytes()))
    }
}

/// Decrypts and hashes values in their order.
pub(crate) struct Walk<'a> {
    key: &'a DataKey,
    hash: Context,
    only_encrypted: bool,
    /// Keys on the path of a value, without positions in lists.
    path: Vec<String>,
    secrets: Vec<Zeroizing<String>>,
}

/// The key that encrypts the values of one file.
pub(crate) struct DataKey(Cipher);

/// Hashed first if the MAC covers only encrypted values, so that it never equals a MAC over all values.
const ONLY_ENCRYPTED: [u8; 32] = [
    0x8a, 0x3f, 0xd2, 0xad, 0x54, 0xce, 0x66, 0x52, 0x7b, 0x10, 0x34, 0xf3, 0xd1, 0x47, 0xbe, 0x0b, 0x0b, 0x97, 0x5b,
    0x3b, 0xf4, 0x4f, 0x72, 0xc6, 0xfd, 0xad, 0xec, 0x81, 0x76, 0xf2, 0x7d, 0x69,
];

impl DataKey {
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, SopsError> {
        let wrong = SopsError::DataKey("it has not 32 bytes");
        let Ok(bytes) = <&[u8; 32]>::try_from(bytes) else {
            return Err(wrong);
        };
        Cipher::new(bytes).map(Self).map_err(|_| wrong)
    }

    /// Decrypts `ENC[…]`. None: it can't be decrypted at this path.
    pub(crate) fn open(&self, text: &str, aad: &str) -> Option<Value> {
        let sealed = Sealed::parse(text)?;
        let plain = self
            .0
            .open(&sealed.nonce, aad.as_bytes(), &sealed.data, &sealed.tag)
            .ok()?;
        if sealed.kind == "str" {
            return Some(Value::Text(plain));
        }
        let text = std::str::from_utf8(&plain).ok()?;
        match sealed.kind {
            "int" => text.parse().ok().map(Value::Int),
            "float" => text.parse().ok().map(Value::Float),
            "bool" => scalar::parse_bool(text).map(Value::Bool),
            "time" => scalar::parse_rfc3339(text).map(Value::Time),
            "comment" => Some(Value::Comment),
            _ => None,
        }
    }
}

struct Sealed<'a> {
    data: Vec<u8>,
    nonce: Vec<u8>,
    tag: Vec<u8>,
    kind: &'a str,
}

impl<'a> Sealed<'a> {
    /// `ENC[AES256_GCM,data:…,iv:…,tag:…,type:…]`.
    fn parse(text: &'a str) -> Option<Self> {
        let parts = text.strip_prefix(ENCRYPTED)?.strip_suffix(']')?;
        let (data, parts) = parts.strip_prefix("data:")?.split_once(",iv:")?;
        let (nonce, parts) = parts.split_once(",tag:")?;
        let (tag, kind) = parts.split_once(",type:")?;
        let decode = |text: &str| STANDARD.decode(text).ok().filter(|bytes| !bytes.is_empty());
        Some(Self {
            data: decode(data)?,
            nonce: decode(nonce)?,
            tag: decode(tag)?,
            kind,
        })
    }
}

impl<'a> Walk<'a> {
    pub(crate) fn new(key: &'a DataKey, only_encrypted: bool) -> Self {
        let mut hash = Context::new(&SHA512);
        if only_encrypted {
            hash.update(&ONLY_ENCRYPTED);
        }
        Self {
            key,
            hash,
            only_encrypted,
            path: Vec::new(),
            secrets: Vec::new(),
        }
    }

    /// The MAC, and the decrypted values as text.
    pub(crate) fn finish(self) -> (String, Vec<Zeroizing<String>>) {
        (hex::encode_upper(self.hash.finish().as_ref()), self.secrets)
    }

    pub(crate) fn map(&mut self, map: Map) -> Result<Map, SopsError> {
        let mut opened = Vec::with_capacity(map.len());
        for (key, value) in map {
            self.path.push(key);
            let value = self.value(value)?;
            let key = self.path.pop().unwrap_or_default();
            if matches!(value, Value::Comment) {
                return Err(SopsError::Unusable {
                    path: key,
                    problem: "is a comment where a value belongs",
                });
            }
            opened.push((key, value));
        }
        Ok(opened)
    }

    fn value(&mut self, value: Value) -> Result<Value, SopsError> {
        let value = match value {
            Value::Map(map) => return self.map(map).map(Value::Map),
            Value::List(items) => {
                let items = items
                    .into_iter()
                    .map(|item| self.value(item))
                    .collect::<Result<Vec<_>, _>>()?;
                return Ok(Value::List(
                    items
                        .into_iter()
                        .filter(|item| !matches!(item, Value::Comment))
                        .collect(),
                ));
            }
            value => value,
        };
        if let Some(text) = value.as_str().filter(|text| text.starts_with(ENCRYPTED)) {
            let aad = Zeroizing::new(format!("{}:", self.path.join(":")));
            let opened = self.key.open(text, &aad);
            let opened = opened.ok_or_else(|| SopsError::Value {
                path: self.path.join("."),
            })?;
            self.keep(&opened);
            self.add(&opened);
            return Ok(opened);
        }
        if !self.only_encrypted {
            self.add(&value);
        }
        Ok(value)
    }

    fn add(&mut self, value: &Value) {
        if let Some(bytes) = value.hashed() {
            self.hash.update(&bytes);
        }
    }

    /// Records a decrypted value, to conceal it in messages. `true` and `false` are no secrets.
    fn keep(&mut self, value: &Value) {
        let text = match value {
            Value::Text(bytes) => std::str::from_utf8(bytes).map(str::to_owned).ok(),
            Value::Int(number) => Some(number.to_string()),
            Value::Float(number) => Some(scalar::float(*number)),
            _ => None,
        };
        self.secrets
            .extend(text.filter(|text| !text.is_empty()).map(Zeroizing::new));
    }
}
