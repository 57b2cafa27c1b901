//! A language model that reads what it is told to and says what that took, so that it can take turns with other engines
//! (`cargo xtask peers --llm`, `scripts/peers_llm.py`). What a user measures is `conure bench MODEL` and `conure profile MODEL`.
//!
//! `language_speed MODEL.gguf [--threads N] [--device cpu|openvino:CPU] [--precision exact|fast|int8]` says `ready` and answers the lines
//! of its input: `prefill N` and `decode N` with the milliseconds for N tokens, `rss` with the resident memory in MiB, now and at its
//! peak, `bandwidth` with the bytes a second that the threads read of a buffer as large as the weights that a token reads, and that
//! size.
#![allow(clippy::print_stdout)] // a program that answers its caller

use conure::{DType, LanguageModel, LanguageSession, LoadOptions, Precision, SessionOptions, ThreadBudget};
use conure_kernels::Cpu;
use conure_kernels::roofline::bandwidth;
use std::error::Error;
use std::io::BufRead;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Options {
    model: String,
    threads: usize,
    device: String,
    precision: Precision,
}

fn options() -> Outcome<Options> {
    let (model, device) = (String::new(), "cpu".into());
    let mut options = Options { model, threads: 2, device, precision: Precision::Fast };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} wants a value"));
        match arg.as_str() {
            "--threads" => options.threads = value()?.parse()?,
            "--device" => options.device = value()?,
            "--precision" => options.precision = value()?.parse()?,
            _ => options.model = arg,
        }
    }
    if options.model.is_empty() { Err("which model?".into()) } else { Ok(options) }
}

/// The token at a place: the same in all engines.
fn token(at: usize) -> u32 {
    1000 + (at * 37 % 5000) as u32
}

/// Tokens that are there before single ones are timed.
const BEFORE: usize = 16;

/// Milliseconds for reading so many tokens at once from nothing.
fn prefill(session: &mut LanguageSession, count: usize) -> Outcome<f64> {
    let ids: Vec<u32> = (0..count).map(token).collect();
    session.rewind(0);
    let begun = Instant::now();
    session.read(&ids)?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// Milliseconds for reading so many tokens one by one, after a few.
fn decode(session: &mut LanguageSession, count: usize) -> Outcome<f64> {
    prefill(session, BEFORE)?;
    session.read(&[token(BEFORE)])?;
    let begun = Instant::now();
    for at in 0..count {
        session.read(&[token(BEFORE + 1 + at)])?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

fn main() -> Outcome<()> {
    let o = options()?;
    let load = LoadOptions {
        device: Some(o.device.clone()),
        budget: ThreadBudget::of_process(Some(o.threads)),
        precision: o.precision,
        ..LoadOptions::default()
    };
    let model = LanguageModel::load_with(&o.model, &load)?;
    let mut session = model.session(&SessionOptions { context: Some(1024), cache: DType::F16 })?;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match (line.as_str(), line.split_once(' ')) {
            (_, Some(("prefill", n))) => println!("{:.3}", prefill(&mut session, n.parse()?)?),
            (_, Some(("decode", n))) => println!("{:.3}", decode(&mut session, n.parse()?)?),
            ("rss", _) => {
                let mib = |bytes: Option<u64>| bytes.map_or(0.0, |b| b as f64 / 1_048_576.0);
                println!("{:.1} {:.1}", mib(conure::resident_memory()), mib(conure::peak_memory()));
            }
            ("bandwidth", _) => {
                let weights: u64 = model.info().dtypes.values().map(|d| d.bytes).sum();
                println!("{:.0} {weights}", bandwidth(&Cpu::detect(Some(o.threads))?, weights as usize)?);
            }
            _ => return Err(format!("{line} is no question").into()),
        }
    }
    Ok(())
}
