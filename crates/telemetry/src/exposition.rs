//! Metrics in Prometheus' text format, version 0.0.4, which all scrapers and `promtool check metrics` read.

use std::fmt::{Display, Write as _};

/// The content type of [`Exposition`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

/// Text with families of metrics.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Adds a family with one series.
    pub fn one(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    /// Adds a family whose series differ in one label. Label values are constants of this project, so they need no
    /// escaping.
    pub fn many<V: Display>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'static str, V)>,
    ) {
        self.family(name, kind, help);
        for (state, value) in values {
            let _ = writeln!(self.0, "{name}{{{label}=\"{state}\"}} {value}");
        }
    }

    fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn into_text(self) -> String {
        self.0
    }
}

/// Converts OpenMetrics' format for scrapers that don't read it. The family of a counter gets the name of its series,
/// and a type that only OpenMetrics has becomes the nearest one.
pub fn from_open_metrics(text: &str) -> String {
    let mut plain = String::with_capacity(text.len() + 256);
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take().filter(|(of, _)| *of == name) {
                let _ = writeln!(plain, "# HELP {name}{suffix} {help}");
            }
            let _ = writeln!(plain, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            // An exemplar follows a ` # `.
            plain.push_str(line.split(" # ").next().unwrap_or(line));
            plain.push('\n');
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_its_help_its_type_and_its_series() {
        let mut text = Exposition::default();
        text.one("up_seconds", Kind::Gauge, "Time.", 1.5);
        text.many(
            "polls_total",
            Kind::Counter,
            "Polls.",
            "result",
            [("new", 1), ("failed", 2)],
        );
        let expected = "# HELP up_seconds Time.\n# TYPE up_seconds gauge\nup_seconds 1.5\n# HELP polls_total Polls.\n\
                        # TYPE polls_total counter\npolls_total{result=\"new\"} 1\npolls_total{result=\"failed\"} 2\n";
        assert_eq!(text.into_text(), expected);
    }

    #[test]
    fn what_is_written_for_openmetrics_is_read_by_older_scrapers() {
        let check = |text: &str, expected: &str| assert_eq!(from_open_metrics(text), expected);
        check(
            "# HELP a Requests.\n# TYPE a counter\na_total{b=\"#\"} 1 # {id=\"x\"} 1\n# EOF\n",
            "# HELP a_total Requests.\n# TYPE a_total counter\na_total{b=\"#\"} 1\n",
        );
        check(
            "# HELP b Build.\n# TYPE b info\nb_info{version=\"1\"} 1\n",
            "# HELP b_info Build.\n# TYPE b_info gauge\nb_info{version=\"1\"} 1\n",
        );
        let histogram = "# HELP c Time.\n# TYPE c histogram\nc_sum 0.1\nc_count 1\nc_bucket{le=\"+Inf\"} 1\n";
        check(&format!("{histogram}# UNIT c seconds\n# EOF\n"), histogram);
    }
}
