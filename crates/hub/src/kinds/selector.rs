//! Label and field selectors in Kubernetes' syntax (`k8s.io/apimachinery/pkg/labels` and `pkg/fields`).

use std::collections::BTreeMap;

use farwater_store::Selector;
use serde_json::Value;

use super::status::ApiError;

mod labels;

/// Maximum length of a selector; a longer one is a mistake or an attack.
const LONGEST: usize = 64 * 1024;

/// The filter of a list or a watch. The parts that the store can't evaluate are evaluated here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub labels: Selector,
    pub compared: Vec<Comparison>,
    pub fields: Vec<FieldRequirement>,
}

/// `key > number` or `key < number` on a label that is a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    pub key: String,
    pub greater: bool,
    pub number: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRequirement {
    pub field: String,
    pub equal: bool,
    pub value: String,
}

/// The fields that field selectors may name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Selectable {
    pub fields: &'static [&'static str],
    /// Kubernetes uses another message for kinds that declare no selectors of their own.
    pub common: bool,
}

impl Selectable {
    fn refuse(self, field: &str) -> ApiError {
        ApiError::bad_request(if self.common {
            format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        } else {
            format!("field label not supported: {field}")
        })
    }
}

impl Filter {
    pub fn parse(selected: Option<&str>, fields: Option<&str>, supported: Selectable) -> Result<Self, ApiError> {
        let mut filter = Self::default();
        if let Some(text) = selected {
            labels::parse(text, &mut filter)?;
        }
        if let Some(text) = fields {
            filter.fields = parse_fields(text, supported)?;
        }
        Ok(filter)
    }

    /// The only name that can match, if the selector says so: a lookup instead of a scan.
    pub fn name(&self) -> Option<&str> {
        self.fields
            .iter()
            .find(|f| f.equal && f.field == "metadata.name")
            .map(|f| f.value.as_str())
    }

    pub fn namespace(&self) -> Option<&str> {
        self.fields
            .iter()
            .find(|f| f.equal && f.field == "metadata.namespace")
            .map(|f| f.value.as_str())
    }

    /// Whether the filter has more than labels, so that the store's answer must be filtered again.
    pub fn needs_object(&self) -> bool {
        !self.compared.is_empty() || !self.fields.is_empty()
    }

    pub fn matches(&self, object: &Value, labels: &BTreeMap<String, String>) -> bool {
        self.labels.matches(labels)
            && self.compared.iter().all(|c| {
                let number = labels.get(&c.key).and_then(|v| v.parse::<i64>().ok());
                number.is_some_and(|n| if c.greater { n > c.number } else { n < c.number })
            })
            && self
                .fields
                .iter()
                .all(|f| (field_value(object, &f.field) == f.value) == f.equal)
    }
}

