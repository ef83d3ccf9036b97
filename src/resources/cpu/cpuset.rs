//! Sets of CPUs. Pure.

use std::collections::BTreeSet;
use std::fmt;

/// A set of CPUs, in the kernel's list format: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuSet(BTreeSet<u32>);

/// Upper bound of CPU numbers; no kernel supports more.
const MAX_CPU: u32 = 1 << 16;

impl CpuSet {
    /// Parses a list; an empty text is the empty set.
    ///
    /// # Errors
    /// It is not a list of CPUs; texts as upstream's.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let bad = |why| format!("strconv.Atoi: parsing {text:?}: {why}");
            let number = text.parse::<u32>().map_err(|_| bad("invalid syntax"))?;
            if number < MAX_CPU { Ok(number) } else { Err(bad("value out of range")) }
        };
        let mut cpus = BTreeSet::new();
        if text.is_empty() {
            return Ok(Self(cpus));
        }
        for range in text.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("invalid range {range:?} ({first} > {last})"));
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }

    /// The number of CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set has this CPU.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.0.iter().copied()
    }

    /// The union.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// The intersection.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Whether all of its CPUs are in the other set.
    pub fn is_within(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// The CPUs that `other` does not have.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges = Vec::<(u32, u32)>::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        for (index, (first, last)) in ranges.into_iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}
