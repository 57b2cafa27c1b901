use super::*;
use crate::{Isa, Threads};

fn wave(n: usize, seed: f32) -> Vec<f32> {
    (0..n).map(|i| ((i as f32 + seed) * 0.731 + (i as f32 * 0.013).sin()).sin()).collect()
}

struct Case {
    batch: usize,
    frames: usize,
    heads: usize,
    head_dim: usize,
    lengths: Vec<i32>,
    /// Of `frames`, those that are only keys.
    context: usize,
    cached: Vec<i32>,
    mask: Mask,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    p: Vec<f32>,
    u: Vec<f32>,
    w: Vec<f32>,
}

impl Case {
    fn new(frames: usize, heads: usize, head_dim: usize, lengths: &[i32], mask: Mask) -> Case {
        let (batch, width) = (lengths.len(), heads * head_dim);
        let n = batch * frames * width;
        Case {
            batch,
            frames,
            heads,
            head_dim,
            lengths: lengths.to_vec(),
            context: 0,
            cached: Vec::new(),
            mask,
            q: wave(n, 0.0),
            k: wave(n, 1.0),
            v: wave(n, 2.0),
            p: wave(mask.positions(frames, frames) * width, 3.0),
            u: wave(width, 4.0),
            w: wave(width, 5.0),
        }
    }

    fn args(&self) -> RelPosAttention<'_> {
        RelPosAttention {
            q: &self.q,
            k: &self.k,
            v: &self.v,
            positions: &self.p,
            bias_u: &self.u,
            bias_v: &self.w,
            lengths: &self.lengths,
            frames: self.frames - self.context,
            context: self.context,
            cached: &self.cached,
            heads: self.heads,
            head_dim: self.head_dim,
            mask: self.mask,
        }
    }

    /// The rule, key by key.
    fn sees(&self, i: usize, j: usize) -> bool {
        match self.mask {
            Mask::Full => true,
            Mask::ChunkedLimited { left, right } => {
                let chunk = right + 1;
                j / chunk <= i / chunk && i / chunk - j / chunk <= left / chunk
            }
            Mask::Banded { left, right } => j + left >= i && j <= i + right,
        }
    }

    fn naive(&self) -> Vec<f64> {
        let (t, dk, width) = (self.frames, self.head_dim, self.heads * self.head_dim);
        let offset = match self.mask {
            Mask::Banded { left, .. } => left as isize,
            _ => t as isize - 1,
        };
        let mut out = vec![0.0; self.batch * t * width];
        for b in 0..self.batch {
            let valid = (self.lengths[b].max(0) as usize).min(t);
            for h in 0..self.heads {
                for i in 0..valid {
                    let mut scores = Vec::new();
                    for j in (0..valid).filter(|&j| self.sees(i, j)) {
                        let mut score = 0.0;
                        for d in 0..dk {
                            let q = self.q[(b * t + i) * width + h * dk + d] as f64;
                            let k = self.k[(b * t + j) * width + h * dk + d] as f64;
                            let c = (j as isize - i as isize + offset) as usize;
                            let p = self.p[c * width + h * dk + d] as f64;
                            score +=
                                (q + self.u[h * dk + d] as f64) * k + (q + self.w[h * dk + d] as f64) * p;
                        }
                        scores.push((j, score / (dk as f64).sqrt()));
                    }
                    let max = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(s.1));
                    let total: f64 = scores.iter().map(|s| (s.1 - max).exp()).sum();
                    for (j, score) in scores {
                        for d in 0..dk {
                            out[(b * t + i) * width + h * dk + d] +=
                                (score - max).exp() / total * self.v[(b * t + j) * width + h * dk + d] as f64;
                        }
                    }
                }
            }
        }
        out
    }
}

fn masks() -> Vec<(usize, Mask)> {
    let mut masks = Vec::new();
    for frames in [1, 2, 13, 14, 15, 33, 93, 300, 530] {
        masks.push((frames, Mask::Full));
        masks.push((frames, Mask::ChunkedLimited { left: 70, right: 1 }));
        masks.push((frames, Mask::ChunkedLimited { left: 4, right: 3 }));
        masks.push((frames, Mask::ChunkedLimited { left: usize::MAX, right: 13 }));
        masks.push((frames, Mask::Banded { left: 8, right: 8 }));
        masks.push((frames, Mask::Banded { left: 3, right: 40 }));
        masks.push((frames, Mask::Banded { left: 128, right: 128 }));
    }
    masks.push((257, Mask::Banded { left: 0, right: 0 }));
    masks
}

#[test]
fn agrees_with_the_definition() {
    for (n, (frames, mask)) in masks().into_iter().enumerate() {
        let head_dim = [16, 5, 33, 64][n % 4];
        let short = frames as i32 / 3;
        let case = Case::new(frames, 2, head_dim, &[frames as i32, short, frames as i32 + 9, -1], mask);
        let expected = case.naive();
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, Threads::single()).unwrap();
            let mut out = vec![f32::NAN; expected.len()];
            case.args().run(&cpu, &mut out).unwrap();
            for (i, (f, e)) in out.iter().zip(&expected).enumerate() {
                assert!(
                    (*f as f64 - e).abs() < 3e-6,
                    "{isa} T {frames} dk {head_dim} {mask:?} [{i}]: {f} for {e}"
                );
            }
        }
    }
}

