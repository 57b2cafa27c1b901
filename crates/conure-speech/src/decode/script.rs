//! A transducer for tests whose decisions are written down.

use std::collections::HashMap;

use super::{BatchTransducer, JointRow, PredictorRow, Token, Transducer};

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

/// A random transducer that is a function: the logits of a frame of an item after the last two tokens. It stands in for
/// predictor and joint where decoders are compared with each other.
pub(super) struct Net {
    vocabulary: usize,
    width: usize,
    frames: usize,
    seed: u64,
}

impl Net {
    /// Over so many tokens (and the blank), durations and frames of each item.
    pub(super) fn random(vocabulary: usize, durations: usize, frames: usize, seed: &mut u64) -> Net {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Net { vocabulary, width: vocabulary + 1 + durations, frames, seed: *seed }
    }

    /// Logits of a frame after this text, of which the last two tokens count.
    pub(super) fn logits(&self, item: usize, frame: usize, text: &[u32]) -> Vec<f32> {
        assert!(frame < self.frames, "frame {frame} of {}", self.frames);
        let last = text.iter().rev().take(2).fold(0u64, |n, t| n * 1000 + u64::from(*t) + 1);
        let mut state = self.seed ^ (item as u64) << 40 ^ (frame as u64) << 20 ^ last;
        let mut next = || {
            state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) ^ 0x9e37_79b9;
            ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 4.0
        };
        (0..self.width).map(|_| next()).collect()
    }

    /// The network on one item.
    pub(super) fn on(&self, item: usize) -> Alone<'_> {
        Alone { net: self, item, text: Vec::new(), logits: Vec::new() }
    }
}

/// A [`Net`] on one item.
pub(super) struct Alone<'a> {
    net: &'a Net,
    item: usize,
    text: Vec<u32>,
    logits: Vec<f32>,
}

impl Transducer for Alone<'_> {
    type Error = String;

    fn predict(&mut self, token: Option<u32>) -> Result<(), String> {
        match token {
            Some(token) => self.text.push(token),
            None => self.text.clear(),
        }
        Ok(())
    }

    fn joint(&mut self, frame: usize) -> Result<&[f32], String> {
        self.logits = self.net.logits(self.item, frame, &self.text);
        Ok(&self.logits)
    }
}

/// A [`Net`] on all its items: a slot holds a text.
pub(super) struct Together<'a> {
    net: &'a Net,
    slots: HashMap<usize, Vec<u32>>,
    logits: Vec<f32>,
    /// Calls of either network, and their rows.
    pub(super) calls: usize,
    pub(super) rows: usize,
    /// The most slots that were in use.
    pub(super) most_slots: usize,
}

impl<'a> Together<'a> {
    pub(super) fn new(net: &'a Net) -> Together<'a> {
        Together { net, slots: HashMap::new(), logits: Vec::new(), calls: 0, rows: 0, most_slots: 0 }
    }
}

impl BatchTransducer for Together<'_> {
    type Error = String;

    fn predict_rows(&mut self, rows: &[PredictorRow]) -> Result<(), String> {
        assert!(!rows.is_empty());
        let text = |row: &PredictorRow| {
            let mut text = row.from.map_or_else(Vec::new, |from| self.slots[&from].clone());
            assert_eq!(row.token.is_none(), row.from.is_none(), "{row:?}");
            text.extend(row.token);
            assert!(text.iter().all(|t| (*t as usize) < self.net.vocabulary), "{text:?}");
            text
        };
        let texts: Vec<Vec<u32>> = rows.iter().map(text).collect();
        self.slots.extend(rows.iter().map(|r| r.to).zip(texts));
        self.most_slots = self.most_slots.max(self.slots.len());
        (self.calls, self.rows) = (self.calls + 1, self.rows + rows.len());
        Ok(())
    }

    fn joint_rows(&mut self, rows: &[JointRow]) -> Result<&[f32], String> {
        assert!(!rows.is_empty());
        let logits = |row: &JointRow| self.net.logits(row.item, row.frame, &self.slots[&row.slot]);
        self.logits = rows.iter().flat_map(logits).collect();
        (self.calls, self.rows) = (self.calls + 1, self.rows + rows.len());
        Ok(&self.logits)
    }
}
