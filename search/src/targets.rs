//! The GPUs that the search knows, each a data file of numbers.
//!
//! Rates are what plain kernels reach, not datasheet peaks: about 90 % of the memory bandwidth, and for `mma.sync` on
//! Hopper and Blackwell, whose full rate needs other instructions, roughly 60 % of the dense tensor rate.

use ir::Target;

#[rustfmt::skip]
const FILES: [&str; 6] = [
    include_str!("../targets/h200.json"),
    include_str!("../targets/h100.json"),
    include_str!("../targets/a100.json"),
    include_str!("../targets/l40s.json"),
    include_str!("../targets/rtx4090.json"),
    include_str!("../targets/b200.json"),
];

/// A target that nobody described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No target has this name.
    #[error("unknown target `{name}`{nearest}; known targets: {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What may have been meant, as part of a sentence; mostly empty.
        nearest: String,
        /// The names of the known targets.
        known: String,
    },
    /// No target describes this device.
    #[error("no target describes the device `{device}`; known targets: {known}")]
    Device {
        /// What the driver calls the device.
        device: String,
        /// The names of the known targets.
        known: String,
    },
}

/// Every target, the best known first.
///
/// ```
/// assert_eq!(tilewright_search::targets::targets()[0].name, "h200");
/// ```
pub fn targets() -> Vec<Target> {
    FILES
        .iter()
        .map(|text| serde_json::from_str(text).expect("a target's data file should be a target"))
        .collect()
}

/// The target of a name, in capitals or not.
///
/// # Errors
/// When there is none; the message lists those that exist, and what may have been meant.
pub fn target(name: &str) -> Result<Target, TargetError> {
    let all = targets();
    if let Some(target) = all.iter().find(|t| t.name.eq_ignore_ascii_case(name)) {
        return Ok(target.clone());
    }
    let nearest = ir::text::nearest(name, all.iter().map(|t| t.name.as_str()));
    Err(TargetError::Unknown {
        name: name.to_owned(),
        nearest: nearest.map_or(String::new(), |n| format!(", did you mean `{n}`?")),
        known: names(&all),
    })
}

/// The target that describes a device, by what the driver calls it.
///
/// # Errors
/// When there is none; the message lists those that exist.
pub fn target_for_device(device: &str) -> Result<Target, TargetError> {
    let all = targets();
    let known = names(&all);
    all.into_iter()
        .find(|t| device.contains(&t.device))
        .ok_or_else(|| TargetError::Device {
            device: device.to_owned(),
            known,
        })
}

fn names(targets: &[Target]) -> String {
    let names: Vec<&str> = targets.iter().map(|t| t.name.as_str()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use codegen::atoms::{INSTRUCTIONS, Operands, Scope, tflops};

    #[test]
    fn every_file_is_a_target_of_its_own() {
        let all = targets();
        let mut names: Vec<_> = all.iter().map(|t| t.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), FILES.len());
        for t in &all {
            assert_eq!(target(&t.name), Ok(t.clone()));
            assert_eq!(target(&t.name.to_uppercase()), Ok(t.clone()));
            let found = target_for_device(&format!("NVIDIA {} 80GB", t.device));
            assert_eq!(found.as_ref().map(|f| &f.name), Ok(&t.name));
            assert!(t.shared_per_block < t.shared_per_sm && t.memory_tb_s < t.l2_tb_s);
            let [half, single] =
                [Operands::Half, Operands::Split].map(|o| tflops(Scope::Warp, o, t));
            assert!(t.f32_tflops < single && single < half, "{}", t.name);
        }
    }

    /// No rate is that of nothing, and no instruction is one that no target has.
    #[test]
    fn rates_are_those_of_instructions() {
        let all = targets();
        for t in &all {
            for (kind, rate) in &t.matrix {
                let mut own = INSTRUCTIONS.iter().filter(|i| i.rate == Some(kind));
                assert!(own.any(|i| i.exists_on(t)), "{}: {kind}", t.name);
                assert!(rate.tflops > 0.0 && rate.latency_clocks > 0.0, "{kind}");
            }
        }
        for i in INSTRUCTIONS {
            assert!(all.iter().any(|t| i.exists_on(t)), "{i:?}");
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        for (name, meant) in [
            ("h300", Some("h200")),
            ("H20", Some("h200")),
            ("rtx4080", Some("rtx4090")),
            ("RTX-4090", Some("rtx4090")),
            ("l40", Some("l40s")),
            ("gaudi3", None),
            ("", None),
        ] {
            let message = target(name).expect_err("there is none").to_string();
            let hint = meant.map_or(String::new(), |m| format!(", did you mean `{m}`?"));
            assert_eq!(
                message,
                format!(
                    "unknown target `{name}`{hint}; known targets: h200, h100, a100, l40s, rtx4090, b200"
                )
            );
        }
    }
}
