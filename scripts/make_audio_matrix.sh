#!/usr/bin/env bash
# Makes the audio test files of crates/conure-audio (fault kind K1: containers and encodings) from one clip,
# tests/data/audio/speech.wav (16 kHz, mono, 16 bits), into target/audio-matrix. Needs sox and ffmpeg; where they are
# missing and apt-get can be used (root, or sudo without a password), installs them.
#
#   scripts/make_audio_matrix.sh [--force]
#
# manifest.tsv, one row a file:   name  kind  rate  channels  reference
#   lossless   samples equal the clip's (reference: speech | stereo | up96), bit for bit
#   lossy      samples lie within -50 dB of the reference, ffmpeg's own decoding as raw f32 (NAME.f32)
#   short      a second and a half, to be cut and damaged by the tests
#   refused    a format that is named in the error; reference holds a word of its name
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=target/audio-matrix
SPEECH=tests/data/audio/speech.wav
STAMP="$OUT/.made-by"
SUM=$(cat "$0" "$SPEECH" | sha256sum | cut -d' ' -f1)

if [ "${1:-}" != "--force" ] && [ "$(cat "$STAMP" 2>/dev/null || true)" = "$SUM" ]; then
  echo "audio matrix: up to date in $OUT"
  exit 0
fi

need() {
  command -v "$1" >/dev/null 2>&1 && return 0
  local sudo=""
  if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo="sudo -n"; else
      echo "audio matrix: $1 is not installed; install sox and ffmpeg, then run this script again" >&2
      exit 1
    fi
  fi
  command -v apt-get >/dev/null 2>&1 || { echo "audio matrix: install $1 (sox and ffmpeg are needed)" >&2; exit 1; }
  $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends sox ffmpeg
}
need sox
need ffmpeg

TMP="$OUT.new"
rm -rf "$TMP"
mkdir -p "$TMP"
MANIFEST="$TMP/manifest.tsv"
: > "$MANIFEST"
FF="ffmpeg -nostdin -hide_banner -loglevel error -y -bitexact"

row() { printf '%s\t%s\t%s\t%s\t%s\n' "$@" >> "$MANIFEST"; }
# ff NAME KIND RATE CHANNELS REFERENCE -- INPUT ARGS...
lossless() { # NAME REF INPUT ARGS...
  local name=$1 ref=$2 input=$3; shift 3
  $FF -i "$input" "$@" "$TMP/$name"
  row "$name" lossless "$(rate "$ref")" "$(channels "$ref")" "$ref"
}
rate() { case $1 in up96) echo 96000 ;; c44) echo 44100 ;; c48|c48s) echo 48000 ;; alaw|mulaw) echo 8000 ;; *) echo 16000 ;; esac; }
channels() { case $1 in stereo|c48s) echo 2 ;; c51) echo 6 ;; *) echo 1 ;; esac; }
# The reference of a lossy file is ffmpeg's decoding at the file's own rate and channels. DECODER: e.g. -c:a libopus.
reference() { # NAME [DECODER ARGS]
  local name=$1; shift
  $FF "$@" -i "$TMP/$name" -map 0:a:0 -c:a pcm_f32le -f f32le "$TMP/$name.f32"
  local probe
  probe=$(ffprobe -v error -select_streams a:0 -show_entries stream=sample_rate,channels -of csv=p=0 "$TMP/$name" | head -n1)
  row "$name" lossy "${probe%%,*}" "${probe##*,}" "$name.f32"
}
lossy() { # NAME INPUT ARGS...
  local name=$1 input=$2; shift 2
  $FF -i "$input" "$@" "$TMP/$name"
  reference "$name"
}

