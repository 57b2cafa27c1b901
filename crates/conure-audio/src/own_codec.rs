//! What a decoder of our own needs to stand among Symphonia's.

use symphonia::core::audio::{AsGenericAudioBufferRef, AudioBuffer, AudioSpec, GenericAudioBufferRef};
use symphonia::core::codecs::CodecInfo;
use symphonia::core::codecs::audio::{
    AudioCodecParameters, AudioDecoder, AudioDecoderOptions, FinalizeResult,
};
use symphonia::core::codecs::registry::{RegisterableAudioDecoder, SupportedAudioCodec};
use symphonia::core::errors::Result;
use symphonia::core::packet::PacketRef;

/// A codec: packets in, planes of samples out.
pub(crate) trait OwnCodec: Sized + Send + Sync {
    /// Its name, and the one codec it decodes.
    const SUPPORTED: &'static [SupportedAudioCodec];

    /// The codec for a track, what it gives out, and the most samples of each channel that a packet holds.
    ///
    /// # Errors
    /// Parameters that it cannot decode.
    fn new(params: &AudioCodecParameters) -> Result<(Self, AudioSpec, usize)>;

    /// Forgets what it knows of earlier packets.
    fn reset(&mut self);

    /// Decodes a packet into `buffer`, which is empty.
    ///
    /// # Errors
    /// A packet that breaks the rules.
    fn decode(&mut self, packet: &[u8], buffer: &mut AudioBuffer<f32>) -> Result<()>;
}

/// An [`OwnCodec`] as Symphonia knows decoders.
pub(crate) struct OwnDecoder<C> {
    codec: C,
    params: AudioCodecParameters,
    buffer: AudioBuffer<f32>,
}

impl<C: OwnCodec> AudioDecoder for OwnDecoder<C> {
    fn reset(&mut self) {
        self.codec.reset();
    }

    fn codec_info(&self) -> &CodecInfo {
        &C::SUPPORTED[0].info
    }

    fn codec_params(&self) -> &AudioCodecParameters {
        &self.params
    }

    fn decode_ref(&mut self, packet: &PacketRef<'_>) -> Result<GenericAudioBufferRef<'_>> {
        self.buffer.clear();
        if let Err(e) = self.codec.decode(packet.data, &mut self.buffer) {
            self.buffer.clear();
            return Err(e);
        }
        Ok(self.buffer.as_generic_audio_buffer_ref())
    }

    fn finalize(&mut self) -> FinalizeResult {
        FinalizeResult::default()
    }

    fn last_decoded(&self) -> GenericAudioBufferRef<'_> {
        self.buffer.as_generic_audio_buffer_ref()
    }
}

impl<C: OwnCodec + 'static> RegisterableAudioDecoder for OwnDecoder<C> {
    fn try_registry_new(
        params: &AudioCodecParameters,
        _options: &AudioDecoderOptions,
    ) -> Result<Box<dyn AudioDecoder>> {
        let (codec, spec, most) = C::new(params)?;
        let mut params = params.clone();
        params.with_sample_rate(spec.rate()).with_channels(spec.channels().clone());
        Ok(Box::new(OwnDecoder { codec, params, buffer: AudioBuffer::new(spec, most) }))
    }

    fn supported_codecs() -> &'static [SupportedAudioCodec] {
        C::SUPPORTED
    }
}
