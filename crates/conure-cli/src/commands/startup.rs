//! `conure bench startup`.

use super::bench::{json, print};
use super::model;
use crate::args::StartupArgs;
use crate::failure::Failure;
use conure::{RecogniseOptions, Samples, Times, TranscribeOptions};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The variable that says where compiled models are kept.
const CACHE: &str = "CONURE_OPENVINO_COMPILED_MODEL_CACHE_DIR";

/// What the turns took.
#[derive(Serialize)]
struct Startup {
    model: String,
    device: Option<String>,
    runs: usize,
    /// From an empty cache.
    first_ms: Times,
    /// From what the first left.
    second_ms: Times,
    /// The median of the turns' ratios of the second to the first.
    ratio: f64,
    /// What the first of the last turn compiled.
    compiled: u64,
    /// What the second of the last turn took from the cache.
    cached: u64,
    /// What the second of the last turn compiled: nothing, if all is well.
    compiled_again: u64,
    /// Memory of the first at its end, in 10^6 bytes.
    first_rss_mb: f64,
    /// Memory of the second at its end.
    second_rss_mb: f64,
    /// Bytes that the cache holds then.
    cache_bytes: u64,
}

/// Measures how long a program takes from its start to its first result, without and with a cache.
///
/// # Errors
/// A model that cannot be used, a program that cannot be started.
pub fn run(args: &StartupArgs) -> Result<(), Failure> {
    if args.once {
        return once(args);
    }
    let folder = Folder::new()?;
    let (mut first, mut second, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut before, mut after) = ([0; 3], [0; 3]);
    for _ in 0..args.runs {
        folder.empty();
        let (cold, warm);
        (cold, before) = start(&folder.0)?;
        (warm, after) = start(&folder.0)?;
        ratios.push(warm.as_secs_f64() / cold.as_secs_f64().max(1e-9));
        (first, second) = (with(first, cold), with(second, warm));
    }
    ratios.sort_by(f64::total_cmp);
    let startup = Startup {
        model: args.model.display().to_string(),
        device: args.compute.device.clone(),
        runs: args.runs,
        first_ms: Times::of(first),
        second_ms: Times::of(second),
        ratio: ratios[ratios.len() / 2],
        compiled: before[0],
        cached: after[1],
        compiled_again: after[0],
        first_rss_mb: before[2] as f64 * 1e-6,
        second_rss_mb: after[2] as f64 * 1e-6,
        cache_bytes: folder.bytes(),
    };
    print(if args.json { json(&startup)? } else { text(&startup) })
}

fn with(mut all: Vec<Duration>, one: Duration) -> Vec<Duration> {
    all.push(one);
    all
}

fn text(s: &Startup) -> String {
    format!(
        "first start   {:.0} ms (least {:.0}), {} parts compiled, {:.0} MB at its end\n\
         second start  {:.0} ms (least {:.0}), {} parts from the cache, {} compiled, {:.0} MB\n\
         ratio         {:.2}, of {} turns\n",
        s.first_ms.median,
        s.first_ms.min,
        s.compiled,
        s.first_rss_mb,
        s.second_ms.median,
        s.second_ms.min,
        s.cached,
        s.compiled_again,
        s.second_rss_mb,
        s.ratio,
        s.runs
    )
}

/// One start, in this process.
fn once(args: &StartupArgs) -> Result<(), Failure> {
    let model = model::load(Some(&args.model), &args.compute)?;
    let silence = vec![0.0; model.sample_rate() as usize];
    let options =
        TranscribeOptions { recognise: RecogniseOptions::default(), ..TranscribeOptions::default() };
    model
        .transcribe(Samples::mono(&silence, model.sample_rate()), &options)
        .map_err(|e| model::failed("cannot recognise a second of silence", e))?;
    let made = model.compilations();
    let memory = conure::resident_memory().unwrap_or(0);
    print(format!("{} {} {memory}\n", made.compiled, made.cached))
}

/// A program that starts once: how long it lived, what it compiled and found in the cache, and its memory at the end.
fn start(folder: &Path) -> Result<(Duration, [u64; 3]), Failure> {
    let fail = || Failure::new("cannot start the program again");
    let program = std::env::current_exe().map_err(|e| fail().because(e))?;
    // What was said to this program is said to the other, but that it is to start once.
    let given = std::env::args_os().skip(1).filter(|a| a != "--json");
    let begun = Instant::now();
    let out = Command::new(program).args(given).arg("--once").env(CACHE, folder).output();
    let took = begun.elapsed();
    let out = out.map_err(|e| fail().because(e))?;
    let said = String::from_utf8_lossy(&out.stdout);
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    match (out.status.success(), numbers.as_slice()) {
        (true, &[compiled, cached, memory]) => Ok((took, [compiled, cached, memory])),
        _ => Err(fail().reason(String::from_utf8_lossy(&out.stderr).trim().to_owned())),
    }
}

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, Failure> {
        let path = std::env::temp_dir().join(format!("conure-startup-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|e| Failure::new(format!("cannot make {}", path.display())).because(e))?;
        Ok(Folder(path))
    }

    fn files(&self) -> impl Iterator<Item = std::fs::DirEntry> {
        std::fs::read_dir(&self.0).into_iter().flatten().flatten()
    }

    fn empty(&self) {
        self.files().for_each(|f| drop(std::fs::remove_file(f.path())));
    }

    fn bytes(&self) -> u64 {
        self.files().filter_map(|f| f.metadata().ok()).map(|m| m.len()).sum()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
