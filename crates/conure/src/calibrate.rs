//! What a model's matrices are multiplied with while it hears recordings: for roundings that change their products least.

use crate::audio::{AudioSource, Blocks};
use crate::error::Error;
use crate::language::LanguageModel;
use crate::many::FileClip;
use crate::model::{LoadOptions, SpeechModel};
use conure_graph::{Graph, NodeOp, Observer, Passes, Program, StepDone, ValueId};
use conure_kernels::moments::Moments;
use conure_kernels::{Cpu, KernelError, ThreadBudget};
use conure_models::Attention;
use conure_speech::{RecogniseOptions, SpeechError};
use conure_tensor::DType;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of moments that are collected together; for more the recordings are heard again.
const AT_ONCE: usize = 1 << 30;

/// Seconds of a recording that are heard together.
const WINDOW: usize = 60;

/// Seconds with sound that are needed: of fewer, most of what is learnt would be chance.
const LEAST: f64 = 5.0;

/// Where every sample is below this (-60 dB), nothing is to be heard.
const SILENT: f32 = 1e-3;

/// A place in a model where rows are multiplied with matrices.
#[derive(Debug)]
struct Site {
    /// The first matrix that is multiplied with them.
    first: String,
    /// Values of a row.
    k: usize,
}

/// Why a model cannot be calibrated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CalibrationError {
    /// It is no speech model.
    #[error(
        "{model}: it is a language model, and only speech models are calibrated: quantise it without recordings"
    )]
    Language {
        /// The model's file.
        model: String,
    },
    /// Its weights are rounded already.
    #[error(
        "{model}: its tensor `{tensor}` is {dtype} already: give the model in f32 or f16 that it was made of"
    )]
    Quantised {
        /// The model's file.
        model: String,
        /// The first such tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
    },
    /// Too little was heard to learn from.
    #[error(
        "the recordings to calibrate with have {seconds:.1} s with sound together, and {least:.0} s are the least: give some \
         minutes of speech such as the model is to hear"
    )]
    TooShort {
        /// Seconds of them in which there is sound.
        seconds: f64,
        /// Seconds that are needed.
        least: f64,
    },
}

/// How a model hears recordings to be calibrated.
#[derive(Clone, Default)]
pub struct CalibrationOptions {
    /// Where its threads come from.
    pub budget: ThreadBudget,
    /// Ends the work soon after it is set.
    pub cancel: Option<Arc<AtomicBool>>,
    /// Told before each recording how many of how many are heard; they are heard again for every 1 GiB of what is learnt.
    pub progress: Option<Arc<dyn Fn(usize, usize) + Send + Sync>>,
}

impl fmt::Debug for CalibrationOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CalibrationOptions").field("budget", &self.budget).finish_non_exhaustive()
    }
}

/// A speech model and recordings that it hears: what its matrices are multiplied with then.
///
/// `conure_convert::quantise` rounds weights with it so that their products change least:
///
/// ```
/// use conure::{Calibration, FileClip};
/// use conure_convert::{Calibrated, QuantiseOptions, TargetType, quantise};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// # let model = format!("{root}/tests/data/oracle/hybrid_tdt80.gguf");
/// # let clip = format!("{root}/samples/speech.wav");
/// # let dir = tempfile::tempdir()?;
/// # let output = dir.path().join("small.gguf");
/// let clips = vec![FileClip { path: clip.into(), ..FileClip::default() }];
/// let recordings = clips.len();
/// let calibration = Calibration::new(&model, clips, Default::default())?;
/// let moments = |tensor: &str| calibration.moments(tensor).map_err(Into::into);
/// let calibrated = Some(Calibrated { recordings, moments: &moments });
/// let options = QuantiseOptions { target: TargetType::Q4_0, calibrated, ..QuantiseOptions::default() };
/// let report = quantise(model.as_ref(), &output, &options)?;
/// assert!(report.tensors.iter().filter_map(|t| t.products).all(|p| p.stored <= p.nearest));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Calibration {
    model: SpeechModel,
    clips: Vec<FileClip>,
    options: CalibrationOptions,
    sites: Vec<Site>,
    /// The site of each matrix.
    by_name: HashMap<String, usize>,
    /// Matrices in the order of the file.
    order: Vec<String>,
    kept: Mutex<HashMap<usize, Arc<Moments>>>,
    /// Bytes of moments that are collected together.
    at_once: usize,
}

