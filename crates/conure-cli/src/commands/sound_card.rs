//! The microphone, straight from the system's sound interface: ALSA, WASAPI or CoreAudio, through `cpal`.

use super::listen::Source;
use crate::failure::Failure;
use crate::output::warning;
use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
use cpal::{Data, Device, ErrorKind, InputCallbackInfo, SampleFormat, Stream};
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

/// Most blocks of a sound card that wait to be heard: at 5 to 20 ms each, 20 s or more. Then the card waits, and what it loses it tells.
const WAITING: usize = 4096;

/// What the sound card's thread hands over.
type Block = Result<Vec<u8>, String>;

/// Begins to record from the microphone of this name, or from the system's.
///
/// # Errors
/// No such microphone, or one that cannot be opened.
pub(super) fn open(microphone: Option<&str>) -> Result<Source, Failure> {
    let device = device(microphone)?;
    let name = super::microphone::shown(microphone);
    let failed = |error: cpal::Error| Failure::new(format!("cannot record from {name}")).because(error);
    let config = device.default_input_config().map_err(failed)?;
    let format = match config.sample_format() {
        SampleFormat::U8 => "u8",
        SampleFormat::I16 => "s16le",
        SampleFormat::I32 => "s32le",
        SampleFormat::F32 => "f32le",
        SampleFormat::F64 => "f64le",
        other => {
            return Err(
                Failure::new(format!("cannot record from {name}")).reason(format!("it gives {other}"))
            );
        }
    };
    let spec = format!("{format}:{}:{}", config.sample_rate(), config.channels());
    let (sender, blocks) = sync_channel(WAITING);
    let errors = sender.clone();
    let heard = move |data: &Data, _: &InputCallbackInfo| give(&sender, Ok(data.bytes().to_vec()));
    let card = name.clone();
    let went_wrong = move |error: cpal::Error| match error.kind() {
        ErrorKind::Xrun => warning(&format!("{card} lost some sound: {error}")),
        ErrorKind::DeviceChanged | ErrorKind::RealtimeDenied => {}
        _ => give(&errors, Err(error.to_string())),
    };
    let stream = device
        .build_input_stream_raw(config.config(), config.sample_format(), heard, went_wrong, None)
        .map_err(failed)?;
    stream.play().map_err(failed)?;
    let reader = Box::new(Recording { blocks, rest: Vec::new(), at: 0, _stream: stream });
    Ok(Source { name, spec, reader, since: Some(Instant::now()) })
}

/// A microphone by its name or its id, or the system's.
fn device(wanted: Option<&str>) -> Result<Device, Failure> {
    let host = cpal::default_host();
    let Some(wanted) = wanted else {
        let none = || Failure::new("cannot listen to a microphone").reason("the system knows of none");
        return host.default_input_device().ok_or_else(none);
    };
    let mut known = Vec::new();
    for device in host.input_devices().into_iter().flatten() {
        let id = device.id().map(|id| id.to_string()).unwrap_or_default();
        let name = device.description().map(|d| d.name().to_owned()).unwrap_or_default();
        if wanted == name || wanted == id {
            return Ok(device);
        }
        known.push(format!("{name} ({id})"));
    }
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(Failure::new(format!("there is no microphone {wanted}")).reason(format!("there are: {known}")))
}

/// Gives a block to whoever listens, if somebody still does.
fn give(to: &SyncSender<Block>, block: Block) {
    let _ = to.send(block);
}

/// A sound card at work; it ends with this. The receiver goes first, so that the card's thread does not wait for it.
struct Recording {
    blocks: Receiver<Block>,
    rest: Vec<u8>,
    at: usize,
    _stream: Stream,
}

impl Read for Recording {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.rest.len() {
            match self.blocks.recv() {
                Ok(block) => (self.rest, self.at) = (block.map_err(io::Error::other)?, 0),
                Err(_) => return Ok(0),
            }
        }
        let count = buffer.len().min(self.rest.len() - self.at);
        buffer[..count].copy_from_slice(&self.rest[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}
