//! conure-ops
