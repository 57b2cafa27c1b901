//! The whole transcript as JSON; [`Transcript`] says what is in it.

use std::io::{self, Write};

use crate::result::Transcript;

pub(super) fn write(transcript: &Transcript, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, transcript)?;
    writeln!(out)
}
