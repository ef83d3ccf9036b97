//! Samples of what the process's threads are doing, taken where a timer of the CPU interrupts them.
//!
//! The signal handler does as little as can be: it takes a place that is free, copies the registers and the
//! top of the stack into it, and is done. Neither does it follow frames nor take a lock nor allocate, so it
//! does not matter what it interrupts. Whose frames those are is found out later, by a thread like any other.
#![allow(
    unsafe_code,
    reason = "a signal handler, its timer, and memory that both it and its reader know"
)]

use std::{
    cell::UnsafeCell,
    io, mem, ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

/// Samples that wait for their reader; beyond them, samples are missed.
const PLACES: usize = 64;
/// What is kept of a stack, from its top, in bytes.
const STACK: usize = 64 * 1024;
/// The unit in which memory is there or is not, in bytes. Where pages are larger, it divides them.
const PAGE: usize = 4096;
/// Pieces in which a stack is copied: the first one may be short.
const PIECES: usize = STACK / PAGE + 1;

const FREE: u8 = 0;
const TAKEN: u8 = 1;
const FULL: u8 = 2;

/// One sampling at a time.
static UNDERWAY: AtomicBool = AtomicBool::new(false);
/// The places, or null while nothing is sampled.
static STORE: AtomicPtr<SampleStore> = AtomicPtr::new(ptr::null_mut());
/// Handlers that may be looking at the places.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

struct SampleStore {
    places: [SampleSlot; PLACES],
    missed: AtomicU64,
}

struct SampleSlot {
    state: AtomicU8,
    held: UnsafeCell<Held>,
}

// Who has changed `state` from FREE to TAKEN, or found it FULL, has `held` alone.
unsafe impl Sync for SampleSlot {}

struct Held {
    registers: Registers,
    length: usize,
    stack: [u64; STACK / 8],
}

/// What is needed of a thread's registers to follow its frames.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Registers {
    /// The program counter.
    pub(super) pc: u64,
    /// The top of its stack.
    pub(super) sp: u64,
    /// The frame pointer's register.
    pub(super) fp: u64,
    /// The link register; 0 where there is none.
    pub(super) lr: u64,
}

/// Sampling that is under way; dropping it ends it.
#[derive(Debug)]
pub(super) struct Sampling {
    store: *mut SampleStore,
}

// The store is shared with handlers on every thread anyway.
unsafe impl Send for Sampling {}

impl Sampling {
    /// Begins to take a sample after each so much time of the CPU that the process has used. `None` while
    /// another sampling is under way.
    ///
    /// # Errors
    /// The system has no such timer or signal for us.
    pub(super) fn start(every: Duration) -> io::Result<Option<Self>> {
        if UNDERWAY.swap(true, Ordering::SeqCst) {
            return Ok(None);
        }
        let layout = std::alloc::Layout::new::<SampleStore>();
        // SAFETY: a store of zeroes is one whose places are free and that has missed nothing; it is too
        // large for a stack.
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

    /// Hands over the samples that have been taken, with what was copied of each stack. Gives their places
    /// back.
    pub(super) fn take(&mut self, mut each: impl FnMut(Registers, &[u64])) {
        for place in &self.store().places {
            if place.state.load(Ordering::Acquire) != FULL {
                continue;
            }
            // SAFETY: it is full, so no handler writes to it, and there is one reader.
            let held = unsafe { &*place.held.get() };
            each(
                held.registers,
                held.stack.get(..held.length / 8).unwrap_or_default(),
            );
            place.state.store(FREE, Ordering::Release);
        }
    }

    /// Samples for which there was no place.
    pub(super) fn missed(&self) -> u64 {
        self.store().missed.load(Ordering::Relaxed)
    }

    fn store(&self) -> &SampleStore {
        // SAFETY: it is there until this is dropped, and all that changes in it is atomic or in cells.
        unsafe { &*self.store }
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        let _ = arm(Duration::ZERO);
        STORE.store(ptr::null_mut(), Ordering::SeqCst);
        // A handler says that it is there before it looks for the store.
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

/// Installs the handler. It stays for as long as the process: a signal that is late would end it otherwise.
fn handle() -> io::Result<()> {
    // SAFETY: all zeroes is a valid `sigaction`; the handler has the signature that SA_SIGINFO requires and
    // does nothing that a signal handler may not do.
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

/// Sets the timer; zero stops it.
fn arm(every: Duration) -> io::Result<()> {
    let time = libc::timeval {
        tv_sec: every.as_secs().try_into().unwrap_or(0),
        tv_usec: every.subsec_micros().into(),
    };
    let timer = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: it reads one valid struct.
    match unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let store = STORE.load(Ordering::SeqCst);
    if !store.is_null() && !context.is_null() {
        // SAFETY: the store is not freed while this counts as inside; the kernel passes a context.
        // What was interrupted finds its errno as it left it.
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
        let took = place
            .state
            .compare_exchange(FREE, TAKEN, taken, Ordering::Relaxed);
        took.is_ok()
    });
    let Some(place) = free else {
        store.missed.fetch_add(1, Ordering::Relaxed);
        return;
    };
    // SAFETY: the place has just been taken.
    let held = unsafe { &mut *place.held.get() };
    held.registers = registers(context);
    held.length = copy(held.registers.sp, &mut held.stack);
    place.state.store(FULL, Ordering::Release);
}

/// Copies a stack from its top as far as there is memory, without ever touching what is not there; says how
/// many bytes that were.
fn copy(from: u64, to: &mut [u64; STACK / 8]) -> usize {
    let Ok(from) = usize::try_from(from) else {
        return 0;
    };
    let empty = libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    };
    let mut pieces = [empty; PIECES];
    let (mut at, mut left) = (from, STACK);
    for piece in &mut pieces {
        let length = (PAGE - at % PAGE).min(left);
        piece.iov_base = at as *mut libc::c_void;
        piece.iov_len = length;
        at = at.wrapping_add(length);
        left -= length;
    }
    let whole = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: STACK,
    };
    // SAFETY: a plain system call, which may be made in a signal handler. It writes into `to` alone, and
    // answers with an error where the memory to be read is not there.
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
    Registers {
        pc: saved.pc,
        sp: saved.sp,
        fp: register(29),
        lr: register(30),
    }
}
