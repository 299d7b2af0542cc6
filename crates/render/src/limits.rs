//! What one render may cost.

use std::time::Duration;

/// Of one request to the helper, and of one run of a plugin. Renders take milliseconds; the largest public charts some hundred.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub time: Duration,
    /// Of the processor, of each process.
    pub cpu: Duration,
    /// Of a child with all that it starts, in bytes. What a program of somebody else's gets of it is [`Limits::foreign`].
    pub memory: u64,
    /// The objects together, in bytes. Ten thousand of them have some 30 MB.
    pub output: usize,
    /// Processes of a plugin at one time.
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

/// Less memory than this is of no use: the libraries themselves take some 60 MB.
const LEAST_MEMORY: u64 = 160 << 20;

impl Limits {
    /// Memory of a program of somebody else's with all that it starts: the rest is for who watches over it, some 30 MB, and for what it
    /// takes between two looks.
    pub fn foreign(self) -> u64 {
        self.memory / 4 * 3
    }

    /// With the memory of each of `children` fitted into what the container may use, so that they never have it killed as a whole.
    /// `container`: its limit in bytes, if it has one.
    pub fn within(self, container: Option<u64>, children: u64, reserved: u64) -> Self {
        let Some(container) = container else { return self };
        let each = container.saturating_sub(reserved) / children.max(1);
        Self { memory: self.memory.min(each.max(LEAST_MEMORY)), ..self }
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
