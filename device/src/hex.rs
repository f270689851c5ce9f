//! Bytes as hexadecimal text, for JSON.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// `#[serde(with = "hex")]`: serialises bytes as lower-case hexadecimal.
pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    serializer.serialize_str(&text)
}

/// `#[serde(with = "hex")]`: the inverse of [`serialize`].
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let digits = text.as_bytes();
    if digits.len() % 2 != 0 {
        return Err(D::Error::custom("an odd number of hexadecimal digits"));
    }
    digits
        .chunks_exact(2)
        .map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?))
        .collect::<Option<_>>()
        .ok_or_else(|| D::Error::custom("a character that is no lower-case hexadecimal digit"))
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Bytes(#[serde(with = "super")] Vec<u8>);

    proptest! {
        // Oracle: the identity.
        #[test]
        fn reads_back_what_it_wrote(bytes: Vec<u8>) {
            let text = serde_json::to_string(&Bytes(bytes.clone())).expect("bytes should serialise");
            prop_assert_eq!(serde_json::from_str::<Bytes>(&text).expect("the text should parse"), Bytes(bytes));
        }
    }

    #[test]
    fn refuses_what_is_no_hexadecimal() {
        for text in ["\"0\"", "\"0g\"", "\"é\"", "\"AB\""] {
            assert!(serde_json::from_str::<Bytes>(text).is_err(), "{text}");
        }
    }
}
