//! Numbers that look random and are made where they are asked for, from a seed and a place alone.
//!
//! Who draws one number after the other uses a generator of a library.

/// 64 bits that look random, a fixed function of others: what SplitMix64 gives first in this state (Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014).
#[inline]
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number moved by less than half of the distance between neighbours that have so many binary digits fewer than f32: rounded to one of these it is the nearer
/// neighbour or the other one, the nearer one more often. The same number always moves the same way. The reference's kernels do the same
/// (`tw_dithered`).
pub fn dithered(x: f32, digits: u32) -> f32 {
    // What is small enough has no neighbours of its own.
    if !(x.abs() > 1e-30 && x.abs() < 1e38) {
        return x;
    }
    let half = 1i64 << (digits - 1);
    let by = (mix(u64::from(x.to_bits())) % (2 * half as u64)) as i64 - half;
    // By half of it exactly what is no neighbour's business would be rounded away from itself.
    let by = by.max(1 - half);
    f32::from_bits((i64::from(x.to_bits()) + by) as u32)
}

#[cfg(test)]
mod tests {
    // Oracle: the first output of the reference implementation (Vigna, `splitmix64.c`) for the seed 1234567.
    use super::*;

    #[test]
    fn it_is_that_of_splitmix64() {
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
    }

    #[test]
    fn what_is_dithered_is_rounded_to_either_neighbour() {
        let rounded = |x: f32| crate::Dtype::Bf16.round(f64::from(dithered(x, 16)));
        let (low, high) = (1.0, 1.0 + 1.0 / 128.0);
        for (part, wanted) in [(0.25, 0.25), (0.5, 0.5), (0.8, 0.8)] {
            let all = (0..4000).map(|n| {
                let x = low + (high - low) * part + f64::from(n) * 1e-7;
                let found = rounded(x as f32);
                assert!(found == low || found == high, "{x} {found}");
                f64::from(u8::from(found == high))
            });
            let share = all.sum::<f64>() / 4000.0;
            assert!((share - wanted).abs() < 0.05, "{part} {share}");
        }
        // What needs no rounding stays, and so does what has no neighbours.
        let alike = |n: i32| [f64::from(n), -f64::from(n) / 64.0].map(|x| rounded(x as f32) == x);
        assert!((-128..128).flat_map(alike).all(|alike| alike));
        for x in [0.0, -0.0, f32::INFINITY, 1e-38, f32::MAX] {
            assert_eq!(dithered(x, 16).to_bits(), x.to_bits());
        }
        assert!(dithered(f32::NAN, 16).is_nan());
    }
}
