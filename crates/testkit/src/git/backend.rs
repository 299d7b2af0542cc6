//! One request: authentication, faults, and `git http-backend` as a CGI program.

use std::{convert::Infallible, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdout, Command},
};

use super::{Auth, Fault, Shared};

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

const CHUNK: usize = 32 << 10;

/// Counts a request as running until it is dropped.
struct UnderWay {
    shared: Arc<Shared>,
    repository: String,
}

impl UnderWay {
    fn new(shared: &Arc<Shared>, path: &str) -> Self {
        let repository = path.split(".git").next().unwrap_or_default().to_owned();
        let mut guard = shared.state();
        let state = &mut *guard;
        *state.under_way.entry(repository.clone()).or_default() += 1;
        state.counts.most_at_once = state.counts.most_at_once.max(state.under_way.values().sum());
        state.counts.most_of_one = state.counts.most_of_one.max(state.under_way[&repository]);
        Self {
            shared: shared.clone(),
            repository,
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(count) = self.shared.state().under_way.get_mut(&self.repository) {
            *count -= 1;
        }
    }
}

pub(super) async fn answer(
    shared: Arc<Shared>,
    origin: String,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let under_way = UnderWay::new(&shared, request.uri().path());
    let fault = {
        let mut state = shared.state();
        state.counts.requests += 1;
        let sent = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        state.authorizations.extend(sent.map(str::to_owned));
        if !is_authorized(&state.auth, request.headers()) {
            state.counts.unauthorized += 1;
            return Ok(unauthorized(&state.auth));
        }
        state.fault.clone()
    };
    match fault {
        Fault::Delay(pause) => tokio::time::sleep(pause).await,
        Fault::Stall => std::future::pending().await,
        Fault::Status(status) => {
            return Ok(plain(
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                "fault",
            ));
        }
        Fault::Redirect(to) => {
            let mut response = plain(StatusCode::MOVED_PERMANENTLY, "");
            if let Ok(to) = to.parse() {
                response.headers_mut().insert(header::LOCATION, to);
            }
            return Ok(response);
        }
        Fault::None | Fault::StallPack | Fault::Slow { .. } | Fault::Cut(_) => {}
    }
    if request.uri().path().contains("/info/lfs/") {
        return Ok(answer_lfs(&shared, &origin, request).await);
    }
    Ok(run(shared, request, fault, under_way).await.unwrap_or_else(|error| {
        tracing::error!("git http-backend: {error:#}");
        plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error:#}"))
    }))
}

async fn answer_lfs(shared: &Shared, origin: &str, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let answer = shared
        .state()
        .lfs
        .answer(origin, &parts.method, parts.uri.path(), &parts.headers, &body);
    answer.map(|body| Full::new(body).map_err(|never| match never {}).boxed_unsync())
}

fn is_authorized(auth: &Auth, headers: &HeaderMap) -> bool {
    let wanted = match auth {
        Auth::Anonymous => return true,
        Auth::Basic { username, password } => format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))),
        Auth::Bearer(token) => format!("Bearer {token}"),
    };
    headers
        .get(header::AUTHORIZATION)
        .is_some_and(|found| found == wanted.as_str())
}

fn unauthorized(auth: &Auth) -> Response<Body> {
    let mut response = plain(StatusCode::UNAUTHORIZED, "who are you?");
    let challenge = if matches!(auth, Auth::Bearer(_)) {
        "Bearer"
    } else {
        "Basic realm=\"test\""
    };
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static(challenge));
    response
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let body = Full::new(Bytes::copy_from_slice(text.as_bytes())).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    response
}

