//! Refusals by client, so that the log shows which client uses more than its share, in one line per minute.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::turns::peer_name;

const EACH: Duration = Duration::from_secs(60);
/// Maximum number of clients that are counted separately between two lines.
const CLIENTS: usize = 1024;

/// Requests that were answered with 408, 413, 429 or 503, and connections that were closed to make room for others.
#[derive(Default)]
pub struct Refusals(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    told: Option<Instant>,
    count: u64,
    clients: HashMap<String, u64>,
}

#[derive(Debug, PartialEq, Eq)]
struct Line {
    count: u64,
    clients: usize,
    most: String,
    of_most: u64,
}

impl Refusals {
    /// Logs the first refusal at once, and further ones once per minute.
    pub fn note(&self, peer: IpAddr) {
        if let Some(Line {
            count,
            clients,
            most,
            of_most,
        }) = self.count(peer)
        {
            tracing::warn!(
                count,
                clients,
                most,
                of_most,
                "clients were refused because of limits; see the limits in docs/hub.md"
            );
        }
    }

    fn count(&self, peer: IpAddr) -> Option<Line> {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.count += 1;
        let name = peer_name(peer);
        if counted.clients.len() < CLIENTS || counted.clients.contains_key(&name) {
            *counted.clients.entry(name).or_default() += 1;
        }
        if counted.told.is_some_and(|told| told.elapsed() < EACH) {
            return None;
        }
        let Counted { count, clients, .. } = std::mem::take(&mut *counted);
        counted.told = Some(Instant::now());
        let number = clients.len();
        let (most, of_most) = clients.into_iter().max_by_key(|(_, count)| *count)?;
        Some(Line {
            count,
            clients: number,
            most,
            of_most,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refusals_are_told_by_client_once_a_minute() {
        let refusals = Refusals::default();
        let [a, b] = ["192.0.2.1", "2001:db8:1:2:3::4"].map(|text| text.parse::<IpAddr>().unwrap());
        let line = |count, clients, most: &str, of_most| {
            Some(Line {
                count,
                clients,
                most: most.to_owned(),
                of_most,
            })
        };
        assert_eq!(refusals.count(a), line(1, 1, "192.0.2.1", 1));
        assert_eq!(
            [refusals.count(a), refusals.count(b), refusals.count(b)],
            [None, None, None]
        );
        tokio::time::advance(EACH).await;
        assert_eq!(refusals.count(b), line(4, 2, "2001:db8:1:2::/64", 3));
        assert_eq!(refusals.count(a), None);
    }
}
