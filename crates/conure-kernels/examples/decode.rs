//! Prints how fast products of one row are, as a language model's token has them: all matrices of a model of 270M one after the
//! other, 247 MB, which no cache of a core holds; and by themselves, in the cache.
//!
//! `cargo run --release -p conure-kernels --example decode [THREADS [fast|exact]]`
#![allow(clippy::print_stdout)] // a program that prints a table

use std::error::Error;
use std::time::Instant;

use conure_kernels::gemm::{Epilogue, PackedMatrix, linear};
use conure_kernels::roofline::{bandwidth, fastest, wave};
use conure_kernels::{Cpu, Precision};
use conure_tensor::{DType, quant};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Layers of the model.
const LAYERS: usize = 18;

/// What a layer multiplies, in its order: a name, the type, outputs, inputs.
const LAYER: [(&str, DType, usize, usize); 7] = [
    ("q", DType::Q5_0, 1024, 640),
    ("k", DType::Q5_0, 256, 640),
    ("v", DType::Q8_0, 256, 640),
    ("output", DType::Q5_0, 640, 1024),
    ("gate", DType::Q5_0, 2048, 640),
    ("up", DType::Q5_0, 2048, 640),
    ("down", DType::Q4_K, 640, 2048),
];

/// `down` of every second layer.
const OTHER_DOWN: (&str, DType, usize, usize) = ("down", DType::Q6_K, 640, 2048);

/// The last product.
const HEAD: (&str, DType, usize, usize) = ("head", DType::Q8_0, 262_144, 640);

/// Rows that are encoded; matrices repeat them.
const PATTERN: usize = 64;

struct Matrix {
    name: &'static str,
    weights: PackedMatrix,
    bytes: usize,
    seconds: f64,
}

fn matrix(cpu: &Cpu, (name, dtype, n, k): (&'static str, DType, usize, usize)) -> Outcome<Matrix> {
    let bytes = quant::encoded(dtype, &wave(PATTERN * k))?.repeat(n / PATTERN);
    let weights = PackedMatrix::new(cpu, dtype, &bytes, n, k)?;
    Ok(Matrix { name, weights, bytes: bytes.len(), seconds: 0.0 })
}

/// Rounds that warm up, and those that are timed.
const ROUNDS: (usize, usize) = (2, 20);

/// Seconds of all products of a token, sorted; each matrix gets its own mean.
fn tokens(cpu: &Cpu, all: &mut [Matrix], x: &[f32], out: &mut [f32]) -> Outcome<Vec<f64>> {
    let mut totals = Vec::new();
    for round in 0..ROUNDS.0 + ROUNDS.1 {
        let begun = Instant::now();
        for m in all.iter_mut() {
            let start = Instant::now();
            multiply(cpu, m, x, out)?;
            if round >= ROUNDS.0 {
                m.seconds += start.elapsed().as_secs_f64() / ROUNDS.1 as f64;
            }
        }
        if round >= ROUNDS.0 {
            totals.push(begun.elapsed().as_secs_f64());
        }
    }
    totals.sort_by(f64::total_cmp);
    Ok(totals)
}

fn multiply(cpu: &Cpu, m: &Matrix, x: &[f32], out: &mut [f32]) -> Outcome<()> {
    let (n, k) = (m.weights.n(), m.weights.k());
    Ok(linear(cpu, &x[..k], 1, &m.weights, &Epilogue::default(), &mut out[..n])?)
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map_or(Ok(2), |n| n.parse())?;
    let precision = if args.next().as_deref() == Some("exact") { Precision::Exact } else { Precision::Fast };
    let cpu = Cpu::detect(Some(threads))?.with_precision(precision);
    let mut all = Vec::new();
    for layer in 0..LAYERS {
        let last = if layer % 2 == 1 { OTHER_DOWN } else { LAYER[6] };
        for which in LAYER[..6].iter().chain([&last]) {
            all.push(matrix(&cpu, *which)?);
        }
    }
    all.push(matrix(&cpu, HEAD)?);
    let (x, mut out) = (wave(2048), vec![0.0; HEAD.2]);
    let totals = tokens(&cpu, &mut all, &x, &mut out)?;
    let read = all.iter().map(|m| m.bytes).sum::<usize>();
    println!("{threads} thread(s), {precision:?}, {:.1} MB a token", read as f64 * 1e-6);
    println!("{:>16} {:>9} {:>9} {:>11}", "", "us each", "GB/s", "cached GB/s");
    let rate = |bytes: usize, seconds: f64| bytes as f64 / seconds * 1e-9;
    for (i, m) in all.iter().enumerate() {
        let alike = |other: &&Matrix| (other.name, other.weights.dtype()) == (m.name, m.weights.dtype());
        if all[..i].iter().any(|other| alike(&other)) {
            continue;
        }
        let same: Vec<f64> = all.iter().filter(alike).map(|m| m.seconds).collect();
        let mean = same.iter().sum::<f64>() / same.len() as f64;
        let cached = fastest(|| multiply(&cpu, m, &x, &mut out))?;
        let (name, us) = (format!("{} {}", m.name, m.weights.dtype()), mean * 1e6);
        println!("{name:>16} {us:>9.1} {:>9.1} {:>11.1}", rate(m.bytes, mean), rate(m.bytes, cached));
    }
    let (median, best) = (totals[totals.len() / 2], totals[0]);
    println!(
        "a token: median {:.2} ms {:.1} GB/s, best {:.2} ms {:.1} GB/s",
        median * 1e3,
        rate(read, median),
        best * 1e3,
        rate(read, best)
    );
    println!("reading such a buffer: {:.1} GB/s", bandwidth(&cpu, read)? * 1e-9);
    Ok(())
}
