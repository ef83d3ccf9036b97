//! The C library's heap: free memory that it keeps.
#![allow(
    unsafe_code,
    reason = "functions of the C library that take and give plain numbers"
)]

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod gnu {
    pub(super) const M_ARENA_MAX: i32 = -8;

    unsafe extern "C" {
        pub(super) safe fn mallopt(parameter: i32, value: i32) -> i32;
        pub(super) safe fn malloc_trim(pad: usize) -> i32;
    }
}

/// Makes all threads share one heap, so that what one thread gave back another one can use. glibc
/// would give threads heaps of their own that never meet. To be called before there are threads;
/// without effect where the C library is another one.
pub fn share_one_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    gnu::mallopt(gnu::M_ARENA_MAX, 1);
}

/// Gives pages that nothing uses back to the system. Takes about a millisecond per 10 MiB of heap,
/// during which others wait to allocate. Blocking.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    gnu::malloc_trim(0);
}
