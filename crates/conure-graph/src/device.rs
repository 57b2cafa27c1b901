//! Devices: what there is to run on, and what a name means.

use crate::backend::{Backend, Compilations};
use crate::openvino::{OpenVino, OpenVinoOptions, unavailable};
use crate::partial::Partial;
use conure_kernels::Isa;
use std::sync::{Arc, OnceLock};

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

/// A device to run on: the CPU, or another one with the CPU for what that one does not take.
#[derive(Clone, Debug)]
pub struct Device {
    info: DeviceInfo,
    backend: Option<Arc<dyn Backend>>,
}

impl Device {
    /// The CPU alone.
    pub fn cpu() -> Device {
        Device { info: cpu_info(), backend: None }
    }

    /// A device, with the CPU for what it does not take.
    pub fn new(backend: Arc<dyn Backend>) -> Device {
        Device { info: backend.info(), backend: Some(backend) }
    }

    /// Whether it is the CPU alone.
    pub fn is_cpu(&self) -> bool {
        self.backend.is_none()
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The name that tells it apart.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// How many pieces of graphs were made ready for it so far; none on the CPU.
    pub fn compilations(&self) -> Compilations {
        self.backend.as_ref().map(|b| b.compilations()).unwrap_or_default()
    }

    /// In which numbers it computes what it takes, such as `exact` or `bf16`, with `+` between them where not all pieces are alike;
    /// pieces that a device gets wrong in one precision are in a more exact one. `None`: as the CPU's kernels are told.
    pub fn precision(&self) -> Option<String> {
        self.backend.as_ref().and_then(|b| b.precision())
    }

    /// Rows that a run of a model with caches should have at most; `None`: as many as one likes.
    pub fn chunk(&self) -> Option<usize> {
        self.backend.as_ref().and_then(|b| b.chunk())
    }

    pub(crate) fn backend(&self) -> Option<&Arc<dyn Backend>> {
        self.backend.as_ref()
    }
}

/// A device was asked for that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}; there are: {known}. Leave the device out, or use auto, to take the best of these",
    match reason {
        Some(reason) => format!("the device {wanted:?}{asked_by} cannot be used: {reason}"),
        None => format!("there is no device {wanted:?}{asked_by}"),
    }
)]
pub struct NoSuchDevice {
    /// The name asked for.
    pub wanted: String,
    /// ` (from CONURE_DEVICE)`, if that is where the name came from.
    pub asked_by: String,
    /// Why it cannot be used, if it is a device that is known.
    pub reason: Option<String>,
    /// The names there are.
    pub known: String,
}

/// The environment variable that says which of OpenVINO's devices `openvino` means.
const OPENVINO_DEVICE: &str = "CONURE_OPENVINO_DEVICE";

/// Environment variables that name a device, the stronger first.
pub const DEVICE_VARIABLES: [&str; 2] = ["CONURE_DEVICE", "PARAKEET_DEVICE"];

/// The devices of this machine that this build can use, and those that it knows of and cannot use.
#[derive(Debug)]
pub struct Registry {
    devices: Vec<Device>,
    unavailable: Vec<DeviceInfo>,
    /// How OpenVINO's devices are to be used; `None`: they are not looked for.
    openvino: Option<OpenVinoOptions>,
    /// OpenVINO's devices, looked for when they matter: opening the library takes a tenth of a second.
    found: OnceLock<(Vec<Device>, Vec<DeviceInfo>)>,
}

impl Default for Registry {
    fn default() -> Registry {
        Registry {
            devices: vec![Device::cpu()],
            unavailable: Vec::new(),
            openvino: None,
            found: OnceLock::new(),
        }
    }
}

impl Registry {
    /// Every device of this machine. They are looked for anew: one that was plugged in since is there. Where a variable of the
    /// environment makes no sense for OpenVINO, its devices cannot be used, for that reason.
    pub fn probe() -> Registry {
        match OpenVinoOptions::from_env() {
            Ok(options) => Registry::probe_with(options),
            Err(why) => {
                let lacking = vec![unavailable("openvino:CPU", "cpu", why.to_string())];
                Registry { unavailable: lacking, ..Registry::default() }
            }
        }
    }

    /// As [`Registry::probe`]; OpenVINO's devices are to compile models so.
    pub fn probe_with(openvino: OpenVinoOptions) -> Registry {
        Registry { openvino: Some(openvino), ..Registry::default() }
    }

    /// OpenVINO's devices, those that can be used and what stands for the others.
    fn openvino(&self) -> (&[Device], &[DeviceInfo]) {
        let Some(options) = &self.openvino else { return (&[], &[]) };
        let (usable, others) = self.found.get_or_init(|| {
            let (found, lacking) = OpenVino::probe(options);
            (found.into_iter().map(|d| Device::new(Arc::new(d))).collect(), lacking)
        });
        (usable, others)
    }

