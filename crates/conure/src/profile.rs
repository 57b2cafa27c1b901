//! Where the time of a run goes: per op, per layer and per node, with operations, bytes and the part of the machine's
//! peak that was reached.

use crate::audio::{Recording, Samples};
use crate::bench::milliseconds;
use crate::error::Error;
use crate::model::SpeechModel;
use conure_graph::{Graph, KernelDone, Observer, StepDone};
use conure_kernels::roofline::Roofline;
use conure_speech::{RecogniseOptions, SpeechError};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Most steps that a trace holds: an hour of speech with a transducer has about a million.
const MAX_EVENTS: usize = 1 << 20;

/// What some steps took together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Share {
    /// The op, the layer, or the path and op of the node.
    pub name: String,
    /// Kernel calls.
    pub calls: u64,
    /// Milliseconds.
    pub ms: f64,
    /// Part of the time of all steps.
    pub share: f64,
    /// Nominal operations, in 10^9.
    pub gflop: f64,
    /// These a second.
    pub gflops: f64,
    /// Bytes that were read and written at least, in 10^9.
    pub gb: f64,
    /// These a second.
    pub gbs: f64,
    /// The greater of the parts of the machine's peaks that were reached: f32 products, and reading memory. More than 1
    /// where data stays in caches, or weights are narrower than f32.
    pub of_peak: f64,
}

/// A step in the form of Chrome's trace viewer (`chrome://tracing`, Perfetto). Times are microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceEvent {
    /// The op.
    pub name: &'static str,
    /// The layer.
    pub cat: String,
    /// `X`: a step with begin and length.
    pub ph: &'static str,
    /// When it began.
    pub ts: f64,
    /// How long it took.
    pub dur: f64,
    /// The process: 1.
    pub pid: u32,
    /// The thread: 1.
    pub tid: u32,
    /// Path of the node.
    pub args: TraceArgs,
}

/// What else is known of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceArgs {
    /// Path of the node.
    pub path: String,
    /// Nominal operations.
    pub flops: f64,
    /// Bytes.
    pub bytes: u64,
}

/// Where the time of some runs went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shares {
    /// By op, the longest first.
    pub ops: Vec<Share>,
    /// By layer, in the order in which they run.
    pub layers: Vec<Share>,
    /// By node, in the order in which they run.
    pub nodes: Vec<Share>,
    /// By kernel of a device that runs the model in pieces, the longest first.
    pub kernels: Vec<Share>,
    /// By layer of such a device, with its kernel, in the order in which they run.
    pub device_layers: Vec<Share>,
}

/// What `run` does, once with a clock at every step: its result, where the time went, and every step.
pub(crate) fn watched<T>(
    peak: &Roofline,
    run: impl FnOnce(Arc<dyn Observer>) -> Result<T, Error>,
) -> Result<(T, Shares, Vec<TraceEvent>), Error> {
    let collected = Mutex::new(Collected::default());
    let collector = Arc::new(Collector { begun: Instant::now(), collected });
    let result = run(collector.clone())?;
    let mut collected = collector.collected.lock().unwrap_or_else(PoisonError::into_inner);
    let trace = std::mem::take(&mut collected.trace);
    let totals = &collected.totals;
    let mut ops = grouped(totals, |t| t.op.to_owned(), peak);
    ops.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    let [kernels, device_layers] = kernel_shares(&collected.kernels);
    let layers = grouped(totals, layer, peak);
    let nodes = grouped(totals, |t| format!("{}: {}", t.path, t.op), peak);
    Ok((result, Shares { ops, layers, nodes, kernels, device_layers }, trace))
}

/// Where the time of a run went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// The model's file.
    pub model: String,
    /// What it ran on.
    pub device: String,
    /// The instruction set of the CPU's kernels.
    pub isa: &'static str,
    /// Threads.
    pub threads: usize,
    /// Seconds of audio.
    pub audio_s: f64,
    /// Log-mel features.
    pub features_ms: f64,
    /// The encoder.
    pub encoder_ms: f64,
    /// The decoder.
    pub decoder_ms: f64,
    /// All steps of encoder, predictor and joint; what is missing to the two is what lies between steps.
    pub steps_ms: f64,
    /// The machine's peak in f32 products, in 10^9 operations a second.
    pub peak_gflops: f64,
    /// The machine's peak in reading memory, in 10^9 bytes a second.
    pub peak_gbs: f64,
    /// By op, the longest first.
    pub ops: Vec<Share>,
    /// By layer, in the order in which they run.
    pub layers: Vec<Share>,
    /// By node, in the order in which they run.
    pub nodes: Vec<Share>,
    /// By kernel of a device that runs the model in pieces, the longest first; empty on the CPU, whose kernels are its ops.
    /// Operations and bytes are not known.
    pub kernels: Vec<Share>,
    /// By layer of such a device, with its kernel, in the order in which they run.
    pub device_layers: Vec<Share>,
    /// Every step of the run, up to a million.
    #[serde(skip)]
    pub trace: Vec<TraceEvent>,
}

