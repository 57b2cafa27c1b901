//! How the panels of a product of one row are shared out: each worker has a stretch of its own, which it reads from front to back in
//! small steps, and takes what is left of the others' when it is through. Both of two threads end within one step of each other
//! so; cut into fixed tasks, 20 panels were shared 12 to 8.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of weights that are worth a worker: 3 us of reading.
const WORKER_BYTES: usize = 32 << 10;

/// Bytes of a step, about: 3 us of reading.
const STEP_BYTES: usize = 32 << 10;

/// The most stretches, and so workers, of a product. They read faster than any memory gives.
const STRETCHES: usize = 32;

/// A counter on cache lines of its own: its worker takes steps of a microsecond.
#[derive(Default)]
#[repr(align(128))]
struct Counter(AtomicUsize);

/// What is taken so far of each stretch.
#[derive(Default)]
pub(super) struct Taken([Counter; STRETCHES]);

/// Panels, cut into a stretch for each worker. A unit is one panel, or the two of a gated unit.
#[derive(Clone, Copy)]
pub(super) struct Share {
    units: usize,
    unit: usize,
    workers: usize,
    /// Units of a step.
    step: usize,
}

impl Share {
    /// Of `panels`, of `bytes` each, `unit` of which stay together, for up to `threads` workers.
    pub(super) fn new(panels: usize, unit: usize, bytes: usize, threads: usize) -> Share {
        let (units, bytes) = (panels.div_ceil(unit), (unit * bytes).max(1));
        let worth = units.saturating_mul(bytes) / WORKER_BYTES;
        let workers = worth.min(units).min(STRETCHES).clamp(1, threads.max(1));
        let step = if workers == 1 { units } else { STEP_BYTES / bytes };
        Share { units, unit, workers, step: step.max(1) }
    }

    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// The first unit of stretch `w`.
    fn start(&self, w: usize) -> usize {
        w * self.units / self.workers
    }

    /// The steps of worker `worker`.
    pub(super) fn steps<'a>(&'a self, taken: &'a Taken, worker: usize) -> Steps<'a> {
        Steps { share: self, taken, worker, done: 0 }
    }
}

/// Steps of panels, `from..to` and the end of the stretch that they are of, until all panels are taken.
pub(super) struct Steps<'a> {
    share: &'a Share,
    taken: &'a Taken,
    worker: usize,
    /// Stretches in which nothing is left, this worker's first.
    done: usize,
}

impl Iterator for Steps<'_> {
    type Item = (usize, usize, usize);

    #[inline]
    fn next(&mut self) -> Option<(usize, usize, usize)> {
        let share = self.share;
        while self.done < share.workers {
            let w = (self.worker + self.done) % share.workers;
            let (start, end) = (share.start(w), share.start(w + 1));
            let from = start + self.taken.0[w].0.fetch_add(share.step, Ordering::Relaxed);
            if from < end {
                let to = (from + share.step).min(end);
                return Some((from * share.unit, to * share.unit, end * share.unit));
            }
            self.done += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_panel_is_taken_once_whoever_comes() {
        for (panels, unit, bytes) in
            [(1, 1, 100), (2, 2, 9000), (20, 1, 14_080), (21, 1, 45_000), (64, 2, 7000), (8192, 1, 21_760)]
        {
            for threads in [1, 2, 3, 7, 40] {
                let share = Share::new(panels, unit, bytes, threads);
                assert!((1..=threads).contains(&share.workers()), "{panels} {threads}");
                // One comes late, or never.
                for first in 0..share.workers() {
                    let (taken, mut seen) = (Taken::default(), vec![0; panels]);
                    for worker in [first, 0] {
                        for (from, to, end) in share.steps(&taken, worker) {
                            assert!(from % unit == 0 && to <= end && end <= panels);
                            seen[from..to].iter_mut().for_each(|n| *n += 1);
                        }
                    }
                    assert!(seen.iter().all(|&n| n == 1), "{panels} {threads} {first}: {seen:?}");
                }
            }
        }
    }

    #[test]
    fn little_is_read_by_one_and_stretches_are_even() {
        assert_eq!(Share::new(4, 1, 10_000, 8).workers(), 1);
        assert_eq!(Share::new(8, 1, 14_080, 2).workers(), 2);
        let share = Share::new(20, 1, 14_080, 3);
        let lengths: Vec<_> = (0..3).map(|w| share.start(w + 1) - share.start(w)).collect();
        assert_eq!(lengths.iter().sum::<usize>(), 20);
        assert!(lengths.iter().all(|n| (6..=7).contains(n)), "{lengths:?}");
    }
}
