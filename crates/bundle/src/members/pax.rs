//! POSIX's extended headers: a sequence of `LENGTH KEY=VALUE\n`. Parsed by length, as the standard requires, because a
//! value may contain line breaks.

/// Most bytes of one header's records: two paths, and some text of tools.
pub(super) const MAX_BYTES: u64 = 64 << 10;

/// The records that describe a member.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pax {
    pub path: Option<Vec<u8>>,
    pub target: Option<Vec<u8>>,
    pub size: Option<u64>,
}

impl Pax {
    /// None: it is malformed, has a duplicate key, or changes the member's type to a sparse file.
    pub(super) fn parse(mut data: &[u8]) -> Option<Self> {
        let mut pax = Self::default();
        while !data.is_empty() {
            let space = data.iter().position(|byte| *byte == b' ')?;
            let length: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
            let record = data.get(space + 1..length)?.strip_suffix(b"\n")?;
            data = &data[length..];
            let equals = record.iter().position(|byte| *byte == b'=')?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            let field = match key {
                b"path" => &mut pax.path,
                b"linkpath" => &mut pax.target,
                b"size" => {
                    let size = std::str::from_utf8(value).ok()?.parse().ok()?;
                    if pax.size.replace(size).is_some() {
                        return None;
                    }
                    continue;
                }
                key if key.starts_with(b"GNU.sparse") => return None,
                // Times, owners, comments and attributes are ignored.
                _ => continue,
            };
            if value.is_empty() || field.replace(value.to_vec()).is_some() {
                return None;
            }
        }
        Some(pax)
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_by_their_lengths() {
        let pax = Pax::parse(b"12 path=a/b\n27 comment=line\nsize=12345\n").unwrap_or_default();
        assert_eq!((pax.path.as_deref(), pax.size), (Some(b"a/b".as_slice()), None));
        for bad in [
            "x",
            "5 a\n",
            "99 path=a\n",
            "12 path=a/b",
            "12 path=a/b\n12 path=a/c\n",
            "8 path=\n",
            "22 GNU.sparse.major=1\n",
        ] {
            assert_eq!(Pax::parse(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
