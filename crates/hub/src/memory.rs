//! What one process of the hub remembers: caches, positions and timers. Each part locks itself and knows only what it is
//! given, so none of them needs the others. All of it is lost at a restart, and each part says what that means.

pub mod announced;
pub mod checks;
pub mod clock;
pub mod clusters;
pub mod connections;
pub mod counters;
pub mod credentials;
pub mod freeze;
pub mod large_fetches;
pub mod mirrors;
pub mod pipelines;
pub mod plans;
pub mod requests;
pub mod seen;
pub mod served;
pub mod sets;
pub mod surveys;
pub mod timeline;
pub mod turns;
pub mod windows;

use connections::Connections;

/// The parts, for the functions that take several.
pub struct Memory {
    pub clusters: clusters::Clusters,
    pub connections: Connections,
    pub plans: plans::Plans,
    /// When each source is fetched next.
    pub checks: checks::Checks,
    pub sets: sets::Sets,
    pub surveys: surveys::Surveys,
    pub pipelines: pipelines::Pipelines,
    /// Clusters, services, sources and grants as they were acted upon.
    pub seen: seen::Seen,
    /// Whether deletions are frozen in the fleet.
    pub freeze: freeze::Freeze,
    /// Whether changes may start.
    pub windows: windows::Windows,
    pub counters: counters::Counters,
    pub timeline: timeline::Timeline,
    /// Bundles and permissions that were served lately.
    pub served: served::Served,
}

impl Memory {
    pub fn new(connections: Connections) -> Self {
        Self {
            clusters: clusters::Clusters::default(),
            connections,
            plans: plans::Plans::default(),
            checks: checks::Checks::default(),
            sets: sets::Sets::default(),
            surveys: surveys::Surveys::default(),
            pipelines: pipelines::Pipelines::default(),
            seen: seen::Seen::default(),
            freeze: freeze::Freeze::default(),
            windows: windows::Windows::default(),
            counters: counters::Counters::default(),
            timeline: timeline::Timeline::default(),
            served: served::Served::default(),
        }
    }
}