impl Calibration {
    /// Those of the model in the GGUF file at `path`, on the CPU and in f32.
    ///
    /// # Errors
    /// As [`SpeechModel::load`]; [`CalibrationError`] for a model that cannot be calibrated.
    pub fn new(
        path: impl AsRef<Path>,
        clips: Vec<FileClip>,
        options: CalibrationOptions,
    ) -> Result<Calibration, Error> {
        let path = path.as_ref();
        let load = LoadOptions {
            device: Some("cpu".to_owned()),
            budget: options.budget.clone(),
            // As the model is built: every product is an op of its own.
            passes: Passes::none(),
            ..LoadOptions::default()
        };
        let file = crate::model::open(path, &load)?;
        let model = || path.display().to_string();
        if LanguageModel::is_in(path)? {
            return Err(CalibrationError::Language { model: model() }.into());
        }
        let tensors: Vec<(String, DType)> = file
            .tensors()
            .iter()
            .map(|t| Ok((t.name.clone(), file.tensor(&t.name)?.dtype)))
            .collect::<Result<_, Error>>()?;
        drop(file);
        if let Some((tensor, dtype)) = tensors.iter().find(|(_, dtype)| dtype.is_quantised()) {
            let (tensor, dtype) = (tensor.clone(), *dtype);
            return Err(CalibrationError::Quantised { model: model(), tensor, dtype }.into());
        }
        let mut found = Calibration {
            model: SpeechModel::load_with(path, &load)?,
            clips,
            options,
            sites: Vec::new(),
            by_name: HashMap::new(),
            order: tensors.into_iter().map(|(name, _)| name).collect(),
            kept: Mutex::default(),
            at_once: AT_ONCE,
        };
        for program in found.programs()? {
            found.look_at(program.graph());
        }
        Ok(found)
    }

    fn programs(&self) -> Result<Vec<Arc<Program>>, Error> {
        let model = self.model.recogniser().model();
        let mut programs = vec![model.encoder(Attention::Model).map_err(SpeechError::from)?];
        if model.config().transducer.is_some() {
            match model.tabulated_predictor().map_err(SpeechError::from)? {
                Some(parts) => programs.extend([parts.gates, parts.step]),
                None => programs.push(model.predictor().map_err(SpeechError::from)?),
            }
            programs.push(model.joint().map_err(SpeechError::from)?);
        }
        Ok(programs)
    }

    /// Finds the sites of a graph.
    fn look_at(&mut self, graph: &Graph) {
        let mut sites: HashMap<ValueId, usize> = HashMap::new();
        for node in graph.nodes() {
            if let NodeOp::TileTime(tiles) = &node.op {
                self.look_at(&tiles.body);
            }
            for (name, x, _) in graph.products(node) {
                let shape = graph.value(x).map(|v| &v.ty.shape);
                let Some(k) = shape.and_then(|s| s.iter().last()).and_then(|(_, d)| d.as_constant()) else {
                    continue;
                };
                let site = *sites.entry(x).or_insert_with(|| {
                    self.sites.push(Site { first: name.to_owned(), k });
                    self.sites.len() - 1
                });
                self.by_name.insert(name.to_owned(), site);
            }
        }
    }

    /// The moments of the rows that the matrix of this name is multiplied with; `None` if it is not multiplied with any. Where they
    /// are not known yet, the model hears the recordings for those of this matrix and of as many after it in the file as 1 GiB holds.
    ///
    /// # Errors
    /// Recordings that cannot be read, [`CalibrationError::TooShort`], cancellation.
    pub fn moments(&self, tensor: &str) -> Result<Option<Arc<Moments>>, Error> {
        let Some(&site) = self.by_name.get(tensor) else { return Ok(None) };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.contains_key(&site) {
            kept.clear();
            *kept = self.collect(&self.group(tensor))?;
        }
        Ok(kept.get(&site).cloned())
    }

    /// The sites of matrices from this one on that fit together.
    fn group(&self, tensor: &str) -> Vec<usize> {
        let (mut group, mut bytes) = (Vec::new(), 0usize);
        for name in self.order.iter().skip_while(|n| *n != tensor) {
            let Some(&site) = self.by_name.get(name) else { continue };
            if group.contains(&site) {
                continue;
            }
            bytes = bytes.saturating_add(Moments::bytes(self.sites[site].k));
            if bytes > self.at_once && !group.is_empty() {
                break;
            }
            group.push(site);
        }
        group
    }

