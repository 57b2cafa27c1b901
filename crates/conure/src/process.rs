//! What this process has used so far, where the system says.

/// Seconds that the processors worked for this process, on all its threads; in hundredths, as Linux counts.
pub(crate) fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may hold anything; user and system time are the 12th and 13th field after.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) as f64 / 100.0)
}

/// The most memory in bytes that this process ever had at once.
pub fn peak_memory() -> Option<u64> {
    memory("VmHWM:")
}

/// The memory in bytes that this process has now, pages of files included.
pub fn resident_memory() -> Option<u64> {
    memory("VmRSS:")
}

fn memory(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn linux_says_both() {
        let before = cpu_seconds().unwrap();
        let data = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(peak_memory().unwrap() > data.len() as u64);
        assert!(resident_memory().unwrap() > data.len() as u64);
        assert!(cpu_seconds().unwrap() >= before);
    }
}
