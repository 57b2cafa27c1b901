//! conure-convert
