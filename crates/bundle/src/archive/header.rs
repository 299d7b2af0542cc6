//! One entry's header: POSIX.1-2001 ustar, preceded by a pax header for what ustar can't hold.

use super::{BLOCK, Item};
use crate::path::{MAX_PATH_BYTES, PathError, RelPath};

const NAME: usize = 100;

pub(super) enum Kind<'a> {
    File { size: u64, executable: bool },
    Link { target: &'a str },
}

pub(super) enum HeaderError {
    Format(&'static str),
    Name(PathError),
}

pub(super) fn write(out: &mut Vec<u8>, path: &RelPath, kind: Kind<'_>) {
    let (mode, size, flag, target) = match kind {
        Kind::File { size, executable } => (if executable { 0o755 } else { 0o644 }, size, b'0', ""),
        Kind::Link { target } => (0o777, 0, b'2', target),
    };
    let records: String = [("linkpath", target), ("path", path.as_str())]
        .into_iter()
        .filter(|(_, value)| !fits(value))
        .map(|(key, value)| record(key, value))
        .collect();
    if !records.is_empty() {
        block(out, "pax_header", 0o644, records.len() as u64, b'x', "");
        out.extend_from_slice(records.as_bytes());
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    block(out, path.as_str(), mode, size, flag, target);
}

/// ustar's fields are ASCII of at most 100 bytes.
fn fits(value: &str) -> bool {
    value.len() <= NAME && value.is_ascii()
}

/// `LENGTH key=value\n`, the length counting itself.
fn record(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    format!("{length}{rest}")
}

fn block(out: &mut Vec<u8>, name: &str, mode: u32, size: u64, flag: u8, target: &str) {
    let mut header = [0u8; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, cut(name));
    put(100, format!("{mode:07o}\0").as_bytes());
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[flag]);
    put(157, cut(target));
    put(257, b"ustar\x0000");
    put(329, b"0000000\0");
    put(337, b"0000000\0");
    let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend_from_slice(&header);
}

/// The beginning of a text, for readers without pax.
fn cut(text: &str) -> &[u8] {
    let mut end = text.len().min(NAME);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

/// The entry at `at`, and where the next one begins. The entry is written again and compared, so no content has a
/// second form, and no field is seen by one reader and not by another.
pub(super) fn read(bytes: &[u8], at: usize) -> Result<(RelPath, Item, usize), HeaderError> {
    use HeaderError::Format;
    let (header, pax, data) = find(bytes, at)?;
    let path = match pax_value(pax, "path") {
        Some(path) => path,
        None => text(&header[..NAME]).ok_or(Format("a name that is not UTF-8"))?,
    };
    let target = match pax_value(pax, "linkpath") {
        Some(target) => target,
        None => text(&header[157..157 + NAME]).ok_or(Format("a target that is not UTF-8"))?,
    };
    let size = number(&header[124..136]).ok_or(Format("a bad size"))?;
    let executable = number(&header[100..108]) == Some(0o755);
    let path = RelPath::parse(path).map_err(HeaderError::Name)?;
    let kind = match header[156] {
        b'0' => Kind::File {
            size: size as u64,
            executable,
        },
        b'2' => Kind::Link { target },
        _ => return Err(Format("an entry that is neither a file nor a symlink")),
    };

    if path.is_root() || (header[156] == b'2' && (target.is_empty() || target.len() > MAX_PATH_BYTES)) {
        return Err(Format("an empty name, or a symlink without a target"));
    }
    let mut canonical = Vec::with_capacity(data - at);
    write(&mut canonical, &path, kind);
    if bytes.get(at..data) != Some(&canonical) {
        return Err(Format("a header that is written in another way"));
    }

    let item = match header[156] {
        b'0' => Item::File {
            bytes: data..data + size,
            executable,
        },
        _ => Item::Link {
            target: target.to_owned(),
        },
    };
    let end = if header[156] == b'0' { data + size } else { data };
    Ok((path, item, pass_padding(bytes, end)?))
}

/// The header of the entry at `at`, its pax records, and where its data begins.
fn find(bytes: &[u8], at: usize) -> Result<(&[u8], &str, usize), HeaderError> {
    use HeaderError::Format;
    let take = |at: usize| bytes.get(at..at + BLOCK).ok_or(Format("it ends inside a header"));
    let (header, data) = (take(at)?, at + BLOCK);
    if header[156] != b'x' {
        return Ok((header, "", data));
    }
    let size = number(&header[124..136])
        .filter(|n| *n <= 4 * MAX_PATH_BYTES)
        .ok_or(Format("a bad pax size"))?;
    let records = bytes
        .get(data..data + size)
        .ok_or(Format("it ends inside a pax header"))?;
    let pax = std::str::from_utf8(records).map_err(|_| Format("a pax header that is not UTF-8"))?;
    let next = data + size.next_multiple_of(BLOCK);
    Ok((take(next)?, pax, next + BLOCK))
}

/// Where the next block begins. Only zeros may come before it.
fn pass_padding(bytes: &[u8], end: usize) -> Result<usize, HeaderError> {
    let next = end.next_multiple_of(BLOCK);
    let padding = bytes
        .get(end..next)
        .ok_or(HeaderError::Format("it ends inside a file"))?;
    if padding.iter().any(|b| *b != 0) {
        return Err(HeaderError::Format("padding that is not zero"));
    }
    Ok(next)
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field.split(|b| *b == 0).next()?).ok()
}

fn number(field: &[u8]) -> Option<usize> {
    usize::from_str_radix(text(field)?, 8).ok()
}

/// Finds only the form that the writer writes; other forms fail the comparison.
fn pax_value<'p>(pax: &'p str, key: &str) -> Option<&'p str> {
    pax.split('\n')
        .find_map(|line| line.split_once(' ')?.1.strip_prefix(key)?.strip_prefix('='))
}
