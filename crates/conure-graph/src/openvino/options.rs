//! How models are compiled.

use super::variables::{VariableError, Variables, bytes, cache_folder, is_off};
use conure_device::store::Store;
use conure_ops::openvino::Choices;
use conure_tensor::DType;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

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

    /// Its bit in a set of them.
    pub(super) fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The names of a set, or that of `otherwise` if it has none.
    pub(super) fn names(set: u8, otherwise: OpenVinoPrecision) -> String {
        let set = if set == 0 { otherwise.bit() } else { set };
        let names = OpenVinoPrecision::ALL.into_iter().filter(|p| set & p.bit() != 0).map(Self::name);
        names.collect::<Vec<_>>().join("+")
    }

    /// The next more exact one, for a device that gets this one wrong.
    pub(super) fn safer(self) -> Option<OpenVinoPrecision> {
        match self {
            OpenVinoPrecision::Bf16 | OpenVinoPrecision::F16 => Some(OpenVinoPrecision::Fast),
            OpenVinoPrecision::Fast => Some(OpenVinoPrecision::Exact),
            OpenVinoPrecision::Exact => None,
        }
    }

    /// Whether quantised weights keep their exact values.
    pub(super) fn exact_weights(self) -> bool {
        self == OpenVinoPrecision::Exact
    }
}

type Tell = dyn Fn(&str) + Send + Sync;

/// Who is told what a user may want to know: that a cache was damaged, that a precision was not to be had. Clones are the same, and
/// are told but once of what concerns all models alike.
#[derive(Clone, Default)]
pub struct Notices(Option<Arc<Told<Tell>>>);

struct Told<F: ?Sized> {
    /// What was told that is told once.
    once: Mutex<HashSet<&'static str>>,
    call: F,
}

impl Notices {
    /// Tells `call`, a line at a time.
    pub fn new(call: impl Fn(&str) + Send + Sync + 'static) -> Notices {
        Notices(Some(Arc::new(Told { once: Mutex::default(), call })))
    }

    pub(super) fn tell(&self, line: &str) {
        if let Some(told) = &self.0 {
            (told.call)(line);
        }
    }

    /// Tells a line, unless one about the same was told.
    pub(super) fn tell_once(&self, about: &'static str, line: &str) {
        let new =
            |told: &Arc<Told<_>>| told.once.lock().unwrap_or_else(PoisonError::into_inner).insert(about);
        if self.0.as_ref().is_some_and(new) {
            self.tell(line);
        }
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Notices" } else { "Notices(nobody)" })
    }
}

/// How models are compiled for OpenVINO. The default is what tests of single graphs want: no cache, no self-test; programs
/// begin with [`OpenVinoOptions::from_env`].
#[derive(Clone, Debug, Default)]
pub struct OpenVinoOptions {
    /// In which numbers it computes.
    pub precision: OpenVinoPrecision,
    /// Threads on the CPU device; `None`: OpenVINO decides.
    pub threads: Option<usize>,
    /// Whether runs keep what each layer cost.
    pub profiling: bool,
    /// A folder into which the text of every compiled model is written.
    pub dump_ir: Option<PathBuf>,
    /// Named values of which every run tells the range, through [`OpenVinoOptions::notices`].
    pub debug_nodes: Vec<String>,
    /// Where compiled models are kept for the next start; `None`: nowhere.
    pub cache: Option<Store>,
    /// A folder for OpenVINO's own cache, which is used only without [`OpenVinoOptions::cache`].
    pub plugin_cache: Option<PathBuf>,
    /// Whether memory is spared at the cost of time: sets the two options below, unless they are set themselves.
    pub memory_optimize: bool,
    /// Whether compiling needs less memory: pages of a weight are given back as soon as the weight has been re-laid.
    pub reduce_compile_mem: Option<bool>,
    /// Whether pages of weights that the device has copied are given back; they are read from the file again if need be.
    pub release_weights: Option<bool>,
    /// Whether a compiled model is held to the CPU device on a few rows before it is used.
    pub self_test: bool,
    /// Who is told what a user may want to know.
    pub notices: Notices,
    /// Which of several forms ops take.
    pub choices: Choices,
    /// Whether the device keeps caches of keys and values in states of its own; `None`: it does not.
    pub stateful: Option<bool>,
    /// Whether models have fixed lengths, one for each of a few, to which runs are padded; `None`: an NPU's have.
    pub fixed: Option<bool>,
    /// Rows of such a model: tokens of a prompt that are read at once, and the least frames of audio; `None`: 256.
    pub prefill_chunk: Option<usize>,
}

/// The bytes of compiled models that are kept at most, unless a variable says otherwise: a few large models.
const CACHE_BOUND: u64 = 16 << 30;

