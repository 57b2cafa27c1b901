//! Whether a compiled model computes what the CPU device computes, found out on a few rows before it is used.
//!
//! Drivers and reduced precisions have given nonsense without an error: words repeated, NaN, half of a signal. A run of
//! each on the same made-up inputs shows that. What it found is kept with the compiled model, so that a start from the cache
//! does not test again.

use super::lower::Lowered;
use super::options::OpenVinoPrecision;
use crate::backend::{Compiled, Execution, OnHost, PieceCall};
use crate::error::GraphError;
use crate::graph::Graph;
use crate::observe::work;
use crate::plan::{Packing, plan_with};
use crate::session::Program;
use conure_kernels::Cpu;
use conure_tensor::{Bindings, DType, DimError, Tensor, TensorMut, TensorView};
use std::sync::Arc;

/// What a self-test found.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// Both agree.
    Passed,
    /// They do not; where and how far.
    Wrong(String),
    /// There is no run to compare; why.
    Untested(String),
}

/// Rows to compare: the most whose run takes no more than [`WORK`].
const ROWS: [usize; 3] = [64, 16, 4];
/// Operations that a test may take: a tenth of a second of one core in f32.
const WORK: f64 = 4e9;

/// The normalised squared error up to which a result is as it should be. Sums in another order leave 1e-10 after many
/// layers, activations of 8 bits some 1e-5 a layer, bf16 1e-5 to 1e-4 a layer. What is broken is off by more than 0.1.
fn allowed(precision: OpenVinoPrecision, cache: Option<DType>) -> f64 {
    // The CPU device rounds keys and values before the run that makes them sees them, a device may do so after: up to 1e-7 and 5e-6
    // of each value, 3e-6 of the logits of 18 layers with f16.
    let rounding = match cache {
        Some(DType::F16) => 1e-4f64,
        Some(DType::BF16) => 1e-2,
        _ => 0.0,
    };
    rounding.max(match precision {
        OpenVinoPrecision::Exact => 1e-6,
        OpenVinoPrecision::Fast => 1e-2,
        OpenVinoPrecision::Bf16 | OpenVinoPrecision::F16 => 3e-2,
    })
}

/// Runs `piece` as `compiled`, for these lengths if it serves no others, and on the CPU.
pub(super) fn self_test(
    piece: &Graph,
    lowered: &Lowered,
    compiled: &dyn Compiled,
    fixed: Option<&Bindings>,
    precision: OpenVinoPrecision,
) -> Verdict {
    match test(piece, lowered, compiled, fixed, precision) {
        Ok(verdict) => verdict,
        Err(error) => Verdict::Untested(error.to_string()),
    }
}

fn test(
    piece: &Graph,
    lowered: &Lowered,
    compiled: &dyn Compiled,
    fixed: Option<&Bindings>,
    precision: OpenVinoPrecision,
) -> Result<Verdict, GraphError> {
    let cpu = Arc::new(Cpu::detect(None).map_err(|e| GraphError::Build { what: e.to_string() })?);
    // What is packed for the test goes with it.
    let reference = OnHost(Program::new(Graph { weights: piece.weights.borrowed(), ..piece.clone() }));
    let cache = lowered.caches.as_ref().map(|caches| caches.dtype);
    let mut why = "a run of a few rows takes too long".to_owned();
    for rows in ROWS {
        let bindings = match fixed {
            Some(fixed) => fixed.clone(),
            None => bindings(piece, rows)?,
        };
        if work(&plan_with(piece, &bindings, &[], &cpu, Packing::Never)?) > WORK {
            continue;
        }
        // Integers are lengths, places or ids: as many as there are rows, or the first.
        for integer in [rows, 1, 0] {
            let inputs = inputs(piece, lowered, &bindings, integer)?;
            let run = |on: &dyn Compiled| {
                on.start(&cpu).and_then(|mut e| outputs(e.as_mut(), piece, &bindings, &inputs))
            };
            let expected = match run(&reference) {
                Ok(expected) => expected,
                // Such inputs make no sense to this piece.
                Err(error) => {
                    why = error.to_string();
                    continue;
                }
            };
            return Ok(match run(compiled) {
                Ok(found) => compare(piece, &found, &expected, allowed(precision, cache)),
                Err(error) => Verdict::Wrong(error.to_string()),
            });
        }
    }
    Ok(Verdict::Untested(why))
}

/// One item, and `rows` of everything else.
fn bindings(piece: &Graph, rows: usize) -> Result<Bindings, GraphError> {
    let mut bindings = Bindings::new();
    let ids = piece.inputs.iter().copied().chain(piece.outputs.iter().map(|&(_, v)| v));
    for id in ids {
        loop {
            match piece.values[id.index()].ty.shape.eval(&bindings) {
                Ok(_) => break,
                Err(DimError::Unbound { symbol, .. }) => {
                    bindings.set(symbol, if symbol.name() == "B" { 1 } else { rows });
                }
                Err(source) => return Err(GraphError::Dim { path: "self-test".into(), source }),
            }
        }
    }
    Ok(bindings)
}

/// Values about as large as those of a normal distribution, the same every time.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    // The sum of four numbers between 0 and 1 has a variance of 1/3.
    (0..count).map(|_| ((0..4).map(|_| next()).sum::<f32>() - 2.0) * 3f32.sqrt()).collect()
}

