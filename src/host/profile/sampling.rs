//! Samples the threads of the process when a CPU timer interrupts them.
//!
//! The signal handler only claims a free slot and copies the registers and the top of the stack into it. It neither
//! unwinds nor locks nor allocates, so it is safe whatever it interrupts. The frames are unwound later, by a normal
//! thread.
#![allow(
    unsafe_code,
    reason = "a signal handler, its timer, and memory that both it and its reader know"
)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use std::{io, mem, ptr};

/// Number of slots for samples that were not read yet; without a free one, samples are missed.
const PLACES: usize = 64;
/// Maximum number of bytes copied of a stack, from its top.
const STACK: usize = 64 * 1024;
/// Granularity of readable memory in bytes. If the page size is larger, this divides it.
const PAGE: usize = 4096;
/// Number of chunks in which a stack is copied: the first one may be short.
const PIECES: usize = STACK / PAGE + 1;

const FREE: u8 = 0;
const TAKEN: u8 = 1;
const FULL: u8 = 2;

/// Only one sampling at a time.
static UNDERWAY: AtomicBool = AtomicBool::new(false);
/// The slots, or null while no sampling is running.
static STORE: AtomicPtr<SampleStore> = AtomicPtr::new(ptr::null_mut());
/// Number of handlers that may be accessing the slots.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

struct SampleStore {
    places: [SampleSlot; PLACES],
    missed: AtomicU64,
}

struct SampleSlot {
    state: AtomicU8,
    held: UnsafeCell<Held>,
}

// The thread that changed `state` from FREE to TAKEN, or found it FULL, has exclusive access to `held`.
unsafe impl Sync for SampleSlot {}

struct Held {
    registers: Registers,
    length: usize,
    stack: [u64; STACK / 8],
}

/// The registers that are needed to unwind a stack.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registers {
    /// The program counter.
    pub(super) pc: u64,
    /// The stack pointer.
    pub(super) sp: u64,
    /// The frame pointer.
    pub(super) fp: u64,
    /// The link register; 0 on architectures without one.
    pub(super) lr: u64,
}

/// A running sampling; dropping it stops it.
#[derive(Debug)]
pub(super) struct Sampling {
    store: *mut SampleStore,
}

// The store is shared with handlers on all threads anyway.
unsafe impl Send for Sampling {}

impl Sampling {
    /// Starts to take a sample per `every` of CPU time that the process uses. `None` while another sampling is
    /// running.
    ///
    /// # Errors
    /// The timer or the signal handler cannot be set.
    pub(super) fn start(every: Duration) -> io::Result<Option<Self>> {
        if UNDERWAY.swap(true, Ordering::SeqCst) {
            return Ok(None);
        }
        let layout = std::alloc::Layout::new::<SampleStore>();
        // SAFETY: all zeroes is a valid store, with free slots and no missed samples; it is allocated directly on the
        // heap because it is too large for a stack.
        let store = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<SampleStore>();
        let sampling = Self { store };
        if store.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        handle()?;
        STORE.store(store, Ordering::SeqCst);
        arm(every)?;
        Ok(Some(sampling))
    }

    /// Passes each sample with the copied stack to `each`, and frees its slot.
    pub(super) fn take(&mut self, mut each: impl FnMut(Registers, &[u64])) {
        for place in &self.store().places {
            if place.state.load(Ordering::Acquire) != FULL {
                continue;
            }
            // SAFETY: the slot is FULL, so no handler writes to it, and there is only one reader.
            let held = unsafe { &*place.held.get() };
            each(held.registers, held.stack.get(..held.length / 8).unwrap_or_default());
            place.state.store(FREE, Ordering::Release);
        }
    }

    /// Number of samples for which there was no free slot.
    pub(super) fn missed(&self) -> u64 {
        self.store().missed.load(Ordering::Relaxed)
    }

