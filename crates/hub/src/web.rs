//! The page, embedded at compile time. It contains no data: it calls the API with the token that its user enters. So it
//! is served without authentication, sets no cookie, and can't be used to act in a user's name.

use axum::{
    extract::Path,
    response::{IntoResponse, Redirect, Response},
};
use http::{HeaderName, StatusCode, header};

include!(concat!(env!("OUT_DIR"), "/web.rs"));

/// Only the hub's own files are loaded, and only the hub is called; no inline scripts, no frames around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
                      connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'";

/// Served where the page was not built.
const NOT_BUILT: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<title>Farwater hub</title>
<h1>Farwater hub</h1>
<p>The hub is running. This build has no page: it was compiled without <code>web/dist</code>.</p>
<p>To build one: <code>cd web &amp;&amp; npm ci &amp;&amp; npm run build</code>, then compile the hub again
(<code>touch crates/hub/build.rs</code> first).</p>
<p>Everything else works: <code>kubectl --kubeconfig DATA-DIR/admin.kubeconfig api-resources</code>.</p>
</html>
";

pub async fn root() -> Redirect {
    Redirect::temporary("/ui/")
}

pub async fn index() -> Response {
    page(FILES, "")
}

pub async fn file(Path(path): Path<String>) -> Response {
    page(FILES, &path)
}

/// A file by its path; the page itself for its own routes, which are not files.
fn page(files: &[(&str, &'static [u8])], path: &str) -> Response {
    let find = |wanted: &str| files.iter().find(|(name, _)| *name == wanted);
    let is_asset = path.rsplit('/').next().is_some_and(|name| name.contains('.'));
    match (find(path), find("index.html")) {
        (Some((name, content)), _) => serve(name, content),
        (None, Some((name, content))) if !is_asset => serve(name, content),
        (None, None) if !is_asset => serve("index.html", NOT_BUILT.as_bytes()),
        _ => secured((StatusCode::NOT_FOUND, "not found").into_response()),
    }
}

fn serve(name: &str, content: &'static [u8]) -> Response {
    // Vite names assets by their content; all other files must be revalidated.
    let caching = if name.starts_with("assets/") {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    let headers = [
        (header::CONTENT_TYPE, content_type(name)),
        (header::CACHE_CONTROL, caching),
    ];
    secured((headers, content).into_response())
}

fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let fixed: [(HeaderName, &'static str); 5] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, http::HeaderValue::from_static(value));
    }
    response
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json" | "map") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("txt") => "text/plain; charset=utf-8",
        Some("webmanifest") => "application/manifest+json",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILT: &[(&str, &[u8])] = &[("assets/app-1.js", b"js"), ("index.html", b"<html>")];

    #[test]
    fn files_routes_and_missing_assets_are_told_apart() {
        let check = |files: &[(&str, &'static [u8])], path: &str, code: u16, content_type: &str| {
            let response = page(files, path);
            let headers = response.headers();
            assert_eq!(response.status(), code, "{path}");
            assert_eq!(headers[header::CONTENT_TYPE], content_type, "{path}");
            assert!(
                headers[header::CONTENT_SECURITY_POLICY]
                    .to_str()
                    .unwrap()
                    .starts_with("default-src 'none'")
            );
            assert!(!headers.contains_key(header::SET_COOKIE));
        };
        check(BUILT, "", 200, "text/html; charset=utf-8");
        check(BUILT, "services/team-a/web", 200, "text/html; charset=utf-8");
        check(BUILT, "assets/app-1.js", 200, "text/javascript; charset=utf-8");
        check(BUILT, "assets/app-2.js", 404, "text/plain; charset=utf-8");
        check(&[], "", 200, "text/html; charset=utf-8");
        check(&[], "app.js", 404, "text/plain; charset=utf-8");
    }

    #[test]
    fn page_without_a_build_has_nothing_that_its_policy_forbids() {
        assert!(!NOT_BUILT.contains("<script") && !NOT_BUILT.contains("style") && !NOT_BUILT.contains("onclick"));
    }
}
