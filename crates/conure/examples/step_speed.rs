//! Times steps of a transducer's decoder: the predictor's part that is computed once a token, the rest of it, and the joint.
//!
//! `cargo run --release -p conure --example step_speed -- MODEL.gguf [THREADS] [exact|fast|int8]`
#![allow(clippy::print_stdout)] // a program that answers its caller

use conure_gguf::GgufFile;
use conure_graph::Session;
use conure_kernels::{Cpu, Precision};
use conure_models::Parakeet;
use conure_tensor::{Bindings, Symbol, TensorView};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn median(mut f: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut times = Vec::new();
    for _ in 0..2000 {
        let start = Instant::now();
        f()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("which model?")?;
    let threads: usize = args.next().map_or(Ok(1), |n| n.parse())?;
    let model = Parakeet::load(Arc::new(GgufFile::open(&path)?), &path)?;
    let transducer = model.config().transducer.as_ref().ok_or("no transducer")?;
    let precision = args.next().map_or(Ok(Precision::Exact), |name| name.parse())?;
    let cpu = Arc::new(Cpu::detect(Some(threads))?.with_precision(precision));
    let bindings = Bindings::new().with(Symbol::new("B"), 1);
    let parts = model.tabulated_predictor()?.ok_or("no LSTM")?;
    let mut gates = Session::new(parts.gates, cpu.clone())?;
    let mut predictor = Session::new(parts.step, cpu.clone())?;
    let mut joint = Session::new(model.joint()?, cpu)?;
    let mut token = 0i32;
    let once = median(|| {
        token = (token + 7) % model.config().vocab_size as i32;
        let token = [token];
        gates.run(&bindings, &[("token", TensorView::of(&[1], &token)?)])?;
        Ok(())
    })?;
    let state = vec![0.1f32; transducer.pred_hidden];
    let row = vec![0.1f32; 4 * transducer.pred_hidden];
    let names: Vec<String> =
        (0..transducer.pred_layers).flat_map(|l| [format!("h{l}"), format!("c{l}")]).collect();
    let predict = median(|| {
        let mut inputs = vec![("predictor.gates", TensorView::of(&[1, row.len()], &row)?)];
        for name in &names {
            inputs.push((name, TensorView::of(&[1, state.len()], &state)?));
        }
        predictor.run(&bindings, &inputs)?;
        Ok(())
    })?;
    let row = vec![0.1f32; transducer.joint_hidden];
    let joint = median(|| {
        let row = || TensorView::of(&[1, row.len()], &row);
        joint.run(&bindings, &[("joint.enc", row()?), ("joint.pred", row()?)])?;
        Ok(())
    })?;
    println!("{threads} threads: once a token {once:.2} us, predictor {predict:.2} us, joint {joint:.2} us");
    Ok(())
}
