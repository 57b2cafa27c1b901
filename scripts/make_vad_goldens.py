#!/usr/bin/env python3
"""What onnxruntime makes of a clip with Silero VAD's own ONNX file: tests/data/vad/silero.json.

    pip install numpy onnxruntime==1.32.0
    make_vad_goldens.py FOLDER_OF_THE_PACKAGE/data CLIP.wav [CLIP.wav ...] > tests/data/vad/silero.json

The clips are WAV, 16 kHz, mono, 16 bits. The last chunk is filled with zeros, as the package does.
"""

import json
import sys
import wave

import numpy as np
import onnxruntime

CHUNK, CONTEXT = 512, 64


def samples(path):
    with wave.open(path) as clip:
        assert (clip.getframerate(), clip.getnchannels(), clip.getsampwidth()) == (16000, 1, 2), path
        return np.frombuffer(clip.readframes(clip.getnframes()), np.int16).astype(np.float32) / 32768


def probabilities(session, audio):
    audio = np.concatenate([audio, np.zeros(-len(audio) % CHUNK, np.float32)])
    state = np.zeros((2, 1, 128), np.float32)
    before = np.zeros(CONTEXT, np.float32)
    found = []
    for at in range(0, len(audio), CHUNK):
        chunk = np.concatenate([before, audio[at : at + CHUNK]])
        before = chunk[-CONTEXT:]
        feeds = {"input": chunk[None], "state": state, "sr": np.array(16000, np.int64)}
        p, state = session.run(None, feeds)
        found.append(round(float(p[0, 0]), 7))
    return found


def main():
    folder, clips = sys.argv[1], sys.argv[2:]
    session = onnxruntime.InferenceSession(f"{folder}/silero_vad_16k_op15.onnx")
    found = {path: probabilities(session, samples(path)) for path in clips}
    json.dump({"package": "silero-vad 6.2.3", "file": "silero_vad_16k_op15.onnx", "clips": found}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
