//! conure-text
