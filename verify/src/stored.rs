//! Values as a kernel stores them: bytes of a dtype, which are compared bit for bit and become numbers where numbers are asked for.

use ir::Dtype;
use rayon::prelude::*;

/// Elements that one thread looks at at a time.
const PIECE: usize = 1 << 16;

/// Values of a dtype, in memory order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    dtype: Dtype,
    bytes: Vec<u8>,
}

impl Stored {
    /// Whole elements, as they lie in memory.
    pub fn new(dtype: Dtype, bytes: Vec<u8>) -> Self {
        Self { dtype, bytes }
    }

    /// Values, rounded to a dtype.
    pub fn of(dtype: Dtype, values: &[f64]) -> Self {
        Self::new(dtype, dtype.encode(values))
    }

    /// How many they are.
    pub fn elements(&self) -> u64 {
        self.bytes.len() as u64 / self.dtype.bytes()
    }

    /// The numbers; several threads convert them.
    pub fn values(&self) -> Vec<f64> {
        let size = self.dtype.bytes() as usize;
        let mut values = vec![0.0; self.elements() as usize];
        (values.par_chunks_mut(PIECE))
            .zip(self.bytes.par_chunks(PIECE * size))
            .for_each(|(to, from)| to.copy_from_slice(&self.decode(from)));
        values
    }

    /// A boolean is 0 or 1: a byte that is neither was not written by anyone who knows, and is no number.
    fn decode(&self, bytes: &[u8]) -> Vec<f64> {
        let truth = |b: &u8| match b {
            0 | 1 => f64::from(*b),
            _ => f64::NAN,
        };
        match self.dtype {
            Dtype::Bool => bytes.iter().map(truth).collect(),
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::I32 | Dtype::I64 => {
                self.dtype.decode(bytes)
            }
        }
    }

    /// The first element whose bits differ, all NaNs being the same, with both values. Both are of one kind and length.
    pub fn difference(&self, other: &Self) -> Option<(usize, [f64; 2])> {
        let size = self.dtype.bytes() as usize;
        let pieces = self.bytes.par_chunks(PIECE * size);
        pieces
            .zip(other.bytes.par_chunks(PIECE * size))
            .enumerate()
            .filter(|(_, (x, y))| x != y)
            .find_map_first(|(n, (x, y))| {
                let [x, y] = [x, y].map(|bytes| self.decode(bytes));
                let differ = |(x, y): (&f64, &f64)| {
                    x.to_bits() != y.to_bits() && !(x.is_nan() && y.is_nan())
                };
                let at = x.iter().zip(&y).position(differ)?;
                Some((n * PIECE + at, [x[at], y[at]]))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_compared_and_booleans_are_0_or_1() {
        let whole = Stored::of(Dtype::I64, &[3.7, -3.7, 1e12]);
        assert_eq!(whole.values(), [3.0, -3.0, 1e12]);
        let other = Stored::of(Dtype::I64, &[3.0, -4.0, 1e12]);
        assert_eq!(whole.difference(&other), Some((1, [-3.0, -4.0])));
        let truth = Stored::new(Dtype::Bool, vec![0, 1, 0xff]);
        let values = truth.values();
        assert_eq!(values[..2], [0.0, 1.0]);
        assert!(values[2].is_nan());
        let written = Stored::new(Dtype::Bool, vec![0, 1, 1]);
        assert!(truth.difference(&written).is_some());
    }

    #[test]
    fn bits_are_compared_and_nans_are_one() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let mut values: Vec<f64> = (0..3 * PIECE + 5)
                .map(|n| dtype.round((n as f64 * 0.37).sin()))
                .collect();
            values[7] = f64::NAN;
            values[9] = 0.0;
            let one = Stored::of(dtype, &values);
            let read = one.values();
            assert!(read.iter().zip(&values).all(|(x, y)| x == y || x.is_nan()));
            // Another NaN is no difference; the sign of a zero is one, and the first of several is said.
            let size = dtype.bytes() as usize;
            let mut bytes = dtype.encode(&values);
            bytes[7 * size] ^= 1;
            assert_eq!(one.difference(&Stored::new(dtype, bytes.clone())), None);
            for at in [3 * PIECE + 4, PIECE, 9] {
                bytes[at * size + size - 1] ^= 0x80;
                let found = one.difference(&Stored::new(dtype, bytes.clone()));
                assert_eq!(found, Some((at, [values[at], -values[at]])), "{dtype:?}");
            }
        }
    }
}
