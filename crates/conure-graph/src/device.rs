//! Devices: what there is to run on, and what a name means.

use conure_kernels::Isa;

/// A device, or one that this build knows of and cannot use here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name by which it is asked for: `cpu`.
    pub name: String,
    /// `cpu`, `gpu`, `integrated-gpu` or `npu`.
    pub kind: &'static str,
    /// What it is, in words.
    pub description: String,
    /// Instruction sets or capabilities that Conure uses, the best last.
    pub capabilities: Vec<String>,
    /// Bytes of memory; `None` if that cannot be found out.
    pub memory: Option<u64>,
    /// Threads that it runs by default.
    pub threads: usize,
    /// Why it cannot be used; `None` if it can.
    pub unavailable: Option<String>,
}

/// A device was asked for that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no device {wanted:?}; there are: {known}. Leave the device out, or use auto, to take the best of these"
)]
pub struct NoSuchDevice {
    /// The name asked for.
    pub wanted: String,
    /// The names there are.
    pub known: String,
}

/// Every device of this machine that Conure knows how to use.
pub fn devices() -> Vec<DeviceInfo> {
    vec![DeviceInfo {
        name: "cpu".into(),
        kind: "cpu",
        description: cpu_model().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        capabilities: Isa::available().map(|isa| isa.name().to_owned()).collect(),
        memory: memory(),
        threads: conure_kernels::Threads::default_count(),
        unavailable: None,
    }]
}

/// The device that `name` means, in either case; `None` or `auto`: the best there is.
///
/// # Errors
/// [`NoSuchDevice`] with the list of those there are.
pub fn pick(name: Option<&str>) -> Result<DeviceInfo, NoSuchDevice> {
    let there: Vec<DeviceInfo> = devices().into_iter().filter(|d| d.unavailable.is_none()).collect();
    let wanted = name.map(str::trim).filter(|n| !n.eq_ignore_ascii_case("auto")).unwrap_or("cpu");
    let known = there.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", ");
    there
        .into_iter()
        .find(|d| d.name.eq_ignore_ascii_case(wanted))
        .ok_or_else(|| NoSuchDevice { wanted: wanted.to_owned(), known })
}

/// The processor's own name for itself.
fn cpu_model() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The machine's memory in bytes.
fn memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find(|l| l.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_either_case_and_unknown_ones_listed() {
        for name in [None, Some("auto"), Some("AUTO"), Some("cpu"), Some("CPU"), Some(" Cpu ")] {
            assert_eq!(pick(name).unwrap().name, "cpu");
        }
        for name in ["cuda:0", "openvino:GPU", "gpu", ""] {
            let error = pick(Some(name)).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}; there are: cpu")), "{error}");
        }
        assert!(devices()[0].capabilities.contains(&"scalar".to_owned()));
    }
}