/// A node and what it took.
#[derive(Debug)]
struct Total {
    op: &'static str,
    path: String,
    calls: u64,
    nanos: u64,
    flops: f64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Collected {
    /// Place in `totals` by graph and node.
    places: HashMap<(usize, usize), usize>,
    totals: Vec<Total>,
    trace: Vec<TraceEvent>,
    /// Calls and nanoseconds by layer, kind and kernel.
    kernels: HashMap<(String, String, String), (usize, u64, u64)>,
}

#[derive(Debug)]
struct Collector {
    begun: Instant,
    collected: Mutex<Collected>,
}

impl Observer for Collector {
    fn wants_time(&self) -> bool {
        true
    }

    fn kernel(&self, done: &KernelDone) {
        let mut collected = self.collected.lock().unwrap_or_else(PoisonError::into_inner);
        let place = collected.kernels.len();
        let key = (done.layer.clone(), done.kind.clone(), done.kernel.clone());
        let (_, calls, nanos) = collected.kernels.entry(key).or_insert((place, 0, 0));
        *calls += 1;
        *nanos += done.nanos;
    }

    fn step(&self, step: &StepDone<'_>) {
        let nanos = step.nanos.unwrap_or(0);
        let end = self.begun.elapsed().as_secs_f64() * 1e6;
        let (flops, bytes) = (step.flops(), step.bytes());
        let mut collected = self.collected.lock().unwrap_or_else(PoisonError::into_inner);
        let Collected { places, totals, trace, .. } = &mut *collected;
        // The body of a tiled node is a graph of its own; graphs stay where they are while a model is loaded.
        let key = (std::ptr::from_ref::<Graph>(step.graph) as usize, step.index);
        let at = *places.entry(key).or_insert_with(|| {
            let (op, path) = (step.node.op_name(), step.node.path.clone());
            totals.push(Total { op, path, calls: 0, nanos: 0, flops: 0.0, bytes: 0 });
            totals.len() - 1
        });
        let total = &mut totals[at];
        total.calls += 1;
        total.nanos += nanos;
        total.flops += flops;
        total.bytes += bytes;
        if trace.len() < MAX_EVENTS {
            let dur = nanos as f64 * 1e-3;
            trace.push(TraceEvent {
                name: total.op,
                cat: layer(total),
                ph: "X",
                ts: (end - dur).max(0.0),
                dur,
                pid: 1,
                tid: 1,
                args: TraceArgs { path: total.path.clone(), flops, bytes },
            });
        }
    }
}

/// The layer that a node is of: `encoder.layers.3`, `encoder.pre_encode`, `joint.enc`; its op where it has no path.
fn layer(total: &Total) -> String {
    let mut parts = total.path.split('.');
    let first: Vec<&str> = parts.by_ref().take(2).collect();
    match (first.as_slice(), parts.next()) {
        ([""], _) => total.op.to_owned(),
        ([a, "layers"], Some(n)) => format!("{a}.layers.{n}"),
        (list, _) => list.join("."),
    }
}

/// Adds totals by name, in the order in which names come first.
fn grouped(totals: &[Total], name: impl Fn(&Total) -> String, peak: &Roofline) -> Vec<Share> {
    let all: u64 = totals.iter().map(|t| t.nanos).sum();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut shares: Vec<Share> = Vec::new();
    for total in totals {
        let name = name(total);
        let at = *places.entry(name.clone()).or_insert_with(|| {
            shares.push(Share { name, ..Share::default() });
            shares.len() - 1
        });
        let share = &mut shares[at];
        share.calls += total.calls;
        share.ms += total.nanos as f64 * 1e-6;
        share.gflop += total.flops * 1e-9;
        share.gb += total.bytes as f64 * 1e-9;
    }
    for share in &mut shares {
        let seconds = (share.ms * 1e-3).max(1e-9);
        share.share = share.ms * 1e6 / (all.max(1) as f64);
        (share.gflops, share.gbs) = (share.gflop / seconds, share.gb / seconds);
        share.of_peak = (share.gflops * 1e9 / peak.f32).max(share.gbs * 1e9 / peak.bandwidth);
    }
    shares
}

/// Kernels of a device: by kernel, the longest first, and by layer in their order.
fn kernel_shares(kernels: &HashMap<(String, String, String), (usize, u64, u64)>) -> [Vec<Share>; 2] {
    let mut rows: Vec<_> = kernels.iter().collect();
    rows.sort_by_key(|(_, (place, ..))| *place);
    let all: u64 = rows.iter().map(|(_, (.., nanos))| nanos).sum();
    let share = |name: String, calls: u64, nanos: u64| Share {
        name,
        calls,
        ms: nanos as f64 * 1e-6,
        share: nanos as f64 / all.max(1) as f64,
        ..Share::default()
    };
    let mut by_kernel: Vec<Share> = Vec::new();
    for ((_, kind, kernel), (_, calls, nanos)) in &rows {
        let one = share(format!("{kind}: {kernel}"), *calls, *nanos);
        match by_kernel.iter_mut().find(|s| s.name == one.name) {
            Some(s) => (s.calls, s.ms, s.share) = (s.calls + one.calls, s.ms + one.ms, s.share + one.share),
            None => by_kernel.push(one),
        }
    }
    by_kernel.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    let of_layer =
        |((layer, kind, kernel), (_, calls, nanos)): &(&(String, String, String), &(usize, u64, u64))| {
            share(format!("{layer}: {kind}: {kernel}"), *calls, *nanos)
        };
    [by_kernel, rows.iter().map(of_layer).collect()]
}

impl SpeechModel {
    /// Recognises a recording twice, the second time with a clock at every step.
    ///
    /// # Errors
    /// As [`SpeechModel::transcribe`].
    pub fn profile(&self, recording: &Recording, options: &RecogniseOptions) -> Result<Profile, Error> {
        let samples = Samples::mono(&recording.samples, recording.sample_rate).at(self.sample_rate())?;
        let recogniser = self.recogniser();
        recogniser.measure(&samples, options, None)?;
        let peak = Roofline::measure(recogniser.cpu()).map_err(SpeechError::from)?;
        let (times, shares, trace) =
            watched(&peak, |observer| Ok(recogniser.measure(&samples, options, Some(&observer))?.1))?;
        let Shares { ops, layers, nodes, kernels, device_layers } = shares;
        Ok(Profile {
            model: self.info().file.clone(),
            device: recogniser.device().name().to_owned(),
            isa: recogniser.cpu().isa().name(),
            threads: recogniser.cpu().threads().count(),
            audio_s: samples.len() as f64 / f64::from(self.sample_rate()),
            features_ms: milliseconds(times.features),
            encoder_ms: milliseconds(times.encoder),
            decoder_ms: milliseconds(times.decoder),
            steps_ms: nodes.iter().map(|n| n.ms).sum(),
            peak_gflops: peak.f32 * 1e-9,
            peak_gbs: peak.bandwidth * 1e-9,
            ops,
            layers,
            nodes,
            kernels,
            device_layers,
            trace,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(op: &'static str, path: &str, nanos: u64) -> Total {
        Total { op, path: path.into(), calls: 1, nanos, flops: 2e6, bytes: 1_000_000 }
    }

    #[test]
    fn layers_are_what_people_call_layers() {
        for (path, expected) in [
            ("encoder.layers.11.conv.pointwise_conv1", "encoder.layers.11"),
            ("encoder.pre_encode.conv.0", "encoder.pre_encode"),
            ("joint.enc", "joint.enc"),
            ("joint", "joint"),
            ("", "glu"),
        ] {
            assert_eq!(layer(&total("glu", path, 1)), expected, "{path}");
        }
    }

    #[test]
    fn shares_add_up_and_rates_follow() {
        let peak = Roofline { f32: 4e9, f16: 1.0, q8_0: 1.0, int8: 1.0, bandwidth: 1e9 };
        let totals = [total("a", "x", 1_000_000), total("b", "y", 2_000_000), total("a", "z", 1_000_000)];
        let shares = grouped(&totals, |t| t.op.to_owned(), &peak);
        assert_eq!(
            shares.iter().map(|s| (s.name.as_str(), s.calls)).collect::<Vec<_>>(),
            [("a", 2), ("b", 1)]
        );
        assert!((shares[0].share - 0.5).abs() < 1e-9 && (shares[0].ms - 2.0).abs() < 1e-9);
        // 2 GFLOP/s of 4, and 1 GB/s of 1
        assert!((shares[0].gflops - 2.0).abs() < 1e-9 && (shares[0].of_peak - 1.0).abs() < 1e-9);
    }
}
