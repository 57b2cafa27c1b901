//! conure-kernels
