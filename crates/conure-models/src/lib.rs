//! conure-models
