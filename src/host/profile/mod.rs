//! CPU profiles of this process: takes samples, unwinds and symbolizes their stacks, and counts them.
//!
//! No cost without a running profile, except for an installed signal handler after the first one. See
//! `docs/adr/0003-cpu-profiles.md`.

mod modules;
mod sampling;

pub use modules::Mapping;

use self::sampling::{Registers, Sampling};
use framehop::Unwinder as _;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::time::Duration;

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::{CacheAarch64 as Cache, UnwindRegsAarch64, UnwinderAarch64 as Unwinder};
#[cfg(target_arch = "x86_64")]
use framehop::x86_64::{CacheX86_64 as Cache, UnwindRegsX86_64, UnwinderX86_64 as Unwinder};

/// CPU time between two samples; upstream's rate.
pub const PERIOD: Duration = Duration::from_millis(10);
/// Maximum interval between calls of [`Profiler::collect`], so that the buffer suffices for a dozen busy CPUs.
pub const MAX_COLLECT_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of frames per sample.
const MAX_FRAMES: usize = 128;
/// Maximum number of distinct stacks; at 8 bytes per address, at most 16 MiB.
const MAX_STACKS: usize = 16 * 1024;

/// A running profile; dropping it stops it.
pub struct Profiler {
    sampling: Sampling,
    unwinder: Unwinder<Vec<u8>>,
    cache: Box<Cache>,
    mappings: Vec<Mapping>,
    stacks: HashMap<Vec<u64>, u64>,
    left_out: u64,
}

/// The result: distinct stacks with their counts.
#[derive(Debug, Default)]
pub struct Profile {
    /// Stacks from the innermost to the outermost address, with their counts.
    pub stacks: Vec<(Vec<u64>, u64)>,
    /// The functions of those addresses that could be symbolized.
    pub functions: BTreeMap<u64, Function>,
    /// Executable mappings.
    pub mappings: Vec<Mapping>,
    /// Samples that are not in `stacks`, because the buffer was full or there were too many distinct stacks.
    pub missed: u64,
}

/// The names of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Demangled.
    pub name: String,
    /// As in the symbol table.
    pub symbol: String,
}

impl Profiler {
    /// Starts a profile. `None` if another one is running. Blocking: reads the mapped files.
    ///
    /// # Errors
    /// The timer cannot be set, or the process's mappings cannot be read.
    pub fn start() -> io::Result<Option<Self>> {
        // Acquired before reading the files, so that concurrent callers do not read them.
        let Some(sampling) = Sampling::start(PERIOD)? else {
            return Ok(None);
        };
        let mut unwinder = Unwinder::new();
        let mut mappings = Vec::new();
        for (mapping, module) in modules::modules()? {
            unwinder.add_module(module);
            mappings.push(mapping);
        }
        Ok(Some(Self {
            sampling,
            unwinder,
            cache: Box::new(Cache::new()),
            mappings,
            stacks: HashMap::new(),
            left_out: 0,
        }))
    }

    /// Counts the samples since the last call.
    pub fn collect(&mut self) {
        let (unwinder, cache) = (&self.unwinder, &mut *self.cache);
        let (stacks, left_out) = (&mut self.stacks, &mut self.left_out);
        self.sampling.take(|registers, stack| {
            let frames = frames(unwinder, cache, registers, stack);
            if stacks.len() >= MAX_STACKS && !stacks.contains_key(&frames) {
                *left_out += 1;
            } else {
                *stacks.entry(frames).or_default() += 1;
            }
        });
    }

    /// Stops the profile and symbolizes the addresses. Blocking.
    pub fn finish(mut self) -> Profile {
        self.collect();
        let missed = self.sampling.missed() + self.left_out;
        drop(self.sampling);
        let addresses: BTreeSet<u64> = self.stacks.keys().flatten().copied().collect();
        let addresses: Vec<u64> = addresses.into_iter().collect();
        let mut functions = BTreeMap::new();
        for mapping in &self.mappings {
            functions.extend(modules::functions(mapping, &addresses));
        }
        Profile {
            stacks: self.stacks.into_iter().collect(),
            functions,
            mappings: self.mappings,
            missed,
        }
    }
}

/// Unwinds a stack, innermost frame first. For callers, the address is within the call instruction.
fn frames(
    unwinder: &Unwinder<Vec<u8>>,
    cache: &mut Cache,
    registers: Registers,
    stack: &[u64],
) -> Vec<u64> {
    let Registers { pc, sp, fp, lr } = registers;
    #[cfg(target_arch = "x86_64")]
    let (known, _) = (UnwindRegsX86_64::new(pc, sp, fp), lr);
    #[cfg(target_arch = "aarch64")]
    let known = UnwindRegsAarch64::new(lr, sp, fp);
    let mut read = |address: u64| {
        let at = address.checked_sub(sp).filter(|at| at % 8 == 0).ok_or(())?;
        let at = usize::try_from(at / 8).map_err(drop)?;
        stack.get(at).copied().ok_or(())
    };
    let mut frames = Vec::new();
    let mut callers = unwinder.iter_frames(pc, known, cache, &mut read);
    while let Ok(Some(frame)) = callers.next() {
        frames.push(frame.address_for_lookup());
        if frames.len() == MAX_FRAMES {
            break;
        }
    }
    frames
}

/// Held by tests that profile.
#[cfg(test)]
pub(crate) static ONE_PROFILE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use std::hint::black_box;

    /// Something that takes time, under a name of its own.
    #[inline(never)]
    fn burn(for_so_long: Duration) -> u64 {
        let since = clock::instant();
        let mut sum = 0_u64;
        while clock::since(since) < for_so_long {
            for i in 0..10_000 {
                sum = black_box(sum.wrapping_mul(31).wrapping_add(i));
            }
        }
        sum
    }

    #[test]
    fn who_uses_the_cpu_is_seen_with_their_callers_and_one_looks_at_a_time() {
        let _only = ONE_PROFILE.blocking_lock();
        let mut profiler = Profiler::start().unwrap().unwrap();
        assert!(Profiler::start().unwrap().is_none());
        let deadline = clock::instant() + Duration::from_secs(60);
        let named = |profile: &Profile, name: &str, stack: &[u64]| {
            let names = stack.iter().filter_map(|at| profile.functions.get(at));
            names.into_iter().any(|function| function.name.contains(name))
        };
        loop {
            // The room is for what one collection every so often takes: other tests use the CPU as well.
            for _ in 0..20 {
                black_box(burn(MAX_COLLECT_INTERVAL / 4));
                profiler.collect();
            }
            let profile = profiler.finish();
            let seen = profile.stacks.iter().find(|(stack, _)| {
                named(&profile, "profile::tests::burn", stack)
                    && named(&profile, "who_uses_the_cpu_is_seen", stack)
            });
            if let Some((_, times)) = seen {
                assert!(*times > 0);
                break;
            }
            assert!(clock::instant() < deadline, "{profile:?}");
            profiler = Profiler::start().unwrap().unwrap();
        }
        // It has ended, and can begin again.
        assert!(Profiler::start().unwrap().is_some());
    }
}
