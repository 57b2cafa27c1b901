//! `conure devices`.

use super::megabytes;
use crate::args::DevicesArgs;
use crate::failure::Failure;
use crate::output::to_stdout;
use conure::DeviceInfo;
use serde_json::json;

/// Lists the devices.
///
/// # Errors
/// If standard output cannot be written.
pub fn run(args: &DevicesArgs) -> Result<(), Failure> {
    let devices = conure::devices();
    let text = if args.json {
        let list: Vec<_> = devices.iter().map(as_json).collect();
        format!("{:#}\n", serde_json::Value::from(list))
    } else {
        devices.iter().map(as_text).collect()
    };
    to_stdout(|out| out.write_all(text.as_bytes())).map(|_| ())
}

fn as_json(device: &DeviceInfo) -> serde_json::Value {
    json!({
        "name": device.name,
        "kind": device.kind,
        "description": device.description,
        "capabilities": device.capabilities,
        "memory": device.memory,
        "threads": device.threads,
        "available": device.unavailable.is_none(),
        "unavailable": device.unavailable,
    })
}

fn as_text(device: &DeviceInfo) -> String {
    let mut text = format!("{}: {} ({})\n", device.name, device.description, device.kind);
    if let Some(memory) = device.memory {
        text.push_str(&format!("  memory        {}\n", megabytes(memory)));
    }
    text.push_str(&format!("  threads       {}\n", device.threads));
    text.push_str(&format!("  capabilities  {}\n", device.capabilities.join(" ")));
    if let Some(reason) = &device.unavailable {
        text.push_str(&format!("  not usable    {reason}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_cannot_be_used_says_why() {
        let device = DeviceInfo {
            name: "cuda:0".into(),
            kind: "gpu",
            description: "a card".into(),
            capabilities: vec!["f32".into()],
            memory: Some(8_000_000_000),
            threads: 1,
            unavailable: Some("the driver is too old".into()),
        };
        let text = as_text(&device);
        assert!(text.contains("cuda:0: a card (gpu)") && text.contains("the driver is too old"), "{text}");
        let json = as_json(&device);
        assert_eq!(
            (json["available"].as_bool(), json["memory"].as_u64()),
            (Some(false), Some(8_000_000_000))
        );
    }
}
