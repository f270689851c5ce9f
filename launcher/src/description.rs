//! What an artifact's wrapper says of its launches, as JSON: the same values that its own way of launching reads.

use serde::Deserialize;

/// An operator, and how a call of it is launched.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    /// The program's name, in front of every message.
    pub(crate) program: String,
    /// The namespace of PyTorch's operators.
    pub(crate) namespace: String,
    /// The type of the devices, in PyTorch's spelling: `cuda`.
    pub(crate) kind: String,
    /// The operator that says what is wrong with arguments: it tells [`crate::fault::told`].
    pub(crate) refuse: String,
    /// The least alignment of the parameters' data, in bytes.
    pub(crate) alignment: u64,
    /// The parameters.
    pub(crate) parameters: Vec<Tensor>,
    /// The outputs, dense and contiguous.
    pub(crate) outputs: Vec<Tensor>,
    /// The size of the allocation of workspaces; 0: there is none.
    pub(crate) workspace_bytes: i64,
    /// The size of the allocation of split-K workspaces; 0: there is none.
    pub(crate) split_workspace_bytes: u64,
    /// For each slot the position among a call's addresses (those of the parameters, the outputs, the allocation of workspaces and that of split-K
    /// workspaces, as far as there are any) and what is added to the address there.
    pub(crate) places: Vec<(usize, u64)>,
    /// The kernels, in order.
    pub(crate) launches: Vec<Launch>,
    /// So many launches of a call are worth a graph.
    pub(crate) replayed: usize,
    /// The most graphs of all launchers, and the most calls of one launcher that are remembered before one is made.
    pub(crate) most_replays: usize,
}

/// A tensor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tensor {
    /// The dtype, in the language's spelling: `f16`.
    pub(crate) dtype: String,
    /// The extents.
    pub(crate) shape: Vec<i64>,
}

/// A kernel.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Launch {
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Dynamic shared memory of a block.
    pub(crate) shared_bytes: u32,
    /// Whether it may begin before the one in front has ended (programmatic dependent launch).
    pub(crate) overlaps: bool,
    /// The slots whose addresses are the first arguments.
    pub(crate) slots: Vec<usize>,
    /// The tensor maps that are the other arguments.
    pub(crate) maps: Vec<Map>,
}

/// A tensor of elements of two bytes, as the hardware copies boxes of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Map {
    /// The slot of its address.
    pub(crate) slot: usize,
    /// What is added to that.
    pub(crate) offset: u64,
    /// Extents, the fastest first.
    pub(crate) extents: Vec<u64>,
    /// Strides of all but the fastest, in bytes.
    pub(crate) strides: Vec<u64>,
    /// The extents of a box.
    pub(crate) sizes: Vec<u32>,
    /// The driver's number of how the chunks of a line are permuted.
    pub(crate) swizzle: u32,
}

impl Description {
    /// Reads a description.
    ///
    /// # Errors
    /// What is wrong with it: afterwards every index is within what it indexes.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let found: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let addresses = found.parameters.len()
            + found.outputs.len()
            + usize::from(found.workspace_bytes > 0)
            + usize::from(found.split_workspace_bytes > 0);
        let slots = found.places.len();
        let fault = |what: String| Err(format!("{}: {what}", found.program));
        if found.parameters.is_empty() {
            return fault("there are no parameters".to_owned());
        }
        if !found.alignment.is_power_of_two() {
            return fault(format!("an alignment of {} bytes", found.alignment));
        }
        if let Some((at, _)) = found.places.iter().find(|(at, _)| *at >= addresses) {
            return fault(format!("address {at} of {addresses}"));
        }
        for launch in &found.launches {
            let all = launch
                .slots
                .iter()
                .chain(launch.maps.iter().map(|m| &m.slot));
            if let Some(slot) = all.into_iter().find(|s| **s >= slots) {
                return fault(format!("slot {slot} of {slots}"));
            }
            for map in &launch.maps {
                let rank = map.extents.len();
                if rank == 0 || map.strides.len() + 1 != rank || map.sizes.len() != rank {
                    return fault(format!("a tensor map of {rank} dimensions"));
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::Description;
    use serde_json::json;

    /// A description with something else in the place of one of its fields.
    fn read(pointer: &str, value: serde_json::Value) -> Result<Description, String> {
        let mut description = json!({
            "program": "p", "namespace": "n", "kind": "cuda", "refuse": "r", "alignment": 16,
            "parameters": [{"dtype": "f16", "shape": [8, 64]}],
            "outputs": [{"dtype": "f16", "shape": [8, 64]}],
            "workspace_bytes": 512, "split_workspace_bytes": 0,
            "places": [[0, 0], [1, 0], [2, 256]],
            "launches": [{
                "grid": [1, 1, 1], "threads": 128, "shared_bytes": 0, "overlaps": false, "slots": [0, 1, 2],
                "maps": [{"slot": 0, "offset": 0, "extents": [64, 8], "strides": [128], "sizes": [64, 8], "swizzle": 3}],
            }],
            "replayed": 3, "most_replays": 64,
        });
        if let Some(place) = description.pointer_mut(pointer) {
            *place = value;
        }
        Description::read(&description.to_string())
    }

    #[test]
    fn what_indexes_nothing_is_refused() {
        read("/none", json!(0)).expect("a description");
        for (pointer, value, part) in [
            ("/parameters", json!([]), "p: there are no parameters"),
            ("/alignment", json!(12), "p: an alignment of 12 bytes"),
            ("/places/2/0", json!(3), "p: address 3 of 3"),
            ("/workspace_bytes", json!(0), "p: address 2 of 2"),
            ("/launches/0/slots/1", json!(3), "p: slot 3 of 3"),
            ("/launches/0/maps/0/slot", json!(7), "p: slot 7 of 3"),
            (
                "/launches/0/maps/0/strides",
                json!([]),
                "p: a tensor map of 2 dimensions",
            ),
            (
                "/launches/0/maps/0/sizes",
                json!([1]),
                "p: a tensor map of 2 dimensions",
            ),
            ("/launches/0/threads", json!(-1), "invalid value"),
            ("/program", json!(null), "invalid type"),
        ] {
            let found = read(pointer, value).expect_err(pointer);
            assert!(found.contains(part), "{pointer}: {found}");
        }
    }
}
