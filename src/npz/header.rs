//! The header of an `.npy` array, as NumPy writes it: `{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }`.
//!
//! Only what NumPy itself writes is read: no general literal of Python. So nothing nests, and reading is as long as the text.

use half::f16;
use ir::Dtype;
use std::io::Read;

/// Most characters of a header: NumPy reads no longer ones either.
const MAX_HEADER: u64 = 10_000;
const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Where the elements begin is a multiple of this.
const ALIGNMENT: usize = 64;

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// How an element is stored.
    pub(super) element: Element,
    /// Whether the first dimension is the fastest one.
    pub(super) fortran_order: bool,
    /// The extents.
    pub(super) shape: Vec<u64>,
}

/// A number of NumPy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    kind: Kind,
    bytes: usize,
    big_endian: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Float,
    Signed,
    Unsigned,
    Bool,
}

impl Element {
    /// The element that a name such as `<f8` or `|b1` stands for.
    fn named(name: &str) -> Option<Self> {
        let [order, kind, bytes] = *name.as_bytes() else {
            return None;
        };
        let kind = match kind {
            b'f' => Kind::Float,
            b'i' => Kind::Signed,
            b'u' => Kind::Unsigned,
            b'b' => Kind::Bool,
            _ => return None,
        };
        let sizes: &[u8] = match kind {
            Kind::Float => b"248",
            Kind::Signed | Kind::Unsigned => b"1248",
            Kind::Bool => b"1",
        };
        // One byte has no order.
        let orders: &[u8] = if bytes == b'1' { b"|" } else { b"<>" };
        (sizes.contains(&bytes) && orders.contains(&order)).then(|| Self {
            kind,
            bytes: usize::from(bytes - b'0'),
            big_endian: order == b'>',
        })
    }

    /// The element as which a dtype is written, little-endian: f64 of every float.
    pub(super) fn of(dtype: Dtype) -> Self {
        let (kind, bytes) = match dtype {
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => (Kind::Float, 8),
            Dtype::I32 => (Kind::Signed, 4),
            Dtype::I64 => (Kind::Signed, 8),
            Dtype::Bool => (Kind::Bool, 1),
        };
        Self {
            kind,
            bytes,
            big_endian: false,
        }
    }

    /// What [`Self::named`] reads.
    fn name(self) -> String {
        let order = match (self.bytes, self.big_endian) {
            (1, _) => '|',
            (_, false) => '<',
            (_, true) => '>',
        };
        let kind = match self.kind {
            Kind::Float => 'f',
            Kind::Signed => 'i',
            Kind::Unsigned => 'u',
            Kind::Bool => 'b',
        };
        format!("{order}{kind}{}", self.bytes)
    }

    /// Bytes of an element.
    pub(super) fn bytes(self) -> usize {
        self.bytes
    }

    /// The number of an element's bytes.
    pub(super) fn decode(self, bytes: &[u8]) -> f64 {
        // Little-endian, in the lowest bytes.
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = *from;
        }
        if self.big_endian {
            word[..self.bytes].reverse();
        }
        let word = u64::from_le_bytes(word);
        match (self.kind, self.bytes) {
            (Kind::Float, 2) => f16::from_bits(word as u16).to_f64(),
            (Kind::Float, 4) => f64::from(f32::from_bits(word as u32)),
            (Kind::Float, _) => f64::from_bits(word),
            (Kind::Signed, bytes) => {
                let above = 64 - 8 * bytes as u32;
                ((word << above) as i64 >> above) as f64
            }
            (Kind::Unsigned, _) => word as f64,
            (Kind::Bool, _) => f64::from(u8::from(word != 0)),
        }
    }
}

impl Header {
    /// Reads up to where the elements begin.
    ///
    /// # Errors
    /// What was expected and what was found.
    pub(super) fn read(reader: &mut impl Read) -> Result<Self, String> {
        let mut start = [0; 8];
        let cut = |e: std::io::Error| format!("no whole header: {e}");
        reader.read_exact(&mut start).map_err(cut)?;
        if !start.starts_with(MAGIC) {
            return Err("expected a NumPy array, found other bytes".to_owned());
        }
        let mut length = [0; 4];
        match start[6] {
            1 => reader.read_exact(&mut length[..2]).map_err(cut)?,
            2 | 3 => reader.read_exact(&mut length).map_err(cut)?,
            other => return Err(format!("expected format 1, 2 or 3 of NumPy, found {other}")),
        }
        let length = u64::from(u32::from_le_bytes(length));
        if length > MAX_HEADER {
            return Err(format!(
                "expected a header of at most {MAX_HEADER} bytes, found {length}"
            ));
        }
        let mut text = Vec::new();
        let read = reader.take(length).read_to_end(&mut text).map_err(cut)?;
        if (read as u64) < length {
            return Err("no whole header".to_owned());
        }
        Reader { left: &text }.dictionary()
    }

