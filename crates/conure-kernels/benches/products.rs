//! How fast products are with weights of each type, against f32 in the same run: calls of all types take turns, and each
//! type's fastest counts, so that what else the machine does hits all alike.
//!
//! `cargo bench -p conure-kernels [-- ISA [THREADS]]`
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use conure_kernels::gemm::{Epilogue, PackedMatrix, linear};
use conure_kernels::{Cpu, Isa, Precision, Threads};
use conure_tensor::{DType, quant};

/// Rows, columns and inner lengths: an encoder layer at 7.4 s and at 60 s of audio, a decoder step, small batches.
const SHAPES: [(usize, usize, usize); 11] = [
    (750, 2048, 512),
    (750, 512, 2048),
    (750, 512, 512),
    (93, 2048, 512),
    (93, 512, 2048),
    (93, 512, 512),
    (12, 2048, 1024),
    (4, 2048, 1024),
    (2, 2048, 1024),
    (1, 2560, 640),
    (1, 1030, 640),
];

const TYPES: [DType; 12] = [
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::IQ4_NL,
    DType::MXFP4,
];

fn wave(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i % 1013) as f32 * 0.731).sin()).collect()
}

struct Contender {
    name: String,
    cpu: Cpu,
    weights: PackedMatrix,
    best: f64,
}

fn contenders(cpu: &Cpu, n: usize, k: usize) -> Result<Vec<Contender>, Box<dyn Error>> {
    let w = wave(n * k);
    let mut all = Vec::new();
    let mut add = |name: String, cpu: Cpu, dtype: DType| -> Result<(), Box<dyn Error>> {
        let weights = PackedMatrix::for_products(&cpu, dtype, &quant::encoded(dtype, &w)?, n, k, false)?;
        all.push(Contender { name, cpu, weights, best: f64::INFINITY });
        Ok(())
    };
    add("f32".into(), cpu.clone(), DType::F32)?;
    for dtype in TYPES {
        if !k.is_multiple_of(dtype.block_len()) {
            continue;
        }
        add(dtype.name().into(), cpu.clone().with_precision(Precision::Fast), dtype)?;
        if dtype == DType::Q8_0 && k.is_multiple_of(32) {
            add("int8".into(), cpu.clone().with_precision(Precision::Int8), dtype)?;
        }
        if matches!(dtype, DType::Q8_0 | DType::Q4_K) {
            add(format!("{} exact", dtype.name()), cpu.clone(), dtype)?;
        }
    }
    Ok(all)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let isa = args.first().map_or_else(Isa::detect, |name| Isa::from_name(name))?;
    let threads = args.get(1).map_or(Ok(1), |n| n.parse())?;
    let cpu = Cpu::new(isa, Threads::new(threads)?)?;
    println!("{isa}, {threads} threads: GFLOP/s of f32, then each type's speed as a multiple of it");
    for (m, n, k) in SHAPES {
        let mut all = contenders(&cpu, n, k)?;
        let (x, bias, mut out) = (wave(m * k), wave(n), vec![0.0; m * n]);
        let epilogue = Epilogue { bias: Some(&bias), ..Epilogue::default() };
        let group = 1 + (4_000_000 / (m * n * k)).min(20);
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < 1.0 {
            for c in &mut all {
                let start = Instant::now();
                for _ in 0..group {
                    linear(&c.cpu, black_box(&x), m, &c.weights, &epilogue, &mut out)?;
                }
                c.best = c.best.min(start.elapsed().as_secs_f64() / group as f64);
            }
        }
        let f32_time = all[0].best;
        print!("{m}x{n}x{k}: {:.1}", 2e-9 * (m * n * k) as f64 / f32_time);
        for c in &all[1..] {
            print!("  {} {:.2}", c.name, f32_time / c.best);
        }
        println!();
    }
    Ok(())
}
