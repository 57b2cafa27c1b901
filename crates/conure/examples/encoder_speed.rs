//! Times the encoder with its CTC head in the steady state, beside the machine's own GEMM rate in the same process.
//!
//! `cargo run --release -p conure --example encoder_speed -- MODEL.gguf [--threads N] [--seconds S] [--runs N] [--steps]
//! [--device openvino:CPU] [--precision fast]`
//!
//! `--steps` lists what the time goes to; with `CONURE_OPENVINO_PROFILING=1` also OpenVINO's kernels.
//!
//! With `--serve` it waits for lines on its input instead and answers each with the milliseconds of one run, so that a
//! program can take turns with other engines (`scripts/peers.py`). `dump FILE` as a line writes the log-probabilities of
//! the last run as f32; `rss` answers the peak resident memory in MiB.
#![allow(clippy::print_stdout)] // a program that answers its caller

use conure_gguf::GgufFile;
use conure_graph::openvino::OpenVinoOptions;
use conure_graph::{Device, KernelDone, Observer, Passes, Registry, Session, StepDone};
use conure_kernels::gemm::{Epilogue, PackedMatrix, linear};
use conure_kernels::{Cpu, Precision, Threads};
use conure_models::{Attention, Parakeet};
use conure_tensor::{Bindings, Symbol, TensorView};
use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::io::BufRead;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Time and nominal operations of the steps of each kind: an op, the last part of its node's path, its output's shape.
#[derive(Debug, Default)]
struct Steps(Mutex<BTreeMap<String, (u64, u64, f64)>>);

impl Observer for Steps {
    fn wants_time(&self) -> bool {
        true
    }

    fn step(&self, step: &StepDone<'_>) {
        let path = step.node.path.as_str();
        let kind = format!(
            "{} {}",
            step.node.op_name(),
            path.rsplit('.').find(|p| p.parse::<u32>().is_err()).unwrap_or(path)
        );
        self.add(kind, step.nanos.unwrap_or(0), step.flops());
    }

    fn kernel(&self, kernel: &KernelDone) {
        self.add(format!("{}: {}", kernel.kind, kernel.kernel), kernel.nanos, 0.0);
    }
}

impl Steps {
    fn add(&self, kind: String, nanos: u64, flops: f64) {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = kinds.entry(kind).or_default();
        *entry = (entry.0 + 1, entry.1 + nanos, entry.2 + flops);
    }

    fn print(&self, runs: usize) {
        let kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kinds: Vec<_> = kinds.iter().collect();
        kinds.sort_by_key(|(_, k)| std::cmp::Reverse(k.1));
        let all: u64 = kinds.iter().map(|(_, k)| k.1).sum();
        for (name, &(calls, nanos, flops)) in kinds {
            println!(
                "{name:>40} {:6.1} calls {:9.3} ms {:5.1} % {:7.1} GFLOP/s",
                calls as f64 / runs as f64,
                nanos as f64 * 1e-6 / runs as f64,
                nanos as f64 * 100.0 / all as f64,
                flops / nanos as f64,
            );
        }
    }
}

/// What the head of the encoder gives.
const OUTPUT: &str = "ctc.log_probs";

struct Options {
    model: String,
    threads: usize,
    seconds: f64,
    runs: usize,
    serve: bool,
    steps: bool,
    device: String,
    precision: Precision,
}

fn options() -> Outcome<Options> {
    let (model, threads, precision) = (String::new(), Threads::default_count(), Precision::Exact);
    let mut options = Options {
        model,
        threads,
        seconds: 7.4,
        runs: 10,
        serve: false,
        steps: false,
        device: "cpu".into(),
        precision,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} wants a value"));
        match arg.as_str() {
            "--threads" => options.threads = value()?.parse()?,
            "--seconds" => options.seconds = value()?.parse()?,
            "--runs" => options.runs = value()?.parse()?,
            "--device" => options.device = value()?,
            "--precision" => options.precision = value()?.parse()?,
            "--serve" => options.serve = true,
            "--steps" => options.steps = true,
            _ => options.model = arg,
        }
    }
    if options.model.is_empty() { Err("which model?".into()) } else { Ok(options) }
}

/// An encoder with an input of so many frames: numbers like normalised log-mel features, the same as `scripts/peers.py`
/// makes.
struct Encoder {
    session: Session,
    bindings: Bindings,
    shape: [usize; 3],
    features: Vec<f32>,
}

