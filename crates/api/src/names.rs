//! Names of objects.

/// RFC 1123 subdomain: what Kubernetes allows as the name of most objects. It is safe inside a path.
pub fn is_object_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    text.len() <= 253 && text.bytes().all(inner) && edge(text.as_bytes().first()) && edge(text.as_bytes().last())
}
