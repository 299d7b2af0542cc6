//! The inputs of a service's digest, read from the very entry that is digested, so that an input added to entries is
//! listed without further code.

use farwater_api::{
    Digest, SourceKind,
    digest_report::{DigestInput, DigestReport, DigestSource},
    protocol::Entry,
};
use serde_json::Value;

use crate::{
    assignment::{Candidate, Part},
    conditions::cut,
};

/// Most bytes of a value that are shown. Its beginning says what it is about; the digest shows whether it changed.
const MAX_VALUE: usize = 120;

/// `assigned`: the candidate of the entry's bundle.
pub fn explain_digest(entry: &Entry, assigned: Option<&Candidate>) -> Result<DigestReport, serde_json::Error> {
    let json = serde_json::to_value(entry)?;
    let mut inputs = Vec::new();
    for (prefix, fields) in [("service.", &json["service"]), ("", &json["action"])] {
        for (name, value) in fields.as_object().into_iter().flatten() {
            inputs.push(DigestInput {
                name: format!("{prefix}{name}"),
                digest: Digest::of_json(value),
                value: show(value),
            });
        }
    }
    inputs.sort_by(|a, b| a.name.cmp(&b.name));
    let bundle = json["action"]["bundle"]
        .as_str()
        .and_then(|digest| digest.parse::<Digest>().ok());
    let assigned = assigned.filter(|assigned| bundle == Some(assigned.bundle));
    Ok(DigestReport {
        entry: entry.digest(),
        content_id: assigned.map(|assigned| assigned.content_id),
        inputs,
        sources: assigned.map(sources).unwrap_or_default(),
    })
}

fn show(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    cut(&text, MAX_VALUE)
}

fn sources(assigned: &Candidate) -> Vec<DigestSource> {
    if assigned.parts.is_empty() {
        let source = if assigned.source.is_empty() {
            SourceKind::GitRepository.to_string()
        } else {
            assigned.source.clone()
        };
        return vec![DigestSource {
            source,
            revision: assigned.revision.clone(),
            path: assigned.path.clone(),
            mount_path: String::new(),
            dependency: false,
        }];
    }
    let source = |part: &Part| {
        let name = if part.name.is_empty() {
            part.url.clone()
        } else {
            format!("{} {}", part.kind, part.name)
        };
        let chart = part
            .chart
            .as_ref()
            .map(|chart| format!(", chart {}", chart.name))
            .unwrap_or_default();
        DigestSource {
            source: format!("{name}{chart}"),
            revision: part.revision.clone(),
            path: part.path.clone(),
            mount_path: part.mount_path.clone(),
            dependency: part.dependency,
        }
    };
    assigned.parts.iter().map(source).collect()
}

#[cfg(test)]
mod tests {
    use farwater_api::{
        protocol::{Action, ServiceIdentity},
        service_sources::ChartReference,
    };

    use super::*;

    #[test]
    fn every_field_of_an_entry_is_told_with_a_digest_of_its_own() {
        let service = ServiceIdentity {
            uid: "u".into(),
            namespace: "team-a".into(),
            name: "web".into(),
        };
        let entry = Entry {
            service,
            action: Action::Hold {
                reason: "r".repeat(500),
            },
        };
        let report = explain_digest(&entry, None).unwrap();
        let names: Vec<_> = report.inputs.iter().map(|input| input.name.as_str()).collect();
        assert_eq!(
            names,
            ["reason", "service.name", "service.namespace", "service.uid", "type"]
        );
        assert!(report.inputs.iter().all(|input| input.value.len() <= MAX_VALUE));
        assert_eq!(
            (report.entry, report.content_id, report.sources.len()),
            (entry.digest(), None, 0)
        );
    }

    #[test]
    fn parts_are_told_by_their_sources() {
        let part = |name: &str, chart: Option<&str>, dependency| Part {
            kind: SourceKind::HelmRepository,
            name: name.into(),
            source_uid: "u".into(),
            url: "https://h".into(),
            chart: chart.map(|name| ChartReference {
                name: name.into(),
                version: "*".into(),
            }),
            revision: "1.0.0@sha256:x".into(),
            reads: String::new(),
            path: String::new(),
            mount_path: "values".into(),
            dependency,
        };
        let candidate = Candidate {
            revision: "r".into(),
            content_id: Digest::of("c"),
            bundle: Digest::of("b"),
            bundle_bytes: 1,
            path: String::new(),
            source: "https://h".into(),
            origin: None,
            author: String::new(),
            reads: String::new(),
            rendered: Vec::new(),
            parts: vec![part("charts", Some("web"), false), part("", Some("redis"), true)],
            artifacts: Vec::new(),
            configuration: Default::default(),
        };
        let told: Vec<_> = sources(&candidate)
            .into_iter()
            .map(|source| (source.source, source.dependency))
            .collect();
        assert_eq!(
            told,
            [
                ("HelmRepository charts, chart web".to_owned(), false),
                ("https://h, chart redis".to_owned(), true)
            ]
        );
        let plain = Candidate {
            parts: Vec::new(),
            ..candidate
        };
        assert_eq!(sources(&plain)[0].source, "https://h");
    }
}