impl OpenVinoOptions {
    /// What the environment asks for; `docs/openvino.md` lists the variables.
    ///
    /// # Errors
    /// A variable whose value is none that it takes.
    pub fn from_env() -> Result<OpenVinoOptions, VariableError> {
        OpenVinoOptions::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<OpenVinoOptions, VariableError> {
        let of = Variables(variable);
        let on = |name: &str| Ok(of.switch(name)?.unwrap_or(false));
        let plugin_cache = of.raw("CACHE_DIR").map(PathBuf::from);
        let bound = of.parsed("CACHE_SIZE", "bytes, or a number with K, M, G or T such as 4G", bytes)?;
        let folder = match of.raw("COMPILED_MODEL_CACHE_DIR") {
            Some(folder) if folder.to_str().is_some_and(is_off) => None,
            Some(folder) => Some(PathBuf::from(folder)),
            // Two caches of the same thing are one too many.
            None if plugin_cache.is_some() => None,
            None => cache_folder(&of.0),
        };
        let precisions = OpenVinoPrecision::ALL.map(OpenVinoPrecision::name).join(", ");
        let rows = |v: &str| v.trim().parse().ok().filter(|n| *n > 0);
        let names = of.text("DEBUG_NODE", "names with commas between them")?.unwrap_or_default();
        Ok(OpenVinoOptions {
            precision: of.parsed("PRECISION", &precisions, OpenVinoPrecision::from_name)?.unwrap_or_default(),
            threads: None,
            profiling: on("PROFILING")?,
            dump_ir: of.raw("DUMP_IR").map(PathBuf::from),
            debug_nodes: names.split(',').map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect(),
            cache: folder.map(|folder| Store::new(folder, bound.unwrap_or(CACHE_BOUND))),
            plugin_cache,
            memory_optimize: on("MEMORY_OPTIMIZE")?,
            reduce_compile_mem: of.switch("REDUCE_COMPILE_MEM")?,
            release_weights: of.switch("RELEASE_WEIGHTS")?,
            self_test: of.switch("SELF_TEST")?.unwrap_or(true),
            notices: Notices::default(),
            choices: Choices {
                slice_cache: !on("DISABLE_KV_SLICE")?,
                manual_attention: of.switch("MANUAL_GQA_ATTN")?,
                ..Choices::default()
            },
            stateful: of.switch("STATEFUL_EXECUTION")?,
            fixed: of.switch("FORCE_STATIC")?,
            prefill_chunk: of.parsed("PREFILL_CHUNK_SIZE", "a number of rows, 1 or more", rows)?,
        })
    }

    /// Whether the pages of weights are given back that a device has copied.
    pub fn releases_weights(&self) -> bool {
        self.release_weights.unwrap_or(self.memory_optimize)
    }

    /// Whether compiling is to need less memory.
    pub fn reduces_compile_mem(&self) -> bool {
        self.reduce_compile_mem.unwrap_or(self.memory_optimize)
    }

    /// Rows of a model of fixed lengths that is not for single rows.
    pub(super) fn chunk(&self) -> usize {
        self.prefill_chunk.unwrap_or(256)
    }

    /// Whether the device is to keep a cache of `dtype`. In bf16 it keeps none that rounds as the CPU device's do.
    pub(super) fn keeps_caches(&self, dtype: DType) -> bool {
        self.stateful.unwrap_or(false) && dtype != DType::BF16
    }

    /// What is to be set when a model with a cache of this type is compiled. Everything that changes results is set, whatever the
    /// device's own default.
    pub(super) fn properties(&self, device: &str, cache: Option<DType>) -> Vec<(String, String)> {
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
            // Its own default are 8 bits.
            let cache = if cache == Some(DType::F16) { "f16" } else { "f32" };
            all.push(("KV_CACHE_PRECISION", cache.to_owned()));
            // 0 is OpenVINO's own choice: what an import sets stays set for the device.
            all.push(("INFERENCE_NUM_THREADS", self.threads.unwrap_or(0).to_string()));
        }
        all.push(("PERF_COUNT", if self.profiling { "YES" } else { "NO" }.to_owned()));
        if let (None, Some(folder)) = (&self.cache, &self.plugin_cache) {
            all.push(("CACHE_DIR", folder.display().to_string()));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn options(variables: &'static [(&'static str, &'static str)]) -> OpenVinoOptions {
        OpenVinoOptions::from_variables(|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v))
        })
        .unwrap()
    }

    #[test]
    fn a_part_that_is_set_wins_over_the_whole() {
        const ALL: &str = "CONURE_OPENVINO_MEMORY_OPTIMIZE";
        const REDUCE: &str = "CONURE_OPENVINO_REDUCE_COMPILE_MEM";
        const RELEASE: &str = "CONURE_OPENVINO_RELEASE_WEIGHTS";
        for (variables, expected) in [
            (&[][..], [false, false]),
            (&[(ALL, "1")], [true, true]),
            (&[(ALL, "1"), (RELEASE, "0")], [true, false]),
            (&[(ALL, "1"), (REDUCE, "off")], [false, true]),
            (&[(ALL, "0"), (RELEASE, "1")], [false, true]),
            (&[(REDUCE, "yes")], [true, false]),
            (&[(ALL, " ")], [false, false]),
        ] {
            let o = options(variables);
            assert_eq!([o.reduces_compile_mem(), o.releases_weights()], expected, "{variables:?}");
        }
    }

    #[test]
    fn a_value_that_makes_no_sense_is_named_with_those_that_do() {
        for (name, value, allowed) in [
            ("PRECISION", "nonsense", "exact, fast, bf16, f16"),
            ("SELF_TEST", "disabled", "1, on, yes, true; or 0, off, no, false"),
            ("MEMORY_OPTIMIZE", "2", "1, on, yes, true; or 0, off, no, false"),
            ("STATEFUL_EXECUTION", "-", "1, on"),
            ("CACHE_SIZE", "plenty", "4G"),
            ("PREFILL_CHUNK_SIZE", "0", "1 or more"),
        ] {
            let name = format!("CONURE_OPENVINO_{name}");
            let of = |wanted: &str| (wanted == name).then(|| OsString::from(value));
            let error = OpenVinoOptions::from_variables(of).unwrap_err().to_string();
            let parts = [&name, &format!("{value:?}"), allowed];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        assert_eq!(options(&[("CONURE_OPENVINO_PRECISION", " BF16 ")]).precision, OpenVinoPrecision::Bf16);
        assert_eq!(options(&[("CONURE_OPENVINO_PRECISION", " ")]).precision, OpenVinoPrecision::Exact);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_cache_is_where_the_system_keeps_caches_or_where_it_is_told() {
        const HOME: (&str, &str) = ("HOME", "/home/a");
        const OURS: &str = "CONURE_OPENVINO_COMPILED_MODEL_CACHE_DIR";
        const ITS: (&str, &str) = ("CONURE_OPENVINO_CACHE_DIR", "/its");
        for (variables, folder) in [
            (&[][..], None),
            (&[HOME], Some("/home/a/.cache/conure/openvino")),
            (&[HOME, ("XDG_CACHE_HOME", "/c")], Some("/c/conure/openvino")),
            (&[HOME, ("XDG_CACHE_HOME", "not/absolute")], Some("/home/a/.cache/conure/openvino")),
            (&[HOME, (OURS, "here")], Some("here")),
            (&[HOME, (OURS, "off")], None),
            (&[HOME, (OURS, "0")], None),
            (&[HOME, ITS], None),
            (&[HOME, ITS, (OURS, "/ours")], Some("/ours")),
        ] {
            let found = options(variables).cache.map(|c| c.folder().to_owned());
            assert_eq!(found, folder.map(PathBuf::from), "{variables:?}");
        }
        let its = options(&[HOME, ITS]).properties("CPU", None);
        assert!(its.contains(&("CACHE_DIR".into(), "/its".into())), "{its:?}");
    }

    #[test]
    fn precisions_in_use_are_named() {
        type P = OpenVinoPrecision;
        for (used, name) in [(&[][..], "fast"), (&[P::Bf16], "bf16"), (&[P::F16, P::Exact], "exact+f16")] {
            assert_eq!(P::names(used.iter().fold(0, |set, p| set | p.bit()), P::Fast), name);
        }
    }

    #[test]
    fn forms_are_what_variables_say() {
        let none = options(&[]);
        assert_eq!((none.stateful, none.fixed, none.chunk()), (None, None, 256));
        let set = options(&[
            ("CONURE_OPENVINO_STATEFUL_EXECUTION", "0"),
            ("CONURE_OPENVINO_FORCE_STATIC", "1"),
            ("CONURE_OPENVINO_PREFILL_CHUNK_SIZE", "64"),
            ("CONURE_OPENVINO_MANUAL_GQA_ATTN", "on"),
            ("CONURE_OPENVINO_DISABLE_KV_SLICE", "1"),
        ]);
        assert_eq!((set.stateful, set.fixed, set.chunk()), (Some(false), Some(true), 64));
        assert_eq!((set.choices.manual_attention, set.choices.slice_cache), (Some(true), false));
        for (stateful, dtype, keeps) in
            [(Some(true), DType::F16, true), (Some(true), DType::BF16, false), (None, DType::F32, false)]
        {
            let options = OpenVinoOptions { stateful, ..OpenVinoOptions::default() };
            assert_eq!(options.keeps_caches(dtype), keeps, "{stateful:?} {dtype}");
        }
        let precision = |cache| {
            let all = none.properties("CPU", cache);
            all.into_iter().find(|(k, _)| k == "KV_CACHE_PRECISION").map(|(_, v)| v)
        };
        assert_eq!(precision(Some(DType::F16)).as_deref(), Some("f16"));
        assert_eq!(precision(None).as_deref(), Some("f32"));
    }
}
