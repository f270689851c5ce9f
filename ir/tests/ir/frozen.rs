//! Oracle: outputs that NumPy computed, frozen in `frozen/cases.json` by `frozen/make.py`.

use serde_json::Value;
use std::collections::BTreeSet;
use tilewright_ir::{Program, Tensor, eval, ops};

fn tensors(value: &Value) -> Vec<Tensor> {
    let number = |v: &Value| match v.as_str() {
        Some(text) => text.parse().expect("inf or -inf"),
        None => v.as_f64().expect("a number"),
    };
    let list = |v: &Value| -> Vec<Value> { v.as_array().expect("a list").clone() };
    list(value)
        .iter()
        .map(|t| {
            let shape = list(&t["shape"])
                .iter()
                .map(|e| number(e) as usize)
                .collect();
            let data = list(&t["data"]).iter().map(number).collect();
            Tensor::new(shape, data).expect("full")
        })
        .collect()
}

#[test]
fn evaluation_gives_what_numpy_gives() {
    let cases: Value =
        serde_json::from_str(include_str!("frozen/cases.json")).expect("well-formed JSON");
    let (mut covered, mut count, mut elements) = (BTreeSet::new(), 0, 0);
    for case in cases.as_array().expect("a list") {
        let name = case["name"].as_str().expect("a name");
        let source = case["source"].as_str().expect("a text");
        let program: Program = source.parse().unwrap_or_else(|e| panic!("{name}: {e}"));
        let found = eval(&program, &tensors(&case["inputs"])).expect(name);
        let expected = tensors(&case["outputs"]);
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.shape, expected.shape, "{name}");
            for (x, y) in found.data.iter().zip(&expected.data) {
                let same = x == y || (x - y).abs() <= 1e-12 * (1.0 + y.abs());
                assert!(same, "{name}: {x} is not {y}");
                elements += 1;
            }
        }
        for name in case["covers"].as_array().expect("a list") {
            covered.insert(name.as_str().expect("a name").to_owned());
        }
        count += 1;
    }
    for row in ops::rows() {
        assert!(covered.contains(row.name), "no case for `{}`", row.name);
    }
    let prelude = include_str!("../../src/prelude.lax");
    let definitions = prelude.lines().filter_map(|l| l.strip_prefix("def "));
    for definition in definitions {
        let name = definition.split('(').next().expect("a name");
        assert!(covered.contains(name), "no case for `{name}`");
    }
    assert_eq!((count, elements), (COUNT, ELEMENTS));
}

/// What the file holds, so that a lost case is seen.
const COUNT: usize = 111;
const ELEMENTS: usize = 5814;
