//! The size of what is read from strangers.

/// Limits of one bundle. A breach is an error that names the limit.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub files: usize,
    /// All files together, uncompressed.
    pub total_bytes: u64,
    pub file_bytes: u64,
}

/// Of one file.
pub const FILE_BYTES: u64 = 16 << 20;

/// Ten thousand files in 64 MiB is some hundred times a large service; a bundle is held in memory while it is made
/// and read.
impl Default for Limits {
    fn default() -> Self {
        Self { files: 10_000, total_bytes: 64 << 20, file_bytes: FILE_BYTES }
    }
}
