//! Types of values, from OpenAPI. They say which values are merged by field, by item, or as a whole.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use serde_json::{Value, json};

/// The type of a kind's objects.
#[derive(Clone, Debug)]
pub struct Type(TypeRef);

/// The type of one value.
#[derive(Clone, Debug, Default)]
pub(crate) enum TypeRef {
    /// No value is allowed.
    #[default]
    Unknown,
    /// Any value, merged as a whole.
    Untyped,
    /// Any value: objects are merged by field, others as a whole.
    Deduced,
    Declared(Arc<Atom>),
}

/// The forms that a value may have. More than one if its type isn't declared.
#[derive(Debug, Default)]
pub(crate) struct Atom {
    pub scalar: Option<Scalar>,
    pub list: Option<List>,
    pub map: Option<Map>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Numeric,
    String,
    Boolean,
    Untyped,
}

#[derive(Debug)]
pub(crate) struct List {
    pub element: TypeRef,
    pub kind: ListKind,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ListKind {
    Atomic,
    Set,
    /// These fields identify items.
    Keyed(Vec<String>),
}

#[derive(Debug, Default)]
pub(crate) struct Map {
    fields: BTreeMap<String, Field>,
    /// Type of undeclared fields.
    pub element: TypeRef,
    pub atomic: bool,
}

#[derive(Debug)]
struct Field {
    ty: TypeRef,
    default: Option<Value>,
}

/// How a value of an atom is treated.
#[derive(Clone, Copy)]
pub(crate) enum Form<'a> {
    Scalar(Scalar),
    List(&'a List),
    Map(&'a Map),
}

/// The form of a value. An absent value, and one of a wrong type, has none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Scalar,
    List,
    Map,
    None,
}

static UNKNOWN: Atom = Atom {
    scalar: None,
    list: None,
    map: None,
};
static UNTYPED: LazyLock<Atom> = LazyLock::new(|| Atom::of_anything(TypeRef::Untyped, true));
static DEDUCED: LazyLock<Atom> = LazyLock::new(|| Atom::of_anything(TypeRef::Deduced, false));

impl TypeRef {
    pub fn atom(&self) -> &Atom {
        match self {
            Self::Unknown => &UNKNOWN,
            Self::Untyped => &UNTYPED,
            Self::Deduced => &DEDUCED,
            Self::Declared(atom) => atom,
        }
    }
}

impl Atom {
    fn of_anything(element: TypeRef, atomic: bool) -> Self {
        Self {
            scalar: Some(Scalar::Untyped),
            list: Some(List {
                element: TypeRef::Untyped,
                kind: ListKind::Atomic,
            }),
            map: Some(Map {
                fields: BTreeMap::new(),
                element,
                atomic,
            }),
        }
    }

    fn choice(&self, value: Option<&Value>) -> Choice {
        match value {
            Some(Value::Number(_) | Value::String(_) | Value::Bool(_)) if self.scalar.is_some() => Choice::Scalar,
            Some(Value::Array(_)) if self.list.is_some() => Choice::List,
            Some(Value::Object(_)) if self.map.is_some() => Choice::Map,
            _ => Choice::None,
        }
    }

    fn chosen(&self, choice: Choice) -> Option<Form<'_>> {
        let (map, scalar, list) = (
            self.map.as_ref().map(Form::Map),
            self.scalar.map(Form::Scalar),
            self.list.as_ref().map(Form::List),
        );
        match choice {
            Choice::Map => map,
            Choice::Scalar => scalar,
            Choice::List => list,
            Choice::None => map.or(scalar).or(list),
        }
    }

