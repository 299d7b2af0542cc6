//! The scalar rules of go-yaml v2 (`resolve.go` of go.yaml.in/yaml/v2 v2.4.3) and of Go's JSON after it.

use serde_json::{Number, Value};

use super::YamlReason;

#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    /// Only for values that don't fit an `Int`.
    Uint(u64),
    Float(f64),
    String(String),
}

impl Scalar {
    /// A plain (unquoted) scalar without a tag.
    pub fn resolve(text: &str) -> Self {
        resolve_known(text)
            .or_else(|| resolve_number(text, true))
            .unwrap_or_else(|| Self::String(text.to_owned()))
    }

    /// A scalar with a tag of YAML's core types; `tag` is the short name. With other tags it stays a string.
    pub fn resolve_tagged(tag: &str, text: &str) -> Result<Self, YamlReason> {
        let wrong = |name| YamlReason::Tag(format!("{:?}", text.chars().take(40).collect::<String>()), name);
        let found = || {
            resolve_known(text)
                .or_else(|| resolve_number(text, false))
                .unwrap_or_else(|| Self::String(text.to_owned()))
        };
        match tag {
            "bool" => Some(found())
                .filter(|s| matches!(s, Self::Bool(_)))
                .ok_or_else(|| wrong("!!bool")),
            "null" => Some(found())
                .filter(|s| matches!(s, Self::Null))
                .ok_or_else(|| wrong("!!null")),
            "int" => Some(found())
                .filter(|s| matches!(s, Self::Int(_) | Self::Uint(_)))
                .ok_or_else(|| wrong("!!int")),
            "float" => match found() {
                Self::Int(int) => Ok(Self::Float(int as f64)),
                float @ Self::Float(_) => Ok(float),
                _ => Err(wrong("!!float")),
            },
            "timestamp" if !is_timestamp(text) => Err(wrong("!!timestamp")),
            "binary" => decode_base64(text)
                .and_then(|bytes| String::from_utf8(bytes).ok())
                .map(Self::String)
                .ok_or_else(|| wrong("!!binary")),
            _ => Ok(Self::String(text.to_owned())),
        }
    }

    /// How `sigs.k8s.io/yaml` writes a key in JSON.
    pub fn into_key(self) -> Result<String, YamlReason> {
        match self {
            Self::String(text) => Ok(text),
            Self::Bool(value) => Ok(value.to_string()),
            Self::Int(int) => Ok(int.to_string()),
            Self::Float(float) => Ok(float_key(float)),
            Self::Null => Err(YamlReason::Key("null")),
            Self::Uint(_) => Err(YamlReason::Key("an integer over 64 bits")),
        }
    }

    pub fn into_json(self) -> Result<Value, YamlReason> {
        Ok(match self {
            Self::Null => Value::Null,
            Self::Bool(value) => value.into(),
            Self::Int(int) => int.into(),
            Self::Uint(uint) => json_float(uint as f64)?,
            Self::Float(float) => json_float(float)?,
            Self::String(text) => text.into(),
        })
    }
}

/// A float as Go's JSON and Kubernetes' decoder return it: Go writes `1.0` as `1`, and a number that parses as an int64
/// becomes one. This matters, because an API server refuses `1.0` for an integer field.
pub fn json_float(float: f64) -> Result<Value, YamlReason> {
    if !float.is_finite() {
        return Err(YamlReason::NotFinite(float.to_string()));
    }
    // Go switches to an exponent at 1e21. Rust's Display never does, and gives the same shortest digits below that.
    if float.abs() < 1e21
        && let Ok(int) = float.to_string().parse::<i64>()
    {
        return Ok(int.into());
    }
    Ok(Number::from_f64(float).map_or(Value::Null, Value::Number))
}

fn resolve_known(text: &str) -> Option<Scalar> {
    Some(match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Scalar::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Scalar::Bool(false),
        "" | "~" | "null" | "Null" | "NULL" => Scalar::Null,
        ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
        _ => return None,
    })
}

fn resolve_number(text: &str, plain: bool) -> Option<Scalar> {
    match text.as_bytes().first()? {
        b'.' => parse_decimal_float(text).map(Scalar::Float),
        b'0'..=b'9' | b'+' | b'-' => {
            if plain && is_timestamp(text) {
                return None;
            }
            let digits = text.replace('_', "");
            parse_int(&digits)
                .or_else(|| parse_yaml_float(&digits).map(Scalar::Float))
                .or_else(|| parse_binary(&digits))
        }
        _ => None,
    }
}

/// Go's `ParseInt(s, 0, 64)`, then `ParseUint(s, 0, 64)`, which accepts no sign.
fn parse_int(text: &str) -> Option<Scalar> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    let (radix, digits) = match lower.as_deref() {
        Some("0x") => (16, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };

    // `from_str_radix` would accept a second sign.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        return 0i64.checked_sub_unsigned(magnitude).map(Scalar::Int);
    }
    match i64::try_from(magnitude) {
        Ok(int) => Some(Scalar::Int(int)),
        Err(_) if text.starts_with('+') => None,
        Err(_) => Some(Scalar::Uint(magnitude)),
    }
}

/// `^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`, refused by Go if it overflows.
fn parse_yaml_float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let all_digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let mantissa_ok = match mantissa.split_once('.') {
        Some(("", fraction)) => all_digits(fraction),
        Some((whole, fraction)) => all_digits(whole) && (fraction.is_empty() || all_digits(fraction)),
        None => all_digits(mantissa),
    };
    let exponent_ok = exponent.is_none_or(|e| all_digits(e.strip_prefix(['-', '+']).unwrap_or(e)));
    if !mantissa_ok || !exponent_ok {
        return None;
    }
    text.parse().ok().filter(|f: &f64| f.is_finite())
}

