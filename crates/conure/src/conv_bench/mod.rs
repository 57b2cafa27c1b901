//! Convolutions written as im2col and products, run so and fused.

mod cases;

use crate::error::Error;
use cases::{Built, CASES};
use conure_graph::openvino::OpenVinoOptions;
use conure_graph::{Graph, GraphError, Passes, Program, Registry, Session, run_reference};
use conure_kernels::{Cpu, Threads};
use conure_ops::openvino::Choices;
use conure_speech::SpeechError;
use conure_tensor::{Bindings, TensorView};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Greatest normalised squared error where everything is f32.
const LIMIT: f64 = 1e-10;
/// The same where im2col rounds the image to f16.
const LIMIT_HALF: f64 = 1e-6;

/// What to measure.
#[derive(Clone, Debug, Default)]
pub struct ConvBench {
    /// The device; `None`: as [`crate::LoadOptions::device`].
    pub device: Option<String>,
    /// Threads; `None`: as many as the process may use.
    pub threads: Option<usize>,
    /// Only cases whose name contains this.
    pub only: Option<String>,
    /// Turns of each case; `None`: as many as fit in two seconds, at least five.
    pub turns: Option<usize>,
    /// Ends the measurement when it is set.
    pub cancel: Option<Arc<AtomicBool>>,
}

/// One case measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConvFigure {
    /// Its name: `subsampling_f32`.
    pub case: String,
    /// The device.
    pub device: String,
    /// Threads.
    pub threads: usize,
    /// Milliseconds of the graph as it is written, the median over the turns.
    pub im2col_ms: f64,
    /// Milliseconds of the graph after the passes, likewise.
    pub fused_ms: f64,
    /// Milliseconds of the graph as it is written, each op by itself as an op-by-op lowering to the device gives it, where that
    /// differs from what Conure makes of im2col: on OpenVINO, whose operation for patches is slow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op_by_op_ms: Option<f64>,
    /// The median over the turns of that time by the fused form's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op_by_op_ratio: Option<f64>,
    /// The median over the turns of im2col's time by the fused form's: what fusing gains.
    pub ratio: f64,
    /// Squared error over squared size, against the f32 reference, of the form that is further off.
    pub nmse: f64,
}

/// Runs convolutions as graphs from elsewhere write them (im2col, product, reshapes and transposes, bias and function) and after
/// `fuse_conv` and the passes around it, in turns, and holds both to the reference of the f32 form: the subsampling of a
/// FastConformer (1000 frames of 80 bins, 256 channels), the stem of Whisper (3000 frames of 80 bins, 384 wide), the patch embedding
/// of CLIP (224 x 224, patches of 16, 768 wide), a depthwise convolution of a Conformer, and a 3 x 3 of an image network.
///
/// # Errors
/// A device that is not there; a result that is too far from the reference; cancellation.
pub fn bench_convolutions(options: &ConvBench) -> Result<Vec<ConvFigure>, Error> {
    let threads = options.threads.map(|n| n.min(Threads::default_count().max(1)));
    let cpu = Arc::new(Cpu::detect(threads).map_err(SpeechError::from)?);
    let set = OpenVinoOptions { threads: Some(cpu.threads().count()), ..OpenVinoOptions::from_env()? };
    let device = Registry::probe_with(set.clone()).pick(options.device.as_deref())?;
    let choices = Choices { extract_patches: true, ..set.choices };
    let op_by_op = Registry::probe_with(OpenVinoOptions { choices, ..set }).pick(Some(device.name()))?;
    let wanted = |name: &str| options.only.as_ref().is_none_or(|part| name.contains(part.as_str()));
    let mut figures = Vec::new();
    for case in CASES.iter().filter(|c| wanted(c.name)) {
        let built = (case.build)(case.half)?;
        let reference = reference_of(&(case.build)(false)?)?;
        let session = |passes: &Passes, graph: Graph| {
            let program = Program::with_passes(graph, &passes.for_device(&device))?;
            Session::on(program, &device, cpu.clone())
        };
        let mut forms = vec![
            session(&Passes::none(), built.graph.clone())?,
            session(&Passes::default(), built.graph.clone())?,
        ];
        if device.name().starts_with("openvino:") {
            let program = Program::with_passes(built.graph.clone(), &Passes::none().for_device(&op_by_op))?;
            forms.push(Session::on(program, &op_by_op, cpu.clone())?);
        }
        let input = built.input.view();
        let inputs = [("x", input)];
        let mut nmse = 0.0f64;
        for session in &mut forms {
            let outputs = session.run(&Bindings::new(), &inputs)?;
            nmse = nmse.max(error_of(&outputs.get("y")?, &reference)?);
        }
        let limit = if case.half { LIMIT_HALF } else { LIMIT };
        if nmse.is_nan() || nmse > limit {
            let what = format!("{}: off by {nmse:e} of the reference, at most {limit:e} is right", case.name);
            return Err(GraphError::Build { what }.into());
        }
        let times = turns(&mut forms, &inputs, options)?;
        let of = |form: usize| move |turn: &Vec<f64>| turn.get(form).copied().unwrap_or(f64::NAN);
        let all = |form: usize| median(times.iter().map(of(form)).collect());
        let gain = |form: usize| median(times.iter().map(|t| of(form)(t) / of(1)(t)).collect());
        let third = forms.len() > 2;
        figures.push(ConvFigure {
            case: case.name.to_owned(),
            device: device.name().to_owned(),
            threads: cpu.threads().count(),
            im2col_ms: all(0),
            fused_ms: all(1),
            op_by_op_ms: third.then(|| all(2)),
            op_by_op_ratio: third.then(|| gain(2)),
            ratio: gain(0),
            nmse,
        });
    }
    Ok(figures)
}

