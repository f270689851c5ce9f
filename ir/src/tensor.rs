//! Dense f64 tensors, and the stored forms of their elements.

use crate::program::Dtype;
use rayon::prelude::*;

/// A dense tensor of f64 in memory order, slowest dimension first.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Extents; a scalar has none.
    pub shape: Vec<usize>,
    /// As many elements as the extents multiply to.
    pub data: Vec<f64>,
}

impl Tensor {
    /// Checks that the data fill the shape.
    pub fn new(shape: Vec<usize>, data: Vec<f64>) -> Result<Self, String> {
        let elements = shape.iter().try_fold(1usize, |n, e| n.checked_mul(*e));
        if elements == Some(data.len()) {
            Ok(Self { shape, data })
        } else {
            Err(format!(
                "{} elements do not fill the shape {shape:?}",
                data.len()
            ))
        }
    }
}

impl Dtype {
    /// What the dtype stores of a number. A float is the nearest one, ties to even, and an infinity where that overflows. An integer is the
    /// number without its fraction, as casts of PyTorch, NumPy and C have it: towards zero; the outermost one where that overflows, and 0 of NaN.
    /// A boolean is 1 for everything but 0.
    pub fn round(self, value: f64) -> f64 {
        match self {
            Self::F32 => f64::from(value as f32),
            Self::F16 => half::f16::from_f32(to_odd(value)).to_f64(),
            Self::Bf16 => half::bf16::from_f32(to_odd(value)).to_f64(),
            Self::I32 => f64::from(value as i32),
            Self::I64 => value as i64 as f64,
            Self::Bool => f64::from(u8::from(value != 0.0)),
        }
    }

    /// The first of these numbers that is no integer or no boolean, where the dtype has nothing else: it stands for no element. Numbers that a
    /// float would have to round are taken as they are.
    pub fn foreign(self, values: &[f64]) -> Option<f64> {
        let other = |v: &&f64| self.round(**v) != **v;
        (!self.is_float()).then(|| values.iter().find(other).copied())?
    }

    /// Little-endian bytes of what is stored of the elements.
    pub fn encode(self, values: &[f64]) -> Vec<u8> {
        let half =
            |bits: fn(f64) -> u16| -> Vec<u8> { bytes(values, |v: f64| bits(v).to_le_bytes()) };
        match self {
            Self::F32 => bytes(values, |v: f64| (v as f32).to_le_bytes()),
            Self::F16 => half(|v| half::f16::from_f32(to_odd(v)).to_bits()),
            Self::Bf16 => half(|v| half::bf16::from_f32(to_odd(v)).to_bits()),
            Self::I32 => bytes(values, |v: f64| (v as i32).to_le_bytes()),
            Self::I64 => bytes(values, |v: f64| (v as i64).to_le_bytes()),
            Self::Bool => bytes(values, |v: f64| [u8::from(v != 0.0)]),
        }
    }

    /// The elements behind little-endian bytes; bytes that fill no element are left out.
    pub fn decode(self, bytes: &[u8]) -> Vec<f64> {
        let half = |value: fn(u16) -> f64| -> Vec<f64> {
            let (pairs, _) = bytes.as_chunks::<2>();
            pairs
                .par_iter()
                .with_min_len(PIECE)
                .map(|b| value(u16::from_le_bytes(*b)))
                .collect()
        };
        match self {
            Self::F32 => {
                let (words, _) = bytes.as_chunks::<4>();
                words
                    .par_iter()
                    .with_min_len(PIECE)
                    .map(|b| f64::from(f32::from_le_bytes(*b)))
                    .collect()
            }
            Self::F16 => half(|b| half::f16::from_bits(b).to_f64()),
            Self::Bf16 => half(|b| half::bf16::from_bits(b).to_f64()),
            Self::I32 => {
                let (words, _) = bytes.as_chunks::<4>();
                words
                    .iter()
                    .map(|b| f64::from(i32::from_le_bytes(*b)))
                    .collect()
            }
            Self::I64 => {
                let (words, _) = bytes.as_chunks::<8>();
                words
                    .iter()
                    .map(|b| i64::from_le_bytes(*b) as f64)
                    .collect()
            }
            // Whatever is not 0 is true, as it is to a kernel.
            Self::Bool => bytes.iter().map(|b| f64::from(u8::from(*b != 0))).collect(),
        }
    }
}