/// Go's ParseFloat for a text that begins with a dot: underscores are allowed between digits.
fn parse_decimal_float(text: &str) -> Option<f64> {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let misplaced = |at: usize| bytes[at] == b'_' && !(at > 0 && is_digit(at - 1) && is_digit(at + 1));
    if (0..bytes.len()).any(misplaced) {
        return None;
    }
    parse_yaml_float(&text.replace('_', ""))
}

/// The remaining case after ParseInt for `0b`: a sign inside, `0b-1`, which Go's ParseInt(…, 2, 64) accepts.
fn parse_binary(text: &str) -> Option<Scalar> {
    let digits = text.strip_prefix("0b")?;
    i64::from_str_radix(digits, 2).ok().map(Scalar::Int)
}

/// `2006-1-2T15:4:5.999999999Z07:00`, the same with `t`, `2006-1-2 15:4:5.999999999`, `2006-1-2`: go-yaml keeps these
/// as strings. No number begins with four digits and a dash, so the form decides.
fn is_timestamp(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 8
        && bytes[..4].iter().all(u8::is_ascii_digit)
        && bytes[4] == b'-'
        && bytes.iter().all(|b| b.is_ascii_digit() || b"-:. tTzZ+".contains(b))
}

/// `strconv.FormatFloat(f, 'g', -1, 32)`, with YAML's names for what isn't finite.
fn float_key(float: f64) -> String {
    if float.is_nan() {
        return ".nan".to_owned();
    }
    let narrow = float as f32;
    if narrow.is_infinite() {
        return if narrow > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let scientific = format!("{narrow:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // With the shortest precision Go uses an exponent below 1e-4 and from 1e6 on.
    if (-4..6).contains(&exponent) {
        return narrow.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Standard base64 with padding; line breaks are skipped, as Go does.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count, mut padding) = (0u32, 0u32, 0u32);
    for byte in text.bytes().filter(|b| !matches!(b, b'\n' | b'\r')) {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' => {
                padding += 1;
                count += 1;
                continue;
            }
            _ => return None,
        };
        if padding > 0 {
            return None;
        }
        bits = bits << 6 | u32::from(value);
        count += 1;
        if count % 4 == 0 {
            out.extend_from_slice(&bits.to_be_bytes()[1..]);
            bits = 0;
        }
    }

    match (count % 4, padding) {
        (0, 0) => {}
        (0, 1) => out.extend_from_slice(&(bits << 6).to_be_bytes()[1..3]),
        (0, 2) => out.extend_from_slice(&(bits << 12).to_be_bytes()[1..2]),
        _ => return None,
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Scalar) {
        assert_eq!(Scalar::resolve(text), expected, "{text}");
    }

    #[test]
    fn booleans_are_yaml_1_1_in_three_spellings_only() {
        check("yes", Scalar::Bool(true));
        check("Off", Scalar::Bool(false));
        check("y", Scalar::Bool(true));
        check("yEs", Scalar::String("yEs".into()));
        check("tRUE", Scalar::String("tRUE".into()));
    }

    #[test]
    fn integers_have_go_prefixes() {
        check("0644", Scalar::Int(420));
        check("0o644", Scalar::Int(420));
        check("0x1F", Scalar::Int(31));
        check("0b11", Scalar::Int(3));
        check("-0b11", Scalar::Int(-3));
        check("1_000", Scalar::Int(1000));
        check("+5", Scalar::Int(5));
        check("--5", Scalar::String("--5".into()));
        check("-9223372036854775808", Scalar::Int(i64::MIN));
        check("18446744073709551615", Scalar::Uint(u64::MAX));
        check("18446744073709551616", Scalar::Float(18446744073709551616.0));
        check("012345678", Scalar::Float(12345678.0));
        check("1:30", Scalar::String("1:30".into()));
        check("1.2.3", Scalar::String("1.2.3".into()));
        check("2024-01-02", Scalar::String("2024-01-02".into()));
        check("-", Scalar::String("-".into()));
        check("0x", Scalar::String("0x".into()));
    }

    #[test]
    fn integral_floats_become_integers_in_json() {
        for (text, json) in [
            ("1e3", "1000"),
            ("1.0", "1"),
            ("-0.0", "0"),
            ("1.5", "1.5"),
            ("1e21", "1e+21"),
        ] {
            assert_eq!(Scalar::resolve(text).into_json().unwrap().to_string(), json, "{text}");
        }
        assert_eq!(Scalar::resolve("1e20").into_json().unwrap(), serde_json::json!(1e20));
        assert!(Scalar::resolve(".inf").into_json().is_err());
    }

    #[test]
    fn keys_are_written_as_sigs_yaml_does() {
        for (text, key) in [
            ("1", "1"),
            ("yes", "true"),
            ("1.50", "1.5"),
            ("1e30", "1e+30"),
            ("123456789.5", "1.2345679e+08"),
            ("1e-7", "1e-07"),
        ] {
            assert_eq!(Scalar::resolve(text).into_key().as_deref(), Ok(key));
        }
        assert!(Scalar::resolve("~").into_key().is_err());
    }

    #[test]
    fn binary_is_decoded() {
        assert_eq!(
            Scalar::resolve_tagged("binary", "aGVs\nbG8="),
            Ok(Scalar::String("hello".into()))
        );
        assert_eq!(
            Scalar::resolve_tagged("binary", "aGk="),
            Ok(Scalar::String("hi".into()))
        );
        assert!(Scalar::resolve_tagged("binary", "aGk").is_err());
    }
}
