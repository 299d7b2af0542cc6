//! Parses `index.yaml`: the versions of each chart. Of about a hundred fields of a version, three are kept.

use std::{collections::BTreeMap, fmt, io::BufRead};

use farwater_api::Digest;
use farwater_bundle::path::escape;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// Most charts, and versions of all charts: about ten times the largest public index.
const MAX_CHARTS: usize = 100_000;
const MAX_VERSIONS: usize = 1_000_000;
/// Longest name, version and address. Longer ones are left out, like entries without a version.
const MAX_NAME: usize = 253;
const MAX_VERSION: usize = 256;
const MAX_URL: usize = 2048;
const MAX_URLS: usize = 4;
/// About 40 nodes for each version of an index with [`MAX_VERSIONS`] small ones; one version is in memory at a time.
const MAX_NODES: usize = 40_000_000;

#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error("it is not UTF-8 text")]
    NotText,
    #[error("it is over {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("it can't be decompressed: {0}")]
    Encoding(String),
    #[error("{0}")]
    Syntax(String),
    #[error("it has no entries")]
    NoEntries,
    #[error("its cache is damaged")]
    Damaged,
}

/// One version of a chart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChartVersion {
    pub version: String,
    pub urls: Vec<String>,
    /// Digest of the archive, if the index states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

impl ChartVersion {
    /// A text that changes when there is something else to fetch.
    pub(super) fn entry(&self) -> String {
        Digest::of(format!("{}\n{:?}\n{}", self.version, self.digest, self.urls.join("\n"))).to_string()
    }
}

/// One line for each chart: `["name",[versions…]]`.
pub(super) fn parse(bytes: Vec<u8>) -> Result<String, IndexError> {
    let text = String::from_utf8(bytes).map_err(|_| IndexError::NotText)?;
    let syntax = |message: String| IndexError::Syntax(escape(message.lines().next().unwrap_or_default().as_bytes()));
    // JSON is YAML too, but parsed ten times as fast.
    let index: Index = if text.trim_start().starts_with('{') {
        serde_json::from_str(&text).map_err(|error| syntax(error.to_string()))?
    } else {
        serde_saphyr::from_str_with_options(&text, options()).map_err(|error| syntax(error.to_string()))?
    };
    let lines = index.entries.ok_or(IndexError::NoEntries)?.0;
    Ok(lines)
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 2 * MAX_NODES,
            max_nodes: MAX_NODES,
            max_total_scalar_bytes: 256 << 20,
            max_documents: 1,
            // Charts use none; a list that is repeated a thousand times is an attack.
            max_aliases: 1000,
            max_anchors: 1000,
        },
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::FirstWins,
        with_snippet: false,
    }
}

#[derive(Deserialize)]
struct Index {
    entries: Option<Lines>,
}

/// The lines, written while the index is read.
struct Lines(String);

impl<'de> Deserialize<'de> for Lines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Charts;
        impl<'de> Visitor<'de> for Charts {
            type Value = Lines;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("versions of charts by their names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Lines, A::Error> {
                use serde::de::Error as _;
                let (mut lines, mut charts, mut total) = (String::new(), 0, 0);
                while let Some(name) = map.next_key::<String>()? {
                    let Some(Versions(versions)) = map.next_value::<Option<Versions>>()? else {
                        continue;
                    };
                    charts += 1;
                    total += versions.len();
                    if charts > MAX_CHARTS || total > MAX_VERSIONS {
                        let most = format!("over {MAX_CHARTS} charts or {MAX_VERSIONS} versions of them");
                        return Err(A::Error::custom(most));
                    }
                    if name.is_empty() || name.len() > MAX_NAME || versions.is_empty() {
                        continue;
                    }
                    lines.push_str(&serde_json::to_string(&(name, versions)).map_err(A::Error::custom)?);
                    lines.push('\n');
                }
                Ok(Lines(lines))
            }

            fn visit_unit<E>(self) -> Result<Lines, E> {
                Ok(Lines(String::new()))
            }
        }
        deserializer.deserialize_map(Charts)
    }
}