# ---- clips to encode ------------------------------------------------------------------------------------------
cp "$SPEECH" "$TMP/speech.wav"; row speech.wav lossless 16000 1 speech
$FF -i "$SPEECH" -af 'pan=stereo|c0=c0|c1=-0.5*c0' -c:a pcm_s16le "$TMP/stereo.wav"; row stereo.wav lossless 16000 2 stereo
$FF -i "$SPEECH" -af 'pan=5.1|FL=0.1*c0|FR=0.2*c0|FC=c0|LFE=0.3*c0|BL=-0.4*c0|BR=0.5*c0' -c:a pcm_s16le "$TMP/c51.wav"; row c51.wav lossless 16000 6 c51
$FF -i "$SPEECH" -ar 96000 -c:a pcm_s24le "$TMP/up96.wav"; row up96.wav lossless 96000 1 up96
$FF -i "$SPEECH" -ar 44100 -c:a pcm_s16le "$TMP/c44.wav"; row c44.wav lossless 44100 1 c44
$FF -i "$SPEECH" -ar 48000 -c:a pcm_s16le "$TMP/c48.wav"; row c48.wav lossless 48000 1 c48
$FF -i "$TMP/stereo.wav" -ar 48000 -c:a pcm_s16le "$TMP/c48s.wav"; row c48s.wav lossless 48000 2 c48s

# ---- WAV and its kin --------------------------------------------------------------------------------------------
lossless s24.wav speech "$SPEECH" -c:a pcm_s24le
lossless s32.wav speech "$SPEECH" -c:a pcm_s32le
lossless f32.wav speech "$SPEECH" -c:a pcm_f32le
lossless f64.wav speech "$SPEECH" -c:a pcm_f64le
lossless rf64.wav speech "$SPEECH" -rf64 always
lossless w64.w64 speech "$SPEECH" -c:a pcm_s16le
lossless stereo24.wav stereo "$TMP/stereo.wav" -c:a pcm_s24le
lossless caf16.caf speech "$SPEECH" -c:a pcm_s16be
lossless caf_f32.caf speech "$SPEECH" -c:a pcm_f32be
lossless aiff16.aiff speech "$SPEECH" -c:a pcm_s16be
lossless aiff24.aiff stereo "$TMP/stereo.wav" -c:a pcm_s24be
lossless aifc.aifc speech "$SPEECH" -c:a pcm_s16le -f aiff
lossless au16.au speech "$SPEECH" -c:a pcm_s16be
lossless pcm.mkv stereo "$TMP/stereo.wav" -c:a pcm_s16le
lossless pcm.mov speech "$SPEECH" -c:a pcm_s16le
lossless pcm24be.mov stereo "$TMP/stereo.wav" -c:a pcm_s24be
lossless pcm24le.mov stereo "$TMP/stereo.wav" -c:a pcm_s24le
lossless pcm32.mov speech "$SPEECH" -c:a pcm_s32be
lossless f32.mov speech "$SPEECH" -c:a pcm_f32le
lossless f64.mov speech "$SPEECH" -c:a pcm_f64be
lossless up96.mov up96 "$TMP/up96.wav" -c:a pcm_s24le
lossless pcm51.mov c51 "$TMP/c51.wav" -c:a pcm_s16le
$FF -i "$SPEECH" -f wav - | cat > "$TMP/pipe_ffmpeg.wav"; row pipe_ffmpeg.wav lossless 16000 1 speech
sox "$SPEECH" -t wav - | cat > "$TMP/pipe_sox.wav"; row pipe_sox.wav lossless 16000 1 speech
sox "$SPEECH" -t wavpcm -e signed -b 32 "$TMP/wavpcm32.wav"; row wavpcm32.wav lossless 16000 1 speech
# definitions: the reference is made by the test from the file's own bytes
sox -D "$SPEECH" -b 8 -e unsigned "$TMP/u8.wav"; row u8.wav u8 16000 1 definition
sox -D "$SPEECH" -r 8000 -e a-law "$TMP/alaw.wav"; row alaw.wav alaw 8000 1 definition
sox -D "$SPEECH" -r 8000 -e mu-law "$TMP/mulaw.wav"; row mulaw.wav mulaw 8000 1 definition

# ---- lossless codecs ----------------------------------------------------------------------------------------------
lossless a.flac speech "$SPEECH"
lossless stereo.flac stereo "$TMP/stereo.wav" -compression_level 12
lossless c51.flac c51 "$TMP/c51.wav"
lossless up96.flac up96 "$TMP/up96.wav"
lossless flac.oga speech "$SPEECH" -c:a flac -f ogg
lossless flac.mkv speech "$SPEECH" -c:a flac
lossless flac.mp4 speech "$SPEECH" -c:a flac -strict -2
lossless alac.m4a speech "$SPEECH" -c:a alac
lossless alac_stereo.m4a stereo "$TMP/stereo.wav" -c:a alac -movflags +faststart
lossless flac.caf speech "$SPEECH" -c:a flac
lossless alac.caf speech "$SPEECH" -c:a alac
lossless f64.aifc speech "$SPEECH" -c:a pcm_f64be -f aiff
$FF -i "$SPEECH" -c:a flac -f flac - | cat > "$TMP/pipe.flac"; row pipe.flac lossless 16000 1 speech

