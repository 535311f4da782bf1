//! META as it may be found on a disk: its values, or an error; never a panic, and never a guess.

use ichor_ctl_runtime::meta::tlv::{self, COPY_LEN, Content, Tags};
use ichor_fuzz::Target;

fn seed(tags: &Tags) -> Vec<u8> {
    // Only the records: the rest of a copy is filled in below.
    let copy = tlv::encode(tags).unwrap();
    let used: usize = tags.values().map(|value| value.len() + 8).sum();
    copy[4..4 + used].to_vec()
}

fn seeds() -> Vec<Vec<u8>> {
    let tags = Tags::from([(0x06, b"A".to_vec()), (0x0a, b"addresses: []".to_vec()), (0x10, Vec::new())]);
    vec![seed(&tags), seed(&Tags::from([(1, vec![b'x'; 300])])), Vec::new()]
}

/// Records behind a good checksum: what a machine with another idea of them may have written.
#[test]
fn meta_records() {
    Target::binary("meta-records").seeds(seeds()).rounds(400).len_max(2048).run(|input| {
        let mut copy = tlv::encode(&Tags::new()).unwrap();
        copy[4..4 + input.len()].copy_from_slice(input);
        let sum = COPY_LEN - 36;
        copy[sum..sum + 32].fill(0);
        let digest = ichor_pki::sha256(&copy);
        copy[sum..sum + 32].copy_from_slice(&digest);
        let tags = tlv::decode(&copy);
        if let Some(tags) = tags.as_ref().filter(|tags| tlv::fits(tags)) {
            // What was read is what would be written.
            assert_eq!(tlv::decode(&tlv::encode(tags).unwrap()).as_ref(), Some(tags));
        }
        tags.map(|tags| tags.len().min(8))
    });
}

/// Anything at the place of META: values only from a whole copy, and nothing but zeros is taken for a new META.
#[test]
fn meta_copies() {
    let copy = tlv::encode(&Tags::from([(0x0a, b"hello".to_vec())])).unwrap();
    let both = [copy.clone(), copy.clone()].concat();
    // A change as an input: where, and what stands there afterwards.
    Target::binary("meta-copies")
        .seeds([vec![0, 0, 0, 1], vec![4, 0, 0, 2, 4, 0, 4, 2]])
        .rounds(150)
        .len_max(64)
        .run(|input| {
            let mut meta = both.clone();
            for change in input.chunks_exact(4) {
                let at = usize::from(change[0]) | usize::from(change[1]) << 8 | usize::from(change[2]) << 16;
                let len = meta.len();
                meta[at % len] = change[3];
            }
            let intact = |at: usize| meta[at * COPY_LEN..(at + 1) * COPY_LEN] == copy;
            match tlv::decode_either(&meta) {
                Content::Values { tags, both } => {
                    assert_eq!(tags, Tags::from([(0x0a, b"hello".to_vec())]));
                    assert_eq!(both, intact(0) && intact(1));
                    both.to_string()
                }
                Content::Damaged => {
                    assert!(!intact(0) && !intact(1));
                    "damaged".to_owned()
                }
                Content::Blank => panic!("values were taken for nothing"),
            }
        });
}
