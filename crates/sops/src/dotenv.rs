//! Lines of `NAME=value`, where a line break of a value is written as `\n`.

use zeroize::Zeroizing;

use crate::{
    SopsError, scalar,
    value::{Map, Value},
};

const FORMAT: &str = "dotenv";

/// Leaves the comments out.
pub(crate) fn parse(bytes: &[u8]) -> Result<Map, SopsError> {
    let mut map = Map::new();
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let syntax = |problem| SopsError::Syntax {
            format: FORMAT,
            problem: format!("line {}: {problem}", number + 1),
        };
        let at = line
            .iter()
            .position(|byte| *byte == b'=')
            .ok_or_else(|| syntax("it has no equals sign"))?;
        let name = std::str::from_utf8(&line[..at]).map_err(|_| syntax("a name that is not UTF-8 text"))?;
        map.push((name.to_owned(), Value::Text(unescape(&line[at + 1..]))));
    }
    Ok(map)
}

fn unescape(text: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(Vec::with_capacity(text.len()));
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        if rest.starts_with(b"\\n") {
            out.push(b'\n');
            rest = &rest[2..];
        } else {
            out.push(*first);
            rest = behind;
        }
    }
    out
}

pub(crate) fn write(documents: &[Map]) -> Result<Zeroizing<Vec<u8>>, SopsError> {
    let mut out = Zeroizing::new(Vec::new());
    for (name, value) in documents.iter().flatten() {
        out.extend_from_slice(name.as_bytes());
        out.push(b'=');
        match value {
            Value::Text(text) => {
                for byte in text.iter() {
                    match byte {
                        b'\n' => out.extend_from_slice(b"\\n"),
                        byte => out.push(*byte),
                    }
                }
            }
            Value::Bool(value) => out.extend_from_slice(value.to_string().as_bytes()),
            Value::Int(number) => out.extend_from_slice(number.to_string().as_bytes()),
            Value::Float(number) => out.extend_from_slice(scalar::float(*number).as_bytes()),
            Value::Time(text) => out.extend_from_slice(text.as_bytes()),
            Value::Null | Value::Comment | Value::List(_) | Value::Map(_) => {
                return Err(SopsError::Unusable {
                    path: name.clone(),
                    problem: "has no text",
                });
            }
        }
        out.push(b'\n');
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_are_written_as_two_characters_and_comments_are_left_out() {
        let map = parse(b"# a comment\nA=1\\n2=3\n\nB=\n").unwrap();
        assert_eq!(map[0].1.as_str(), Some("1\n2=3"));
        assert_eq!(write(&[map]).unwrap().as_slice(), b"A=1\\n2=3\nB=\n");
        let error = parse(b"A=1\nhunter2\n").err().unwrap().to_string();
        assert!(error.contains("line 2") && !error.contains("hunter2"), "{error}");
    }
}
