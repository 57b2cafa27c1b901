//! conure-gguf
