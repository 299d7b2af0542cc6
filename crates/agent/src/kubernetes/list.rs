//! Reads a list item by item. As one tree of values, a page of 500 objects' metadata would take megabytes, most of them
//! for the fields of other managers, and would be the agent's peak of memory.

use std::fmt;

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

/// Metadata of the list itself.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ListMetadata {
    #[serde(default, rename = "resourceVersion")]
    pub resource_version: String,
    /// Where the next page begins. None: this is the last one.
    #[serde(default, rename = "continue")]
    pub next: Option<String>,
}

/// Passes each item to `each`. After an error some items may have been passed; they are as valid as those of a complete
/// list.
pub fn read(body: &[u8], each: &mut impl FnMut(Value)) -> Result<ListMetadata, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let metadata = List(each).deserialize(&mut json)?;
    json.end()?;
    Ok(metadata)
}

struct List<'a, F>(&'a mut F);

impl<'de, F: FnMut(Value)> DeserializeSeed<'de> for List<'_, F> {
    type Value = ListMetadata;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ListMetadata, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(Value)> Visitor<'de> for List<'_, F> {
    type Value = ListMetadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ListMetadata, A::Error> {
        let mut metadata = None;
        let mut items = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "metadata" => metadata = Some(map.next_value()?),
                "items" => {
                    map.next_value_seed(Items(&mut *self.0))?;
                    items = true;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        // Another object, or half of one, is not an empty list.
        if !items {
            return Err(A::Error::missing_field("items"));
        }
        metadata.ok_or_else(|| A::Error::missing_field("metadata"))
    }
}

struct Items<'a, F>(&'a mut F);

impl<'de, F: FnMut(Value)> DeserializeSeed<'de> for Items<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnMut(Value)> Visitor<'de> for Items<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the items of a list")
    }

    /// Go writes an empty list as null.
    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element()? {
            (self.0)(item);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, names: &[&str], next: Option<&str>) {
        let mut seen = Vec::new();
        let metadata = read(body.as_bytes(), &mut |item| {
            seen.push(item["name"].as_str().unwrap().to_owned())
        })
        .unwrap();
        assert_eq!(seen, names);
        assert_eq!(
            (metadata.resource_version.as_str(), metadata.next.as_deref()),
            ("7", next)
        );
    }

    #[test]
    fn items_are_handed_over_one_by_one() {
        let head = r#""kind":"SecretList","metadata":{"resourceVersion":"7","#;
        check(
            &format!(r#"{{{head}"continue":"x"}},"items":[{{"name":"a"}},{{"name":"b"}}]}}"#),
            &["a", "b"],
            Some("x"),
        );
        check(
            r#"{"items":[{"name":"a"}],"metadata":{"resourceVersion":"7"}}"#,
            &["a"],
            None,
        );
        check(r#"{"items":null,"metadata":{"resourceVersion":"7"}}"#, &[], None);
    }

    #[test]
    fn what_is_no_whole_list_is_an_error_and_not_an_empty_one() {
        for body in [
            "{}",
            r#"{"metadata":{}}"#,
            r#"{"items":[]}"#,
            r#"{"metadata":{},"items":[{}"#,
            "[]",
            "",
        ] {
            assert!(read(body.as_bytes(), &mut drop).is_err(), "{body}");
        }
    }
}
