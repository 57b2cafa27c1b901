//! A transducer for tests whose decisions are written down.

use std::collections::HashMap;

use super::{Token, Transducer};

/// Decisions per frame: the `n`-th is what `joint` gives after `n` emissions on that frame.
pub(super) struct Script {
    frames: HashMap<usize, Vec<(u32, usize)>>,
    width: usize,
    logits: Vec<f32>,
    on_frame: (usize, usize),
    /// Every call of `predict`.
    pub(super) predicted: Vec<Option<u32>>,
    /// Frame whose logits hold a NaN.
    pub(super) poison: Option<usize>,
}

impl Script {
    /// `width` logits: four tokens (blank 3), then durations; a decision is (choice, index of the duration).
    pub(super) fn new(width: usize, frames: &[(usize, &[(u32, usize)])]) -> Self {
        Script {
            frames: frames.iter().map(|(frame, decisions)| (*frame, decisions.to_vec())).collect(),
            width,
            logits: vec![0.0; width],
            on_frame: (usize::MAX, 0),
            predicted: Vec::new(),
            poison: None,
        }
    }
}

impl Transducer for Script {
    type Error = String;

    fn predict(&mut self, token: Option<u32>) -> Result<(), String> {
        self.predicted.push(token);
        self.on_frame.1 += 1;
        Ok(())
    }

    fn joint(&mut self, frame: usize) -> Result<&[f32], String> {
        if self.on_frame.0 != frame {
            self.on_frame = (frame, 0);
        }
        let decisions = self.frames.get(&frame).ok_or(format!("nothing scripted for frame {frame}"))?;
        let decision =
            decisions.get(self.on_frame.1).ok_or(format!("no further decision on frame {frame}"))?;
        self.logits.fill(-1.0);
        self.logits[decision.0 as usize] = 3.0;
        if self.width > 4
            && let Some(duration) = self.logits.get_mut(4 + decision.1)
        {
            *duration = 2.0;
        }
        if self.poison == Some(frame) {
            self.logits[2] = f32::NAN;
        }
        Ok(&self.logits)
    }
}

/// The ids of tokens.
pub(super) fn emitted(tokens: &[Token]) -> Vec<u32> {
    tokens.iter().map(|token| token.id).collect()
}
