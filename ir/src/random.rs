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

#[cfg(test)]
mod tests {
    // Oracle: the first output of the reference implementation (Vigna, `splitmix64.c`) for the seed 1234567.
    use super::*;

    #[test]
    fn it_is_that_of_splitmix64() {
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
    }
}