#[test]
fn batch_padding_and_threads_change_nothing() {
    for mask in
        [Mask::Full, Mask::ChunkedLimited { left: 20, right: 3 }, Mask::Banded { left: 30, right: 30 }]
    {
        let (frames, longer, heads, head_dim) = (301, 340, 2, 32);
        let single = Case::new(frames, heads, head_dim, &[frames as i32], mask);
        let mut pair = Case::new(longer, heads, head_dim, &[longer as i32, frames as i32], mask);
        // The second item is the single one, with garbage in its padding; positions keep their meaning.
        let (width, at) = (heads * head_dim, longer * heads * head_dim);
        for (to, from) in [(&mut pair.q, &single.q), (&mut pair.k, &single.k), (&mut pair.v, &single.v)] {
            to[at..at + from.len()].copy_from_slice(from);
            to[at + from.len()..].fill(f32::NAN);
        }
        (pair.u, pair.w) = (single.u.clone(), single.w.clone());
        let extra = mask.offset(longer) - mask.offset(frames);
        pair.p[extra * width..][..single.p.len()].copy_from_slice(&single.p);
        for isa in Isa::available() {
            let mut expected = vec![f32::NAN; frames * width];
            single.args().run(&Cpu::new(isa, Threads::single()).unwrap(), &mut expected).unwrap();
            for threads in [1, 2, 5] {
                let cpu = Cpu::new(isa, Threads::new(threads).unwrap()).unwrap();
                let mut out = vec![f32::NAN; 2 * longer * width];
                pair.args().run(&cpu, &mut out).unwrap();
                assert_eq!(out[at..at + expected.len()], expected[..], "{isa} {threads} {mask:?}");
                assert!(out[at + expected.len()..].iter().all(|&x| x == 0.0));
                single.args().run(&cpu, &mut out[..frames * width]).unwrap();
                assert_eq!(out[..frames * width], expected[..], "{isa} {threads} {mask:?}");
            }
        }
    }
}

#[test]
fn frames_before_the_queries_are_keys_as_far_as_they_are_there() {
    let (frames, context, heads, head_dim) = (93, 70, 2, 16);
    let width = heads * head_dim;
    for (cached, mask) in [
        (70, Mask::Full),
        (5, Mask::Full),
        (0, Mask::Full),
        (70, Mask::ChunkedLimited { left: 70, right: 1 }),
        (33, Mask::Banded { left: 40, right: 8 }),
        (500, Mask::Full),
    ] {
        // The whole clip without the frames that are not there gives what its last frames are to give.
        let first = context - context.min(cached as usize);
        let mut whole = Case::new(frames, heads, head_dim, &[frames as i32], mask);
        let (all, mask_from_zero) = (whole.naive(), matches!(mask, Mask::Full | Mask::Banded { .. }));
        let expected = if first == 0 {
            all
        } else {
            assert!(mask_from_zero);
            let mut part = Case::new(frames - first, heads, head_dim, &[(frames - first) as i32], mask);
            part.q.copy_from_slice(&whole.q[first * width..]);
            part.k.copy_from_slice(&whole.k[first * width..]);
            part.v.copy_from_slice(&whole.v[first * width..]);
            let extra = mask.offset(frames) - mask.offset(frames - first);
            let len = part.p.len();
            part.p.copy_from_slice(&whole.p[extra * width..][..len]);
            part.naive()
        };
        let expected = &expected[expected.len() - (frames - context) * width..];
        let queries = frames - context;
        whole.q = whole.q[context * width..].to_vec();
        whole.p.truncate(mask.positions(frames, queries) * width);
        (whole.context, whole.cached, whole.lengths) = (context, vec![cached], vec![queries as i32]);
        for isa in Isa::available() {
            let mut out = vec![f32::NAN; queries * width];
            whole.args().run(&Cpu::new(isa, Threads::single()).unwrap(), &mut out).unwrap();
            for (i, (f, e)) in out.iter().zip(expected).enumerate() {
                assert!((*f as f64 - e).abs() < 3e-6, "{isa} {cached} {mask:?} [{i}]: {f} for {e}");
            }
        }
    }
}

#[test]
fn wrong_shapes_are_errors() {
    let cpu = Cpu::new(Isa::Scalar, Threads::single()).unwrap();
    let case = Case::new(5, 2, 4, &[5], Mask::Full);
    let mut out = vec![0.0; 40];
    assert!(case.args().run(&cpu, &mut out).is_ok());
    assert!(case.args().run(&cpu, &mut out[1..]).is_err());
    assert!(RelPosAttention { q: &case.q[1..], ..case.args() }.run(&cpu, &mut out).is_err());
    assert!(RelPosAttention { positions: &case.p[8..], ..case.args() }.run(&cpu, &mut out).is_err());
    assert!(RelPosAttention { bias_v: &case.u[1..], ..case.args() }.run(&cpu, &mut out).is_err());
    assert!(
        RelPosAttention { mask: Mask::Banded { left: 1, right: 1 }, ..case.args() }
            .run(&cpu, &mut out)
            .is_err()
    );
    let empty = RelPosAttention { q: &[], k: &[], v: &[], lengths: &[], ..case.args() };
    assert!(empty.run(&cpu, &mut []).is_ok());
    let wide = Case::new(1, 1, 513, &[1], Mask::Full);
    assert!(wide.args().run(&cpu, &mut [0.0; 513]).is_err());
}
