//! A hub's figures from its metrics, for users who may read them.

use std::collections::HashMap;

use farwater_fleet::states;

/// Series of a text in Prometheus' format, by name with labels as written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures(HashMap<String, f64>);

impl Figures {
    pub fn parse(text: &str) -> Self {
        let series = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Self(series.collect())
    }

    /// The figures of a namespace's resources, if the metrics can't be read. Takes the kind and the status' JSON of
    /// each.
    pub fn of_resources(resources: impl IntoIterator<Item = (&'static str, Option<Vec<u8>>)>) -> Self {
        let mut figures = Self::default();
        for (kind, status) in resources {
            for state in states::states(kind, status.as_deref()) {
                *figures.0.entry(Self::name(kind, state)).or_default() += 1.0;
            }
        }
        figures
    }

    fn name(kind: &str, state: &str) -> String {
        match (kind, state) {
            (states::SERVICES, states::PRUNE_HELD) => "farwater_services_prune_held".to_owned(),
            (kind, states::STALE) if states::SOURCES.contains(&kind) => "farwater_sources_stale".to_owned(),
            (states::CLUSTERS, states::RESTORED) => "farwater_clusters_restored".to_owned(),
            (states::SERVICES, state) => format!("farwater_services{{state=\"{state}\"}}"),
            (_, state) => format!("farwater_sources{{state=\"{state}\"}}"),
        }
    }

    pub fn get(&self, series: &str) -> Option<f64> {
        self.0.get(series).copied()
    }

    /// A number of things. A missing series counts as 0.
    pub fn count(&self, series: &str) -> u64 {
        self.get(series).map_or(0, |number| number as u64)
    }

    /// The sum of all series with a name.
    pub fn total(&self, name: &str) -> u64 {
        let of = |series: &str| {
            series
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
        };
        self.0
            .iter()
            .filter(|(series, _)| of(series))
            .map(|(_, number)| *number as u64)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_is_read_by_series() {
        let text = "# HELP a A.\n# TYPE a gauge\na{state=\"x y\"} 2\na{state=\"z\"} 3\nab 7\nb 1.5\n";
        let figures = Figures::parse(text);
        assert_eq!((figures.count("a{state=\"x y\"}"), figures.get("b")), (2, Some(1.5)));
        assert_eq!((figures.total("a"), figures.total("ab"), figures.total("c")), (5, 7, 0));
    }

    #[test]
    fn resources_are_counted_under_the_names_of_the_metrics() {
        let status = br#"{"staleSince":"x","conditions":[{"type":"Ready","status":"True"}]}"#.to_vec();
        let figures = Figures::of_resources([(states::SOURCES[2], Some(status)), (states::SERVICES, None)]);
        assert_eq!(figures.count("farwater_sources_stale"), 1);
        assert_eq!(figures.count("farwater_sources{state=\"ready\"}"), 1);
        assert_eq!(figures.count("farwater_services{state=\"new\"}"), 1);
    }
}