# ---- lossy --------------------------------------------------------------------------------------------------------
lossy ima.wav "$SPEECH" -c:a adpcm_ima_wav
lossy ima_stereo.wav "$TMP/stereo.wav" -c:a adpcm_ima_wav
lossy msadpcm.wav "$SPEECH" -c:a adpcm_ms
lossy msadpcm_stereo.wav "$TMP/stereo.wav" -c:a adpcm_ms
lossy cbr64.mp3 "$SPEECH" -b:a 64k
lossy cbr128_44.mp3 "$TMP/c44.wav" -b:a 128k
lossy vbr_stereo.mp3 "$TMP/c48s.wav" -q:a 4
lossy noxing.mp3 "$TMP/c44.wav" -b:a 96k -write_xing 0 -id3v2_version 0
lossy low8k.mp3 "$SPEECH" -ar 8000 -b:a 16k
lossy layer2.mp2 "$TMP/c48s.wav" -b:a 192k
lossy mp3.wav "$SPEECH" -c:a libmp3lame -b:a 48k
lossy mp3.mkv "$TMP/c44.wav" -c:a libmp3lame -b:a 64k
lossy mp3.mp4 "$TMP/c44.wav" -c:a libmp3lame -b:a 64k
lossy vorbis.ogg "$SPEECH" -c:a libvorbis -q:a 4
lossy vorbis_stereo.ogg "$TMP/c48s.wav" -c:a libvorbis -q:a 5
lossy vorbis.webm "$TMP/c48.wav" -c:a libvorbis
lossy tail.m4a "$SPEECH" -c:a aac -b:a 48k
lossy faststart.m4a "$TMP/c48s.wav" -c:a aac -b:a 128k -movflags +faststart
lossy fragmented.mp4 "$TMP/c44.wav" -c:a aac -b:a 96k -movflags +frag_keyframe+empty_moov+default_base_moof -frag_duration 1000000
# With video, ffmpeg stretches the first packet of the sound over the encoder's delay: a place without a sample and nothing lost.
lossy fragmented_video.mp4 "$TMP/c44.wav" -f lavfi -i testsrc=size=64x48:rate=25:duration=3 -c:v mpeg4 -c:a aac -b:a 96k -movflags +frag_keyframe+empty_moov
lossy adts.aac "$TMP/c44.wav" -c:a aac -b:a 96k
lossy aac.mkv "$TMP/c48.wav" -c:a aac -b:a 96k
lossy ima4.caf "$TMP/c44.wav" -c:a adpcm_ima_qt
lossy ima4.mov "$TMP/c48s.wav" -c:a adpcm_ima_qt
lossy ima4.aifc "$TMP/c48s.wav" -c:a adpcm_ima_qt -f aiff
lossless alaw.caf alaw "$TMP/alaw.wav" -c:a pcm_alaw
lossless mulaw.aifc mulaw "$TMP/mulaw.wav" -c:a pcm_mulaw -f aiff
lossless alaw.mkv alaw "$TMP/alaw.wav" -c:a pcm_alaw
lossless mulaw.mov mulaw "$TMP/mulaw.wav" -c:a pcm_mulaw
opus() { # NAME INPUT ARGS...: libopus decodes the reference (ffmpeg's own decoder resamples SILK differently)
  local name=$1 input=$2; shift 2
  $FF -i "$input" -c:a libopus "$@" "$TMP/$name"
  reference "$name" -c:a libopus
}
opus voip.opus "$TMP/c48.wav" -b:a 24k -application voip
opus audio.opus "$TMP/c48s.wav" -b:a 96k
opus silk.ogg "$SPEECH" -b:a 12k -application voip -f ogg
opus frame60.opus "$TMP/c48.wav" -b:a 20k -frame_duration 60
opus opus51.opus "$TMP/c51.wav" -ar 48000 -b:a 256k -mapping_family 1
opus opus.webm "$TMP/c48.wav" -b:a 48k
opus opus.mkv "$TMP/c48s.wav" -b:a 64k
opus opus.mp4 "$TMP/c48.wav" -b:a 48k
$FF -i "$TMP/c48.wav" -c:a libopus -f webm -live 1 - | cat > "$TMP/live.webm"; reference live.webm -c:a libopus
$FF -f lavfi -i color=black:s=64x64:r=5 -i "$TMP/c48.wav" -shortest -c:v mpeg4 -c:a aac -b:a 64k "$TMP/video.mp4"; reference video.mp4
$FF -f lavfi -i color=black:s=64x64:r=5 -i "$TMP/c48.wav" -shortest -c:v libvpx -c:a libopus -f webm "$TMP/video.webm"; reference video.webm -c:a libopus

