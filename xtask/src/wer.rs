//! `cargo xtask wer`: word error rates of the program on the clips of `tests/data/audio`, per set, head and element type,
//! how many hypotheses are NeMo's own, word for word, and what each type changes against f32.

use crate::process::{self, cargo};
use crate::{embed, root};
use anyhow::{Context, Result, bail};
use conure_convert::{ConvertError, ConvertOptions, QuantiseOptions, TargetType, convert, quantise};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const AUDIO: &str = "tests/data/audio";

/// A clip, what is said in it, and what NeMo makes of it with the embedded model, by head.
#[derive(Debug)]
pub struct Clip {
    /// Its file.
    pub path: PathBuf,
    set: String,
    /// What is said in it.
    pub reference: String,
    nemo: BTreeMap<String, String>,
}

/// A cell of the table.
#[derive(Debug, Default, PartialEq)]
struct Score {
    clips: usize,
    words: usize,
    errors: usize,
    as_nemo: usize,
    /// Words that differ from those of f32, of how many.
    changed: usize,
    of: usize,
}

/// How the model is stored and run.
#[derive(Clone, Copy)]
struct Variant {
    target: TargetType,
    precision: &'static str,
    /// Whether weights are rounded for what the model hears.
    calibrated: bool,
}

impl Variant {
    const fn new(target: TargetType, precision: &'static str) -> Variant {
        Variant { target, precision, calibrated: false }
    }
}

const VARIANTS: [Variant; 9] = [
    Variant::new(TargetType::F32, "exact"),
    Variant::new(TargetType::F16, "exact"),
    Variant::new(TargetType::Q8_0, "exact"),
    Variant::new(TargetType::Q8_0, "fast"),
    Variant::new(TargetType::F32, "int8"),
    Variant::new(TargetType::Q8_0, "int8"),
    Variant::new(TargetType::Q6K, "fast"),
    Variant::new(TargetType::Q5K, "fast"),
    Variant::new(TargetType::Q4K, "fast"),
];

/// What OpenVINO's devices are measured with besides.
const OPENVINO: [Variant; 2] =
    [Variant::new(TargetType::F32, "bf16"), Variant::new(TargetType::Q8_0, "bf16")];

impl Variant {
    fn name(&self) -> String {
        let name = self.target.dtype().name();
        let quantised = self.target.dtype().is_quantised();
        let name = match self.precision {
            "exact" if quantised => format!("{name} exact"),
            "bf16" | "int8" => format!("{name} in {}", self.precision),
            _ => name.to_owned(),
        };
        if self.calibrated { format!("{name} calibrated") } else { name }
    }

    /// The file of the model, in `folder`.
    fn model(&self, folder: &Path) -> PathBuf {
        let calibrated = if self.calibrated { "-calibrated" } else { "" };
        folder.join(format!("{}{calibrated}.gguf", self.target.dtype().name()))
    }
}

/// The program under test, the device it is to compute on, and what is measured there.
struct Bench {
    program: PathBuf,
    device: Option<String>,
    variants: Vec<Variant>,
    /// What the model hears to be calibrated.
    heard: Vec<PathBuf>,
}

impl Bench {
    fn new(program: PathBuf, device: Option<String>, heard: Vec<PathBuf>) -> Bench {
        let more = device.as_ref().is_some_and(|name| name.starts_with("openvino"));
        // There `int8` is `fast`.
        let known = |v: &Variant| !(more && v.precision == "int8");
        let calibrate = |v: &Variant| v.target.dtype().is_quantised() && !heard.is_empty();
        let both =
            |v: Variant| std::iter::once(v).chain(calibrate(&v).then_some(Variant { calibrated: true, ..v }));
        let variants = VARIANTS
            .into_iter()
            .filter(known)
            .chain(OPENVINO.into_iter().filter(|_| more))
            .flat_map(both)
            .collect();
        Bench { program, device, variants, heard }
    }