    /// The bytes before the elements of an array in C order.
    pub(super) fn of(element: Element, shape: &[u64]) -> Vec<u8> {
        let extents: String = shape.iter().map(|n| format!("{n}, ")).collect();
        let extents = match shape {
            [_] => extents.trim_end(),
            _ => extents.trim_end_matches(", "),
        };
        let name = element.name();
        let mut text =
            format!("{{'descr': '{name}', 'fortran_order': False, 'shape': ({extents}), }}");
        let before = MAGIC.len() + 4;
        let whole = (before + text.len() + 1).next_multiple_of(ALIGNMENT);
        text.extend(std::iter::repeat_n(' ', whole - before - text.len() - 1));
        text.push('\n');
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        // A tensor has at most as many dimensions as a program has axes: some thousand characters.
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.into_bytes());
        bytes
    }
}

/// What is not read yet.
struct Reader<'t> {
    left: &'t [u8],
}

impl Reader<'_> {
    fn dictionary(mut self) -> Result<Header, String> {
        let (mut element, mut fortran_order, mut shape) = (None, None, None);
        self.expect("{")?;
        while !self.eat("}") {
            let key = self.string("a key")?;
            self.expect(":")?;
            match key.as_str() {
                "descr" => element = Some(self.element()?),
                "fortran_order" => fortran_order = Some(self.truth()?),
                "shape" => shape = Some(self.extents()?),
                _ => {
                    return Err(format!(
                        "a key `{}` that NumPy does not write",
                        key.escape_debug()
                    ));
                }
            }
            if !self.eat(",") {
                self.expect("}")?;
                break;
            }
        }
        match (element, fortran_order, shape) {
            (Some(element), Some(fortran_order), Some(shape)) if self.next().is_none() => {
                Ok(Header {
                    element,
                    fortran_order,
                    shape,
                })
            }
            _ => Err("expected a header with descr, fortran_order and shape alone".to_owned()),
        }
    }

    fn element(&mut self) -> Result<Element, String> {
        let expected = "a dtype of numbers (f2, f4, f8, i1 to i8, u1 to u8 or b1)";
        let name = self.string(expected)?;
        Element::named(&name).ok_or_else(|| {
            let name = name.escape_debug().take(40).collect::<String>();
            format!("expected {expected}, found `{name}`")
        })
    }

    fn truth(&mut self) -> Result<bool, String> {
        if self.eat("True") {
            return Ok(true);
        }
        self.expect("False").map(|()| false)
    }

    /// `()`, `(3,)`, `(3, 4)`; old files have an `L` behind each number.
    fn extents(&mut self) -> Result<Vec<u64>, String> {
        let mut shape = Vec::new();
        self.expect("(")?;
        while !self.eat(")") {
            self.skip_blanks();
            let digits = self.left.iter().take_while(|b| b.is_ascii_digit()).count();
            let (number, rest) = self.left.split_at(digits);
            let number = std::str::from_utf8(number)
                .ok()
                .and_then(|n| n.parse().ok());
            shape.push(number.ok_or_else(|| self.found("an extent"))?);
            self.left = rest;
            self.eat("L");
            if !self.eat(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(shape)
    }

    fn string(&mut self, what: &str) -> Result<String, String> {
        self.skip_blanks();
        let quote = match self.left.first() {
            Some(quote @ (b'\'' | b'"')) => *quote,
            Some(_) | None => return Err(self.found(what)),
        };
        let text = &self.left[1..];
        let end = text.iter().position(|b| *b == quote);
        let (text, rest) = text.split_at(end.ok_or_else(|| self.found("a closed string"))?);
        self.left = &rest[1..];
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn next(&mut self) -> Option<u8> {
        self.skip_blanks();
        self.left.first().copied()
    }

    fn eat(&mut self, word: &str) -> bool {
        self.skip_blanks();
        let rest = self.left.strip_prefix(word.as_bytes());
        self.left = rest.unwrap_or(self.left);
        rest.is_some()
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        match self.eat(word) {
            true => Ok(()),
            false => Err(self.found(&format!("`{word}`"))),
        }
    }

    fn found(&self, what: &str) -> String {
        let rest = String::from_utf8_lossy(&self.left[..self.left.len().min(20)]);
        format!(
            "expected {what} in the header, found `{}`",
            rest.trim_end().escape_debug()
        )
    }

    fn skip_blanks(&mut self) {
        self.left = self.left.trim_ascii_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As NumPy's format version 1 has it.
    fn array(dictionary: &str) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((dictionary.len() as u16).to_le_bytes());
        bytes.extend(dictionary.as_bytes());
        bytes
    }

    fn read(dictionary: &str) -> Result<Header, String> {
        Header::read(&mut array(dictionary).as_slice())
    }

    #[test]
    fn what_numpy_writes_is_read() {
        for (text, name, fortran_order, shape) in [
            (
                "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }   \n",
                "<f8",
                false,
                vec![2, 3],
            ),
            (
                "{'descr': '>f2', 'fortran_order': True, 'shape': (7,), }\n",
                ">f2",
                true,
                vec![7],
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (), }",
                "<f4",
                false,
                vec![],
            ),
            (
                "{\"shape\": (10L, 0L), \"fortran_order\": False, \"descr\": \"<f4\"}",
                "<f4",
                false,
                vec![10, 0],
            ),
        ] {
            let header = read(text).expect(text);
            let element = Element::named(name).expect("an element");
            assert_eq!(
                header,
                Header {
                    element,
                    fortran_order,
                    shape
                },
                "{text}"
            );
        }
        for shape in [vec![], vec![5], vec![2, 3, 4]] {
            let bytes = Header::of(Element::of(Dtype::F32), &shape);
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            let header = Header::read(&mut bytes.as_slice()).expect("our own");
            assert_eq!((header.shape, header.element.bytes()), (shape, 8));
        }
    }

    #[test]
    fn other_headers_are_refused_at_once() {
        let nested = format!("{{'descr': '<f8', 'shape': {}", "(".repeat(5000));
        let brackets = format!("{{'descr': {}'<f8'{}}}", "[".repeat(24), "]".repeat(24));
        for (text, part) in [
            (
                nested.as_str(),
                "expected an extent in the header, found `((((",
            ),
            (
                &brackets,
                "expected a dtype of numbers (f2, f4, f8, i1 to i8, u1 to u8 or b1) in the header, found `[[[[",
            ),
            (
                "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (2,)}",
                "a dtype of numbers",
            ),
            (
                "{'descr': '<c8', 'fortran_order': False, 'shape': (2,)}",
                "found `<c8`",
            ),
            (
                "{'descr': '<b1', 'fortran_order': False, 'shape': (2,)}",
                "found `<b1`",
            ),
            (
                "{'descr': '|i4', 'fortran_order': False, 'shape': (2,)}",
                "found `|i4`",
            ),
            (
                "{'descr': '<f8', 'fortran_order': 0, 'shape': (2,)}",
                "expected `False`",
            ),
            (
                "{'descr': '<f8', 'fortran_order': False}",
                "and shape alone",
            ),
            (
                "{'descr': '<f8', 'fortran_order': False, 'shape': (2,)} + 1",
                "and shape alone",
            ),
            (
                "{'descr': '<f8', 'fortran_order': False, 'shape': (-2,)}",
                "found `-2,)",
            ),
            (
                "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,)}",
                "an extent",
            ),
            ("{'descr': '<f8', 'order': 'C'}", "a key `order`"),
            ("{'descr", "a closed string"),
            ("", "expected `{`"),
        ] {
            let begun = std::time::Instant::now();
            let found = read(text).expect_err(text);
            assert!(found.contains(part), "{found}\nexpected: {part}");
            assert!(begun.elapsed().as_secs() < 1);
        }
        let long = format!("{{'descr': '<f8', 'shape': ({}", "1, ".repeat(20_000));
        assert!(
            read(&long)
                .expect_err("long")
                .contains("at most 10000 bytes")
        );
        assert!(
            Header::read(&mut b"PK".as_slice())
                .expect_err("short")
                .contains("no whole header")
        );
        assert!(
            Header::read(&mut b"no array".as_slice())
                .expect_err("other")
                .contains("other bytes")
        );
        let newer = Header::read(&mut b"\x93NUMPY\x09\x00\x00\x00".as_slice());
        assert!(newer.expect_err("newer").contains("found 9"));
    }

    #[test]
    fn elements_are_decoded_in_either_order() {
        for (name, bytes) in [
            ("<f2", &[0x00, 0xc1][..]),
            (">f2", &[0xc1, 0x00]),
            ("<f4", &[0x00, 0x00, 0x20, 0xc0]),
            (">f4", &[0xc0, 0x20, 0x00, 0x00]),
            ("<f8", &[0, 0, 0, 0, 0, 0, 0x04, 0xc0]),
            (">f8", &[0xc0, 0x04, 0, 0, 0, 0, 0, 0]),
        ] {
            let float = Element::named(name).expect("an element");
            assert_eq!(float.decode(bytes), -2.5, "{name}");
            assert_eq!(float.bytes(), bytes.len());
        }
        for (name, bytes, number) in [
            ("<i4", &[0xfe, 0xff, 0xff, 0xff][..], -2.0),
            (">i8", &[0, 0, 0, 0, 0, 1, 0, 2], 65538.0),
            ("|i1", &[0x80], -128.0),
            ("|u1", &[0x80], 128.0),
            (">u2", &[0x80, 0x01], 32769.0),
            ("|b1", &[1], 1.0),
            ("|b1", &[0], 0.0),
        ] {
            let element = Element::named(name).expect("an element");
            assert_eq!(element.decode(bytes), number, "{name}");
            assert_eq!(element.bytes(), bytes.len());
        }
    }
}