/// Elements that one thread converts at least.
const PIECE: usize = 1 << 14;

/// `N` bytes an element.
fn bytes<const N: usize>(values: &[f64], of: impl Fn(f64) -> [u8; N] + Sync) -> Vec<u8> {
    let mut out = vec![0; values.len() * N];
    out.par_chunks_mut(N * PIECE)
        .zip(values.par_chunks(PIECE))
        .for_each(|(to, from)| {
            for (b, v) in to.chunks_exact_mut(N).zip(from) {
                b.copy_from_slice(&of(*v));
            }
        });
    out
}

/// f64 to f32, an inexact result to the neighbour with an odd last bit. f32 has more than two bits more than the 16-bit
/// formats, so that rounding this to nearest rounds the f64 to nearest (Boldo and Melquiond, "Emulation of FMA and
/// correctly rounded sums", 2008). `half`'s own conversions from f64 drop low bits, hence not those.
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) == value || value.is_nan() || near.to_bits() & 1 == 1 {
        return near;
    }
    // The value lies between `near` and the neighbour on its side, which is odd.
    let bits = near.to_bits();
    if f64::from(near).abs() > value.abs() {
        f32::from_bits(bits - 1)
    } else {
        f32::from_bits(bits + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_nearest_even_in_one_step() {
        // Just above the tie between 1 and 1 + 2^-10: two roundings would give 1.
        let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(Dtype::F16.round(above), 1.0 + 2f64.powi(-10));
        assert_eq!(Dtype::F16.round(1.0 + 2f64.powi(-11)), 1.0);
        let above = 1.0 + 2f64.powi(-8) + 2f64.powi(-45);
        assert_eq!(Dtype::Bf16.round(above), 1.0 + 2f64.powi(-7));
        assert_eq!(Dtype::Bf16.round(1.0 + 2f64.powi(-8)), 1.0);
        assert_eq!(Dtype::F16.round(65520.0), f64::INFINITY);
        assert_eq!(Dtype::F16.round(65519.999), 65504.0);
        assert_eq!(Dtype::F16.round(-1e300), f64::NEG_INFINITY);
        assert_eq!(Dtype::F32.round(0.1), f64::from(0.1f32));
        assert!(Dtype::Bf16.round(f64::NAN).is_nan());
    }

    #[test]
    fn integers_have_no_fraction_and_booleans_no_number() {
        let stored = |dtype: Dtype, values: &[f64]| -> Vec<f64> {
            values.iter().map(|v| dtype.round(*v)).collect()
        };
        let values = [2.999, -2.999, 0.5, -0.5, 1e-300, f64::NAN];
        for dtype in [Dtype::I32, Dtype::I64] {
            assert_eq!(stored(dtype, &values), [2.0, -2.0, 0.0, 0.0, 0.0, 0.0]);
        }
        assert_eq!(stored(Dtype::Bool, &values), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(stored(Dtype::Bool, &[0.0, -0.0]), [0.0, 0.0]);
        let far = [2e9, 3e9, -3e9, f64::INFINITY];
        assert_eq!(
            stored(Dtype::I32, &far),
            [2e9, 2147483647.0, -2147483648.0, 2147483647.0]
        );
        assert_eq!(
            stored(Dtype::I64, &[1e15, -1e30, f64::INFINITY]),
            [1e15, -2f64.powi(63), 2f64.powi(63)]
        );
    }

    #[test]
    fn bytes_hold_what_rounding_gives() {
        let values = [0.1, -2.5, 1e-8, 65504.0, f64::NEG_INFINITY, -0.0];
        for dtype in Dtype::ALL {
            let bytes = dtype.encode(&values);
            assert_eq!(bytes.len() as u64, dtype.bytes() * values.len() as u64);
            let rounded: Vec<f64> = values.iter().map(|v| dtype.round(*v)).collect();
            assert_eq!(dtype.decode(&bytes), rounded);
        }
    }

    #[test]
    fn a_tensor_is_full() {
        assert!(Tensor::new(vec![2, 3], vec![0.0; 6]).is_ok());
        assert!(Tensor::new(vec![], vec![0.0]).is_ok());
        assert!(Tensor::new(vec![2, 3], vec![0.0; 5]).is_err());
        assert!(Tensor::new(vec![usize::MAX, 3], vec![]).is_err());
    }
}
