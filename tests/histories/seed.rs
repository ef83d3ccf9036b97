//! What would differ from run to run: random numbers, hash order, clocks, directories.

use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

thread_local! {
    static BYTES: RefCell<fastrand::Rng> =
        const { RefCell::new(fastrand::Rng::with_seed(0)) };
}

/// Replaces the C library's: the standard library takes its hash keys from it, and with them hash maps get their order and
/// `select!` its choices.
///
/// # Safety
/// As for the C library's: `into` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(into: *mut u8, length: usize, _flags: u32) -> isize {
    // SAFETY: the caller's promise.
    let into = unsafe { std::slice::from_raw_parts_mut(into, length) };
    BYTES.with_borrow_mut(|rng| rng.fill(into));
    length.cast_signed()
}

/// Replaces the C library's. Time stands still, also for libraries that do not know tokio's clock;
/// the clocks of processor time are the kernel's.
///
/// # Safety
/// As for the C library's: `into` has room for a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, into: *mut libc::timespec) -> i32 {
    if IS_PLANTED.load(Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        unsafe { *into = libc::timespec { tv_sec: 1_800_000_000, tv_nsec: 0 } };
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, into) as i32 }
}

static IS_PLANTED: AtomicBool = AtomicBool::new(false);

/// Lets everything random in this thread follow from a seed. Comes before the first hash map.
pub fn plant(seed: u64) {
    BYTES.set(fastrand::Rng::with_seed(seed));
    fastrand::seed(seed);
    IS_PLANTED.store(true, Ordering::Relaxed);
}

/// Puts an empty file system over `/tmp`, for this process alone. It is gone with the process, so a history that is
/// killed leaves nothing, and paths are the same in each.
pub fn with_own_directory() -> std::io::Result<()> {
    // SAFETY: no other thread shares the file system context that is unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", private)?;
    rustix::mount::mount("tmpfs", Path::new("/tmp"), "tmpfs", MountFlags::empty(), None)?;
    Ok(())
}
