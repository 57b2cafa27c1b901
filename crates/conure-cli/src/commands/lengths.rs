//! `conure bench lengths`.

use super::bench::{json, options, print};
use super::model;
use crate::args::LengthsArgs;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use conure::{Samples, TranscribeOptions};
use serde::Serialize;
use std::time::Instant;

/// Resident memory over many recordings.
#[derive(Serialize)]
struct Lengths {
    model: String,
    device: Option<String>,
    runs: usize,
    longest_s: f64,
    /// Parts that were compiled, all together.
    compiled: usize,
    /// Resident memory, in 10^6 bytes, after every twentieth of the recordings.
    rss_mb: Vec<f64>,
    /// How much it grows in 100 recordings, over the second half of them.
    slope_mb: f64,
    /// Seconds of recordings recognised in a second, in the first half and in the second.
    rtfx: [f64; 2],
}

/// Recognises noise of random lengths and watches the memory.
///
/// # Errors
/// A model that cannot be used; a system that does not tell a process its memory.
pub fn run(args: &LengthsArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let model = model::load(Some(&args.model), &args.measure.compute)?;
    let rate = model.sample_rate();
    let mut noise = Noise(0x2545_f491_4f6c_dd1d);
    let samples: Vec<f32> = (0..(args.longest * f64::from(rate)) as usize).map(|_| noise.sample()).collect();
    let recognise = options(&args.measure, interrupt);
    let options = TranscribeOptions { recognise, ..TranscribeOptions::default() };
    let shortest = samples.len().min(rate as usize / 5);
    let (mut memory, mut halves) = (Vec::with_capacity(args.runs), [(0.0, 0.0); 2]);
    for run in 0..args.runs {
        let length = shortest + (noise.next() as usize) % (samples.len() - shortest + 1);
        let begun = Instant::now();
        model
            .transcribe(Samples::mono(&samples[..length], rate), &options)
            .map_err(|e| model::failed(format!("cannot recognise {length} samples of noise"), e))?;
        let half = &mut halves[run * 2 / args.runs];
        *half = (half.0 + length as f64 / f64::from(rate), half.1 + begun.elapsed().as_secs_f64());
        let now = conure::resident_memory();
        memory.push(
            now.ok_or_else(|| Failure::new("this system does not say how much memory is used"))? as f64
                * 1e-6,
        );
    }
    let lengths = Lengths {
        model: args.model.display().to_string(),
        device: args.measure.compute.device.clone(),
        runs: args.runs,
        longest_s: args.longest,
        compiled: model.compilations().compiled,
        rss_mb: memory.chunks(args.runs.div_ceil(20)).filter_map(|c| c.last().copied()).collect(),
        slope_mb: 100.0 * slope(&memory[memory.len() / 2..]),
        rtfx: halves.map(|(audio, took)| audio / f64::max(took, 1e-9)),
    };
    print(if args.measure.json { json(&lengths)? } else { text(&lengths) })
}

fn text(l: &Lengths) -> String {
    let memory: Vec<String> = l.rss_mb.iter().map(|m| format!("{m:.0}")).collect();
    format!(
        "{} recordings of up to {} s; {} parts compiled\n\
         memory     {} MB\n\
         growth     {:.2} MB in 100 recordings, over the second half\n\
         speed      {:.1} times as fast as the audio in the first half, {:.1} in the second\n",
        l.runs,
        l.longest_s,
        l.compiled,
        memory.join(" "),
        l.slope_mb,
        l.rtfx[0],
        l.rtfx[1]
    )
}

/// By how much `values` grow from one to the next: the slope of the line that fits them best.
fn slope(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let (mid, mean) = ((n - 1.0) / 2.0, values.iter().sum::<f64>() / n);
    let (above, below) = values.iter().enumerate().fold((0.0, 0.0), |(a, b), (i, v)| {
        let x = i as f64 - mid;
        (a + x * (v - mean), b + x * x)
    });
    if below > 0.0 { above / below } else { 0.0 }
}

/// Noise that is the same in every run: a xorshift generator.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// From -0.1 to 0.1.
    fn sample(&mut self) -> f32 {
        (self.next() % 2001) as f32 * 1e-4 - 0.1
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_slope_of_a_line_is_found_and_of_one_value_is_none() {
        for (values, expected) in
            [(vec![3.0], 0.0), (vec![1.0, 3.0, 5.0, 7.0], 2.0), (vec![4.0, 4.0, 4.0], 0.0)]
        {
            assert!((super::slope(&values) - expected).abs() < 1e-12, "{values:?}");
        }
    }
}