    /// Adds a device.
    pub fn register(&mut self, backend: Arc<dyn Backend>) {
        let device = Device::new(backend);
        match device.info.unavailable {
            None => self.devices.push(device),
            Some(_) => self.unavailable.push(device.info),
        }
    }

    /// All that are known, usable ones first.
    pub fn list(&self) -> Vec<DeviceInfo> {
        let (usable, others) = self.openvino();
        let usable = self.devices.iter().chain(usable).map(|d| d.info.clone());
        usable.chain(self.unavailable.iter().chain(others).cloned()).collect()
    }

    /// The device of this name, in either case: `cpu`, `cuda:0` or `CUDA0`, `openvino:GPU.1`. A name without a part after
    /// the colon is the first of its kind. `None` asks the environment ([`DEVICE_VARIABLES`]); nothing there, or `auto`,
    /// is the first GPU, else the first integrated GPU, else the CPU. [`Partial`], the device for tests, is there for whoever
    /// names it, and in no list.
    ///
    /// # Errors
    /// [`NoSuchDevice`] with the list of those there are; why not, for one that is known and not usable.
    pub fn pick(&self, name: Option<&str>) -> Result<Device, NoSuchDevice> {
        self.pick_from(name, |variable| std::env::var(variable).ok())
    }

    fn pick_from(
        &self,
        name: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Device, NoSuchDevice> {
        let set = |v: &&str| variable(v).filter(|value| !value.trim().is_empty());
        let (mut wanted, mut asked_by) = match name {
            Some(name) => (name.to_owned(), String::new()),
            None => match DEVICE_VARIABLES.iter().find_map(|v| Some((set(v)?, format!(" (from {v})")))) {
                Some(found) => found,
                None => ("auto".into(), String::new()),
            },
        };
        match Partial::by_name(&wanted) {
            Some(Ok(partial)) => return Ok(Device::new(Arc::new(partial))),
            Some(Err(why)) => {
                return Err(NoSuchDevice {
                    wanted,
                    asked_by,
                    reason: Some(why),
                    known: self.names(|_| true),
                });
            }
            None => {}
        }
        let mut folded = fold(&wanted);
        if folded == "auto" {
            return Ok(self.best().clone());
        }
        if let ("openvino", Some(which)) = (folded.as_str(), set(&OPENVINO_DEVICE)) {
            folded = format!("openvino:{}", fold(&which));
            (wanted, asked_by) = (format!("openvino:{}", which.trim()), format!(" (from {OPENVINO_DEVICE})"));
        }
        let is = |info: &DeviceInfo| {
            let name = fold(&info.name);
            name == folded || name.split_once(':').is_some_and(|(family, _)| family == folded)
        };
        if let Some(device) = self.devices.iter().find(|d| is(&d.info)) {
            return Ok(device.clone());
        }
        let (found, lacking) = self.openvino();
        if let Some(device) = found.iter().find(|d| is(&d.info)) {
            return Ok(device.clone());
        }
        let reason = self.unavailable.iter().chain(lacking).find(|d| is(d));
        let reason = reason.map(|d| d.unavailable.clone().unwrap_or_default());
        Err(NoSuchDevice { wanted, asked_by, reason, known: self.names(|d| !is(d)) })
    }

    /// The names of the devices that can be used, and of the others those that `shown` says, each with what it lacks.
    fn names(&self, shown: impl Fn(&DeviceInfo) -> bool) -> String {
        let (found, lacking) = self.openvino();
        let usable = self.devices.iter().chain(found).map(|d| d.info.name.clone());
        let others = self.unavailable.iter().chain(lacking).filter(|d| shown(d));
        let why = |d: &DeviceInfo| d.unavailable.clone().unwrap_or_default();
        let others = others.map(|d| format!("{} (not usable: {})", d.name, why(d)));
        usable.chain(others).collect::<Vec<_>>().join(", ")
    }

    fn best(&self) -> &Device {
        let found = if gpu_is_possible() { self.openvino().0 } else { &[] };
        let of_kind = |kind| self.devices.iter().chain(found).find(move |d| d.info.kind == kind);
        // There is always a CPU, and it is the first.
        of_kind("gpu").or_else(|| of_kind("integrated-gpu")).unwrap_or(&self.devices[0])
    }
}

/// Whether the system shows a GPU that OpenVINO could use, where that can be seen without opening it.
fn gpu_is_possible() -> bool {
    !cfg!(target_os = "linux") || std::path::Path::new("/dev/dri").exists()
}

/// A name in the form in which names are compared: lower case, `cuda0` as `cuda:0`.
fn fold(name: &str) -> String {
    let name = name.trim().to_ascii_lowercase();
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (family, number) = name.split_at(name.len() - digits);
    if digits > 0 && !family.is_empty() && family.bytes().all(|b| b.is_ascii_lowercase()) {
        return format!("{family}:{number}");
    }
    name
}

/// Every device of this machine that Conure knows of.
pub fn devices() -> Vec<DeviceInfo> {
    Registry::probe().list()
}

fn cpu_info() -> DeviceInfo {
    DeviceInfo {
        name: "cpu".into(),
        kind: "cpu",
        description: cpu_model().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        capabilities: Isa::available().map(|isa| isa.name().to_owned()).collect(),
        memory: memory(),
        threads: conure_kernels::Threads::default_count(),
        unavailable: None,
    }
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

    fn registry() -> Registry {
        let mut registry = Registry::default();
        let of = |name: &str, kind, unavailable: Option<&str>| {
            let mut partial = Partial::all();
            partial.info.name = name.into();
            partial.info.kind = kind;
            partial.info.unavailable = unavailable.map(str::to_owned);
            Arc::new(partial)
        };
        registry.register(of("openvino:CPU", "cpu", None));
        registry.register(of("openvino:GPU.0", "integrated-gpu", None));
        registry.register(of("cuda:0", "gpu", None));
        registry.register(of("cuda:1", "gpu", None));
        registry.register(of("openvino:NPU", "npu", Some("the driver is too old")));
        registry
    }

    #[test]
    fn names_are_found_in_either_case_and_spelling() {
        let none = |_: &str| None;
        let cases = [
            ("cpu", "cpu"),
            (" CPU ", "cpu"),
            ("CUDA0", "cuda:0"),
            ("cuda:1", "cuda:1"),
            ("Cuda", "cuda:0"),
            ("openvino", "openvino:CPU"),
            ("OPENVINO:gpu.0", "openvino:GPU.0"),
            ("auto", "cuda:0"),
        ];
        for (asked, expected) in cases {
            assert_eq!(registry().pick_from(Some(asked), none).unwrap().name(), expected, "{asked}");
        }
        assert_eq!(registry().pick_from(None, none).unwrap().name(), "cuda:0");
        assert_eq!(Registry::default().pick_from(None, none).unwrap().name(), "cpu");
    }

    #[test]
    fn what_is_not_there_is_answered_with_what_is() {
        let unusable = registry().pick_from(Some("OpenVINO:npu"), |_| None).unwrap_err().to_string();
        assert!(
            unusable.contains("\"OpenVINO:npu\" cannot be used: the driver is too old; there are: cpu"),
            "{unusable}"
        );
        for (name, why) in [
            ("partial:linear,nosuchop", "there is no op \"nosuchop\"; there are: batch_norm, binary, "),
            ("partial:", "there is no op \"\"; there are: "),
            ("partial:random:x", "the toss \"x\" is not a whole number"),
        ] {
            let error = registry().pick_from(Some(name), |_| None).unwrap_err().to_string();
            assert!(error.contains(&format!("the device {name:?} cannot be used: {why}")), "{error}");
        }
        assert_eq!(
            registry().pick_from(Some("Partial:LINEAR, glu"), |_| None).unwrap().name(),
            "partial:linear,glu"
        );
        for name in ["cuda:7", "gpu", ""] {
            let error = registry().pick_from(Some(name), |_| None).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}; there are: cpu, openvino:CPU")), "{error}");
            assert!(error.contains("openvino:NPU (not usable: the driver is too old)"), "{error}");
        }
        assert!(devices()[0].capabilities.contains(&"scalar".to_owned()));
    }

    #[test]
    fn the_environment_is_asked_when_no_name_is_given_and_conures_own_variable_first() {
        let env = |a: Option<&'static str>, b: Option<&'static str>| {
            move |v: &str| (if v == "CONURE_DEVICE" { a } else { b }).map(str::to_owned)
        };
        let r = registry();
        assert_eq!(r.pick_from(None, env(Some("cuda:1"), Some("cpu"))).unwrap().name(), "cuda:1");
        assert_eq!(r.pick_from(None, env(Some(" "), Some("cpu"))).unwrap().name(), "cpu");
        assert_eq!(r.pick_from(Some("cpu"), env(Some("cuda:1"), None)).unwrap().name(), "cpu");
        let error = r.pick_from(None, env(None, Some("tpu"))).unwrap_err().to_string();
        assert!(error.contains("\"tpu\" (from PARAKEET_DEVICE)"), "{error}");
        let which = |v: &str| (v == "CONURE_OPENVINO_DEVICE").then(|| "GPU.7".to_owned());
        let error = r.pick_from(Some("openvino"), which).unwrap_err().to_string();
        assert!(error.contains("\"openvino:GPU.7\" (from CONURE_OPENVINO_DEVICE)"), "{error}");
    }
}
