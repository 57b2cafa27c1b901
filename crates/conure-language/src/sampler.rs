//! Choosing the next token.

use crate::error::LanguageError;
use conure_kernels::{Cpu, rows};
use std::hash::{BuildHasher, RandomState};

/// How the next token is chosen. In this order: penalties and bias change logits; top-k, top-p and min-p leave some of the
/// tokens; the temperature flattens or sharpens what is left; one is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// What logits are divided by before one is drawn; 0 takes the likeliest, of equals that with the lowest number.
    pub temperature: f32,
    /// How many of the likeliest tokens are left; 0 for all.
    pub top_k: usize,
    /// As many of the likeliest tokens are left as are needed for this probability; 1 for all.
    pub top_p: f32,
    /// Tokens are left that have at least this part of the probability of the likeliest; 0 for all.
    pub min_p: f32,
    /// What logits of tokens that occurred are divided by (multiplied, if negative); 1 for nothing.
    pub repetition_penalty: f32,
    /// What is subtracted from a token's logit for each time it occurred.
    pub frequency_penalty: f32,
    /// What is subtracted from a token's logit if it occurred.
    pub presence_penalty: f32,
    /// How many of the last tokens penalties look at.
    pub penalty_window: usize,
    /// What is added to the logits of these tokens; minus infinity forbids one.
    pub logit_bias: Vec<(u32, f32)>,
    /// Where the random numbers begin: the same gives the same text. `None`: anywhere.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    /// What llama.cpp does when not told otherwise, so that users of its files get what they expect.
    fn default() -> Sampling {
        Sampling {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 64,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl Sampling {
    /// The likeliest token, always.
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    fn check(&self) -> Result<(), LanguageError> {
        let real = |option, value: f32, expected, holds: bool| {
            if holds {
                Ok(())
            } else {
                Err(LanguageError::Option { option, found: value.to_string(), expected })
            }
        };
        let unit = 0.0..=1.0;
        real("temperature", self.temperature, "0 to 100", (0.0..=100.0).contains(&self.temperature))?;
        real("top-p", self.top_p, "0 to 1", unit.contains(&self.top_p))?;
        real("min-p", self.min_p, "0 to 1", unit.contains(&self.min_p))?;
        let repetition = self.repetition_penalty;
        real("the repetition penalty", repetition, "over 0", repetition > 0.0 && repetition.is_finite())?;
        for (option, value) in [
            ("the frequency penalty", self.frequency_penalty),
            ("the presence penalty", self.presence_penalty),
        ] {
            real(option, value, "a number", value.is_finite())?;
        }
        for &(_, bias) in &self.logit_bias {
            real(
                "a logit bias",
                bias,
                "a number, or minus infinity",
                !bias.is_nan() && bias < f32::INFINITY,
            )?;
        }
        Ok(())
    }

    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

/// Draws tokens.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    random: u64,
    seed: u64,
    /// Logits with penalties and bias.
    changed: Vec<f32>,
    /// Logit and token.
    candidates: Vec<(f32, u32)>,
    /// Tokens that occurred lately, sorted.
    occurred: Vec<u32>,
}

impl Sampler {
    pub(crate) fn new(sampling: &Sampling) -> Result<Sampler, LanguageError> {
        sampling.check()?;
        let seed = sampling.seed.unwrap_or_else(|| RandomState::new().hash_one(0));
        Ok(Sampler {
            sampling: sampling.clone(),
            random: seed,
            seed,
            changed: Vec::new(),
            candidates: Vec::new(),
            occurred: Vec::new(),
        })
    }

    /// Where its random numbers began.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// The next token after `before`.
    pub(crate) fn sample(&mut self, cpu: &Cpu, logits: &[f32], before: &[u32]) -> u32 {
        let penalises = self.sampling.penalises();
        if !penalises && self.sampling.logit_bias.is_empty() {
            return self.draw(cpu, logits);
        }
        let mut changed = std::mem::take(&mut self.changed);
        changed.clear();
        changed.extend_from_slice(logits);
        if penalises {
            self.penalise(&mut changed, before);
        }
        for &(id, bias) in &self.sampling.logit_bias {
            if let Some(logit) = changed.get_mut(id as usize) {
                *logit += bias;
            }
        }
        let id = self.draw(cpu, &changed);
        self.changed = changed;
        id
    }

    fn penalise(&mut self, logits: &mut [f32], before: &[u32]) {
        let Sampling { repetition_penalty, frequency_penalty, presence_penalty, penalty_window, .. } =
            self.sampling;
        self.occurred.clear();
        self.occurred.extend_from_slice(&before[before.len().saturating_sub(penalty_window)..]);
        self.occurred.sort_unstable();
        for same in self.occurred.chunk_by(|a, b| a == b) {
            let Some(logit) = same.first().and_then(|&id| logits.get_mut(id as usize)) else { continue };
            *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            *logit -= same.len() as f32 * frequency_penalty + presence_penalty;
        }
    }

    fn draw(&mut self, cpu: &Cpu, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        if temperature == 0.0 || top_k == 1 {
            return rows::argmax(cpu, logits) as u32;
        }
        let by_logit = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.extend((0..).zip(logits).filter(|(_, l)| !l.is_nan()).map(|(id, &l)| (l, id)));
        if top_k > 0 && top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k - 1, by_logit);
            candidates.truncate(top_k);
        }
        candidates.sort_unstable_by(by_logit);
        let Some(&(largest, first)) = candidates.first() else { return 0 };
        let weight = |logit: f32| f64::from(logit - largest).exp();
        if top_p < 1.0 {
            let total: f64 = candidates.iter().map(|c| weight(c.0)).sum();
            let mut sum = 0.0;
            let enough = candidates.iter().position(|c| {
                sum += weight(c.0);
                sum >= f64::from(top_p) * total
            });
            candidates.truncate(enough.map_or(candidates.len(), |i| i + 1));
        }
        if min_p > 0.0 {
            let kept = candidates.iter().take_while(|c| weight(c.0) >= f64::from(min_p)).count();
            candidates.truncate(kept.max(1));
        }
        let tempered = |logit: f32| (f64::from(logit - largest) / f64::from(temperature)).exp();
        let total: f64 = candidates.iter().map(|c| tempered(c.0)).sum();
        let mut left = uniform(&mut self.random) * total;
        for &(logit, id) in candidates.iter() {
            left -= tempered(logit);
            if left < 0.0 {
                return id;
            }
        }
        candidates.last().map_or(first, |c| c.1)
    }
}

