//! `route`: which experts a token is given to.

use crate::count::elements;
use crate::infer::{Inputs, dim, last};
use crate::op::{Attr, CpuOp, Op, OpError, Outputs, ValueType};
use crate::values::{output, read, write};
use conure_kernels::route::{LEAST_SUM, Routing};
use conure_tensor::{Axis, DType, Dim, TensorMut, TensorView};
use std::any::Any;

pub mod cases;
mod cpu;

const NAME: &str = "route";

/// The choice of a mixture of experts (Shazeer et al., "Outrageously large neural networks", 2017).
///
/// Input: `logits [..., E]` f32. Outputs: `experts [..., U]` i32, the numbers of the U largest logits, largest first, and
/// `weights [..., U]` f32, by [`Route::routing`]. Of equal logits the first comes first. NaN comes last, and makes all weights
/// of its row NaN, whether it is chosen or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// How weights follow from logits.
    pub routing: Routing,
    /// U.
    pub used: usize,
}

impl Route {
    /// The chosen of a row, and their weights.
    fn choose(&self, logits: &[f64]) -> (Vec<usize>, Vec<f64>) {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        // A stable sort leaves equals as they were.
        order.sort_by(|&a, &b| {
            let (a, b) = (logits[a], logits[b]);
            a.is_nan().cmp(&b.is_nan()).then(b.partial_cmp(&a).unwrap_or(std::cmp::Ordering::Equal))
        });
        order.truncate(self.used);
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exp = |l: f64| (l - largest).exp();
        let chosen: f64 = order.iter().map(|&e| exp(logits[e])).sum();
        let all: f64 = logits.iter().map(|&l| exp(l)).sum();
        let weight = |&e: &usize| match self.routing {
            Routing::SoftmaxOfAll => (exp(logits[e]) / all) / (chosen / all).max(f64::from(LEAST_SUM)),
            Routing::SoftmaxOfChosen if all.is_nan() => f64::NAN,
            Routing::SoftmaxOfChosen => exp(logits[e]) / chosen,
        };
        let weights = order.iter().map(weight).collect();
        (order, weights)
    }
}

impl Op for Route {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let routing = match self.routing {
            Routing::SoftmaxOfAll => "softmax_of_all",
            Routing::SoftmaxOfChosen => "softmax_of_chosen",
        };
        let used = i64::try_from(self.used).unwrap_or(i64::MAX);
        vec![("routing", Attr::Text(routing)), ("used", Attr::Int(used))]
    }

    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        let ins = Inputs::exactly(NAME, inputs, 1)?;
        let logits = ins.f32_from(0, 1, "[..., E]")?;
        let count = dim(logits, last(logits)).as_constant().unwrap_or(0);
        if !(1..=count).contains(&self.used) {
            return Err(ins.attribute(format!("{} experts of {count} cannot be used", self.used)));
        }
        let chosen = logits.with(last(logits), Axis::U, Dim::from(self.used));
        Ok(Outputs::from_iter([ValueType::new(DType::I32, chosen.clone()), ValueType::f32(chosen)]))
    }

    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        let logits = read(NAME, inputs, 0)?;
        let (mut experts, mut weights) = (Vec::new(), Vec::new());
        for row in logits.rows() {
            let (chosen, of_chosen) = self.choose(row);
            experts.extend(chosen.into_iter().map(|e| i32::try_from(e).unwrap_or(i32::MAX)));
            weights.extend(of_chosen);
        }
        let out = output(NAME, outputs, 0)?.as_mut_slice::<i32>()?;
        if out.len() != experts.len() {
            let what = format!("output 0 has {} elements, {} were chosen", out.len(), experts.len());
            return Err(OpError::Kernel { op: NAME, what });
        }
        out.copy_from_slice(&experts);
        write(NAME, outputs, 1, weights)
    }

    fn flops(&self, inputs: &[&[usize]], outputs: &[&[usize]]) -> f64 {
        // A comparison and an exponential for each expert, a division for each that is chosen.
        2.0 * elements(inputs, 0) + elements(outputs, 1)
    }

    fn cpu(&self) -> Option<&dyn CpuOp> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
