//! Disk images in the qcow2 format of QEMU, version 3, from any content.
//!
//! Clusters of zeros take no room. The others are kept as they are or compressed with zstd, whichever is asked for.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};

use crate::Content;

const CLUSTER_BITS: u32 = 16;
const CLUSTER: u64 = 1 << CLUSTER_BITS;
const SECTOR: u64 = 512;
/// Entries of a table of eight-byte entries that takes one cluster.
const TABLE: u64 = CLUSTER / 8;
/// Counts of 16 bits in one cluster.
const COUNTS: u64 = CLUSTER / 2;
const HEADER_LEN: u32 = 112;

/// The incompatible feature that another compression than deflate is.
const OTHER_COMPRESSION: u64 = 1 << 3;
const ZSTD: u8 = 1;
const LEVEL: i32 = 9;

/// The entry refers to a cluster of its own.
const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
/// Where the number of further sectors is in the entry of a compressed cluster.
const SECTORS_SHIFT: u32 = 62 - (CLUSTER_BITS - 8);

/// What becomes of clusters with content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// They are kept as they are.
    None,
    /// They are compressed where that makes them smaller.
    Zstd,
}

/// Writes `content` as the disk of a qcow2 image.
pub fn write(content: &Content, compression: Compression, out: &mut File) -> io::Result<()> {
    out.set_len(0)?;
    out.rewind()?;
    let size = content.len().next_multiple_of(SECTOR);
    let clusters = size.div_ceil(CLUSTER);
    let l1_len = clusters.div_ceil(TABLE);
    let l1_clusters = (l1_len * 8).div_ceil(CLUSTER).max(1);

    let mut image = Image {
        out: BufWriter::with_capacity(1 << 20, out),
        end: (1 + l1_clusters) * CLUSTER,
        counts: vec![1; usize::try_from(1 + l1_clusters).map_err(io::Error::other)?],
    };
    image.out.seek(SeekFrom::Start(image.end))?;
    let l2 = image.clusters(content, clusters, compression)?;
    let l1 = image.second_level(&l2, l1_len)?;
    let (counts_at, counts_clusters) = image.reference_counts()?;

    let header = header(&Header { size, l1_len, counts_at, counts_clusters, compression })?;
    image.out.rewind()?;
    image.out.write_all(&header)?;
    image.out.seek(SeekFrom::Start(CLUSTER))?;
    image.out.write_all(&table(&l1, l1_clusters))?;
    image.out.flush()
}

/// A file that grows by clusters.
struct Image<'a> {
    out: BufWriter<&'a mut File>,
    /// Bytes that were written, header and first table included.
    end: u64,
    /// How often each cluster of the file is referred to.
    counts: Vec<u16>,
}

