//! Scalars as SOPS reads and hashes them: go-yaml v3 (`resolve.go`) reads them, and Go formats numbers and times.
//!
//! The MAC covers these texts, so a difference in reading would look like an alteration.

use farwater_bundle::yaml::Scalar;

use crate::value::Value;

/// Resolves a plain scalar of YAML without a tag.
pub(crate) fn resolve(text: &str) -> Result<Value, &'static str> {
    if let Some(value) = resolve_known(text) {
        return Ok(value);
    }
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '.' | '+' | '-')) {
        return Ok(Value::text(text));
    }
    if let Some(time) = parse_timestamp(text) {
        return Ok(Value::Time(time));
    }
    // go-yaml v2 and v3 read numbers alike.
    match Scalar::resolve(text) {
        Scalar::Int(number) => Ok(Value::Int(number)),
        Scalar::Float(number) => Ok(Value::Float(number)),
        Scalar::Uint(_) => Err("is an integer of more than 64 bits, which SOPS does not encrypt; quote it"),
        Scalar::Null | Scalar::Bool(_) | Scalar::String(_) => Ok(Value::text(text)),
    }
}

/// `tag`: its short name, `int` of `!!int`.
pub(crate) fn resolve_tagged(tag: &str, text: &str) -> Result<Value, &'static str> {
    match (tag, resolve(text)?) {
        ("null", Value::Null) => Ok(Value::Null),
        ("bool", Value::Bool(value)) => Ok(Value::Bool(value)),
        ("int", Value::Int(number)) => Ok(Value::Int(number)),
        ("float", Value::Int(number)) => Ok(Value::Float(number as f64)),
        ("float", Value::Float(number)) => Ok(Value::Float(number)),
        ("timestamp", Value::Time(time)) => Ok(Value::Time(time)),
        ("null" | "bool" | "int" | "float" | "timestamp" | "binary", _) => {
            Err("has a tag that does not match its value")
        }
        _ => Ok(Value::text(text)),
    }
}

fn resolve_known(text: &str) -> Option<Value> {
    Some(match text {
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Value::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Value::Float(f64::NEG_INFINITY),
        _ => return None,
    })
}

/// `strconv.FormatFloat(f, 'f', -1, 64)`.
pub(crate) fn float(number: f64) -> String {
    match number {
        n if n.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        n => n.to_string(),
    }
}

/// `strconv.ParseBool`.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A time like Go's `time.Time`, with one text form.
struct Time {
    /// Year, month, day, hour, minute, second.
    numbers: [u32; 6],
    nanoseconds: u32,
    /// Minutes east of UTC.
    offset: i32,
}

impl Time {
    /// Formats in RFC 3339, with fractions of a second if there are any.
    fn write(&self) -> String {
        let fraction = format!("{:09}", self.nanoseconds);
        let fraction = fraction.trim_end_matches('0');
        let dot = if fraction.is_empty() { "" } else { "." };
        self.write_with(&format!("{dot}{fraction}"))
    }

    fn write_with(&self, fraction: &str) -> String {
        let [year, month, day, hour, minute, second] = self.numbers;
        let zone = match self.offset {
            0 => "Z".to_owned(),
            offset => {
                let (sign, minutes) = if offset < 0 { ('-', -offset) } else { ('+', offset) };
                format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
        };
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}{zone}")
    }
}

/// Parses go-yaml's four forms of a timestamp. The result is in the format of [`Time::write`].
pub(crate) fn parse_timestamp(text: &str) -> Option<String> {
    let mut rest = Rest(text);
    let date = rest.date(false)?;
    if rest.0.is_empty() {
        return Some(finish(date, [0; 3], 0, 0)?.write());
    }
    let is_spaced = rest.take(' ');
    if !is_spaced && !rest.take('T') && !rest.take('t') {
        return None;
    }
    let clock = rest.clock(false)?;
    let nanoseconds = rest.fraction()?;
    let offset = if is_spaced { 0 } else { rest.zone()? };
    if !rest.0.is_empty() {
        return None;
    }
    Some(finish(date, clock, nanoseconds, offset)?.write())
}

/// Formats a timestamp in Go's RFC 3339.
pub(crate) fn parse_rfc3339(text: &str) -> Option<String> {
    read_rfc3339(text).map(|time| time.write())
}

/// The same in whole seconds.
pub(crate) fn to_seconds(text: &str) -> Option<String> {
    read_rfc3339(text).map(|time| time.write_with(""))
}