    /// Hears all recordings for these sites.
    fn collect(&self, group: &[usize]) -> Result<HashMap<usize, Arc<Moments>>, Error> {
        let recogniser = self.model.recogniser();
        let kernel = |e: KernelError| Error::from(SpeechError::from(e));
        let mut moments = HashMap::new();
        for &site in group {
            moments.insert(self.sites[site].first.clone(), Moments::new(self.sites[site].k).map_err(kernel)?);
        }
        let collected = Mutex::new(Collected { moments, failed: None });
        let listener = Arc::new(Listener { cpu: recogniser.cpu().clone(), collected });
        let observer: Arc<dyn Observer> = listener.clone();
        // What the predictor makes of tokens is kept: those of an earlier hearing would not be computed again.
        recogniser.shrink();
        let mut heard = 0.0;
        for (done, clip) in self.clips.iter().enumerate() {
            if let Some(progress) = &self.options.progress {
                progress(done, self.clips.len());
            }
            heard += self.hear(clip, &observer)?;
        }
        if heard < LEAST {
            return Err(CalibrationError::TooShort { seconds: heard, least: LEAST }.into());
        }
        recogniser.shrink();
        let mut collected = listener.collected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = collected.failed.take() {
            return Err(kernel(error));
        }
        let mut done = HashMap::new();
        for &site in group {
            if let Some(mut moments) = collected.moments.remove(&self.sites[site].first) {
                moments.settle(recogniser.cpu()).map_err(kernel)?;
                done.insert(site, Arc::new(moments));
            }
        }
        Ok(done)
    }

    /// Hears a recording window by window; seconds of those with sound.
    fn hear(&self, clip: &FileClip, observer: &Arc<dyn Observer>) -> Result<f64, Error> {
        let rate = self.model.sample_rate();
        let window = WINDOW * rate as usize;
        let options = RecogniseOptions { cancel: self.options.cancel.clone(), ..RecogniseOptions::default() };
        let mut blocks = Blocks::open(AudioSource::path(&clip.path), rate, &clip.audio)?;
        let (mut samples, mut heard, mut more) = (Vec::new(), 0usize, true);
        while more {
            while more && samples.len() < window {
                more = blocks.next(&mut samples)?;
            }
            let rest = samples.split_off(samples.len().min(window));
            let piece = std::mem::replace(&mut samples, rest);
            if self.options.cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed)) {
                return Err(SpeechError::Cancelled.into());
            }
            // The rest of a recording may be a moment, of which padding would make a second.
            let short = heard > 0 && piece.len() < rate as usize;
            if !short && piece.iter().any(|s| s.abs() >= SILENT) {
                self.model.recogniser().observe(&piece, &options, observer)?;
                heard += piece.len();
            }
        }
        Ok(heard as f64 / f64::from(rate))
    }
}

/// Collects the moments of sites, by their first matrix.
#[derive(Debug)]
struct Listener {
    cpu: Arc<Cpu>,
    collected: Mutex<Collected>,
}

#[derive(Debug)]
struct Collected {
    moments: HashMap<String, Moments>,
    failed: Option<KernelError>,
}

impl Observer for Listener {
    fn step(&self, step: &StepDone<'_>) {
        let mut collected = self.collected.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, _, at) in step.products() {
            let Some(moments) = collected.moments.get_mut(name) else { continue };
            let Some(x) = step.input(at) else { continue };
            let Ok(x) = x.as_slice::<f32>() else { continue };
            if let Err(error) = moments.add(&self.cpu, x) {
                collected.failed = Some(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_learnt_does_not_depend_on_how_much_of_it_is_learnt_together() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let clip = FileClip { path: root.join("samples/speech.wav"), ..FileClip::default() };
        let model = root.join("tests/data/oracle/hybrid_tdt80.gguf");
        let calibration = |at_once| {
            let made = Calibration::new(&model, vec![clip.clone()], CalibrationOptions::default()).unwrap();
            Calibration { at_once, ..made }
        };
        let (together, alone) = (calibration(AT_ONCE), calibration(1));
        let cpu = together.model.recogniser().cpu().clone();
        let first = "encoder.layers.0.feed_forward1.linear1.weight";
        assert_eq!(together.group(together.order.first().unwrap()).len(), together.sites.len());
        assert_eq!(alone.group(first).len(), 1);
        for name in [
            "encoder.pre_encode.out.weight",
            first,
            "encoder.layers.1.self_attn.linear_pos.weight",
            "ctc_decoder.decoder_layers.0.weight",
            // The predictor computes what it makes of a token once, and keeps it.
            "decoder.prediction.dec_rnn.lstm.weight_ih_l0",
            "decoder.prediction.dec_rnn.lstm.weight_hh_l0",
            "joint.joint_net.2.weight",
        ] {
            let [a, b] = [&together, &alone].map(|c| c.moments(name).unwrap().unwrap());
            assert!(a.rows() > 0 && a.rows() == b.rows(), "{name}: {} {}", a.rows(), b.rows());
            let probe: Vec<f32> = (0..a.k()).map(|i| (i as f32).sin()).collect();
            assert_eq!(a.changes(&cpu, &probe).unwrap(), b.changes(&cpu, &probe).unwrap(), "{name}");
        }
        // Query, key and value are multiplied with the same rows.
        let of = |name: &str| together.by_name[&format!("encoder.layers.0.self_attn.{name}.weight")];
        assert_eq!((of("linear_q"), of("linear_k")), (of("linear_k"), of("linear_v")));
        assert_ne!(of("linear_q"), of("linear_out"));
    }
}