fn inputs(
    piece: &Graph,
    lowered: &Lowered,
    bindings: &Bindings,
    integer: usize,
) -> Result<Vec<Tensor>, GraphError> {
    let mut all = Vec::new();
    for (i, id) in piece.inputs.iter().enumerate() {
        let ty = &piece.values[id.index()].ty;
        let dims =
            ty.shape.eval(bindings).map_err(|source| GraphError::Dim { path: "self-test".into(), source })?;
        let count = dims.iter().product();
        let made = match ty.dtype {
            DType::I32 => {
                let mut value = i32::try_from(integer).unwrap_or(0);
                for (_, low, high, _) in lowered.ranges.iter().filter(|(of, ..)| *of == i) {
                    value = value.clamp(*low, (*high).max(*low));
                }
                Tensor::from_slice(&dims, &vec![value; count])
            }
            DType::F32 => Tensor::from_slice(&dims, &noise(count, i as u64)),
            other => Tensor::zeros(other, &dims),
        };
        all.push(made.map_err(|source| GraphError::Tensor { path: "self-test".into(), source })?);
    }
    Ok(all)
}

fn outputs(
    execution: &mut dyn Execution,
    piece: &Graph,
    bindings: &Bindings,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>, GraphError> {
    let mut made = Vec::new();
    for &(_, id) in &piece.outputs {
        let ty = &piece.values[id.index()].ty;
        let dims =
            ty.shape.eval(bindings).map_err(|source| GraphError::Dim { path: "self-test".into(), source })?;
        let zeros = Tensor::zeros(ty.dtype, &dims);
        made.push(zeros.map_err(|source| GraphError::Tensor { path: "self-test".into(), source })?);
    }
    let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
    let mut muts: Vec<TensorMut<'_>> = made.iter_mut().map(Tensor::view_mut).collect();
    execution.run(&mut PieceCall { bindings, inputs: &views, outputs: &mut muts, cancel: None })?;
    Ok(made)
}

fn compare(piece: &Graph, found: &[Tensor], expected: &[Tensor], allowed: f64) -> Verdict {
    for (((name, _), found), expected) in piece.outputs.iter().zip(found).zip(expected) {
        let (Ok(f), Ok(e)) = (found.as_slice::<f32>(), expected.as_slice::<f32>()) else {
            continue;
        };
        let (mut error, mut size) = (0f64, 0f64);
        for (&f, &e) in f.iter().zip(e).filter(|(_, e)| e.is_finite()) {
            if !f.is_finite() {
                return Verdict::Wrong(format!("{name} holds {f} where the CPU device has {e}"));
            }
            error += (f64::from(f) - f64::from(e)).powi(2);
            size += f64::from(e).powi(2);
        }
        // Results of nothing but zeros are compared with what rounding leaves of a number of ordinary size.
        let off = error / size.max(1e-6 * f.len() as f64).max(f64::MIN_POSITIVE);
        if off > allowed {
            return Verdict::Wrong(format!(
                "{name} is off by {off:.1e} of its squared size from what the CPU device computes; {allowed:.0e} is right"
            ));
        }
    }
    Verdict::Passed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, MemoryWeights, Weights};
    use conure_ops::{Activation, Linear, ValueType};
    use conure_tensor::{Axis, Dim, Shape, Symbol};

    fn graph(factor: f32) -> Graph {
        let w: Vec<f32> = noise(32 * 24, 7).iter().map(|v| v * factor).collect();
        let weights = MemoryWeights::new().with("w", Tensor::from_slice(&[24, 32], &w).unwrap());
        let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
        let shape = Shape::new([(Axis::T, Dim::from(Symbol::new("T"))), (Axis::D, Dim::from(32))]);
        let x = g.input("x", ValueType::new(DType::F32, shape));
        let w = g.weight("w", &[24, 32]).unwrap();
        let y =
            g.apply(Linear { activation: Activation::None, bias: false, residual: None }, &[x, w]).unwrap();
        g.output("y", y);
        g.finish().unwrap()
    }

    fn lowered() -> Lowered {
        super::super::lower::outline(&graph(1.0), &Default::default(), None).unwrap().0
    }

    #[test]
    fn what_is_right_passes_and_what_is_off_does_not() {
        let right = graph(1.0);
        for (factor, precision, passes) in [
            (1.0, OpenVinoPrecision::Exact, true),
            (1.0001, OpenVinoPrecision::Exact, true),
            (1.01, OpenVinoPrecision::Exact, false),
            (1.01, OpenVinoPrecision::Fast, true),
            (1.2, OpenVinoPrecision::Fast, false),
            (1.1, OpenVinoPrecision::Bf16, true),
            (-1.0, OpenVinoPrecision::Bf16, false),
            (f32::NAN, OpenVinoPrecision::F16, false),
        ] {
            let device = OnHost(Program::new(graph(factor)));
            let verdict = self_test(&right, &lowered(), &device, None, precision);
            assert_eq!(verdict == Verdict::Passed, passes, "{factor} {precision:?}: {verdict:?}");
            assert!(passes || matches!(verdict, Verdict::Wrong(_)), "{verdict:?}");
        }
    }

    #[test]
    fn noise_is_about_normal() {
        let values = noise(10_000, 3);
        let mean = values.iter().sum::<f32>() / 1e4;
        let variance = values.iter().map(|v| v * v).sum::<f32>() / 1e4;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        assert_ne!(noise(4, 1), noise(4, 2));
    }
}
