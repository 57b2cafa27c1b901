//! Prints how fast the kernels are on this machine: GEMM rates for each weight type, and the time of the rest of an
//! encoder layer, of the subsampling convolutions and of an LSTM step. An argument names the instruction set, `all`
//! takes every one.
//!
//! `cargo run --release -p conure-kernels --example roofline`
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::hint::black_box;

use conure_kernels::attention::{Mask, RelPosAttention};
use conure_kernels::conv1d::DepthwiseConv1d;
use conure_kernels::conv2d::{Axis, Conv2d};
use conure_kernels::elementwise::{Unary, unary_in_place};
use conure_kernels::gemm::{Activation, Epilogue, PackedMatrix, Residual, linear};
use conure_kernels::roofline::{fastest, product_seconds, wave};
use conure_kernels::{Cpu, Isa, Threads, lstm, rows};
use conure_tensor::{DType, quant};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The fastest call, as [`fastest`] has it.
fn best(call: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    fastest(call)
}

fn gemm(cpu: &Cpu, dtype: DType, m: usize, n: usize, k: usize, activation: Activation) -> Outcome<f64> {
    Ok(product_seconds(cpu, dtype, [m, n, k], activation)?)
}

fn products(isa: Isa) -> Outcome<()> {
    let shapes = [
        (512, 512, 512),
        (750, 2048, 512),
        (750, 512, 2048),
        (750, 512, 512),
        (93, 2048, 512),
        (93, 512, 2048),
        (93, 512, 512),
        (1, 4096, 1024),
        (1, 2560, 640),
        (4, 1024, 1024),
        (16, 1024, 1024),
    ];
    let cpu = Cpu::new(isa, Threads::single())?;
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        let bytes = quant::encoded(dtype, &wave(2048 * 512))?;
        let seconds = best(|| {
            black_box(PackedMatrix::new(&cpu, dtype, &bytes, 2048, 512)?);
            Ok(())
        })?;
        println!("{isa}: packing {dtype} weights: {:.2} GB/s", bytes.len() as f64 / seconds * 1e-9);
    }
    println!("{isa}: GFLOP/s of x[M, K] W[N, K]^T + bias");
    println!(
        "{:>16} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "M x N x K", "f32", "2 thr", "silu", "f16", "bf16", "q8_0"
    );
    for (m, n, k) in shapes {
        let flop = 2e-9 * (m * n * k) as f64;
        print!("{:>16}", format!("{m}x{n}x{k}"));
        let one = Cpu::new(isa, Threads::single())?;
        let two = Cpu::new(isa, Threads::new(2)?)?;
        let none = Activation::None;
        for (cpu, dtype, activation) in [
            (&one, DType::F32, none),
            (&two, DType::F32, none),
            (&one, DType::F32, Activation::Silu),
            (&one, DType::F16, none),
            (&one, DType::BF16, none),
            (&one, DType::Q8_0, none),
        ] {
            print!(" {:>8.1}", flop / gemm(cpu, dtype, m, n, k, activation)?);
        }
        println!();
    }
    Ok(())
}

/// The parts of an encoder layer of D 512, H 8 that are not weights' products; T frames.
fn layer_parts(cpu: &Cpu, t: usize) -> Outcome<()> {
    let (d, heads) = (512, 8);
    let mut out = vec![0.0; t * 2 * d];
    let x = wave(t * 4 * d);
    let (gamma, beta) = (wave(d), wave(d));
    let report = |name: &str, seconds: f64, flop: f64| {
        println!("{name:>28} {:>9.1} us {:>8.1} GFLOP/s", seconds * 1e6, flop / seconds * 1e-9);
    };
    println!("{}, {} threads, T {t}", cpu.isa(), cpu.threads().count());
    let p = wave((2 * t - 1) * d);
    let lengths = [t as i32];
    for (name, mask, keys) in [
        ("attention, full", Mask::Full, t),
        ("attention, banded 128", Mask::Banded { left: 128, right: 128 }, 257.min(t)),
    ] {
        let args = RelPosAttention {
            q: &x[..t * d],
            k: &x[..t * d],
            v: &x[..t * d],
            positions: &p[..mask.positions(t, t).min(2 * t - 1) * d],
            bias_u: &gamma,
            bias_v: &beta,
            lengths: &lengths,
            frames: t,
            context: 0,
            cached: &[],
            heads,
            head_dim: d / heads,
            mask,
        };
        if mask.positions(t, t) * d > p.len() {
            continue;
        }
        let seconds = best(|| Ok(args.run(cpu, black_box(&mut out[..t * d]))?))?;
        report(name, seconds, 6.0 * (t * keys * d) as f64);
    }
    let weights = wave(9 * d);
    let conv = DepthwiseConv1d {
        weights: &weights,
        kernel: 9,
        left: 4,
        right: 4,
        bias: None,
        scale_shift: Some((&gamma, &beta)),
        silu: true,
    };
    let seconds = best(|| Ok(conv.run(cpu, &x[..t * d], 1, t, d, black_box(&mut out[..t * d]))?))?;
    report("depthwise conv1d + BN + SiLU", seconds, 18.0 * (t * d) as f64);
    let seconds = best(|| {
        Ok(rows::layer_norm(
            cpu,
            Some(&x[..t * d]),
            t,
            &gamma,
            Some(&beta),
            1e-5,
            black_box(&mut out[..t * d]),
        )?)
    })?;
    report("layer norm", seconds, 8.0 * (t * d) as f64);
    let seconds = best(|| Ok(unary_in_place(cpu, Unary::Silu, black_box(&mut out))?))?;
    report("silu of T x 1024", seconds, (t * 2 * d) as f64);
    let seconds = best(|| Ok(rows::log_softmax(cpu, Some(&x[..t * d * 2]), t, 2 * d, black_box(&mut out))?))?;
    report("log_softmax of T x 1024", seconds, (t * 2 * d) as f64);
    Ok(())
}

