//! The microphone, through a recorder that the system has: any of them gives raw samples on its standard output.

use super::listen::Source;
use crate::failure::Failure;
use std::io::{self, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// What every recorder is asked for.
const SPEC: &str = "s16le:16000:1";

/// Recorders, their arguments, and the option that names a microphone: ALSA's, PulseAudio's and PipeWire's, SoX's.
const RECORDERS: [(&str, &[&str], &str); 3] = [
    ("arecord", &["-q", "-f", "S16_LE", "-r", "16000", "-c", "1", "-t", "raw"], "-D"),
    ("parec", &["--raw", "--format=s16le", "--rate=16000", "--channels=1", "--latency-msec=20"], "-d"),
    ("rec", &["-q", "-t", "raw", "-e", "signed", "-b", "16", "-r", "16000", "-c", "1", "-"], ""),
];

/// Begins to record from this microphone, or the system's, with the first recorder that there is.
///
/// # Errors
/// No recorder, or one that cannot be started.
pub(super) fn open(microphone: Option<&str>) -> Result<Source, Failure> {
    for (program, args, option) in RECORDERS {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        match microphone {
            Some(_) if option.is_empty() => continue,
            Some(name) => command.args([option, name]),
            None => &mut command,
        };
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Failure::new(format!("cannot record with {program}")).because(error)),
        };
        let Some(samples) = child.stdout.take() else { continue };
        let reader = Box::new(Recorder { program, child, samples });
        return Ok(Source {
            name: shown(microphone),
            spec: SPEC.to_owned(),
            reader,
            since: Some(Instant::now()),
        });
    }
    let known: Vec<&str> = RECORDERS.iter().map(|(program, ..)| *program).collect();
    Err(Failure::new("cannot listen to a microphone")
        .reason(format!("none of these recorders was found: {}", known.join(", ")))
        .advice(
            "install one (alsa-utils has arecord, SoX has rec), or pipe from another: ... | conure transcribe --stream \
             -m MODEL - --raw s16le:16000:1",
        ))
}

/// A microphone for messages.
pub(super) fn shown(microphone: Option<&str>) -> String {
    microphone.map_or("the microphone".to_owned(), |name| format!("the microphone {name}"))
}

/// A recorder at work; it ends with this.
struct Recorder {
    program: &'static str,
    child: Child,
    samples: ChildStdout,
}

impl Read for Recorder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.samples.read(buffer)?;
        if count == 0 && !buffer.is_empty() {
            let status = self.child.wait()?;
            if !status.success() {
                return Err(io::Error::other(format!("{} ended: {status}", self.program)));
            }
        }
        Ok(count)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // One that has ended already is no fault.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
