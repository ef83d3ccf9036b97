//! Returns unneeded memory of this process: free memory of the C library's heap, and pages of the executable that
//! were used only at start.
#![allow(
    unsafe_code,
    reason = "functions of the C library that take plain numbers, and advice on mappings that are never written"
)]

use crate::base::spawn_blocking;
use std::fs;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long nothing has to change after the start or a change; changes before that belong to the same burst.
const BURST_DELAY: Duration = Duration::from_secs(5);
/// Longest delay after the start or the first change of a burst, for a node on which something changes all the time.
const MAX_BURST: Duration = Duration::from_secs(60);

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod gnu {
    pub(super) const M_ARENA_MAX: i32 = -8;

    unsafe extern "C" {
        pub(super) safe fn mallopt(parameter: i32, value: i32) -> i32;
        pub(super) safe fn malloc_trim(pad: usize) -> i32;
    }
}

/// Makes all threads use one heap arena, so that memory freed by one thread can be used by others. By default glibc
/// creates several arenas. Must be called before threads are started; no effect with other C libraries.
pub fn limit_malloc_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    gnu::mallopt(gnu::M_ARENA_MAX, 1);
}

/// Returns free pages of the heap to the system. Takes about 1 ms per 10 MiB of heap, during which allocations of
/// other threads wait. Blocking.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    gnu::malloc_trim(0);
    unmap_program();
}

/// Task `memory`: returns memory after the start and after bursts of changes. Otherwise the C library keeps the peak
/// memory of hundreds of pods that start together, and the code executed for them stays resident. Idle while nothing
/// changes.
///
/// # Errors
/// [`trim`] panicked.
pub async fn trim_after_bursts(
    mut changes: watch::Receiver<u64>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let work = async {
        loop {
            end_of_burst(&mut changes).await;
            spawn_blocking(trim).await?;
            if changes.changed().await.is_err() {
                return Ok(());
            }
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        result = work => result,
    }
}

/// Waits until nothing has changed for [`BURST_DELAY`], at most [`MAX_BURST`]: in the middle of a burst, returned pages
/// are needed again at once.
async fn end_of_burst(changes: &mut watch::Receiver<u64>) {
    let burst = async { while let Ok(Ok(())) = timeout(BURST_DELAY, changes.changed()).await {} };
    let _ = timeout(MAX_BURST, burst).await;
}

/// Unmaps the pages of the executable from this process. They stay in the page cache, so that using them again needs
/// no disk read. Without this, all code that was ever executed, most of it at start, counts as resident. Returns the
/// size of the mappings in bytes.
fn unmap_program() -> usize {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else {
        return 0;
    };
    let ranges = program_ranges(&maps, unmap_program as *const () as usize);
    let unmap = |range: &std::ops::Range<usize>| {
        let (start, length) = (range.start as *mut libc::c_void, range.len());
        // SAFETY: the range is a mapping of this executable that is never written to, so that reading it again gives
        // the same bytes.
        let result = unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
        if result == 0 { length } else { 0 }
    };
    ranges.iter().map(unmap).sum()
}

/// The mappings of the executable (the file mapped at `here`) that were never writable: its code, and the read-only
/// data before it. Mappings after the code were written by the dynamic linker before they became read-only. Pure.
fn program_ranges(maps: &str, here: usize) -> Vec<std::ops::Range<usize>> {
    let mappings: Vec<_> = maps.lines().filter_map(mapping).collect();
    let Some(code) = mappings.iter().find(|one| one.range.contains(&here)) else {
        return Vec::new();
    };
    let is_unwritten = |one: &&Mapping<'_>| {
        one.file == code.file
            && one.range.start <= code.range.start
            && matches!(one.permissions, "r-xp" | "r--p")
    };
    let unwritten = mappings.iter().filter(is_unwritten);
    unwritten.map(|one| one.range.clone()).collect()
}

/// A line of `/proc/self/maps`.
struct Mapping<'a> {
    range: std::ops::Range<usize>,
    permissions: &'a str,
    /// Device and inode.
    file: (&'a str, &'a str),
}

fn mapping(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let permissions = words.next()?;
    let _offset = words.next()?;
    Some(Mapping { range: start..end, permissions, file: (words.next()?, words.next()?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use tokio::time::sleep;

    const MAPS: &str = "\
55f0a000-55f0b000 r--p 00000000 fe:00 77                                 /usr/bin/kubelet
55f0b000-55f2b000 r-xp 00001000 fe:00 77                                 /usr/bin/kubelet
55f2b000-55f2c000 r--p 00021000 fe:00 77                                 /usr/bin/kubelet
55f2c000-55f2d000 rw-p 00022000 fe:00 77                                 /usr/bin/kubelet
55f2d000-55f4e000 rw-p 00000000 00:00 0                                  [heap]
7f0000000000-7f0000020000 r-xp 00000000 fe:00 12                         /lib/libc.so.6
garbage
";

    #[test]
    fn only_what_was_never_writable_is_unmapped() {
        let ranges = |here| program_ranges(MAPS, here);
        let code = [0x55f0_a000..0x55f0_b000, 0x55f0_b000..0x55f2_b000];
        assert_eq!(ranges(0x55f0_b123), code);
        assert!(ranges(0x1).is_empty());
        assert!(program_ranges("", 0x55f0_b123).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_ends_when_nothing_changes_for_a_while_or_after_a_minute() {
        let interval = BURST_DELAY - Duration::from_secs(1);
        for (number, expected) in
            [(0, BURST_DELAY), (3, 3 * interval + BURST_DELAY), (99, MAX_BURST)]
        {
            let (sender, mut changes) = watch::channel(0);
            let changing = async {
                for _ in 0..number {
                    sleep(interval).await;
                    sender.send_modify(|version| *version += 1);
                }
                std::future::pending::<()>().await;
            };
            let started_at = clock::instant();
            tokio::select! {
                () = end_of_burst(&mut changes) => {}
                () = changing => {}
            }
            assert_eq!(clock::since(started_at), expected, "{number} changes");
        }
    }

    #[test]
    fn the_program_runs_on_without_its_pages() {
        trim();
        let unmapped = unmap_program();
        assert!(unmapped > 1 << 20, "{unmapped} bytes");
    }
}
