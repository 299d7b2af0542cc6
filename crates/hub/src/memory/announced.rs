//! Announcements by deliveries of webhooks, per source. Kept in memory: after a restart, sources are fetched as if
//! there had been no deliveries.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use farwater_fleet::webhooks::announcements::{Announcements, Found};
use tokio::time::Instant;

use crate::resources::SourceName;

/// By the source's uid.
#[derive(Default)]
pub struct Announced(Mutex<HashMap<String, AnnouncedSource>>);

struct AnnouncedSource {
    source: SourceName,
    /// Uid of the receiver of the last delivery.
    receiver: String,
    known: Announcements,
}

/// A source, and the receiver of a delivery about it.
#[derive(Clone, Copy, Debug)]
pub struct Telling<'a> {
    pub uid: &'a str,
    pub source: &'a SourceName,
    pub receiver: &'a str,
}

impl Announced {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, AnnouncedSource>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A delivery says that a source has moved. Returns how long to wait before the source is fetched.
    pub fn announce(&self, telling: Telling<'_>) -> Duration {
        self.with_announcements(telling, |known| known.deliver(now()))
    }

    /// A delivery names what is served already.
    pub fn confirm(&self, telling: Telling<'_>) {
        self.with_announcements(telling, |known| known.confirm(now()));
    }

    fn with_announcements<T>(&self, telling: Telling<'_>, tell: impl FnOnce(&mut Announcements) -> T) -> T {
        let mut all = self.lock();
        let told = all.entry(telling.uid.to_owned()).or_insert_with(|| AnnouncedSource {
            source: telling.source.clone(),
            receiver: String::new(),
            known: Announcements::default(),
        });
        telling.receiver.clone_into(&mut told.receiver);
        tell(&mut told.known)
    }

    fn change<T: Default>(&self, uid: &str, change: impl FnOnce(&mut Announcements) -> T) -> T {
        self.lock()
            .get_mut(uid)
            .map(|told| change(&mut told.known))
            .unwrap_or_default()
    }

    /// Whether a fetch that begins now is due because of deliveries.
    pub fn begin(&self, uid: &str) -> bool {
        self.change(uid, |known| known.begin(now()))
    }

    /// The fetch that was to begin did not.
    pub fn put_back(&self, uid: &str) {
        self.change(uid, Announcements::put_back);
    }

    pub fn finish(&self, uid: &str, announced: bool, found: Found) {
        self.change(uid, |known| known.finish(announced, found, now()));
    }

    /// How long until the source may be fetched because of a delivery; None: none is pending.
    pub fn wait(&self, uid: &str) -> Option<Duration> {
        self.change(uid, |known| known.wait(now()))
    }

    /// How often a source with this interval is fetched, and whether deliveries have lengthened that.
    pub fn stretch(&self, uid: &str, interval: Duration) -> (Duration, bool) {
        let known = self.lock();
        let Some(told) = known.get(uid) else {
            return (interval, false);
        };
        (told.known.stretch(interval), told.known.is_proven())
    }

    /// Sources whose deliveries are proven to arrive.
    pub fn proven(&self) -> usize {
        self.lock().values().filter(|told| told.known.is_proven()).count()
    }

    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Forgets all deliveries of a receiver. Returns the sources for which deliveries were proven.
    pub fn withdraw(&self, receiver: &str) -> Vec<(String, SourceName)> {
        let mut all = self.lock();
        let gone: Vec<String> = all
            .iter()
            .filter(|(_, told)| told.receiver == receiver)
            .map(|(uid, _)| uid.clone())
            .collect();
        let gone = gone
            .into_iter()
            .filter_map(|uid| all.remove(&uid).map(|told| (uid, told)));
        gone.filter(|(_, told)| told.known.is_proven())
            .map(|(uid, told)| (uid, told.source))
            .collect()
    }
}

/// The runtime's clock, which tests may stop.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::Name;

    #[test]
    fn what_a_receiver_has_proven_goes_with_it() {
        let (announced, web) = (Announced::default(), SourceName::git(Name::new("a", "web")));
        let telling = |receiver| Telling {
            uid: "web",
            source: &web,
            receiver,
        };
        assert_eq!(announced.announce(telling("one")), Duration::ZERO);
        assert!(announced.begin("web") && !announced.begin("other"));
        announced.finish("web", true, Found::Moved);
        let minute = Duration::from_secs(60);
        assert_eq!(announced.stretch("web", minute), (5 * minute, true));
        assert_eq!(announced.proven(), 1);
        assert_eq!(announced.withdraw("two"), []);
        assert_eq!(announced.withdraw("one"), [("web".to_owned(), web.clone())]);
        assert_eq!(announced.stretch("web", minute), (minute, false));
    }
}