struct Versions(Vec<ChartVersion>);

impl<'de> Deserialize<'de> for Versions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Versions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of versions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Versions, A::Error> {
                let mut versions = Vec::new();
                while let Some(written) = seq.next_element::<Option<Written>>()? {
                    versions.extend(written.and_then(Written::usable));
                }
                Ok(Versions(versions))
            }
        }
        deserializer.deserialize_seq(All)
    }
}

/// A version as written. Other fields are ignored.
#[derive(Default)]
struct Written {
    version: Option<String>,
    urls: Vec<String>,
    digest: Option<String>,
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a chart's version")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Written, A::Error> {
                let mut written = Written::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "version" => written.version = map.next_value()?,
                        "urls" => written.urls = map.next_value::<Option<Vec<String>>>()?.unwrap_or_default(),
                        "digest" => written.digest = map.next_value()?,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(written)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl Written {
    /// As in Helm, an invalid version or one without an address is left out, and the others count.
    fn usable(self) -> Option<ChartVersion> {
        let version = self
            .version
            .filter(|text| !text.is_empty() && text.len() <= MAX_VERSION)?;
        let usable = |url: &String| !url.is_empty() && url.len() <= MAX_URL && !url.chars().any(char::is_control);
        let urls: Vec<String> = self.urls.into_iter().filter(usable).take(MAX_URLS).collect();
        let digest = self.digest.filter(|text| !text.is_empty()).map(|text| {
            let digits = text.strip_prefix("sha256:").unwrap_or(&text).to_ascii_lowercase();
            format!("sha256:{digits}").parse::<Digest>()
        });
        // An invalid digest must not count as a missing one.
        let digest = digest.transpose().ok()?;
        (!urls.is_empty()).then_some(ChartVersion { version, urls, digest })
    }
}

/// The versions of one chart from the stored lines.
pub(super) fn versions_of(lines: impl BufRead, chart: &str) -> std::io::Result<Result<Vec<ChartVersion>, IndexError>> {
    let Ok(name) = serde_json::to_string(chart) else {
        return Ok(Err(IndexError::Damaged));
    };
    let beginning = format!("[{name},");
    for line in lines.lines() {
        let line = line?;
        if line.starts_with(&beginning) {
            let parsed = serde_json::from_str::<(String, Vec<ChartVersion>)>(&line);
            return Ok(parsed.map(|(_, versions)| versions).map_err(|_| IndexError::Damaged));
        }
    }
    Ok(Ok(Vec::new()))
}

#[derive(Debug, Deserialize)]
pub(super) struct ChartYaml {
    pub name: String,
    pub version: String,
}

pub(super) fn read_chart_yaml(bytes: &[u8]) -> Result<ChartYaml, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())?;
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::FirstWins,
        with_snippet: false,
    };
    let parsed: Result<Map, _> = serde_saphyr::from_str_with_options(text, options);
    let Map(mut fields) =
        parsed.map_err(|error| escape(error.to_string().lines().next().unwrap_or_default().as_bytes()))?;
    let mut field = |name: &str| fields.remove(name).ok_or_else(|| format!("it has no {name}"));
    Ok(ChartYaml {
        name: field("name")?,
        version: field("version")?,
    })
}

