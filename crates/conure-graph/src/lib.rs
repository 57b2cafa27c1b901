//! conure-graph
