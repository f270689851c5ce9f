//! Every program in `examples/` reads, is valid and prints to itself. Oracle: `Program::validate` and the text.

use std::path::Path;
use tilewright_ir::parse;

#[test]
fn examples_read_and_round_trip() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder is there") {
        let path = entry.expect("readable").path();
        if path.extension().is_none_or(|e| e != "lax") {
            continue;
        }
        let source = std::fs::read_to_string(&path).expect("UTF-8");
        let name = path.display().to_string();
        let program = parse(&source, &name).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(program.validate(), Ok(()), "{name}");
        let text = program.to_string();
        let again = parse(&text, &name).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(again, program, "{text}");
        count += 1;
    }
    assert!(count >= 40, "{count} examples");
}