impl Encoder {
    fn new(model: &Parakeet, device: &Device, cpu: Arc<Cpu>, seconds: f64) -> Outcome<Encoder> {
        let mels = model.config().feat_in;
        let frames = (seconds * 100.0) as usize + 1;
        let features = (0..frames * mels).map(|i| ((i % 10_007) as f32 * 0.731).sin() * 1.5).collect();
        let session = Session::on(model.encoder(Attention::Model)?, device, cpu)?;
        let bindings = Bindings::new().with(Symbol::new("B"), 1).with(Symbol::new("T"), frames);
        Ok(Encoder { session, bindings, shape: [1, frames, mels], features })
    }

    /// Milliseconds of a run.
    fn run(&mut self) -> Outcome<f64> {
        let lengths = [self.shape[1] as i32];
        let inputs = [
            ("log_mel", TensorView::of(&self.shape, &self.features)?),
            ("lengths", TensorView::of(&[1], &lengths)?),
        ];
        let start = Instant::now();
        black_box(self.session.run_capturing(&self.bindings, &inputs, &[OUTPUT])?);
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }
}

/// The best GFLOP/s of the encoder's product shapes at this many rows and at many.
fn gemm_peak(cpu: &Cpu) -> Outcome<f64> {
    let mut best = 0f64;
    for (m, n, k) in [(93, 512, 512), (93, 2048, 512), (744, 2048, 512), (744, 512, 512), (512, 512, 512)] {
        let wave = |n: usize| (0..n).map(|i| (i as f32 * 0.731).sin()).collect::<Vec<f32>>();
        let weights = PackedMatrix::from_f32(cpu, &wave(n * k), n, k)?;
        let (x, mut out) = (wave(m * k), vec![0.0; m * n]);
        for _ in 0..(4e9 / (2.0 * (m * n * k) as f64)) as usize + 1 {
            let start = Instant::now();
            linear(cpu, black_box(&x), m, &weights, &Epilogue::default(), &mut out)?;
            best = best.max(2e-9 * (m * n * k) as f64 / start.elapsed().as_secs_f64());
        }
    }
    Ok(best)
}

/// Peak resident memory in MiB, where the system tells.
fn peak_rss() -> f64 {
    conure::peak_memory().map_or(0.0, |bytes| bytes as f64 / 1_048_576.0)
}

fn serve(encoder: &mut Encoder) -> Outcome<()> {
    println!("{:.3}", encoder.run()?);
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ') {
            None if line == "rss" => println!("{:.1}", peak_rss()),
            Some(("dump", path)) => {
                let outputs = encoder.session.outputs()?;
                std::fs::write(path, outputs.get(OUTPUT)?.bytes())?;
                println!("ok");
            }
            _ => println!("{:.3}", encoder.run()?),
        }
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let options = options()?;
    let file = Arc::new(GgufFile::open(&options.model)?);
    let cpu = Arc::new(Cpu::detect(Some(options.threads))?.with_precision(options.precision));
    let openvino = OpenVinoOptions { threads: Some(options.threads), ..OpenVinoOptions::from_env()? };
    let device = Registry::probe_with(openvino).pick(Some(&options.device))?;
    let model = Parakeet::load_with(file, &options.model, &Passes::default().for_device(&device))?;
    let mut encoder = Encoder::new(&model, &device, cpu.clone(), options.seconds)?;
    if options.serve {
        return serve(&mut encoder);
    }
    let first = encoder.run()?;
    let mut times = Vec::new();
    let mut peak = gemm_peak(&cpu)?;
    for _ in 0..options.runs {
        times.push(encoder.run()?);
    }
    if options.steps {
        let steps = Arc::new(Steps::default());
        encoder.session.set_observer(Some(steps.clone()));
        for _ in 0..options.runs {
            encoder.run()?;
        }
        steps.print(options.runs);
        encoder.session.set_observer(None);
    }
    peak = peak.max(gemm_peak(&cpu)?);
    times.sort_by(f64::total_cmp);
    let (best, median) = (times[0], times[times.len() / 2]);
    println!(
        "{:.1} s, {} threads: first {first:.0} ms, best {best:.2} ms, median {median:.2} ms; GEMM peak {peak:.0} GFLOP/s; \
         arena {:.1} MiB, peak memory {:.0} MiB",
        options.seconds,
        options.threads,
        encoder.session.arena_bytes() as f64 / 1_048_576.0,
        peak_rss(),
    );
    Ok(())
}
