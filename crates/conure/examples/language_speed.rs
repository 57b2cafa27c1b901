//! Times a language model: reading a prompt, and token after token, with where the time goes.
//!
//! `cargo run --release -p conure --example language_speed -- MODEL.gguf [--threads N] [--prompt N] [--tokens N] [--runs N]
//! [--device cpu|openvino:CPU] [--precision exact|fast] [--steps]`
//!
//! With `--serve` it waits for lines on its input instead, so that a program can take turns with other engines
//! (`scripts/peers_llm.py`): `prefill N` and `decode N` are answered with the milliseconds for N tokens, `rss` with the
//! resident memory in MiB, now and at its peak. With `--bandwidth` it prints the bytes a second that the threads read of a
//! buffer as large as the weights that a token reads, and that size.
#![allow(clippy::print_stdout)] // a program that answers its caller

use conure::{DType, LanguageModel, LanguageSession, LoadOptions, Precision, SessionOptions, ThreadBudget};
use conure_graph::{Observer, StepDone};
use conure_kernels::Cpu;
use conure_kernels::roofline::bandwidth;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::BufRead;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Time of the steps of each kind: an op, and the last part of its node's path.
#[derive(Debug, Default)]
struct Steps(Mutex<BTreeMap<String, (u64, u64)>>);

impl Observer for Steps {
    fn wants_time(&self) -> bool {
        true
    }

    fn step(&self, step: &StepDone<'_>) {
        let path = step.node.path.as_str();
        let last = path.rsplit('.').find(|p| p.parse::<u32>().is_err()).unwrap_or(path);
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = kinds.entry(format!("{} {last}", step.node.op_name())).or_default();
        *entry = (entry.0 + 1, entry.1 + step.nanos.unwrap_or(0));
    }
}

impl Steps {
    fn print(&self, what: &str, per: usize) {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<_> = std::mem::take(&mut *kinds).into_iter().collect();
        rows.sort_by_key(|(_, k)| std::cmp::Reverse(k.1));
        let all: u64 = rows.iter().map(|(_, k)| k.1).sum();
        println!("{what}: {:.3} ms in steps", all as f64 * 1e-6 / per as f64);
        for (name, (calls, nanos)) in rows {
            let (calls, ms) = (calls as f64 / per as f64, nanos as f64 * 1e-6 / per as f64);
            println!("{name:>40} {calls:6.1} calls {ms:9.4} ms {:5.1} %", nanos as f64 * 100.0 / all as f64);
        }
    }
}

struct Options {
    model: String,
    threads: usize,
    prompt: usize,
    tokens: usize,
    runs: usize,
    device: String,
    precision: Precision,
    serve: bool,
    steps: bool,
    bandwidth: bool,
}

fn options() -> Outcome<Options> {
    let mut options = Options {
        model: String::new(),
        threads: 2,
        prompt: 512,
        tokens: 64,
        runs: 5,
        device: "cpu".into(),
        precision: Precision::Fast,
        serve: false,
        steps: false,
        bandwidth: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} wants a value"));
        match arg.as_str() {
            "--threads" => options.threads = value()?.parse()?,
            "--prompt" => options.prompt = value()?.parse()?,
            "--tokens" => options.tokens = value()?.parse()?,
            "--runs" => options.runs = value()?.parse()?,
            "--device" => options.device = value()?,
            "--precision" if value()? == "exact" => options.precision = Precision::Exact,
            "--precision" => {}
            "--serve" => options.serve = true,
            "--steps" => options.steps = true,
            "--bandwidth" => options.bandwidth = true,
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

/// Resident memory in MiB: now, and the most so far.
fn resident() -> [f64; 2] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ["VmRSS:", "VmHWM:"].map(|name| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
        kib.unwrap_or(0.0) / 1024.0
    })
}

fn serve(session: &mut LanguageSession) -> Outcome<()> {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("prefill", n)) => println!("{:.3}", prefill(session, n.parse()?)?),
            Some(("decode", n)) => println!("{:.3}", decode(session, n.parse()?)?),
            _ => {
                let [now, peak] = resident();
                println!("{now:.1} {peak:.1}");
            }
        }
    }
    Ok(())
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
    if o.bandwidth {
        let weights: u64 = model.info().dtypes.values().map(|d| d.bytes).sum();
        println!("{:.0} {weights}", bandwidth(&Cpu::detect(Some(o.threads))?, weights as usize)?);
        return Ok(());
    }
    let mut session = model.session(&SessionOptions { context: Some(1024), cache: DType::F16 })?;
    if o.serve {
        return serve(&mut session);
    }
    let median = |f: &mut dyn FnMut() -> Outcome<f64>| -> Outcome<f64> {
        f()?;
        let mut times = (0..o.runs.max(1)).map(|_| f()).collect::<Outcome<Vec<f64>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    };
    let read = median(&mut || prefill(&mut session, o.prompt))?;
    let step = median(&mut || decode(&mut session, o.tokens))?;
    let rate = |tokens: usize, ms: f64| tokens as f64 / ms * 1e3;
    let [now, peak] = resident();
    println!(
        "{} tokens at once: {read:.1} ms, {:.0} a second; one by one: {:.2} ms, {:.1} a second; {now:.0} MiB, at most {peak:.0}",
        o.prompt,
        rate(o.prompt, read),
        step / o.tokens as f64,
        rate(o.tokens, step),
    );
    if o.steps {
        let steps = Arc::new(Steps::default());
        session.set_observer(Some(steps.clone()));
        prefill(&mut session, o.prompt)?;
        steps.print("prefill", 1);
        prefill(&mut session, BEFORE)?;
        steps.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for at in 0..o.tokens {
            session.read(&[token(at)])?;
        }
        steps.print("decode", o.tokens);
    }
    Ok(())
}
