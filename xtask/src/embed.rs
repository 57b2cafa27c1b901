//! `cargo xtask embed MODEL.nemo`: the GGUF file of the model that the library carries.

use anyhow::{Context, Result, bail};
use conure_convert::{ConvertOptions, TargetType, convert};

/// Where the library expects it.
pub const FILE: &str = "crates/conure/model/parakeet-tiny-en-12m-tdt_ctc.gguf";

/// What it is and what it was made from: whoever passes the file on passes this on.
const GENERAL: [(&str, &str); 3] = [
    ("general.license", "MIT OR Apache-2.0"),
    ("general.author", "The Conure contributors"),
    (
        "general.description",
        "A small English recogniser in the geometry of NeMo's FastConformer hybrid TDT+CTC, trained for 20 minutes on \
         28.5 h of synthetic and 5 h of real speech. It turns clear speech into mostly right words, in lower case \
         without punctuation, and is not a good general recogniser. Sources: synthetic speech made with Kokoro-82M \
         (Apache-2.0), flite and eSpeak NG; Common Voice v1 (CC0-1.0); recordings of the dc_tts repository \
         (Apache-2.0); Asterisk core sounds by Allison Smith (CC BY-SA 3.0); texts of Project Gutenberg, transcripts of \
         LJSpeech (public domain), Debian's fortunes and word lists.",
    ),
];

/// Converts `args[0]`.
///
/// # Errors
/// What is wrong with the arguments or the model.
pub fn run(args: &[String]) -> Result<()> {
    let [input] = args else { bail!("give the .nemo file: cargo xtask embed MODEL.nemo") };
    let output = crate::root().join(FILE);
    if let Some(folder) = output.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let options = ConvertOptions {
        // Its weights were trained to f16 values: nothing is lost.
        dtype: TargetType::F16,
        name: Some("parakeet-tiny-en-12m-tdt_ctc".to_owned()),
        general: GENERAL.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        progress: None,
    };
    let report = convert(input.as_ref(), &output, &options)?;
    println!(
        "{FILE}: {} parameters, {} bytes, tensors {:?}",
        report.parameters, report.bytes, report.tensors
    );
    Ok(())
}