/// The text of a field for a field selector; empty if absent.
fn field_value(object: &Value, field: &str) -> String {
    // Events have two names for the reporter, and their newer version has names of its own for stored fields.
    let regarding = field
        .strip_prefix("regarding.")
        .map(|rest| format!("involvedObject.{rest}"));
    let path = match field {
        "name" => "metadata.name",
        "source" if object["source"]["component"].as_str().unwrap_or_default().is_empty() => "reportingComponent",
        "source" => "source.component",
        "reportingController" => "reportingComponent",
        other => regarding.as_deref().unwrap_or(other),
    };
    let found = path.split('.').try_fold(object, |value, key| value.get(key));
    match found {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

fn parse_fields(text: &str, supported: Selectable) -> Result<Vec<FieldRequirement>, ApiError> {
    if text.len() > LONGEST {
        return Err(ApiError::bad_request("the field selector is too long"));
    }

    let mut requirements = Vec::new();
    for term in split_unescaped(text).into_iter().filter(|t| !t.is_empty()) {
        let invalid = || ApiError::bad_request(format!("invalid selector: '{text}'; can't understand '{term}'"));
        let at = term.find(['=', '!']).ok_or_else(invalid)?;
        let (field, rest) = term.split_at(at);
        let (equal, value) = if let Some(value) = rest.strip_prefix("!=") {
            (false, value)
        } else if let Some(value) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
            (true, value)
        } else {
            return Err(invalid());
        };

        let value = unescape(value)?;
        // An empty field that equals an empty value matches everything, as in Kubernetes.
        if field.is_empty() && value.is_empty() {
            continue;
        }
        if !supported.fields.contains(&field) {
            return Err(supported.refuse(field));
        }
        requirements.push(FieldRequirement {
            field: field.to_owned(),
            equal,
            value,
        });
    }
    Ok(requirements)
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn unescape(value: &str) -> Result<String, ApiError> {
    let invalid = |why: String| ApiError::bad_request(format!("invalid field selector: {why}"));
    let (mut out, mut chars) = (String::with_capacity(value.len()), value.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                other => {
                    let sequence: String = ['\\'].into_iter().chain(other).collect();
                    return Err(invalid(format!("invalid escape sequence: {sequence}")));
                }
            },
            '=' | ',' => return Err(invalid(format!("unescaped character in value: {}", u32::from(c)))),
            other => out.push(other),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use farwater_store::LabelRequirement;
    use serde_json::json;

    use super::*;

    fn check(selector: &str, labels: &[(&str, &str)], expected: bool) {
        let filter = Filter::parse(Some(selector), None, Selectable::default()).unwrap();
        let labels = labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        assert_eq!(filter.matches(&Value::Null, &labels), expected, "{selector}");
    }

    #[test]
    fn label_selectors_have_their_full_syntax() {
        let web = [("app", "web"), ("tier", "2"), ("empty", "")];
        for (selector, expected) in [
            ("app", true),
            ("!app", false),
            ("app=web,tier==2", true),
            ("app = web , tier = 2", true),
            ("app!=web", false),
            ("other!=web", true),
            ("app in (api, web)", true),
            ("app in(api)", false),
            ("app notin (api),!other", true),
            ("other notin (api)", true),
            ("empty=", true),
            ("tier>1,tier<3", true),
            ("tier > 2", false),
            ("", true),
        ] {
            check(selector, &web, expected);
        }
    }

    #[test]
    fn broken_label_selectors_say_what_was_expected() {
        for (selector, expected) in [
            (
                "a b c",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            ("a in x", "unable to parse requirement: found 'x' expected: '('"),
            ("a in (x", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a=b,", "found '', expected: identifier after ','"),
            ("=", "found '=', expected: !, identifier, or 'end of string'"),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
        ] {
            let error = Filter::parse(Some(selector), None, Selectable::default()).unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (400, expected));
        }
        for selector in ["a=b c!", "-a=b", "a gt 1"] {
            assert!(Filter::parse(Some(selector), None, Selectable::default()).is_err());
        }
    }

    #[test]
    fn values_that_are_left_out_are_empty() {
        let values = |selector: &str| match &Filter::parse(Some(selector), None, Selectable::default())
            .unwrap()
            .labels
            .0[..]
        {
            [LabelRequirement::In(_, values)] => values.join("|"),
            other => panic!("{other:?}"),
        };
        for (selector, expected) in [
            ("a in ()", ""),
            ("a in (b,)", "|b"),
            ("a in (,b)", "|b"),
            ("a in (b,,c)", "|b|c"),
        ] {
            assert_eq!(values(selector), expected, "{selector}");
        }
    }

    #[test]
    fn field_selectors_match_only_supported_fields() {
        let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Cluster", "name": "a,b"}});
        let fields = &["metadata.name", "involvedObject.kind", "involvedObject.name", "reason"];
        let matches = |text: &str| {
            Filter::parse(None, Some(text), Selectable { fields, common: false })
                .map(|f| f.matches(&event, &BTreeMap::new()))
                .map_err(|e| e.message)
        };
        assert_eq!(matches("involvedObject.kind=Cluster,metadata.name==e"), Ok(true));
        assert_eq!(matches("involvedObject.kind!=Cluster"), Ok(false));
        assert_eq!(matches(r"involvedObject.name=a\,b"), Ok(true));
        assert_eq!(matches("reason="), Ok(true));
        assert_eq!(matches("spec.x=1"), Err("field label not supported: spec.x".into()));
        assert!(matches("nonsense").is_err());
    }
}
