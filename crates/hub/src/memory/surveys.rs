//! Counts of rollouts, shared by all who look at the same set.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use farwater_api::service_set::RolloutSurvey;
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

/// A count is used for this many times as long as it took, so that counting takes at most a tenth of a core per set.
const REST: u32 = 10;
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
/// Maximum sets whose counts are kept: some hundred kilobytes. Beyond it, counts are repeated more often.
const KEPT: usize = 64;

struct Counted {
    survey: Arc<RolloutSurvey>,
    until: Instant,
}

type Place = Arc<AsyncMutex<Option<Counted>>>;

/// By the uids of sets.
#[derive(Default)]
pub struct Surveys(Mutex<HashMap<String, Place>>);

impl Surveys {
    fn places(&self) -> MutexGuard<'_, HashMap<String, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, set_uid: &str) -> Place {
        let mut places = self.places();
        if places.len() >= KEPT && !places.contains_key(set_uid) {
            // A count that is running keeps its own reference.
            places.clear();
        }
        Arc::clone(places.entry(set_uid.to_owned()).or_default())
    }

    /// Returns the last count, or a new one. Concurrent callers share one count.
    pub async fn get<E>(
        &self,
        set_uid: &str,
        count: impl Future<Output = Result<RolloutSurvey, E>>,
    ) -> Result<Arc<RolloutSurvey>, E> {
        let place = self.place(set_uid);
        let mut counted = place.lock().await;
        if let Some(known) = counted.as_ref().filter(|known| known.until > Instant::now()) {
            return Ok(Arc::clone(&known.survey));
        }
        let begun = Instant::now();
        let survey = Arc::new(count.await?);
        let until = Instant::now() + (begun.elapsed() * REST).clamp(SHORTEST, LONGEST);
        *counted = Some(Counted {
            survey: Arc::clone(&survey),
            until,
        });
        Ok(survey)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_who_look_cost_one_count_for_a_while_and_an_error_is_not_kept() {
        let (surveys, counts) = (Surveys::default(), AtomicU64::new(0));
        let ask = async |set: &str, fails: bool| {
            let count = async {
                let unavailable = counts.fetch_add(1, Ordering::Relaxed) + 1;
                tokio::time::sleep(Duration::from_millis(500)).await;
                if fails {
                    Err(())
                } else {
                    Ok(RolloutSurvey {
                        unavailable,
                        ..RolloutSurvey::default()
                    })
                }
            };
            surveys.get(set, count).await.map(|survey| survey.unavailable)
        };
        assert_eq!(ask("a", true).await, Err(()));
        let both = tokio::join!(ask("a", false), ask("a", false));
        assert_eq!(both, (Ok(2), Ok(2)));
        assert_eq!((ask("b", false).await, ask("a", false).await), (Ok(3), Ok(2)));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(ask("a", false).await, Ok(4));
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_counts_are_kept() {
        let surveys = Surveys::default();
        for set in 0..KEPT * 2 + 1 {
            let count = async { Ok::<_, ()>(RolloutSurvey::default()) };
            surveys.get(&set.to_string(), count).await.unwrap();
            assert!(surveys.places().len() <= KEPT);
        }
    }
}
