//! conure-speech
