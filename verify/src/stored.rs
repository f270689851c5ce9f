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
            .for_each(|(to, from)| to.copy_from_slice(&self.dtype.decode(from)));
        values
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
                let [x, y] = [x, y].map(|bytes| self.dtype.decode(bytes));
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
