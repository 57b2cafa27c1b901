//! conure-audio
