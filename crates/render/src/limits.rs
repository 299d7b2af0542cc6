//! Limits of one render.

use std::time::Duration;

/// For one request to the helper, and one run of a plugin. Renders take milliseconds; the largest public charts some
/// hundred.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub time: Duration,
    /// Processor time of each process.
    pub cpu: Duration,
    /// Memory in bytes of a child with everything it starts. Of that, a foreign program gets [`Limits::foreign`].
    pub memory: u64,
    /// Most bytes of the objects together. Ten thousand of them have some 30 MB.
    pub output: usize,
    /// Most concurrent processes of a plugin.
    pub processes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(60),
            cpu: Duration::from_secs(30),
            memory: 512 << 20,
            output: 32 << 20,
            processes: 64,
        }
    }
}

/// Less memory than this is useless: the libraries themselves take some 60 MB.
const LEAST_MEMORY: u64 = 160 << 20;

impl Limits {
    /// Memory of a foreign program with everything it starts. The rest is for its watcher, some 30 MB, and for what the
    /// program allocates between two checks.
    pub fn foreign(self) -> u64 {
        self.memory / 4 * 3
    }

    /// Fits the memory of each of `children` into the container, so that they never get the whole container killed.
    /// `container`: its limit in bytes; none: it has no limit.
    pub fn within(self, container: Option<u64>, children: u64, reserved: u64) -> Self {
        let Some(container) = container else { return self };
        let each = container.saturating_sub(reserved) / children.max(1);
        Self {
            memory: self.memory.min(each.max(LEAST_MEMORY)),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_fits_the_container_as_far_as_that_is_of_use() {
        let memory = |container| Limits::default().within(container, 2, 64 << 20).memory >> 20;
        assert_eq!((memory(None), memory(Some(4 << 30))), (512, 512));
        assert_eq!((memory(Some(576 << 20)), memory(Some(128 << 20))), (256, 160));
        assert_eq!(Limits::default().foreign() >> 20, 384);
    }
}