async fn run(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    fault: Fault,
    under_way: UnderWay,
) -> Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.context("read the request")?.to_bytes();
    let is_pack = count(&shared, &parts.headers, &body);
    let header = |name: &str| {
        parts
            .headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
    };
    let mut child = Command::from(crate::process::bare_command("git"))
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", shared.root.path())
        .envs([
            ("GIT_HTTP_EXPORT_ALL", "1"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ])
        .envs([
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "safe.directory"),
            ("GIT_CONFIG_VALUE_0", "*"),
        ])
        .env("REQUEST_METHOD", parts.method.as_str())
        .env("PATH_INFO", parts.uri.path())
        .env("QUERY_STRING", parts.uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .env("HTTP_GIT_PROTOCOL", header("git-protocol"))
        .env("REMOTE_ADDR", "127.0.0.1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("run git")?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        bail!("no pipes")
    };
    tokio::spawn(async move {
        // A backend that has read enough closes the pipe.
        let _ = stdin.write_all(&body).await;
    });
    let mut stdout = BufReader::with_capacity(CHUNK, stdout);
    let mut response = read_head(&mut stdout).await?;
    *response.body_mut() = StreamBody::new(pieces(child, stdout, fault, is_pack, under_way)).boxed_unsync();
    Ok(response)
}

/// Counts the request. Returns whether it asks for objects.
fn count(shared: &Shared, headers: &HeaderMap, body: &[u8]) -> bool {
    let has = |text: &[u8]| body.windows(text.len()).any(|w| w == text);
    // git compresses long requests, and only requests for objects are long.
    let is_pack = headers.contains_key(header::CONTENT_ENCODING) || has(b"command=fetch") || has(b"want ");
    let mut state = shared.state();
    if is_pack {
        state.counts.fetches += 1;
    } else if has(b"command=ls-refs") {
        state.counts.ls_refs += 1;
    }
    is_pack
}

/// Parses the CGI header: `Status: 200 OK`, and HTTP headers.
async fn read_head(stdout: &mut BufReader<ChildStdout>) -> Result<Response<Body>> {
    let mut response = plain(StatusCode::OK, "");
    loop {
        let mut line = String::new();
        if stdout.read_line(&mut line).await.context("read the answer")? == 0 {
            bail!("it ended inside its header");
        }
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(response);
        }
        let (name, value) = line.split_once(':').with_context(|| format!("header line {line:?}"))?;
        if name.eq_ignore_ascii_case("status") {
            *response.status_mut() = value.trim().split(' ').next().unwrap_or_default().parse()?;
        } else {
            let name = header::HeaderName::try_from(name)?;
            response.headers_mut().insert(name, value.trim().parse()?);
        }
    }
}

/// The rest of the answer, with the fault applied. Owns the child and the count, so that both end with the request.
fn pieces(
    child: Child,
    stdout: BufReader<ChildStdout>,
    fault: Fault,
    is_pack: bool,
    under_way: UnderWay,
) -> impl Stream<Item = std::io::Result<Frame<Bytes>>> + Send {
    let sent = 0usize;
    stream::unfold((child, stdout, sent), move |(child, mut stdout, sent)| {
        let _until_the_end = &under_way;
        let fault = fault.clone();
        async move {
            let mut size = CHUNK;
            let mut pause = Duration::ZERO;
            match fault {
                Fault::StallPack if is_pack && sent > 0 => std::future::pending().await,
                Fault::StallPack if is_pack => size = 64,
                Fault::Slow { bytes, pause: p } => (size, pause) = (bytes, p),
                Fault::Cut(at) if sent >= at => {
                    return Some((Err(std::io::Error::other("cut")), (child, stdout, sent)));
                }
                Fault::Cut(at) => size = (at - sent).min(CHUNK),
                _ => {}
            }
            let mut chunk = vec![0; size];
            match stdout.read(&mut chunk).await {
                Ok(0) => None,
                Ok(n) => {
                    chunk.truncate(n);
                    tokio::time::sleep(pause).await;
                    Some((Ok(Frame::data(Bytes::from(chunk))), (child, stdout, sent + n)))
                }
                Err(error) => Some((Err(error), (child, stdout, sent))),
            }
        }
    })
    .boxed()
}
