//! Which experts a token is given to, and with which weights.

use crate::buffer::SharedMut;
use crate::{Cpu, Result, check};

const NAME: &str = "route";

/// Logits that are worth a task of their own: about 10 us.
const GRAIN: usize = 2048;

/// The least that the probabilities of the chosen are divided by: the smallest normal f16, as files of these models expect.
pub const LEAST_SUM: f32 = 6.103_515_6e-5;

/// How weights follow from logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// The softmax over all experts; that of the chosen divided by its sum, of at least [`LEAST_SUM`].
    SoftmaxOfAll,
    /// The softmax over the chosen.
    SoftmaxOfChosen,
}

/// For each row of `logits` `[R, E]` the numbers of the U largest, largest first, in `experts` `[R, U]`, and their weights in
/// `weights` `[R, U]`. Of equal ones the first comes first; NaN comes last, and makes all weights of its row NaN.
///
/// # Errors
/// [`crate::KernelError::Length`] if a slice does not have its shape; [`crate::KernelError::Invalid`] if U is 0 or over E.
pub fn route(
    cpu: &Cpu,
    routing: Routing,
    logits: &[f32],
    [rows, count, used]: [usize; 3],
    experts: &mut [i32],
    weights: &mut [f32],
) -> Result<()> {
    check::valid(NAME, (1..=count).contains(&used), || format!("{used} of {count} experts cannot be used"))?;
    check::length(NAME, "logits", "[R, E]", &[rows, count], logits.len())?;
    check::length(NAME, "experts", "[R, U]", &[rows, used], experts.len())?;
    check::length(NAME, "weights", "[R, U]", &[rows, used], weights.len())?;
    let (experts, weights) = (SharedMut::new(experts), SharedMut::new(weights));
    cpu.threads().run_ranges(rows, (GRAIN / count).max(1), |from, to| {
        for row in from..to {
            // SAFETY: each row is written once.
            let (experts, weights) =
                unsafe { (experts.part(row * used, used), weights.part(row * used, used)) };
            let logits = &logits[row * count..(row + 1) * count];
            choose(logits, experts);
            weigh(routing, logits, experts, weights);
        }
    })
}

/// Whether `a` comes before `b`, which was found earlier.
fn before(a: f32, b: f32) -> bool {
    a > b || (b.is_nan() && !a.is_nan())
}

/// The places of the largest, as many as there is room for.
fn choose(logits: &[f32], experts: &mut [i32]) {
    let mut chosen = 0;
    for (number, &logit) in (0i32..).zip(logits) {
        let mut at = chosen;
        while at > 0 && before(logit, logits[experts[at - 1] as usize]) {
            at -= 1;
        }
        if at < experts.len() {
            chosen = (chosen + 1).min(experts.len());
            experts[at..chosen].rotate_right(1);
            experts[at] = number;
        }
    }
}

fn weigh(routing: Routing, logits: &[f32], experts: &[i32], weights: &mut [f32]) {
    if logits.iter().any(|l| l.is_nan()) {
        return weights.fill(f32::NAN);
    }
    let largest = experts.first().map_or(0.0, |&e| logits[e as usize]);
    for (weight, &e) in weights.iter_mut().zip(experts) {
        *weight = (logits[e as usize] - largest).exp();
    }
    let chosen: f32 = weights.iter().sum();
    let divisor = match routing {
        Routing::SoftmaxOfChosen => chosen,
        Routing::SoftmaxOfAll => {
            // exp / all / max(chosen / all, least): one division.
            let all: f32 = logits.iter().map(|l| (l - largest).exp()).sum();
            chosen.max(all * LEAST_SUM)
        }
    };
    weights.iter_mut().for_each(|w| *w /= divisor);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Threads};

    fn run(routing: Routing, logits: &[f32], used: usize) -> (Vec<i32>, Vec<f32>) {
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        let (mut experts, mut weights) = (vec![-1; used], vec![-1.0; used]);
        route(&cpu, routing, logits, [1, logits.len(), used], &mut experts, &mut weights).unwrap();
        (experts, weights)
    }

    #[test]
    fn the_largest_are_chosen_and_the_first_of_equals() {
        for routing in [Routing::SoftmaxOfAll, Routing::SoftmaxOfChosen] {
            for (logits, used, expected) in [
                (&[1.0, 3.0, 2.0][..], 2, &[1, 2][..]),
                (&[1.0, 3.0, 2.0], 3, &[1, 2, 0]),
                (&[0.5, 0.5, 0.5, 0.5], 2, &[0, 1]),
                (&[0.0, -0.0, 1.0], 3, &[2, 0, 1]),
                (&[f32::NEG_INFINITY, -1e30, f32::NEG_INFINITY], 2, &[1, 0]),
            ] {
                let (experts, weights) = run(routing, logits, used);
                assert_eq!(experts, expected, "{logits:?}");
                assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{weights:?}");
                assert!(weights.is_sorted_by(|a, b| a >= b), "{weights:?}");
            }
            // NaN comes last, in order, and no weight of the row is a number.
            let (experts, weights) = run(routing, &[f32::NAN, 1.0, f32::NAN, 2.0], 3);
            assert_eq!(experts, [3, 1, 0]);
            assert!(weights.iter().all(|w| w.is_nan()), "{weights:?}");
            let (_, weights) = run(routing, &[f32::NAN, 1.0, 2.0], 2);
            assert!(weights.iter().all(|w| w.is_nan()), "{weights:?}");
        }
    }

    #[test]
    fn wrong_sizes_are_refused() {
        let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
        let run = |logits: usize, used: usize, experts: usize| {
            let (mut e, mut w) = (vec![0; experts], vec![0.0; used]);
            route(&cpu, Routing::SoftmaxOfAll, &vec![0.0; logits], [1, 4, used], &mut e, &mut w).is_ok()
        };
        assert!(run(4, 2, 2));
        assert!(!run(3, 2, 2) && !run(4, 2, 3) && !run(4, 0, 0) && !run(4, 5, 5));
    }
}