impl Image<'_> {
    /// Writes all clusters of the disk; the entries of the second level.
    fn clusters(
        &mut self,
        content: &Content,
        clusters: u64,
        compression: Compression,
    ) -> io::Result<Vec<u64>> {
        let mut entries = Vec::with_capacity(usize::try_from(clusters).map_err(io::Error::other)?);
        let mut reader = content.reader();
        let mut left = content.len();
        let mut cluster = vec![0; CLUSTER as usize];
        for _ in 0..clusters {
            let count = left.min(CLUSTER);
            left -= count;
            if reader.zeros_ahead() >= count {
                reader.skip_zeros(count);
                entries.push(0);
                continue;
            }
            reader.read_exact(&mut cluster[..count as usize])?;
            cluster[count as usize..].fill(0);
            entries.push(match compression {
                _ if cluster.iter().all(|byte| *byte == 0) => 0,
                Compression::None => self.plain(&cluster)? | COPIED,
                Compression::Zstd => match zstd::bulk::compress(&cluster, LEVEL)? {
                    packed if packed.len() as u64 + SECTOR < CLUSTER => self.packed(&packed)?,
                    _ => self.plain(&cluster)? | COPIED,
                },
            });
        }
        self.fill_cluster()?;
        Ok(entries)
    }

    /// Writes one cluster at the next boundary; where it is.
    fn plain(&mut self, cluster: &[u8]) -> io::Result<u64> {
        self.fill_cluster()?;
        let at = self.end;
        self.out.write_all(cluster)?;
        self.end += cluster.len() as u64;
        self.refer(at, self.end);
        Ok(at)
    }

    /// Writes a compressed cluster right behind what is there; its entry.
    fn packed(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let at = self.end;
        self.out.write_all(bytes)?;
        self.end += bytes.len() as u64;
        let (first, last) = (at / SECTOR, (self.end - 1) / SECTOR);
        self.refer(first * SECTOR, (last + 1) * SECTOR);
        Ok(at | (last - first) << SECTORS_SHIFT | COMPRESSED)
    }

    /// Goes on at the next cluster.
    fn fill_cluster(&mut self) -> io::Result<()> {
        let missing = self.end.next_multiple_of(CLUSTER) - self.end;
        io::copy(&mut io::repeat(0).take(missing), &mut self.out)?;
        self.end += missing;
        Ok(())
    }

    fn refer(&mut self, start: u64, end: u64) {
        for cluster in start / CLUSTER..end.div_ceil(CLUSTER) {
            let cluster = cluster as usize;
            if self.counts.len() <= cluster {
                self.counts.resize(cluster + 1, 0);
            }
            self.counts[cluster] += 1;
        }
    }

    /// Writes the tables of the second level that are not empty; the entries of the first level.
    fn second_level(&mut self, l2: &[u64], l1_len: u64) -> io::Result<Vec<u64>> {
        let mut l1 = Vec::with_capacity(l1_len as usize);
        for entries in l2.chunks(TABLE as usize) {
            let empty = entries.iter().all(|entry| *entry == 0);
            l1.push(if empty { 0 } else { self.plain(&table(entries, 1))? | COPIED });
        }
        Ok(l1)
    }

    /// Writes the counts and the table of where they are, which count themselves; place and length of the table.
    fn reference_counts(&mut self) -> io::Result<(u64, u64)> {
        let used = self.end / CLUSTER;
        let (mut blocks, mut tables) = (0, 0);
        loop {
            let total = used + blocks + tables;
            let (more_blocks, more_tables) = (total.div_ceil(COUNTS), blocks.div_ceil(TABLE).max(1));
            if (more_blocks, more_tables) == (blocks, tables) {
                break;
            }
            (blocks, tables) = (more_blocks, more_tables);
        }
        let (first, total) = (self.end, used + blocks + tables);
        self.refer(first, total * CLUSTER);
        let mut bytes: Vec<u8> = self.counts.iter().flat_map(|count| count.to_be_bytes()).collect();
        bytes.resize((blocks * CLUSTER) as usize, 0);
        self.out.write_all(&bytes)?;
        let places: Vec<u64> = (0..blocks).map(|block| first + block * CLUSTER).collect();
        self.out.write_all(&table(&places, tables))?;
        self.end = total * CLUSTER;
        Ok((first + blocks * CLUSTER, tables))
    }
}

/// Entries as they are kept, in so many clusters.
fn table(entries: &[u64], clusters: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_be_bytes()).collect();
    bytes.resize((clusters * CLUSTER) as usize, 0);
    bytes
}

struct Header {
    size: u64,
    l1_len: u64,
    counts_at: u64,
    counts_clusters: u64,
    compression: Compression,
}

fn header(header: &Header) -> io::Result<Vec<u8>> {
    let word = |value: u64| u32::try_from(value).map_err(io::Error::other);
    let (features, kind) = match header.compression {
        Compression::None => (0, 0),
        Compression::Zstd => (OTHER_COMPRESSION, ZSTD),
    };
    let mut out = b"QFI\xfb".to_vec();
    out.extend_from_slice(&3_u32.to_be_bytes());
    // No backing file.
    out.extend_from_slice(&[0; 12]);
    out.extend_from_slice(&CLUSTER_BITS.to_be_bytes());
    out.extend_from_slice(&header.size.to_be_bytes());
    // No encryption.
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&word(header.l1_len)?.to_be_bytes());
    out.extend_from_slice(&CLUSTER.to_be_bytes());
    out.extend_from_slice(&header.counts_at.to_be_bytes());
    out.extend_from_slice(&word(header.counts_clusters)?.to_be_bytes());
    // No snapshots.
    out.extend_from_slice(&[0; 12]);
    out.extend_from_slice(&u64::to_be_bytes(features));
    // Compatible and autoclear features: none.
    out.extend_from_slice(&[0; 16]);
    // Counts of 2^4 bits.
    out.extend_from_slice(&4_u32.to_be_bytes());
    out.extend_from_slice(&HEADER_LEN.to_be_bytes());
    out.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
    // The end of the header's extensions.
    out.extend_from_slice(&[0; 8]);
    Ok(out)
}
