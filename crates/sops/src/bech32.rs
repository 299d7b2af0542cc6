//! Bech32 (BIP 173), the encoding of age's recipients: <https://c2sp.org/age>, section "The X25519 recipient type".

const CHARSET: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
const GENERATOR: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
/// Prefix of age's public keys, before the separator.
const PREFIX: &str = "age";

/// Encodes an X25519 public key as a recipient, `age1…`.
pub fn recipient(public_key: &[u8; 32]) -> String {
    encode(PREFIX, public_key)
}

fn encode(prefix: &str, bytes: &[u8]) -> String {
    let data = to_groups(bytes);
    let checksum = checksum(prefix, &data);
    let text = data
        .iter()
        .chain(&checksum)
        .map(|group| char::from(CHARSET[usize::from(*group)]));
    prefix.chars().chain(Some('1')).chain(text).collect()
}

/// Splits bytes into groups of five bits. The last group is padded with zeros.
fn to_groups(bytes: &[u8]) -> Vec<u8> {
    let (mut groups, mut held, mut count) = (Vec::with_capacity(bytes.len() * 8 / 5 + 1), 0_u32, 0);
    for byte in bytes {
        held = held << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            groups.push((held >> count & 31) as u8);
        }
    }
    if count > 0 {
        groups.push((held << (5 - count) & 31) as u8);
    }
    groups
}

fn checksum(prefix: &str, data: &[u8]) -> [u8; 6] {
    let high = prefix.bytes().map(|byte| byte >> 5);
    let low = prefix.bytes().map(|byte| byte & 31);
    let values = high.chain(Some(0)).chain(low).chain(data.iter().copied()).chain([0; 6]);
    let sum = values.fold(1_u32, |sum, value| {
        let mixed = GENERATOR
            .iter()
            .enumerate()
            .filter(|(bit, _)| sum >> (25 + bit) & 1 == 1);
        mixed.fold((sum & 0x01ff_ffff) << 5 ^ u32::from(value), |sum, (_, generator)| {
            sum ^ generator
        })
    });
    std::array::from_fn(|n| ((sum ^ 1) >> (5 * (5 - n)) & 31) as u8)
}

/// Decodes a text without a check of its checksum.
#[cfg(test)]
pub(crate) fn decode(text: &str) -> Vec<u8> {
    let text = text.to_ascii_lowercase();
    let (_, data) = text.rsplit_once('1').unwrap();
    let groups = data
        .bytes()
        .map(|c| CHARSET.iter().position(|other| *other == c).unwrap());
    let bits: Vec<bool> = groups
        .take(data.len() - 6)
        .flat_map(|group| (0..5).rev().map(move |bit| group >> bit & 1 == 1))
        .collect();
    bits.chunks_exact(8)
        .map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_bip_173_are_written_so() {
        assert_eq!(encode("a", &[]), "a12uel5l");
        let all: Vec<u8> = hex::decode("00443214c74254b635cf84653a56d7c675be77df").unwrap();
        assert_eq!(encode("abcdef", &all), "abcdef1qpzry9x8gf2tvdw0s3jn54khce6mua7lmqqqxw");
    }
}