/// Evenly distributed over 0 to 1, without 1 (SplitMix64).
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// The logarithm of the probability of `id`.
pub(crate) fn log_probability(logits: &[f32], id: u32) -> f32 {
    let Some(&logit) = logits.get(id as usize) else { return f32::NEG_INFINITY };
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|&l| f64::from((l - largest).exp())).sum();
    (f64::from(logit - largest) - total.ln()) as f32
}

/// The `count` likeliest tokens with the logarithms of their probabilities.
pub(crate) fn likeliest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|&l| f64::from((l - largest).exp())).sum();
    let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    let by_logit = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let count = count.min(all.len());
    if count > 0 && count < all.len() {
        all.select_nth_unstable_by(count - 1, by_logit);
    }
    all.truncate(count);
    all.sort_unstable_by(by_logit);
    all.iter().map(|&(id, l)| (id, (f64::from(l - largest) - total.ln()) as f32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu() -> Cpu {
        Cpu::detect(Some(1)).unwrap()
    }

    fn counts(sampling: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut sampler = Sampler::new(&sampling).unwrap();
        let mut counts = vec![0; logits.len()];
        for _ in 0..4000 {
            counts[sampler.sample(&cpu(), logits, &[]) as usize] += 1;
        }
        counts
    }

    fn all() -> Sampling {
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: Some(7), ..Sampling::default() }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        // 0.5, 0.3, 0.2; 1 % of 4000 draws is 3 deviations of a mean of 1200.
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        let found = counts(all(), &logits);
        for (f, e) in found.iter().zip([2000.0, 1200.0, 800.0]) {
            assert!((*f as f64 - e).abs() < 100.0, "{found:?}");
        }
        // A temperature of a half squares them: 0.25, 0.09, 0.04 of 0.38.
        let found = counts(Sampling { temperature: 0.5, ..all() }, &logits);
        for (f, e) in found.iter().zip([2632.0, 947.0, 421.0]) {
            assert!((*f as f64 - e).abs() < 100.0, "{found:?}");
        }
    }

    #[test]
    fn each_rule_leaves_what_it_says() {
        let logits = [0.2f32.ln(), 0.5f32.ln(), 0.3f32.ln(), f32::NEG_INFINITY];
        let left = |sampling| counts(sampling, &logits).iter().map(|&c| c > 0).collect::<Vec<_>>();
        assert_eq!(left(all()), [true, true, true, false]);
        assert_eq!(left(Sampling { top_k: 2, ..all() }), [false, true, true, false]);
        assert_eq!(left(Sampling { top_k: 1, ..all() }), [false, true, false, false]);
        assert_eq!(left(Sampling { top_p: 0.7, ..all() }), [false, true, true, false]);
        assert_eq!(left(Sampling { top_p: 0.0, ..all() }), [false, true, false, false]);
        assert_eq!(left(Sampling { min_p: 0.5, ..all() }), [false, true, true, false]);
        assert_eq!(left(Sampling { min_p: 1.0, ..all() }), [false, true, false, false]);
        assert_eq!(left(Sampling { temperature: 0.0, ..all() }), [false, true, false, false]);
        let forbidden = Sampling { logit_bias: vec![(1, f32::NEG_INFINITY), (99, 1.0)], ..all() };
        assert_eq!(left(forbidden), [true, false, true, false]);
    }

    #[test]
    fn penalties_look_at_what_occurred_lately() {
        let logits = [2.0, 1.9, -1.0, -1.1];
        let next = |sampling: Sampling, before: &[u32]| {
            Sampler::new(&Sampling { temperature: 0.0, ..sampling }).unwrap().sample(&cpu(), &logits, before)
        };
        assert_eq!(next(all(), &[0, 0]), 0);
        assert_eq!(next(Sampling { repetition_penalty: 1.2, ..all() }, &[0]), 1);
        assert_eq!(next(Sampling { repetition_penalty: 1.2, penalty_window: 1, ..all() }, &[0, 3]), 0);
        assert_eq!(next(Sampling { frequency_penalty: 0.06, ..all() }, &[0]), 0);
        assert_eq!(next(Sampling { frequency_penalty: 0.06, ..all() }, &[0, 0]), 1);
        assert_eq!(next(Sampling { presence_penalty: 5.0, ..all() }, &[0, 1]), 2);
    }

    #[test]
    fn a_seed_gives_the_same_again() {
        let logits: Vec<f32> = (0..100).map(|i| (i as f32 * 0.7).sin()).collect();
        let draw = |seed| {
            let mut sampler = Sampler::new(&Sampling { seed, ..all() }).unwrap();
            (0..20).map(|_| sampler.sample(&cpu(), &logits, &[])).collect::<Vec<_>>()
        };
        assert_eq!(draw(Some(1)), draw(Some(1)));
        assert_ne!(draw(Some(1)), draw(Some(2)));
        assert_ne!(draw(None), draw(None));
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let wrong = [
            Sampling { temperature: -1.0, ..all() },
            Sampling { temperature: f32::NAN, ..all() },
            Sampling { top_p: 1.5, ..all() },
            Sampling { min_p: -0.1, ..all() },
            Sampling { repetition_penalty: 0.0, ..all() },
            Sampling { frequency_penalty: f32::INFINITY, ..all() },
            Sampling { logit_bias: vec![(0, f32::NAN)], ..all() },
        ];
        for sampling in wrong {
            assert!(matches!(Sampler::new(&sampling), Err(LanguageError::Option { .. })), "{sampling:?}");
        }
    }

    #[test]
    fn probabilities_are_those_of_the_softmax() {
        let logits = [1.0, 3.0, 2.0];
        let total = (1f32.exp() + 3f32.exp() + 2f32.exp()).ln();
        assert!((log_probability(&logits, 2) - (2.0 - total)).abs() < 1e-6);
        let top = likeliest(&logits, 2);
        assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2]);
        assert!((top[0].1 - (3.0 - total)).abs() < 1e-6);
        assert_eq!((likeliest(&logits, 0).len(), likeliest(&logits, 9).len()), (0, 3));
    }
}