# ---- a second and a half of each, to be cut and damaged --------------------------------------------------------------
short() { # NAME INPUT ARGS...
  local name=$1 input=$2; shift 2
  $FF -ss 2 -t 1.5 -i "$input" "$@" "$TMP/$name"
  row "$name" short 0 0 -
}
short short.wav "$SPEECH"
short short.flac "$SPEECH"
short short.mp3 "$TMP/c44.wav" -b:a 64k
short short.aac "$TMP/c44.wav" -c:a aac -b:a 64k
short short.ogg "$TMP/c44.wav" -c:a libvorbis -page_duration 200000
short short.opus "$TMP/c48.wav" -c:a libopus -b:a 32k -page_duration 200000
short short.oga "$SPEECH" -c:a flac -f ogg -page_duration 200000
short short.m4a "$SPEECH" -c:a aac -b:a 48k
short short_alac.m4a "$SPEECH" -c:a alac
short short_frag.mp4 "$SPEECH" -c:a aac -b:a 48k -movflags +frag_keyframe+empty_moov+default_base_moof -frag_duration 300000
short short.webm "$TMP/c48.wav" -c:a libopus -b:a 32k -cluster_time_limit 300
short short.mka "$TMP/c48.wav" -c:a aac -b:a 64k -f matroska -cluster_time_limit 300
short short.aiff "$SPEECH"
short short_ima4.aifc "$TMP/c44.wav" -c:a adpcm_ima_qt -f aiff
short short.caf "$SPEECH" -c:a alac
short short_ima.wav "$SPEECH" -c:a adpcm_ima_wav
short short.au "$SPEECH"

# ---- named, not read ------------------------------------------------------------------------------------------------
refused() { # NAME WORD ARGS...
  local name=$1 word=$2; shift 2
  $FF -t 1 -i "$TMP/c48s.wav" "$@" "$TMP/$name"
  row "$name" refused 0 0 "$word"
}
refused a.wma WMA -c:a wmav2
refused a.ac3 AC-3 -c:a ac3
refused a.eac3 AC-3 -c:a eac3
refused a.wv WavPack -c:a wavpack
refused a.tta TTA -c:a tta
refused a.dts DTS -c:a dca -strict -2
refused a.rm RealMedia -c:a ac3
refused a.flv FLV -c:a libmp3lame -ar 44100
refused a.ts MPEG-TS -c:a aac -f mpegts
refused a.avi AVI -c:a libmp3lame
refused speex.ogg Speex -c:a libspeex -ar 16000 -ac 1
refused gsm.wav GSM -c:a libgsm_ms -ar 8000 -ac 1
refused ac3.mkv AC-3 -c:a ac3
refused ac3.mp4 AC-3 -c:a ac3
refused ac3.wav AC-3 -c:a ac3
refused aac51.m4a "AAC with 6 channels" -c:a aac -ac 6
refused wma.mkv WMA -c:a wmav2
$FF -f lavfi -i color=black:s=64x64:r=5:d=1 -c:v mpeg4 -an "$TMP/novoice.mp4"; row novoice.mp4 refused 0 0 "no audio"
$FF -f lavfi -i color=black:s=64x64:r=5:d=1 -c:v libvpx -an "$TMP/novoice.webm"; row novoice.webm refused 0 0 "no audio"

echo "$SUM" > "$TMP/.made-by"
rm -rf "$OUT"
mv "$TMP" "$OUT"
echo "audio matrix: $(wc -l < "$OUT/manifest.tsv") files in $OUT"
