//! `conure bench conv`.

use super::model;
use crate::args::BenchConvArgs;
use crate::failure::Failure;
use crate::output::to_stdout;
use conure::{ConvBench, ConvFigure, bench_convolutions};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Measures convolutions as they are written and fused.
///
/// # Errors
/// A device that is not there, a case that no name contains, a result that is off.
pub fn run(args: &BenchConvArgs, cancel: &Arc<AtomicBool>) -> Result<(), Failure> {
    let options = ConvBench {
        device: args.device.clone(),
        threads: args.threads.map(|n| model::threads(Some(n)).total()),
        only: args.case.clone(),
        turns: args.turns,
        cancel: Some(cancel.clone()),
    };
    let figures =
        bench_convolutions(&options).map_err(|e| model::failed("cannot measure convolutions", e))?;
    if let (true, Some(case)) = (figures.is_empty(), &args.case) {
        return Err(Failure::usage(format!("no case is called {case:?}; leave --case out to see all")));
    }
    let text = if args.json {
        let json = serde_json::to_string_pretty(&figures);
        json.map_err(|e| Failure::new("cannot write the figures").because(e))? + "\n"
    } else {
        table(&figures)
    };
    to_stdout(|out| out.write_all(text.as_bytes())).map(|_| ())
}

fn table(figures: &[ConvFigure]) -> String {
    let mut text =
        format!("{:28} {:>11} {:>11} {:>7} {:>9}", "case", "im2col ms", "fused ms", "ratio", "nmse");
    let third = figures.iter().any(|f| f.op_by_op_ms.is_some());
    text.push_str(if third { "  op by op ms   ratio\n" } else { "\n" });
    for f in figures {
        text.push_str(&format!(
            "{:28} {:11.3} {:11.3} {:7.2} {:9.1e}",
            f.case, f.im2col_ms, f.fused_ms, f.ratio, f.nmse
        ));
        if let (Some(ms), Some(ratio)) = (f.op_by_op_ms, f.op_by_op_ratio) {
            text.push_str(&format!("  {ms:11.3} {ratio:7.2}"));
        }
        text.push('\n');
    }
    text
}
