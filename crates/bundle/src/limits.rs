//! Limits for untrusted input.

/// Limits of one bundle. Exceeding one is an error that names the limit.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub files: usize,
    /// Size of all files together, uncompressed.
    pub total_bytes: u64,
    pub file_bytes: u64,
}

/// Most bytes of one file.
pub const FILE_BYTES: u64 = 16 << 20;

/// Ten thousand files in 64 MiB is about a hundred times a large service. A bundle is in memory while it is written or
/// read.
impl Default for Limits {
    fn default() -> Self {
        Self {
            files: 10_000,
            total_bytes: 64 << 20,
            file_bytes: FILE_BYTES,
        }
    }
}