    fn store(&self) -> &SampleStore {
        // SAFETY: the store exists until this is dropped, and is only modified through atomics and cells.
        unsafe { &*self.store }
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        let _ = arm(Duration::ZERO);
        STORE.store(ptr::null_mut(), Ordering::SeqCst);
        // A handler increments `INSIDE` before it loads the store.
        while INSIDE.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        if !self.store.is_null() {
            // SAFETY: it was allocated with this layout, and no pointer to it is left.
            unsafe {
                std::alloc::dealloc(self.store.cast(), std::alloc::Layout::new::<SampleStore>())
            };
        }
        UNDERWAY.store(false, Ordering::SeqCst);
    }
}

/// Installs the handler, which is never removed: a late signal would terminate the process.
fn handle() -> io::Result<()> {
    // SAFETY: all zeroes is a valid `sigaction`; the handler has the signature that SA_SIGINFO requires and is
    // async-signal-safe.
    let done = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut())
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the timer's interval; zero stops it.
fn arm(every: Duration) -> io::Result<()> {
    let time = libc::timeval {
        tv_sec: every.as_secs().try_into().unwrap_or(0),
        tv_usec: every.subsec_micros().into(),
    };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: `setitimer` reads one valid struct.
    match unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let store = STORE.load(Ordering::SeqCst);
    if !store.is_null() && !context.is_null() {
        // SAFETY: the store is not freed while `INSIDE` counts this handler; the kernel passes a valid context. errno
        // is restored for the interrupted code.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            sample(&*store, &*context.cast::<libc::ucontext_t>());
            *errno = before;
        }
    }
    INSIDE.fetch_sub(1, Ordering::SeqCst);
}

fn sample(store: &SampleStore, context: &libc::ucontext_t) {
    let free = store.places.iter().find(|place| {
        let taken = Ordering::Acquire;
        let took = place.state.compare_exchange(FREE, TAKEN, taken, Ordering::Relaxed);
        took.is_ok()
    });
    let Some(place) = free else {
        store.missed.fetch_add(1, Ordering::Relaxed);
        return;
    };
    // SAFETY: this handler has just claimed the slot.
    let held = unsafe { &mut *place.held.get() };
    held.registers = registers(context);
    held.length = copy(held.registers.sp, &mut held.stack);
    place.state.store(FULL, Ordering::Release);
}

/// Copies a stack from its top as far as the memory is readable, without causing a fault; returns the number of
/// bytes.
fn copy(from: u64, to: &mut [u64; STACK / 8]) -> usize {
    let Ok(from) = usize::try_from(from) else {
        return 0;
    };
    let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    let mut pieces = [empty; PIECES];
    let (mut at, mut left) = (from, STACK);
    for piece in &mut pieces {
        let length = (PAGE - at % PAGE).min(left);
        piece.iov_base = at as *mut libc::c_void;
        piece.iov_len = length;
        at = at.wrapping_add(length);
        left -= length;
    }
    let whole = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: STACK };
    // SAFETY: a system call that is async-signal-safe. It writes only to `to`, and returns an error if the memory to
    // read is not mapped.
    let copied = unsafe {
        let pid = libc::getpid();
        libc::process_vm_readv(
            pid,
            &raw const whole,
            1,
            pieces.as_ptr(),
            PIECES as libc::c_ulong,
            0,
        )
    };
    usize::try_from(copied).unwrap_or(0)
}

#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let register = |number: libc::c_int| {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let value = context.uc_mcontext.gregs.get(number).copied();
        value.unwrap_or(0).cast_unsigned()
    };
    Registers {
        pc: register(libc::REG_RIP),
        sp: register(libc::REG_RSP),
        fp: register(libc::REG_RBP),
        lr: 0,
    }
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let saved = &context.uc_mcontext;
    let register = |number: usize| saved.regs.get(number).copied().unwrap_or(0);
    Registers { pc: saved.pc, sp: saved.sp, fp: register(29), lr: register(30) }
}
