//! Reads the database of etcd as far as it takes to describe a snapshot. Pure, and afraid of every byte.

use std::collections::BTreeSet;
use std::fmt;

use prost::Message as _;

/// Bytes in front of what a page holds.
const PAGE_HEADER: usize = 16;
/// Bytes of one entry of a page.
const ENTRY: usize = 16;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const MAGIC: u32 = 0xED0C_DAED;
/// An entry that is a bucket itself.
const BUCKET: u32 = 0x01;
/// Real trees have a handful of levels.
const DEPTH_MAX: usize = 32;
/// Bytes of a revision; a mark behind it says that it deleted the key.
const REVISION: usize = 17;
/// The bucket of revisions.
const KEYS: &[u8] = b"key";

/// What is in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Of all buckets, keys and values.
    pub hash: u32,
    /// The last one.
    pub revision: i64,
    /// Keys that are there.
    pub keys: usize,
    /// Of the database.
    pub size: u64,
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hash, revision, keys, size } = self;
        write!(f, "hash {hash:08x}, revision {revision}, total keys {keys}, total size {size}")
    }
}

/// The file is not such a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a database of etcd: {0}")]
pub(super) struct Bad(&'static str);

type Result<T> = std::result::Result<T, Bad>;

/// Describes a snapshot, as `etcdutl snapshot status` does.
pub(super) fn info(file: &[u8]) -> Result<Info> {
    let tree = Tree::open(file)?;
    let mut info = Info { hash: 0, revision: 0, keys: 0, size: tree.pages.saturating_mul(tree.page as u64) };
    let mut sum = Sum(!0);
    let mut seen = BTreeSet::new();
    let mut budget = tree.budget();
    let mut buckets = Vec::new();
    tree.walk(tree.root, DEPTH_MAX, &mut budget, &mut |flags, name, value| {
        if flags & BUCKET != 0 {
            buckets.push((name, value));
        }
        Ok(())
    })?;
    for (name, header) in buckets {
        sum.add(name);
        let keyed = name == KEYS;
        tree.bucket(header, &mut budget, &mut |flags, key, value| {
            sum.add(key);
            // The value of a bucket inside of a bucket is none.
            if flags & BUCKET == 0 {
                sum.add(value);
            }
            if keyed {
                let main = key.first_chunk().ok_or(Bad("a revision is cut off"))?;
                info.revision = i64::from_be_bytes(*main);
                let found =
                    ichor_wire::etcd::KeyValue::decode(value).map_err(|_| Bad("a value cannot be read"))?;
                // What was deleted last is not there.
                match key.len() > REVISION && key.ends_with(b"t") {
                    true => seen.remove(&found.key),
                    false => seen.insert(found.key),
                };
            }
            Ok(())
        })?;
    }
    info.keys = seen.len();
    info.hash = !sum.0;
    Ok(info)
}

/// The tree of pages.
struct Tree<'a> {
    file: &'a [u8],
    page: usize,
    pages: u64,
    root: u64,
}

/// Told of every entry: flags, key, value.
type Visit<'v, 'a> = dyn FnMut(u32, &'a [u8], &'a [u8]) -> Result<()> + 'v;

impl<'a> Tree<'a> {
    /// Two descriptions of the tree alternate; the newer one that is whole counts.
    fn open(file: &'a [u8]) -> Result<Self> {
        let first = meta(file, 0);
        let page = first.map_or(4096, |meta| meta.page);
        let second = meta(file, page);
        let newest = [first, second].into_iter().flatten().max_by_key(|meta| meta.transaction);
        let meta = newest.ok_or(Bad("it does not begin like one"))?;
        Ok(Self { file, page: meta.page, pages: meta.pages, root: meta.root })
    }

    /// No page is needed twice, so more visits than pages are a circle.
    fn budget(&self) -> usize {
        self.file.len() / self.page + 1
    }

    fn bucket(&self, header: &'a [u8], budget: &mut usize, visit: &mut Visit<'_, 'a>) -> Result<()> {
        match u64_at(header, 0)? {
            // A small one is stored in place.
            0 => self.entries(header.get(16..).ok_or(Bad("a bucket is cut off"))?, DEPTH_MAX, budget, visit),
            root => self.walk(root, DEPTH_MAX, budget, visit),
        }
    }

    fn walk(&self, number: u64, depth: usize, budget: &mut usize, visit: &mut Visit<'_, 'a>) -> Result<()> {
        *budget = budget.checked_sub(1).ok_or(Bad("its pages go in circles"))?;
        let start = usize::try_from(number).ok().and_then(|number| number.checked_mul(self.page));
        let page = start.and_then(|start| self.file.get(start..)).ok_or(Bad("a page is missing"))?;
        self.entries(page, depth, budget, visit)
    }

