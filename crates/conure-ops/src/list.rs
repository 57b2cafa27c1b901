//! The list of all ops: for the conformance walk, for documentation and for drawings.

use crate::cases::Case;

/// One op of the list.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name, which is that of its folder.
    pub name: &'static str,
    /// Its conformance cases.
    pub cases: fn() -> Vec<Case>,
}

/// Writes one [`Entry`] per folder.
macro_rules! ops {
    ($($folder:ident),* $(,)?) => {
        &[$(Entry { name: stringify!($folder), cases: crate::$folder::cases::cases }),*]
    };
}

/// Every op once, in alphabetic order.
pub fn all() -> &'static [Entry] {
    ops![
        batch_norm,
        binary,
        broadcast,
        cast,
        causal_conv1d,
        concat,
        conv2d,
        conv_length,
        depthwise_conv1d,
        embedding,
        expert_linear,
        gated,
        gated_delta,
        glu,
        im2col,
        layer_norm,
        linear,
        log_softmax,
        lstm_cell,
        mask_scores,
        mask_time,
        matmul,
        rel_pos_attention,
        rel_pos_encoding,
        rel_pos_projection,
        rel_shift,
        reshape,
        rms_norm,
        rope,
        rotary_angles,
        route,
        scale,
        sdpa,
        slice,
        softmax,
        transpose,
        unary,
    ]
}
