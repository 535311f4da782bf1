//! File modes as the API spells them: the bit layout of Go's `fs.FileMode`.

const DIRECTORY: u32 = 1 << 31;
const SYMLINK: u32 = 1 << 27;
const DEVICE: u32 = 1 << 26;
const NAMED_PIPE: u32 = 1 << 25;
const SOCKET: u32 = 1 << 24;
const SETUID: u32 = 1 << 23;
const SETGID: u32 = 1 << 22;
const CHARACTER: u32 = 1 << 21;
const STICKY: u32 = 1 << 20;
const IRREGULAR: u32 = 1 << 19;

/// Translates `st_mode`.
pub fn from_stat(mode: u32) -> u32 {
    let kind = match mode & 0o170_000 {
        0o040_000 => DIRECTORY,
        0o120_000 => SYMLINK,
        0o060_000 => DEVICE,
        0o020_000 => DEVICE | CHARACTER,
        0o010_000 => NAMED_PIPE,
        0o140_000 => SOCKET,
        0o100_000 => 0,
        _ => IRREGULAR,
    };
    let extra = [(0o4000, SETUID), (0o2000, SETGID), (0o1000, STICKY)]
        .into_iter()
        .filter(|(bit, _)| mode & bit != 0)
        .fold(0, |bits, (_, flag)| bits | flag);
    kind | extra | (mode & 0o777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_go_bits() {
        for (stat, expected) in [
            (0o100_644, 0o644),
            (0o040_755, 0x8000_0000 | 0o755),
            (0o041_777, 0x8010_0000 | 0o777),
            (0o120_777, 0x0800_0000 | 0o777),
            (0o020_666, 0x0420_0000 | 0o666),
            (0o060_660, 0x0400_0000 | 0o660),
            (0o140_600, 0x0100_0000 | 0o600),
            (0o104_755, 0x0080_0000 | 0o755),
        ] {
            assert_eq!(from_stat(stat), expected, "{stat:o}");
        }
    }
}
