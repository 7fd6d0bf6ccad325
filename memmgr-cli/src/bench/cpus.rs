//! The processors that threads are pinned to.

use std::collections::BTreeSet;
use std::fs;
use std::mem::size_of;

/// The processors that this process may use, those of different cores first.
pub fn usable() -> Vec<usize> {
    let allowed = allowed();
    let mut cores = BTreeSet::new();
    let (mut first, mut others) = (Vec::new(), Vec::new());
    for cpu in allowed {
        if cores.insert(siblings(cpu)) {
            first.push(cpu);
        } else {
            others.push(cpu);
        }
    }
    first.append(&mut others);
    first
}

/// One line about them.
pub fn described() -> String {
    let cpus = usable();
    let cores: BTreeSet<String> = cpus.iter().map(|cpu| siblings(*cpu)).collect();
    format!(
        "processors: {} on {} cores, {}",
        cpus.len(),
        cores.len(),
        std::env::consts::ARCH
    )
}

/// What the kernel says of the processors that share a core with this one; its own number elsewhere.
fn siblings(cpu: usize) -> String {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    fs::read_to_string(path).map_or_else(|_| cpu.to_string(), |text| text.trim().to_owned())
}

fn allowed() -> Vec<usize> {
    // SAFETY: the set is plain numbers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid and as long as is said; 0 means the calling thread.
    let status = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if status != 0 {
        return Vec::new();
    }
    (0..libc::CPU_SETSIZE as usize)
        // SAFETY: the number is below the size of the set.
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect()
}

/// Keeps the calling thread on one processor; false where that is refused.
pub fn pin(cpu: usize) -> bool {
    if cpu >= libc::CPU_SETSIZE as usize {
        return false;
    }
    // SAFETY: the set is plain numbers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is below the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is valid and as long as is said; 0 means the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_where_it_is_pinned() {
        let cpus = usable();
        assert!(!cpus.is_empty());
        let last = cpus[cpus.len() - 1];
        let thread = std::thread::spawn(move || (pin(last), allowed()));
        assert_eq!(thread.join().expect("no panic"), (true, vec![last]));
        assert!(!pin(usize::MAX));
        assert_eq!(usable(), cpus, "other threads stay as they were");
    }
}
