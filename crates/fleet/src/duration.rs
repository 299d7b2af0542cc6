//! Durations as Go writes them: `90s`, `1m30s`, `1.5h`.

use std::time::Duration;

/// `None` where the text is not a positive Go duration of the units that our schemas allow (ms, s, m, h).
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let (unit, seconds) = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)]
            .into_iter()
            .find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        total += number * seconds;
    }
    (total > 0.0).then(|| Duration::try_from_secs_f64(total).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        let check =
            |text, expected: Option<u64>| assert_eq!(parse(text).map(|d| d.as_millis() as u64), expected, "{text}");
        check("30s", Some(30_000));
        check("1m30s", Some(90_000));
        check("1.5h", Some(5_400_000));
        check("250ms", Some(250));
        for wrong in ["", "0s", "30", "s", "1d", "-1s", "1.2.3s"] {
            check(wrong, None);
        }
    }
}
