//! Where this process spends its time on the CPU: samples, whose frames they are, and how often each was seen.
//!
//! Without a running profile it costs nothing but, after the first one, a signal handler. See
//! `docs/adr/0003-cpu-profiles.md`.

mod modules;
mod sampling;

pub use modules::Mapping;

use self::sampling::{Registers, Sampling};
use framehop::Unwinder as _;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    time::Duration,
};

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::{CacheAarch64 as Cache, UnwindRegsAarch64, UnwinderAarch64 as Unwinder};
#[cfg(target_arch = "x86_64")]
use framehop::x86_64::{CacheX86_64 as Cache, UnwindRegsX86_64, UnwinderX86_64 as Unwinder};

/// Time of the CPU between two samples; upstream's rate.
pub const PERIOD: Duration = Duration::from_millis(10);
/// How often [`Profiler::collect`] is to be called, so that there is room for all samples of a dozen busy CPUs.
pub const MAX_COLLECT_INTERVAL: Duration = Duration::from_millis(50);
/// Callers that are followed of one sample.
const MAX_FRAMES: usize = 128;
/// Different stacks that are counted; with addresses of 8 bytes, 16 MiB of them at most.
const MAX_STACKS: usize = 16 * 1024;

/// A profile that is being made; dropping it ends it.
pub struct Profiler {
    sampling: Sampling,
    unwinder: Unwinder<Vec<u8>>,
    cache: Box<Cache>,
    mappings: Vec<Mapping>,
    stacks: HashMap<Vec<u64>, u64>,
    left_out: u64,
}

/// How often which stack was seen.
#[derive(Debug, Default)]
pub struct Profile {
    /// Addresses from where the thread was to its outermost caller, with how often.
    pub stacks: Vec<(Vec<u64>, u64)>,
    /// The functions at those addresses that have a name.
    pub functions: BTreeMap<u64, Function>,
    /// Files that are mapped to be run.
    pub mappings: Vec<Mapping>,
    /// Samples that are in no stack, because there were too many at once, or too many different ones.
    pub missed: u64,
}

/// What a function is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// As it is written in the source.
    pub name: String,
    /// As the linker knows it.
    pub symbol: String,
}

impl Profiler {
    /// Begins. `None` while another one is under way. Reads what the process has mapped: blocking.
    ///
    /// # Errors
    /// The process cannot be sampled or cannot read itself.
    pub fn start() -> io::Result<Option<Self>> {
        // Taken first, so that only one reads the files.
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

    /// Counts the samples since the last time.
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

    /// Ends it and names what was seen. Blocking.
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

/// The addresses of a thread's callers, the innermost first. Of a caller, it is one within its call.
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

/// Held by the one test that profiles.
#[cfg(test)]
pub(crate) static ONE_PROFILE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[cfg(test)]
mod tests {
    use super::*;
    use std::{hint::black_box, time::Instant};

    /// Something that takes time, under a name of its own.
    #[inline(never)]
    fn burn(for_so_long: Duration) -> u64 {
        let since = Instant::now();
        let mut sum = 0_u64;
        while since.elapsed() < for_so_long {
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
        let deadline = Instant::now() + Duration::from_secs(60);
        let named = |profile: &Profile, name: &str, stack: &[u64]| {
            let names = stack.iter().filter_map(|at| profile.functions.get(at));
            names
                .into_iter()
                .any(|function| function.name.contains(name))
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
            assert!(Instant::now() < deadline, "{profile:?}");
            profiler = Profiler::start().unwrap().unwrap();
        }
        // It has ended, and can begin again.
        assert!(Profiler::start().unwrap().is_some());
    }
}
