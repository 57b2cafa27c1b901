//! conure-device
