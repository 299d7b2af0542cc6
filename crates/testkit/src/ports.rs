//! Free TCP ports for servers that can't bind port 0 and report their port, and for servers that stop and restart.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read as _, Seek as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    ops::Range,
    os::unix::fs::MetadataExt as _,
    time::Duration,
};

use anyhow::{Context as _, Result};

/// Range of ports, if it is below the range that the system gives to clients. Then no client takes a port between its
/// choice here and the server's bind, or while the server is stopped.
const RANGE: Range<u16> = 20_000..32_000;
/// First and last port for clients.
const CLIENTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Attempts to get a port back.
const TRIES: usize = 200;
/// Pause between two attempts.
const HELD: Duration = Duration::from_millis(20);

/// A port of 127.0.0.1 on which no process listens. No other test of this or another process gets the same port before
/// the whole range was used.
pub fn free() -> Result<u16> {
    let range = range_below(&fs::read_to_string(CLIENTS).unwrap_or_default());
    // Each user of the machine has their own file, because a shared folder may refuse the files of other users.
    let path = std::env::temp_dir().join(format!("farwater-ports-{}", fs::metadata("/proc/self")?.uid()));
    let open = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let mut file = open.with_context(|| format!("open {}", path.display()))?;
    file.lock()
        .with_context(|| format!("wait for the lock of {}", path.display()))?;

    let mut next = String::new();
    file.read_to_string(&mut next)
        .with_context(|| format!("read {}", path.display()))?;
    let next = next
        .trim()
        .parse()
        .ok()
        .filter(|port| range.contains(port))
        .unwrap_or(range.start);
    let mut candidates = (next..range.end).chain(range.start..next);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let port = candidates
        .find(is_free)
        .with_context(|| format!("all ports of {range:?} are in use"))?;

    file.rewind()?;
    // Always five digits, so that no old digits remain. The lock ends with the file.
    writeln!(file, "{:05}", port + 1).with_context(|| format!("write {}", path.display()))?;
    Ok(port)
}

/// `clients`: first and last port that the system gives to clients. If our whole range overlaps with it, use it all the
/// same.
fn range_below(clients: &str) -> Range<u16> {
    let first = clients.split_whitespace().next().and_then(|port| port.parse().ok());
    RANGE.start
        ..first
            .filter(|first| RANGE.contains(first) && *first > RANGE.start)
            .unwrap_or(RANGE.end)
}

/// Listens at the address. For port 0 it chooses a port that no client takes while the server is stopped. An earlier
/// port may still be held for a moment by a forked child that has not started its program yet.
pub async fn listen(mut address: SocketAddr) -> Result<tokio::net::TcpListener> {
    let is_new = address.port() == 0;
    for _ in 0..TRIES {
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, thread};

    use super::*;

    #[test]
    fn a_port_is_given_to_one_test_and_to_no_client() {
        // Threads share the file in the same way as processes.
        let tests: Vec<_> = (0..8)
            .map(|_| thread::spawn(|| (0..20).map(|_| free().unwrap()).collect::<Vec<_>>()))
            .collect();
        let ports: Vec<u16> = tests.into_iter().flat_map(|test| test.join().unwrap()).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 160, "{ports:?}");
        assert!(ports.iter().all(|port| RANGE.contains(port)), "{ports:?}");
    }

    #[test]
    fn ports_lie_below_those_of_clients() {
        assert_eq!(range_below("32768\t60999\n"), RANGE);
        assert_eq!(range_below("30000 60999"), 20_000..30_000);
        assert_eq!(range_below("1024 65535"), RANGE);
        assert_eq!(range_below(""), RANGE);
    }
}