fn reference_of(built: &Built) -> Result<Vec<f32>, Error> {
    let input = built.input.view();
    let mut outputs = run_reference(&built.graph, &Bindings::new(), &[("x", input)], &[])?;
    let y = outputs.remove("y").ok_or(GraphError::MissingInput { name: "y".into() })?;
    Ok(y.as_slice::<f32>()
        .map(<[f32]>::to_vec)
        .map_err(|source| GraphError::Tensor { path: "y".into(), source })?)
}

fn error_of(found: &TensorView<'_>, reference: &[f32]) -> Result<f64, GraphError> {
    let found = found.as_slice::<f32>().map_err(|source| GraphError::Tensor { path: "y".into(), source })?;
    let (mut error, mut size) = (0.0, 0.0);
    for (f, r) in found.iter().zip(reference) {
        error += (f64::from(*f) - f64::from(*r)).powi(2);
        size += f64::from(*r).powi(2);
    }
    Ok(if found.len() == reference.len() { error / size } else { f64::NAN })
}

/// Milliseconds of each form in each turn.
fn turns(
    forms: &mut [Session],
    inputs: &[(&str, TensorView<'_>)],
    options: &ConvBench,
) -> Result<Vec<Vec<f64>>, Error> {
    let begin = Instant::now();
    let mut times = Vec::new();
    let more = |done: usize| match options.turns {
        Some(turns) => done < turns.max(1),
        None => done < 5 || (begin.elapsed() < Duration::from_secs(2) && done < 200),
    };
    while more(times.len()) {
        if options.cancel.as_ref().is_some_and(|c| c.load(Ordering::Relaxed)) {
            return Err(GraphError::Cancelled.into());
        }
        let mut turn = Vec::with_capacity(forms.len());
        for session in forms.iter_mut() {
            let start = Instant::now();
            session.run(&Bindings::new(), inputs)?;
            turn.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.push(turn);
    }
    Ok(times)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_measured_and_held_to_its_reference() {
        let options =
            ConvBench { only: Some("conformer_depthwise".into()), turns: Some(1), ..Default::default() };
        let figures = bench_convolutions(&options).unwrap();
        assert_eq!(figures.len(), 1);
        let figure = &figures[0];
        assert!(figure.im2col_ms > 0.0 && figure.fused_ms > 0.0 && figure.ratio > 0.0);
        assert!(figure.nmse <= LIMIT, "{figure:?}");
        let stopped = ConvBench { cancel: Some(Arc::new(AtomicBool::new(true))), ..options };
        assert!(bench_convolutions(&stopped).unwrap_err().is_cancelled());
    }

    #[test]
    fn every_case_is_fused_whole() {
        for case in CASES {
            let built = (case.build)(case.half).unwrap();
            let fused = Passes::default().run(built.graph).unwrap();
            let left: Vec<&str> = fused.nodes().iter().map(|n| n.op_name()).collect();
            assert!(!left.contains(&"im2col") && !left.contains(&"matmul"), "{}: {left:?}", case.name);
            assert!(!left.contains(&"binary") && !left.contains(&"unary"), "{}: {left:?}", case.name);
        }
    }
}
