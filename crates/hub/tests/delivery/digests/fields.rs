//! The names of a deployment's fields, as they are written: asked of what reads them, so that a new one is among them.

use farwater_api::protocol::Deployment;
use serde::{
    Deserialize as _, Deserializer,
    de::{Error as _, Visitor, value::Error},
    forward_to_deserialize_any,
};

/// Has no value, and keeps which fields it was asked for.
struct Names<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("this is no struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error::custom("only the names are asked for"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

pub fn of_deployments() -> &'static [&'static str] {
    let mut names: &[&str] = &[];
    drop(Deployment::deserialize(Names(&mut names)));
    assert!(names.contains(&"bundleBytes"), "{names:?}");
    names
}