fn read_rfc3339(text: &str) -> Option<Time> {
    let mut rest = Rest(text);
    let date = rest.date(true)?;
    if !rest.take('T') {
        return None;
    }
    let clock = rest.clock(true)?;
    let nanoseconds = rest.fraction()?;
    let offset = rest.zone()?;
    finish(date, clock, nanoseconds, offset).filter(|_| rest.0.is_empty())
}

fn finish(date: [u32; 3], clock: [u32; 3], nanoseconds: u32, offset: i32) -> Option<Time> {
    let ([year, month, day], [hour, minute, second]) = (date, clock);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    let fits = (1..=days).contains(&day) && hour < 24 && minute < 60 && second < 60;
    fits.then_some(Time {
        numbers: [year, month, day, hour, minute, second],
        nanoseconds,
        offset,
    })
}

/// The rest of a text that is parsed.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    fn take(&mut self, wanted: char) -> bool {
        match self.0.strip_prefix(wanted) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    /// One or two digits, or exactly two.
    fn two(&mut self, exactly: bool) -> Option<u32> {
        let digits = self.0.bytes().take(2).take_while(u8::is_ascii_digit).count();
        self.digits(digits).filter(|_| digits == 2 || !exactly)
    }

    fn digits(&mut self, count: usize) -> Option<u32> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        self.0 = rest;
        digits.parse().ok()
    }

    fn date(&mut self, exactly: bool) -> Option<[u32; 3]> {
        let year = self.digits(4)?;
        let month = self.take('-').then(|| self.two(exactly))??;
        let day = self.take('-').then(|| self.two(exactly))??;
        Some([year, month, day])
    }

    fn clock(&mut self, exactly: bool) -> Option<[u32; 3]> {
        let hour = self.two(exactly)?;
        let minute = self.take(':').then(|| self.two(exactly))??;
        let second = self.take(':').then(|| self.two(exactly))??;
        Some([hour, minute, second])
    }

    /// Fraction of a second, cut to nanoseconds.
    fn fraction(&mut self) -> Option<u32> {
        if !self.0.starts_with(['.', ',']) || !self.0[1..].starts_with(|next: char| next.is_ascii_digit()) {
            return Some(0);
        }
        let digits = self.0[1..].bytes().take_while(u8::is_ascii_digit).count();
        let text: String = self.0[1..=digits].chars().chain("000000000".chars()).take(9).collect();
        self.0 = &self.0[1 + digits..];
        text.parse().ok()
    }

    /// Minutes east of UTC.
    fn zone(&mut self) -> Option<i32> {
        if self.take('Z') {
            return Some(0);
        }
        let sign = if self.take('-') { -1 } else { i32::from(self.take('+')) };
        let hours = self.two(true)?;
        let minutes = self.take(':').then(|| self.two(true))??;
        let fits = sign != 0 && hours < 24 && minutes < 60;
        fits.then(|| sign * i32::try_from(hours * 60 + minutes).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Option<String> {
        parse_timestamp(text)
    }

    #[test]
    fn times_are_written_as_go_writes_them() {
        for (text, written) in [
            ("2001-12-14", "2001-12-14T00:00:00Z"),
            ("2001-1-4", "2001-01-04T00:00:00Z"),
            ("2001-12-14t21:59:43.10-05:00", "2001-12-14T21:59:43.1-05:00"),
            ("2001-12-14 21:59:43.10", "2001-12-14T21:59:43.1Z"),
            ("2001-12-14T1:2:3Z", "2001-12-14T01:02:03Z"),
            ("2001-12-14T01:02:03+00:00", "2001-12-14T01:02:03Z"),
        ] {
            assert_eq!(time(text).as_deref(), Some(written), "{text}");
        }
        for text in [
            "2001-02-29",
            "2001-13-01",
            "2001-12-14T24:00:00Z",
            "2001-12-14T",
            "20011-1-1",
            "2001-12-14 1:2:3Z",
        ] {
            assert_eq!(time(text), None, "{text}");
        }
        assert_eq!(
            to_seconds("2024-05-06T07:08:09.5+02:00").as_deref(),
            Some("2024-05-06T07:08:09+02:00")
        );
        assert_eq!(to_seconds("2024-5-6T07:08:09Z"), None);
    }

    #[test]
    fn numbers_are_written_without_an_exponent() {
        for (number, text) in [
            (1.0, "1"),
            (1e21, "1000000000000000000000"),
            (0.1, "0.1"),
            (-1.5e-7, "-0.00000015"),
        ] {
            assert_eq!(float(number), text);
        }
        assert_eq!(
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(float),
            ["NaN", "+Inf", "-Inf"]
        );
    }
}
