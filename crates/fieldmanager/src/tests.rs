//! What holds over all values, and the course of typical writes.

mod laws;
mod writes;