    /// The form of a value. If it fits none, the form for its comparison.
    pub fn form(&self, value: Option<&Value>) -> Option<Form<'_>> {
        self.chosen(self.choice(value))
    }

    /// The forms for two values, of which at most one is absent. The second is set if the forms differ, and takes
    /// precedence.
    pub fn forms(&self, left: Option<&Value>, right: Option<&Value>) -> (Option<Form<'_>>, Option<Form<'_>>) {
        let (a, b) = (self.choice(left), self.choice(right));
        let alternatives =
            usize::from(self.scalar.is_some()) + usize::from(self.list.is_some()) + usize::from(self.map.is_some());
        if right.is_none() {
            (self.chosen(a), None)
        } else if left.is_none() || alternatives <= 1 || a == b {
            (self.chosen(b), None)
        } else {
            (self.chosen(a), self.chosen(b))
        }
    }

    /// Whether a value with parts has one owner as a whole.
    pub fn is_atomic(&self) -> bool {
        match (&self.map, self.scalar, &self.list) {
            (Some(map), ..) => map.atomic && !map.is_deduced(),
            (None, None, Some(list)) => list.kind == ListKind::Atomic,
            _ => false,
        }
    }
}

impl Map {
    pub fn declares(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    pub fn field(&self, name: &str) -> &TypeRef {
        self.fields.get(name).map_or(&self.element, |field| &field.ty)
    }

    pub fn default(&self, name: &str) -> Option<&Value> {
        self.fields.get(name)?.default.as_ref()
    }

    /// Whether all fields are undeclared.
    pub fn is_deduced(&self) -> bool {
        self.fields.is_empty() && matches!(self.element, TypeRef::Deduced)
    }
}

impl Type {
    /// Reads an OpenAPI schema without references. Ignores keywords that don't affect merging.
    pub fn from_openapi(schema: &Value) -> Self {
        Self(convert(schema, false))
    }

    pub(crate) fn root(&self) -> &TypeRef {
        &self.0
    }
}

fn convert(schema: &Value, preserve: bool) -> TypeRef {
    let preserve = preserve || schema["x-kubernetes-preserve-unknown-fields"] == json!(true);
    let primitive = |scalar| Atom {
        scalar: Some(scalar),
        ..Atom::default()
    };
    let atom = match schema["type"].as_str() {
        Some("object") => Atom {
            map: Some(object(schema, preserve)),
            ..Atom::default()
        },
        Some("array") => Atom {
            list: Some(list(schema, preserve)),
            ..Atom::default()
        },
        Some("integer" | "number") => primitive(Scalar::Numeric),
        Some("boolean") => primitive(Scalar::Boolean),
        Some("string") => match schema["format"].as_str() {
            None | Some("" | "byte") => primitive(Scalar::String),
            Some(_) => primitive(Scalar::Untyped),
        },
        _ => Atom {
            scalar: Some(Scalar::Untyped),
            list: Some(list(schema, preserve)),
            map: Some(object(schema, preserve)),
        },
    };
    TypeRef::Declared(Arc::new(atom))
}

fn object(schema: &Value, preserve: bool) -> Map {
    let properties = schema["properties"].as_object();
    let fields = properties.into_iter().flatten().map(|(name, member)| {
        let field = Field {
            ty: convert(member, preserve),
            default: member.get("default").cloned(),
        };
        (name.clone(), field)
    });
    let element = match &schema["additionalProperties"] {
        Value::Object(_) => convert(&schema["additionalProperties"], preserve),
        Value::Bool(true) => TypeRef::Deduced,
        Value::Bool(false) => TypeRef::Unknown,
        _ if preserve || properties.is_none_or(|p| p.is_empty()) => TypeRef::Deduced,
        _ => TypeRef::Unknown,
    };
    Map {
        fields: fields.collect(),
        element,
        atomic: schema["x-kubernetes-map-type"] == json!("atomic"),
    }
}

fn list(schema: &Value, preserve: bool) -> List {
    let element = match schema.get("items") {
        Some(items) => convert(items, preserve),
        None => TypeRef::Untyped,
    };
    let keys = || {
        let keys = schema["x-kubernetes-list-map-keys"].as_array();
        keys.into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let kind = match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => ListKind::Set,
        Some("map") => ListKind::Keyed(keys()),
        Some(_) => ListKind::Atomic,
        None => match schema["x-kubernetes-patch-strategy"].as_str() {
            Some("merge" | "merge,retainKeys") => match schema["x-kubernetes-patch-merge-key"].as_str() {
                Some(key) => ListKind::Keyed(vec![key.to_owned()]),
                None => ListKind::Set,
            },
            _ => ListKind::Atomic,
        },
    };
    List { element, kind }
}