/// The subsampling stack's convolutions for T mel frames of 80 bins, C 256.
fn subsampling(cpu: &Cpu, t: usize) -> Outcome<()> {
    let (c, axis) = (256, Axis { kernel: 3, stride: 2, dilation: 1, before: 1, after: 1 });
    let (weights, bias) = (wave(9 * c), wave(c));
    for (name, frames, bins, depthwise) in
        [("conv 1 to 256, 3x3 s2", t, 80, false), ("depthwise 3x3 s2", t / 2, 40, true)]
    {
        let channels = if depthwise { c } else { 1 };
        let conv = Conv2d {
            weights: &weights,
            bias: Some(&bias),
            time: axis,
            freq: axis,
            channels,
            out_channels: c,
            groups: channels,
            relu: true,
        };
        let (ot, of) = conv.out_dims(frames, bins).unwrap_or_default();
        let x = wave(frames * bins * channels);
        let mut out = vec![0.0; ot * of * c];
        let seconds = best(|| Ok(conv.run(cpu, &x, 1, frames, bins, black_box(&mut out))?))?;
        println!(
            "{name:>28} {:>9.1} us {:>8.1} GFLOP/s",
            seconds * 1e6,
            18e-9 * (ot * of * c) as f64 / seconds
        );
    }
    Ok(())
}

/// Both products of an LSTM step of 640 units, and its cell.
fn lstm_step(cpu: &Cpu) -> Outcome<()> {
    let units = 640;
    let weights = PackedMatrix::from_f32(cpu, &wave(4 * units * units), 4 * units, units)?;
    let (x, bias, c) = (wave(units), wave(4 * units), wave(units));
    let (mut gates, mut h, mut next) = (vec![0.0; 4 * units], vec![0.0; units], vec![0.0; units]);
    let seconds = best(|| {
        let epilogue = Epilogue { bias: Some(&bias), ..Epilogue::default() };
        linear(cpu, &x, 1, &weights, &epilogue, &mut gates)?;
        let epilogue = Epilogue { residual: Residual::InPlace, ..epilogue };
        linear(cpu, &x, 1, &weights, &epilogue, &mut gates)?;
        Ok(lstm::cells(cpu, &gates, &c, 1, units, &mut h, &mut next)?)
    })?;
    println!("{:>28} {:>9.1} us {:>8.1} GB/s", "LSTM step, 640", seconds * 1e6, 13.1e-3 / seconds);
    Ok(())
}

fn main() -> Outcome<()> {
    let isas: Vec<Isa> = match std::env::args().nth(1) {
        Some(name) if name == "all" => Isa::available().collect(),
        Some(name) => vec![Isa::from_name(&name)?],
        None => vec![Isa::detect()?],
    };
    for isa in isas {
        products(isa)?;
        for threads in [1, 2] {
            let cpu = Cpu::new(isa, Threads::new(threads)?)?;
            for t in [93, 750] {
                layer_parts(&cpu, t)?;
            }
            subsampling(&cpu, 744)?;
            lstm_step(&cpu)?;
            let seconds = best(|| Ok(cpu.threads().run(threads, |_, _| {})?))?;
            println!("{:>28} {:>9.3} us", "empty region", seconds * 1e6);
        }
    }
    Ok(())
}