    /// Stores the model of a variant, made of its f32 form, which is there already for all but the first.
    fn store(&self, source: &Path, folder: &Path, variant: &Variant) -> Result<PathBuf> {
        let model = variant.model(folder);
        if !variant.calibrated {
            store(source, &model, folder, variant.target)?;
            return Ok(model);
        }
        let mut command = Command::new(&self.program);
        command.args(["quantize", "--quiet"]).arg(folder.join("f32.gguf")).arg(&model);
        command.arg(variant.target.dtype().name());
        self.heard.iter().for_each(|path| {
            command.arg("--calibrate").arg(path);
        });
        let output = command.output().context("cannot start conure")?;
        if !output.status.success() {
            bail!("conure quantize failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(model)
    }

    /// The program with a command that runs a model.
    fn command(&self, name: &str, variant: &Variant) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(name);
        if let Some(device) = &self.device {
            command.args(["--device", device]);
        }
        match variant.precision {
            "bf16" => command.env("CONURE_OPENVINO_PRECISION", "bf16"),
            precision => command.args(["--precision", precision]),
        };
        command
    }
}

/// The clips whose log-probs are compared.
const COMPARED: &str = "real_";

/// The clips of both collections.
///
/// # Errors
/// If their descriptions cannot be read.
pub fn clips() -> Result<Vec<Clip>> {
    let audio = root().join(AUDIO);
    let text = |v: &Value, what: &str| {
        v.as_str().map(str::to_owned).with_context(|| format!("{what} is missing in the clips' JSON"))
    };
    let clip = |path: PathBuf, set: String, reference: &Value, item: &Value| -> Result<Clip> {
        let heads = ["tdt", "ctc"].map(|head| Ok((head.to_owned(), text(&item[head]["text"], "text")?)));
        let nemo = heads.into_iter().collect::<Result<_>>()?;
        Ok(Clip { path, set, reference: text(reference, "the transcript")?, nemo })
    };
    let mut clips = Vec::new();
    let hypotheses = json(&audio.join("nemo_hypotheses.json"))?;
    for (file, item) in hypotheses["files"].as_object().context("nemo_hypotheses.json holds no files")? {
        clips.push(clip(audio.join(file), text(&item["set"], "set")?, &item["reference"], item)?);
    }
    let folder = audio.join("real200");
    let results = json(&folder.join("results.json"))?;
    for item in results["items"].as_array().context("results.json holds no items")? {
        let path = folder.join(text(&item["file"], "file")?);
        clips.push(clip(path, "real200 (Common Voice)".to_owned(), &item["transcript"], item)?);
    }
    Ok(clips)
}

fn json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// Words that must be changed, left out or put in to make `hypothesis` of `reference`.
pub fn word_errors(reference: &str, hypothesis: &str) -> usize {
    let hypothesis: Vec<&str> = hypothesis.split_whitespace().collect();
    let mut row: Vec<usize> = (0..=hypothesis.len()).collect();
    for (i, word) in reference.split_whitespace().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in hypothesis.iter().enumerate() {
            let change = diagonal + usize::from(word != *other);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

fn same_words(a: &str, b: &str) -> bool {
    a.split_whitespace().eq(b.split_whitespace())
}

/// The clips to evaluate, and those to calibrate with: none; every second one of real200, which is then not evaluated (`half`);
/// or just those that are evaluated (`all`).
fn divided(clips: Vec<Clip>, calibrate: Option<&str>) -> Result<(Vec<Clip>, Vec<PathBuf>)> {
    let paths = |clips: &[Clip]| clips.iter().map(|c| c.path.clone()).collect();
    match calibrate {
        None => Ok((clips, Vec::new())),
        Some("all") => {
            let heard = paths(&clips);
            Ok((clips, heard))
        }
        Some("half") => {
            let mut count = 0;
            let (heard, clips): (Vec<Clip>, Vec<Clip>) = clips.into_iter().partition(|clip| {
                count += usize::from(clip.set.starts_with("real200"));
                clip.set.starts_with("real200") && count % 2 == 1
            });
            Ok((clips, paths(&heard)))
        }
        Some(other) => bail!("--calibrate wants `half` or `all`, not {other}"),
    }
}

/// `cargo xtask wer [--release] [--program CONURE] [--device NAME] [--calibrate half|all] [MODEL.gguf]`.
///
/// # Errors
/// A model that cannot be used, a clip that cannot be transcribed.
pub fn run(args: &[String]) -> Result<()> {
    let mut args = args.to_vec();
    let (device, given) = (taken(&mut args, "--device")?, taken(&mut args, "--program")?);
    let calibrate = taken(&mut args, "--calibrate")?;
    let (flags, models): (Vec<&String>, Vec<&String>) = args.iter().partition(|a| a.starts_with("--"));
    if let Some(unknown) = flags.iter().find(|f| f.as_str() != "--release") {
        bail!("`cargo xtask wer` does not know {unknown}");
    }
    let source = match models.as_slice() {
        [] => root().join(embed::FILE),
        [model] => PathBuf::from(model),
        _ => bail!("give at most one model"),
    };
    let program = match given {
        Some(program) => PathBuf::from(program),
        None => program(!flags.is_empty())?,
    };
    let (clips, heard) = divided(clips()?, calibrate.as_deref())?;
    let bench = Bench::new(program, device, heard);
    let folder = root().join("target/wer");
    std::fs::create_dir_all(&folder)?;
    let mut table: BTreeMap<(String, String), Vec<Score>> = BTreeMap::new();
    let mut said: BTreeMap<(String, PathBuf), String> = BTreeMap::new();
    let mut log_probs = Vec::new();
    let mut full = Vec::new();
    for variant in &bench.variants {
        let model = bench.store(&source, &folder, variant)?;
        let heads = heads(&bench.program, &model)?;
        for head in &heads {
            for (set, score) in scores(&bench, &model, variant, head, &clips, &folder, &mut said)? {
                table.entry((set, head.clone())).or_default().push(score);
            }
        }
        if heads.iter().any(|head| head == "ctc") {
            let probs = ctc_log_probs(&bench, &model, variant, &clips, &folder)?;
            if full.is_empty() {
                full = probs;
            } else {
                let change = |(a, b): (&f32, &f32)| f64::from((a - b).abs());
                log_probs.push((variant.name(), full.iter().zip(&probs).map(change).fold(0.0, f64::max)));
            }
        }
    }
    print!("{}", as_markdown(&bench.variants, &table, models.is_empty()));
    print!("\n{}", changes_as_markdown(&bench.variants, &table));
    for (name, change) in log_probs {
        println!("largest change of a CTC log-prob on `{COMPARED}*`, {name}: {change:.2e}");
    }
    Ok(())
}

/// Takes an option and its value out of `args`.
fn taken(args: &mut Vec<String>, option: &str) -> Result<Option<String>> {
    let Some(at) = args.iter().position(|a| a == option) else { return Ok(None) };
    if at + 1 >= args.len() {
        bail!("{option} wants a value");
    }
    Ok(args.drain(at..at + 2).nth(1))
}

/// What each type changes against f32, over all sets: words and error rate.
fn changes_as_markdown(variants: &[Variant], table: &BTreeMap<(String, String), Vec<Score>>) -> String {
    let mut text = String::from("| head | type | WER % | words changed | % |\n|---|---|--:|--:|--:|\n");
    let heads: BTreeSet<&String> = table.keys().map(|(_, head)| head).collect();
    for head in heads {
        for (i, variant) in variants.iter().enumerate() {
            let all = || table.iter().filter(|((_, h), _)| h == head).filter_map(|(_, s)| s.get(i));
            let sum = |of: fn(&Score) -> usize| all().map(of).sum::<usize>();
            let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
            let (changed, of) = (sum(|s| s.changed), sum(|s| s.of));
            text.push_str(&format!(
                "| {head} | {} | {:.2} | {changed} of {of} | {:.2} |\n",
                variant.name(),
                percent(sum(|s| s.errors), sum(|s| s.words)),
                percent(changed, of)
            ));
        }
    }
    text
}

/// The table: word error rates in percent and, if `nemo`, how many hypotheses are NeMo's own.
fn as_markdown(variants: &[Variant], table: &BTreeMap<(String, String), Vec<Score>>, nemo: bool) -> String {
    let types: Vec<String> = variants.iter().map(Variant::name).collect();
    let mut text = format!("| set | head | clips | words | {} |\n|---|---|--:|--:", types.join(" | "));
    text.push_str(&"|--:".repeat(types.len()));
    text.push_str("|\n");
    for ((set, head), scores) in table {
        let cell = |s: &Score| {
            let wer = 100.0 * s.errors as f64 / s.words.max(1) as f64;
            if nemo { format!("{wer:.1} ({})", s.as_nemo) } else { format!("{wer:.1}") }
        };
        let cells: Vec<String> = scores.iter().map(cell).collect();
        let (clips, words) = scores.first().map_or((0, 0), |s| (s.clips, s.words));
        text.push_str(&format!("| {set} | {head} | {clips} | {words} | {} |\n", cells.join(" | ")));
    }
    text
}

/// Builds the program and says where it is.
fn program(release: bool) -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--quiet", "--package", "conure-cli"]);
    if release {
        build.arg("--release");
    }
    process::run(&mut build)?;
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .context("cargo metadata")?;
    let folder = metadata.target_directory.join(if release { "release" } else { "debug" });
    Ok(folder.join(format!("conure{}", std::env::consts::EXE_SUFFIX)).into())
}

/// The model with all its matrices as `target`, made of its f32 form.
fn store(source: &Path, model: &Path, folder: &Path, target: TargetType) -> Result<()> {
    if target == TargetType::F32 {
        match convert(source, model, &ConvertOptions { dtype: target, ..ConvertOptions::default() }) {
            // It is of this type already.
            Err(ConvertError::NothingToDo { .. }) => {
                std::fs::copy(source, model).with_context(|| format!("cannot write {}", model.display()))?;
            }
            other => drop(other?),
        }
        return Ok(());
    }
    let full = folder.join("f32.gguf");
    quantise(&full, model, &QuantiseOptions { target, ..QuantiseOptions::default() })?;
    Ok(())
}

/// The CTC head's log-probs on the compared clips, one after the other.
fn ctc_log_probs(
    bench: &Bench,
    model: &Path,
    variant: &Variant,
    clips: &[Clip],
    folder: &Path,
) -> Result<Vec<f32>> {
    let mut all = Vec::new();
    let out = folder.join("log_probs.safetensors");
    for clip in clips.iter().filter(|c| c.set.starts_with(COMPARED)) {
        let mut command = bench.command("capture", variant);
        command.arg(model).arg(&clip.path).args(["--node", "ctc.log_probs", "--output"]);
        let output = command.arg(&out).output()?;
        if !output.status.success() {
            bail!("conure capture failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        // Safetensors: the length of a JSON header, that header, and the one tensor's bytes.
        let bytes = std::fs::read(&out)?;
        let (length, rest) = bytes.split_first_chunk::<8>().context("log_probs.safetensors is cut short")?;
        let length = usize::try_from(u64::from_le_bytes(*length))?;
        let values = rest.get(length..).context("log_probs.safetensors is cut short")?;
        all.extend(values.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)));
    }
    Ok(all)
}

fn heads(program: &Path, model: &Path) -> Result<Vec<String>> {
    let output = Command::new(program).arg("info").arg(model).arg("--json").output()?;
    let info: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("conure info: {}", String::from_utf8_lossy(&output.stderr)))?;
    let heads = info["decoders"].as_array().context("conure info names no decoders")?;
    Ok(heads.iter().filter_map(|h| h.as_str().map(str::to_owned)).collect())
}

/// Transcribes every clip with one head and counts errors, by set.
fn scores(
    bench: &Bench,
    model: &Path,
    variant: &Variant,
    head: &str,
    clips: &[Clip],
    folder: &Path,
    said: &mut BTreeMap<(String, PathBuf), String>,
) -> Result<BTreeMap<String, Score>> {
    let out = folder.join("transcripts");
    if out.exists() {
        std::fs::remove_dir_all(&out)?;
    }
    let stems: BTreeSet<_> = clips.iter().filter_map(|c| c.path.file_stem()).collect();
    if stems.len() != clips.len() {
        bail!("two clips have the same name");
    }
    let mut command = bench.command("transcribe", variant);
    command.args(["--quiet", "--progress", "none", "--output-format", "json", "--decoder", head]);
    command.arg("--model").arg(model).arg("--output-dir").arg(&out).args(clips.iter().map(|c| &c.path));
    let output = command.output().context("cannot start conure")?;
    if !output.status.success() {
        bail!("conure transcribe failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut scores: BTreeMap<String, Score> = BTreeMap::new();
    for clip in clips {
        let stem = clip.path.file_stem().unwrap_or_default().to_string_lossy();
        let transcript = json(&out.join(format!("{stem}.json")))?;
        let text = transcript["text"].as_str().unwrap_or_default();
        let score = scores.entry(clip.set.clone()).or_default();
        score.clips += 1;
        score.words += clip.reference.split_whitespace().count();
        score.errors += word_errors(&clip.reference, text);
        let full = said.entry((head.to_owned(), clip.path.clone())).or_insert_with(|| text.to_owned());
        score.changed += word_errors(full, text);
        score.of += full.split_whitespace().count();
        score.as_nemo += usize::from(clip.nemo.get(head).is_some_and(|nemo| same_words(nemo, text)));
    }
    Ok(scores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (reference, hypothesis, expected) in [
            ("", "", 0),
            ("a b c", "a b c", 0),
            ("a b c", "a  x c", 1),
            ("a b c", "b c", 1),
            ("a b c", "a b b c", 1),
            ("a b c", "", 3),
            ("", "x y", 2),
            ("a b c d", "d c b a", 4),
        ] {
            assert_eq!(word_errors(reference, hypothesis), expected, "{reference} / {hypothesis}");
        }
    }

    #[test]
    fn the_table_shows_rates_and_agreement() {
        let score = |errors, as_nemo| Score { clips: 2, words: 40, errors, as_nemo, changed: 1, of: 50 };
        let table =
            BTreeMap::from([(("a".into(), "ctc".into()), vec![score(3, 2), score(3, 2), score(4, 1)])]);
        let line = |nemo| as_markdown(&VARIANTS, &table, nemo).lines().last().unwrap().to_owned();
        assert_eq!(line(true), "| a | ctc | 2 | 40 | 7.5 (2) | 7.5 (2) | 10.0 (1) |");
        assert_eq!(line(false), "| a | ctc | 2 | 40 | 7.5 | 7.5 | 10.0 |");
        let changes = changes_as_markdown(&VARIANTS, &table);
        assert!(changes.contains("| ctc | f16 | 7.50 | 1 of 50 | 2.00 |"), "{changes}");
    }

    #[test]
    fn clips_to_calibrate_with_are_not_evaluated_unless_asked_for() {
        let all = || clips().unwrap();
        let (evaluated, heard) = divided(all(), Some("half")).unwrap();
        assert_eq!((evaluated.len(), heard.len()), (92 + 24, 92));
        assert!(evaluated.iter().all(|clip| !heard.contains(&clip.path)));
        assert_eq!(divided(all(), Some("all")).unwrap().1.len(), all().len());
        assert!(divided(all(), None).unwrap().1.is_empty() && divided(all(), Some("third")).is_err());
        let names =
            Bench::new(PathBuf::new(), None, heard).variants.iter().map(Variant::name).collect::<Vec<_>>();
        assert_eq!(names[..4], ["f32", "f16", "q8_0 exact", "q8_0 exact calibrated"]);
    }

    #[test]
    fn nemo_s_errors_are_counted_as_the_clips_say() {
        let audio = root().join(AUDIO);
        let results = json(&audio.join("real200/results.json")).unwrap();
        for item in results["items"].as_array().unwrap() {
            for head in ["tdt", "ctc"] {
                let count =
                    word_errors(item["transcript"].as_str().unwrap(), item[head]["text"].as_str().unwrap());
                assert_eq!(Some(count as u64), item[head]["errors"].as_u64(), "{}", item["file"]);
            }
        }
        assert_eq!(clips().unwrap().len(), 184 + 24);
    }
}
