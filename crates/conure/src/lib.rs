//! conure
