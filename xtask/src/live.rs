//! `cargo xtask long --stream`: hours through `conure transcribe --stream -`, and what they cost at their beginning and end.
//!
//! Raw samples go down a pipe as fast as they are taken; what the process has in memory and how long it computed is read each time ten
//! more minutes have gone. A pipe holds 2 s, which is nothing beside that.

use crate::process;
use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Bytes of a second of 16-bit samples.
const SECOND: usize = 32_000;
/// Seconds between two measurements.
const STRETCH: usize = 600;
/// What memory and cost of the last stretch may be of the first's.
const MOST: f64 = 1.1;

/// A stretch of the stream.
struct Stretch {
    /// Bytes in memory at its end.
    resident: f64,
    /// Milliseconds of processor time for a second of it.
    cost: f64,
}

/// Streams the WAV file through the program and prints what its stretches cost.
///
/// # Errors
/// A program that fails; memory or cost that grows.
pub fn run(program: &Path, model: Option<&Path>, wav: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command.args(["transcribe", "--stream", "--quiet", "--raw", "s16le:16000:1", "-"]);
    if let Some(model) = model {
        command.arg("--model").arg(model);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let proc = Path::new("/proc").join(child.id().to_string());
    let mut stdin = child.stdin.take().context("no pipe")?;
    let mut samples = std::fs::File::open(wav)?;
    samples.seek(SeekFrom::Start(44))?;
    let mut block = vec![0; SECOND];
    let (mut stretches, mut seconds, mut before) = (Vec::new(), 0, None);
    while samples.read_exact(&mut block).is_ok() {
        stdin.write_all(&block).context("the program ended early")?;
        seconds += 1;
        // Loading is no part of the first stretch.
        let begun = *before.get_or_insert(computed(&proc)?);
        if seconds % STRETCH == 0 {
            let now = computed(&proc)?;
            stretches
                .push(Stretch { resident: resident(&proc)?, cost: (now - begun) * 1e3 / STRETCH as f64 });
            before = Some(now);
        }
    }
    drop(stdin);
    ensure!(child.wait()?.success(), "{} failed", process::line(&command));
    print!("{}", as_markdown(&stretches));
    let [first, .., last] = &stretches[..] else { bail!("a stream of 20 minutes or more is measured") };
    ensure!(last.resident <= MOST * first.resident, "memory grows with the length of a stream");
    ensure!(last.cost <= MOST * first.cost, "what a second costs grows with the length of a stream");
    Ok(())
}

fn as_markdown(stretches: &[Stretch]) -> String {
    let mut text = String::from("| minutes | resident, MB | ms of processor per s |\n|--:|--:|--:|\n");
    for (i, s) in stretches.iter().enumerate() {
        let end = (i + 1) * STRETCH / 60;
        text.push_str(&format!(
            "| {}-{end} | {:.1} | {:.2} |\n",
            end - STRETCH / 60,
            s.resident / 1e6,
            s.cost
        ));
    }
    text
}

/// Seconds of processor time of a process: fields 14 and 15 of its `stat`, in hundredths on Linux.
fn computed(proc: &Path) -> Result<f64> {
    let stat = std::fs::read_to_string(proc.join("stat"))?;
    ticks(&stat).map(|t| t / 100.0).context("/proc/PID/stat is not as it should be")
}

fn ticks(stat: &str) -> Option<f64> {
    // The name before them may hold anything, but ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
}

fn resident(proc: &Path) -> Result<f64> {
    let status = std::fs::read_to_string(proc.join("status"))?;
    let kib = process::status_kib(&status, "VmRSS:").context("/proc/PID/status without VmRSS")?;
    Ok(kib as f64 * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_whatever_the_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 1 1 1";
        assert_eq!(ticks(stat), Some(300.0));
    }
}