/// The texts of a mapping. Other values are ignored.
struct Map(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Map {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = Map;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Map, A::Error> {
                let mut texts = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "name" | "version" => {
                            if let Some(text) = map.next_value::<Option<String>>()? {
                                texts.entry(key).or_insert(text);
                            }
                        }
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(Map(texts))
            }
        }
        deserializer.deserialize_map(Texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(index: &str, chart: &str) -> Result<Vec<ChartVersion>, String> {
        let lines = parse(index.as_bytes().to_vec()).map_err(|error| error.to_string())?;
        versions_of(lines.as_bytes(), chart)
            .unwrap()
            .map_err(|error| error.to_string())
    }

    const INDEX: &str = r#"apiVersion: v1
entries:
  web:
  - apiVersion: v2
    annotations: {a: b, c: [d, {e: f}]}
    created: "2026-01-01T00:00:00Z"
    description: |
      many
      lines
    digest: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
    name: web
    urls: [web-1.10.tgz]
    version: 1.10
  - {version: v2.0.0, urls: ['https://h/web-2.0.0.tgz', ftp://h/x], digest: ""}
  - {version: 3.0.0, urls: [], digest: x}
  - {version: 4.0.0, urls: [x], digest: not-one}
  - {urls: [x]}
  - null
  web-two:
  - {version: 0.1.0, urls: [two.tgz]}
  empty: []
  nothing:
generated: "2026-01-01T00:00:00Z"
serverInfo: {}
"#;

    #[test]
    fn of_each_version_the_address_and_the_digest_are_kept() {
        let web = versions(INDEX, "web").unwrap();
        let told: Vec<_> = web
            .iter()
            .map(|one| (one.version.as_str(), one.urls.len(), one.digest.is_some()))
            .collect();
        assert_eq!(told, [("1.10", 1, true), ("v2.0.0", 2, false)]);
        assert_eq!(web[0].digest, Some(Digest::of("foo")));
        assert_eq!(versions(INDEX, "web-two").unwrap().len(), 1);
        for chart in ["empty", "nothing", "we", "web\"", "other"] {
            assert_eq!(versions(INDEX, chart), Ok(vec![]), "{chart}");
        }
    }

    #[test]
    fn an_index_in_json_is_the_same() {
        let json =
            r#"{"apiVersion":"v1","entries":{"web":[{"version":"1.10","urls":["web-1.10.tgz"],"x":[1,{"y":null}]}]}}"#;
        assert_eq!(versions(json, "web").unwrap()[0].version, "1.10");
    }

    #[test]
    fn hostile_indexes_are_errors_or_leave_out_what_is_odd() {
        let deep = format!("entries: {}", "[".repeat(5000));
        let bomb = format!(
            "a: &a [{}]\nb: &b [{}]\nc: &c [{}]\nd: &d [{}]\nentries: {{}}\n",
            "x,".repeat(99),
            "*a,".repeat(99),
            "*b,".repeat(99),
            "*c,".repeat(99)
        );
        let many = format!(
            "a: &a x\nentries: {{web: [{}]}}",
            "{version: *a, urls: [*a]},".repeat(2000)
        );
        for index in [
            "",
            "x",
            "[]",
            "entries: x",
            "entries: {web: {}}",
            "entries: {web: [x]}",
            "entries: {web: [{urls: x}]}",
            "entries: {web: [{version: [1]}]}",
            "apiVersion: v1\n",
            "entries: {web: [{version: '1', urls: [[x]]}]}",
            "\0",
            "entries: {web: [",
            "{\"entries\": {\"web\": [{\"version\": {}}]}}",
            "{\"entries\": 1}",
            "{",
            &deep,
            &bomb,
            &many,
        ] {
            let error = versions(index, "web").unwrap_err();
            assert!(!error.contains(char::is_control) && error.len() < 400, "{error:?}");
        }
        assert!(matches!(
            parse(b"entries: {w: \xff}".to_vec()),
            Err(IndexError::NotText)
        ));
        let long = format!(
            "entries: {{web: [{{version: '{}', urls: [a]}}, {{version: '1', urls: ['{}', \"a\\nb\"]}}]}}",
            "1".repeat(300),
            "a".repeat(3000)
        );
        assert_eq!(versions(&long, "web"), Ok(vec![]));
        assert_eq!(versions("entries: {}", "web"), Ok(vec![]));
    }

    #[test]
    fn what_a_chart_is_called_is_read_from_its_own_file() {
        let read = |text: &str| read_chart_yaml(text.as_bytes()).map(|chart| (chart.name, chart.version));
        assert_eq!(
            read("name: web\nversion: 1.10\ndependencies: [{name: x}]\n"),
            Ok(("web".to_owned(), "1.10".to_owned()))
        );
        assert!(read("version: 1").is_err() && read("[]").is_err() && read("name: [x]\nversion: 1").is_err());
    }
}
