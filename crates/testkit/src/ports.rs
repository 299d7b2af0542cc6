//! Free TCP ports for servers that can't be told to bind port 0 and say what they got, and for those that stop and come back.

use std::{
    collections::HashSet,
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{LazyLock, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};

/// Below the range from which Linux takes the local ports of outgoing connections (32768 up), so that no client
/// socket grabs the port between our probe and the server's bind.
const RANGE: std::ops::Range<u16> = 20_000..32_000;
/// Random probes before giving up; with hundreds of ports in use the chance of failing is nil.
const PROBES: usize = 200;
/// Between two tries to have a port back.
const HELD: Duration = Duration::from_millis(20);

static HANDED_OUT: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// A port of 127.0.0.1 that nobody listens on and that this process has not handed out before. Another process may
/// still win the race for it: whoever starts a server must notice that it died and try again.
pub fn free() -> Result<u16> {
    let mut handed_out = HANDED_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..PROBES {
        let port = rand::random_range(RANGE);
        if !handed_out.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            handed_out.insert(port);
            return Ok(port);
        }
    }
    anyhow::bail!("no free port of 127.0.0.1 found in {RANGE:?} after {PROBES} tries")
}

/// Listens; at port 0: at one that no client takes while the server is stopped. A port of before may be held for a moment yet, by a child that
/// was forked while it was open and is not another program yet.
pub async fn listen(mut address: SocketAddr) -> Result<tokio::net::TcpListener> {
    let is_new = address.port() == 0;
    for _ in 0..PROBES {
        if is_new {
            address.set_port(free()?);
        }
        match tokio::net::TcpListener::bind(address).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_new => {}
            Err(error) if error.kind() == ErrorKind::AddrInUse => tokio::time::sleep(HELD).await,
            bound => return bound.with_context(|| format!("bind {address}")),
        }
    }
    anyhow::bail!("bind {address}: it is in use")
}
