//! Whether query, key and value are worth computing in one product instead of three: `cargo run --release -p conure-kernels
//! --example qkv [THREADS]`. Prints, for the shapes of real models, the time of three products over that of one with what taking
//! its output apart costs, and without that. The runs of both take turns.
#![allow(clippy::print_stdout)] // a program that answers its caller

use conure_kernels::gemm::{Epilogue, PackedMatrix, linear};
use conure_kernels::{Cpu, Result};
use conure_tensor::{DType, quant};
use std::hint::black_box;
use std::time::Instant;

/// Name, inner length, columns of query, key and value, rows, type of the weights.
type Shape = (&'static str, usize, [usize; 3], &'static [usize], DType);

const SHAPES: [Shape; 5] = [
    ("encoder of 110M", 512, [512; 3], &[94, 750], DType::F32),
    ("encoder of 110M", 512, [512; 3], &[94, 750], DType::F16),
    ("encoder of 600M", 1024, [1024; 3], &[94], DType::F32),
    ("decoder of 270M", 640, [1024, 256, 256], &[1, 64], DType::F16),
    ("decoder of 270M", 640, [1024, 256, 256], &[1, 64], DType::Q8_0),
];

fn packed(cpu: &Cpu, dtype: DType, values: &[f32], n: usize, k: usize) -> Result<PackedMatrix> {
    let mut bytes = vec![0; dtype.bytes_for(values.len()).unwrap_or(0)];
    let _ = quant::encode(dtype, values, &mut bytes);
    PackedMatrix::new(cpu, dtype, &bytes, n, k)
}

fn main() -> Result<()> {
    let cpu = Cpu::detect(std::env::args().nth(1).and_then(|n| n.parse().ok()))?;
    println!("{} threads, {}: three by one and its parts; three by one", cpu.threads().count(), cpu.isa());
    for (name, k, columns, rows, dtype) in SHAPES {
        let all: usize = columns.iter().sum();
        let wave = |n: usize| (0..n).map(|i| (i as f32 * 0.73).sin()).collect::<Vec<f32>>();
        let weights = wave(all * k);
        let whole = packed(&cpu, dtype, &weights, all, k)?;
        let mut rest = &weights[..];
        let parts = columns
            .iter()
            .map(|&n| {
                let (part, after) = rest.split_at(n * k);
                rest = after;
                packed(&cpu, dtype, part, n, k)
            })
            .collect::<Result<Vec<_>>>()?;
        for &t in rows {
            let x = wave(t * k);
            let mut together = vec![0.0; t * all];
            let mut outs = columns.map(|n| vec![0.0; t * n]);
            let mut ratios = Vec::new();
            for _ in 0..if t == 1 { 2000 } else { 60 } {
                let start = Instant::now();
                for (part, out) in parts.iter().zip(&mut outs) {
                    linear(&cpu, &x, t, part, &Epilogue::default(), out)?;
                }
                let three = start.elapsed().as_secs_f64();
                let start = Instant::now();
                linear(&cpu, &x, t, &whole, &Epilogue::default(), &mut together)?;
                let one = start.elapsed().as_secs_f64();
                // One row lies in parts already.
                if t > 1 {
                    for (row, all) in together.chunks_exact(all).enumerate() {
                        let mut at = 0;
                        for (out, n) in outs.iter_mut().zip(columns) {
                            out[row * n..(row + 1) * n].copy_from_slice(&all[at..at + n]);
                            at += n;
                        }
                    }
                }
                ratios.push((three / start.elapsed().as_secs_f64(), three / one));
                black_box((&together, &outs));
            }
            let median = |of: fn(&(f64, f64)) -> f64| {
                let mut all: Vec<f64> = ratios.iter().map(of).collect();
                all.sort_by(f64::total_cmp);
                all[all.len() / 2]
            };
            println!(
                "{name} K {k} N {columns:?} {dtype} T {t:4}: {:.3} {:.3}",
                median(|r| r.0),
                median(|r| r.1)
            );
        }
    }
    Ok(())
}