    fn entries(
        &self,
        page: &'a [u8],
        depth: usize,
        budget: &mut usize,
        visit: &mut Visit<'_, 'a>,
    ) -> Result<()> {
        let depth = depth.checked_sub(1).ok_or(Bad("its tree is too deep"))?;
        let flags = u16_at(page, 8)?;
        for index in 0..usize::from(u16_at(page, 10)?) {
            let at = PAGE_HEADER + index * ENTRY;
            let entry = page.get(at..).ok_or(Bad("a page is cut off"))?;
            match flags {
                BRANCH => self.walk(u64_at(entry, 8)?, depth, budget, visit)?,
                LEAF => {
                    let field = |at| u32_at(entry, at).map(|value| value as usize);
                    let (start, key, value) = (field(4)?, field(8)?, field(12)?);
                    let whole =
                        start.checked_add(key).and_then(|middle| Some((middle, middle.checked_add(value)?)));
                    let (middle, end) = whole.ok_or(Bad("an entry is too long"))?;
                    let bytes = entry.get(start..end).ok_or(Bad("an entry is cut off"))?;
                    let (key, value) = bytes.split_at(middle - start);
                    visit(u32_at(entry, 0)?, key, value)?;
                }
                _ => return Err(Bad("a page is of no known kind")),
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Meta {
    page: usize,
    root: u64,
    pages: u64,
    transaction: u64,
}

fn meta(file: &[u8], at: usize) -> Option<Meta> {
    let page = file.get(at..)?;
    let body = page.get(PAGE_HEADER..)?;
    let known = u16_at(page, 8).ok()? == META && u32_at(body, 0).ok()? == MAGIC && u32_at(body, 4).ok()? == 2;
    let size = usize::try_from(u32_at(body, 8).ok()?).ok()?;
    if !known || !size.is_power_of_two() || size < 512 || fnv(body.get(..56)?) != u64_at(body, 56).ok()? {
        return None;
    }
    Some(Meta {
        page: size,
        root: u64_at(body, 16).ok()?,
        pages: u64_at(body, 40).ok()?,
        transaction: u64_at(body, 48).ok()?,
    })
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Bad("it is cut off"))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    chunk(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    chunk(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    chunk(bytes, at).map(u64::from_le_bytes)
}

fn fnv(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A checksum of Castagnoli's polynomial in the making.
struct Sum(u32);

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = TABLE[((self.0 ^ u32::from(*byte)) & 0xff) as usize] ^ (self.0 >> 8);
        }
    }
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0x82f6_3b78 } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        let mut sum = Sum(!0);
        sum.add(b"123456789");
        assert_eq!(!sum.0, 0xe306_9283);
    }

    /// A database with one small bucket in one leaf.
    fn database() -> Vec<u8> {
        let mut file = vec![0u8; 3 * 512];
        let put =
            |file: &mut Vec<u8>, at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        for (at, transaction) in [(0, 1u64), (512, 2)] {
            put(&mut file, at + 8, &META.to_le_bytes());
            put(&mut file, at + 16, &MAGIC.to_le_bytes());
            put(&mut file, at + 20, &2u32.to_le_bytes());
            put(&mut file, at + 24, &512u32.to_le_bytes());
            put(&mut file, at + 32, &2u64.to_le_bytes());
            put(&mut file, at + 56, &3u64.to_le_bytes());
            put(&mut file, at + 64, &transaction.to_le_bytes());
            let sum = fnv(&file[at + 16..at + 72]);
            put(&mut file, at + 72, &sum.to_le_bytes());
        }
        let value = ichor_wire::etcd::KeyValue { key: b"a".to_vec(), ..Default::default() }.encode_to_vec();
        let revision: Vec<u8> = [7i64.to_be_bytes().as_slice(), b"_", &0i64.to_be_bytes()].concat();
        let mut inner = vec![0u8; 16];
        inner[8..10].copy_from_slice(&LEAF.to_le_bytes());
        inner[10..12].copy_from_slice(&1u16.to_le_bytes());
        for field in [0, 16, revision.len() as u32, value.len() as u32] {
            inner.extend(field.to_le_bytes());
        }
        let bucket = [vec![0u8; 16], inner, revision, value].concat();
        put(&mut file, 1024 + 8, &LEAF.to_le_bytes());
        put(&mut file, 1024 + 10, &1u16.to_le_bytes());
        for (index, field) in [BUCKET, 16, KEYS.len() as u32, bucket.len() as u32].into_iter().enumerate() {
            put(&mut file, 1024 + 16 + index * 4, &field.to_le_bytes());
        }
        put(&mut file, 1024 + 32, KEYS);
        put(&mut file, 1024 + 32 + KEYS.len(), &bucket);
        file
    }

    #[test]
    fn a_small_database_is_described() {
        let info = info(&database()).unwrap();
        assert_eq!((info.revision, info.keys, info.size), (7, 1, 1536));
    }

    #[test]
    fn broken_databases_are_refused_and_none_makes_it_panic() {
        assert!(info(b"").is_err() && info(&[0; 8192]).is_err());
        let good = database();
        for at in 0..good.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                let _ = info(&bad);
            }
            let _ = info(&good[..at]);
        }
    }

    #[test]
    fn pages_in_circles_are_noticed() {
        let mut file = database();
        // The root becomes a branch that leads to itself.
        file[1024 + 8..1024 + 10].copy_from_slice(&BRANCH.to_le_bytes());
        file[1024 + 24..1024 + 32].copy_from_slice(&2u64.to_le_bytes());
        assert!(info(&file).is_err());
    }
}
