//! `rotary_angles` on OpenVINO.

use super::RotaryAngles;
use crate::op::{OpError, ValueType};
use crate::openvino::{Ir, OpenVinoOp, Port, port, wide};
use smallvec::SmallVec;
use std::f64::consts::TAU;

/// A position is this times `high`, plus `low`.
const BASE: f64 = 1024.0;
/// Steps of the coarse part of a rate: products with numbers below 2^11 are exact in f32.
const STEPS: f64 = 4096.0;

impl OpenVinoOp for RotaryAngles {
    fn supports(&self, _inputs: &[&ValueType], fixed: &[bool]) -> Result<(), String> {
        match self.factors && fixed.get(1) != Some(&true) {
            true => Err("factors that are computed".into()),
            false => Ok(()),
        }
    }

    /// Devices compute in f32, in which `position * frequency` is off by a hundredth of a turn at position 131071. What
    /// counts is the part of a turn that is left over, so rates are kept in turns per position and in three parts of 12 bits
    /// and the rest, and positions in two of 10 and 11 bits: every product that matters is exact, and whole turns are dropped
    /// before anything is added.
    fn lower(&self, ir: &mut Ir<'_>) -> Result<SmallVec<[Port; 2]>, OpError> {
        let factors = if self.factors { Some(ir.values(1)?) } else { None };
        let rates: Vec<f64> = self.frequencies(factors.as_deref()).iter().map(|f| f / TAU).collect();
        let positions = ir.input(0)?;
        let position = ir.convert(positions, "f32");
        let position = match self.sections {
            None => ir.unsqueeze(position, &[2])?, // [B, T, 1]
            Some(sections) => {
                let planes = ir.transpose(position, &[1, 2, 0])?;
                let of: Vec<i64> = (0..rates.len()).map(|j| wide(sections.of(j))).collect();
                let of = ir.i64s(&of)?;
                ir.gather(planes, of, 2)? // [B, T, R/2]
            }
        };
        let (base, inverse) = (ir.f32(BASE as f32)?, ir.f32((1.0 / BASE) as f32)?);
        let high = ir.binary("Multiply", position, inverse);
        let high = ir.unary("Floor", high);
        let below = ir.binary("Multiply", high, base);
        let low = ir.binary("Subtract", position, below);
        let by_high: Vec<f64> = rates.iter().map(|r| r * BASE).collect();
        let (a, b) = (Turns::of(ir, high, &by_high)?, Turns::of(ir, low, &rates)?);
        // Each step leaves less than is lost by rounding to f32 numbers below 1.
        let coarse = ir.binary("Add", a.coarse, b.coarse);
        let fine = ir.binary("Add", a.fine, b.fine);
        let turns = ir.binary("Add", coarse, fine);
        let turns = left_over(ir, turns);
        let rest = ir.binary("Add", a.rest, b.rest);
        let turns = ir.binary("Add", turns, rest);
        let tau = ir.f32(TAU as f32)?;
        let angle = ir.binary("Multiply", turns, tau);
        let (cos, sin) = (ir.unary("Cos", angle), ir.unary("Sin", angle));
        let mut y = ir.concat(2, &[cos, sin]);
        if self.magnitude != 1.0 {
            let magnitude = ir.f32(self.magnitude)?;
            y = ir.binary("Multiply", y, magnitude);
        }
        port(y)
    }
}

/// Turns that a part of the position makes, in three parts to be added: of at most half a turn, in steps of 2^-12; below a
/// turn, in steps of 2^-24; and what is left.
struct Turns {
    coarse: Port,
    fine: Port,
    rest: Port,
}

impl Turns {
    /// Of `x`, whole numbers below 2^11, at these rates in turns.
    fn of(ir: &mut Ir<'_>, x: Port, rates: &[f64]) -> Result<Turns, OpError> {
        let left: Vec<f64> = rates.iter().map(|r| r - r.floor()).collect();
        let step = |values: &[f64], size: f64| -> (Vec<f32>, Vec<f64>) {
            let taken: Vec<f64> = values.iter().map(|v| (v * size).floor() / size).collect();
            let left = values.iter().zip(&taken).map(|(v, t)| v - t).collect();
            (taken.iter().map(|&t| t as f32).collect(), left)
        };
        let (coarse, left) = step(&left, STEPS);
        let (fine, left) = step(&left, STEPS * STEPS);
        let rest: Vec<f32> = left.iter().map(|&v| v as f32).collect();
        let mut times = |rates: &[f32]| -> Result<Port, OpError> {
            let rates = ir.f32s(&[1, 1, rates.len()], rates)?;
            Ok(ir.binary("Multiply", x, rates))
        };
        let (coarse, fine, rest) = (times(&coarse)?, times(&fine)?, times(&rest)?);
        Ok(Turns { coarse: left_over(ir, coarse), fine, rest })
    }
}

/// What is left of turns when whole ones are dropped: half a turn at most, to either side.
fn left_over(ir: &mut Ir<'_>, turns: Port) -> Port {
    let whole = ir.layer("Round", "opset5", &[("mode", "half_to_even")], &[turns]);
    ir.binary("Subtract", turns, whole)
}
