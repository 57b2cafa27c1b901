//! How models are compiled.

use std::path::PathBuf;

/// In which numbers OpenVINO computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OpenVinoPrecision {
    /// f32 throughout, quantised weights by their exact values: the same as the CPU device, up to the order of sums.
    #[default]
    Exact,
    /// f32, but the activations that meet quantised weights are rounded to 8 bits in groups of 32, and zero points to
    /// integers where that costs little.
    Fast,
    /// bf16 where the device likes it.
    Bf16,
    /// f16 where the device likes it.
    F16,
}

impl OpenVinoPrecision {
    /// Every precision.
    pub const ALL: [OpenVinoPrecision; 4] =
        [OpenVinoPrecision::Exact, OpenVinoPrecision::Fast, OpenVinoPrecision::Bf16, OpenVinoPrecision::F16];

    /// Its name, as options spell it.
    pub const fn name(self) -> &'static str {
        match self {
            OpenVinoPrecision::Exact => "exact",
            OpenVinoPrecision::Fast => "fast",
            OpenVinoPrecision::Bf16 => "bf16",
            OpenVinoPrecision::F16 => "f16",
        }
    }

    /// The precision of this name.
    pub fn from_name(name: &str) -> Option<OpenVinoPrecision> {
        OpenVinoPrecision::ALL.into_iter().find(|p| p.name().eq_ignore_ascii_case(name.trim()))
    }

    /// Whether quantised weights keep their exact values.
    pub(super) fn exact_weights(self) -> bool {
        self == OpenVinoPrecision::Exact
    }
}

/// How models are compiled for OpenVINO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenVinoOptions {
    /// In which numbers it computes.
    pub precision: OpenVinoPrecision,
    /// Threads on the CPU device; `None`: OpenVINO decides.
    pub threads: Option<usize>,
    /// Whether runs keep what each layer cost.
    pub profiling: bool,
    /// A folder into which the text of every compiled model is written.
    pub dump_ir: Option<PathBuf>,
}

impl OpenVinoOptions {
    /// What the environment asks for: `CONURE_OPENVINO_PRECISION`, `_PROFILING` and `_DUMP_IR`.
    pub fn from_env() -> OpenVinoOptions {
        OpenVinoOptions::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> OpenVinoOptions {
        let set = |name: &str| variable(&format!("CONURE_OPENVINO_{name}")).filter(|v| !v.trim().is_empty());
        let on = |name: &str| set(name).is_some_and(|v| v.trim() != "0");
        OpenVinoOptions {
            precision: set("PRECISION").and_then(|p| OpenVinoPrecision::from_name(&p)).unwrap_or_default(),
            threads: None,
            profiling: on("PROFILING"),
            dump_ir: set("DUMP_IR").map(PathBuf::from),
        }
    }

    /// What is to be set when a model is compiled. Everything that changes results is set, whatever the device's own default.
    pub(super) fn properties(&self, device: &str) -> Vec<(String, String)> {
        let cpu = device.starts_with("CPU");
        let precision = match self.precision {
            OpenVinoPrecision::Exact | OpenVinoPrecision::Fast => "f32",
            OpenVinoPrecision::Bf16 => "bf16",
            OpenVinoPrecision::F16 => "f16",
        };
        let group = if self.precision.exact_weights() { "0" } else { "32" };
        let mut all = vec![("PERFORMANCE_HINT", "LATENCY".to_owned())];
        if device != "NPU" {
            // Its own default is bf16 where the processor has it, and groups of 32.
            all.push(("INFERENCE_PRECISION_HINT", precision.to_owned()));
            all.push(("DYNAMIC_QUANTIZATION_GROUP_SIZE", group.to_owned()));
        }
        if cpu {
            all.push(("NUM_STREAMS", "1".to_owned()));
            all.extend(self.threads.map(|n| ("INFERENCE_NUM_THREADS", n.to_string())));
        }
        if self.profiling {
            all.push(("PERF_COUNT", "YES".to_owned()));
        }
        all.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
    }

    /// Writes a model's text where [`OpenVinoOptions::dump_ir`] says. What cannot be written is left out: looking inside must
    /// not make a run fail.
    pub(super) fn dump(&self, xml: &str) {
        let Some(folder) = &self.dump_ir else { return };
        let mut hash = std::hash::DefaultHasher::new();
        std::hash::Hash::hash(xml, &mut hash);
        let name = format!("{:016x}.xml", std::hash::Hasher::finish(&hash));
        let _ = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(folder.join(name), xml));
    }
}
