//! Finding room for partitions.

use super::{GptError, NAME_MAX, Partition, Table};
use crate::Guid;

/// A partition to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPartition {
    name: String,
    type_guid: Guid,
    guid: Guid,
    attributes: u64,
    /// `None`: all of the range.
    size: Option<u64>,
    minimum: u64,
}

impl NewPartition {
    /// A partition that takes all of the smallest free range there is.
    pub fn new(name: &str, type_guid: Guid, guid: Guid) -> Self {
        Self { name: name.to_owned(), type_guid, guid, attributes: 0, size: None, minimum: 1 }
    }

    /// Of exactly this many bytes, rounded up to whole sectors.
    pub fn size(mut self, bytes: u64) -> Self {
        (self.size, self.minimum) = (Some(bytes), bytes.max(1));
        self
    }

    /// Of at least `minimum` bytes, and as many as there are up to `maximum`.
    pub fn between(mut self, minimum: u64, maximum: Option<u64>) -> Self {
        (self.size, self.minimum) = (maximum, minimum.max(1));
        self
    }

    /// With these attribute bits.
    pub fn attributes(mut self, bits: u64) -> Self {
        self.attributes = bits;
        self
    }
}

/// Sectors that belong to no partition, from an aligned first to an aligned end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeRange {
    /// The first sector.
    pub first: u64,
    /// The last sector.
    pub last: u64,
}

impl FreeRange {
    fn sectors(self) -> u64 {
        self.last - self.first + 1
    }
}

impl Table {
    /// The free ranges, in the order they are on the device.
    pub fn free_ranges(&self) -> Vec<FreeRange> {
        let mut taken: Vec<(u64, u64)> =
            self.partitions.values().map(|found| (found.first, found.last)).collect();
        taken.sort_unstable();
        taken.push((self.last_usable().saturating_add(1), u64::MAX));
        let mut ranges = Vec::new();
        let mut from = self.first_usable();
        for (first, last) in taken {
            ranges.extend(self.aligned(from, first));
            from = from.max(last.saturating_add(1));
        }
        ranges
    }

    /// The aligned part of the sectors from `from` up to, but not including, `end`.
    fn aligned(&self, from: u64, end: u64) -> Option<FreeRange> {
        let first = from.checked_next_multiple_of(self.alignment)?;
        let end = end - end % self.alignment;
        (first < end).then(|| FreeRange { first, last: end - 1 })
    }

    /// Bytes of the largest free range.
    pub fn largest_free(&self) -> u64 {
        let sectors = self.free_ranges().into_iter().map(FreeRange::sectors).max().unwrap_or(0);
        sectors.saturating_mul(u64::from(self.sector_size))
    }

    /// Puts a partition into the smallest free range that it fits, and gives its number.
    ///
    /// Numbers follow the order on the device where an entry is free between the neighbours; otherwise the first free
    /// entry is taken. Partitions that exist keep their numbers: somebody may have them mounted.
    ///
    /// # Errors
    /// [`GptError::NoRoom`], [`GptError::NoEntry`], [`GptError::Name`]; the table is unchanged then.
    pub fn add(&mut self, new: &NewPartition) -> Result<u32, GptError> {
        self.put(new, |fitting| fitting.min_by_key(|range| range.sectors()))
    }

    /// As [`Table::add`], but into the largest free range: for what is to have as much as there is.
    ///
    /// # Errors
    /// As [`Table::add`].
    pub fn add_to_largest(&mut self, new: &NewPartition) -> Result<u32, GptError> {
        let largest = self.largest_free();
        match new.size {
            // The smallest range that has all of it.
            Some(most) if most <= largest => {
                let exact = NewPartition { minimum: most.max(new.minimum), ..new.clone() };
                self.put(&exact, |fitting| fitting.min_by_key(|range| range.sectors()))
            }
            _ => self.put(new, |fitting| fitting.max_by_key(|range| range.sectors())),
        }
    }

    fn put(
        &mut self,
        new: &NewPartition,
        choose: impl FnOnce(&mut dyn Iterator<Item = FreeRange>) -> Option<FreeRange>,
    ) -> Result<u32, GptError> {
        if new.name.encode_utf16().count() > NAME_MAX {
            return Err(GptError::Name { name: new.name.clone() });
        }
        let sector = u64::from(self.sector_size);
        let minimum = new.minimum.div_ceil(sector);
        let mut fitting = self.free_ranges().into_iter().filter(|range| range.sectors() >= minimum);
        let range = choose(&mut fitting).ok_or_else(|| GptError::NoRoom {
            name: new.name.clone(),
            wanted: new.minimum,
            largest: self.largest_free(),
        })?;
        let sectors = match new.size {
            Some(size) => size.div_ceil(sector).clamp(minimum, range.sectors()),
            None => range.sectors(),
        };
        let number = self
            .free_number(range.first)
            .ok_or_else(|| GptError::NoEntry { name: new.name.clone(), entries: self.entry_count })?;
        let partition = Partition {
            type_guid: new.type_guid,
            guid: new.guid,
            first: range.first,
            last: range.first + sectors - 1,
            attributes: new.attributes,
            name: new.name.clone(),
        };
        self.partitions.insert(number, partition);
        Ok(number)
    }

    /// The number for a partition that starts at `first`.
    fn free_number(&self, first: u64) -> Option<u32> {
        let before =
            self.partitions.iter().filter(|(_, found)| found.first < first).map(|(number, _)| *number);
        let after =
            self.partitions.iter().filter(|(_, found)| found.first > first).map(|(number, _)| *number);
        let low = before.max().unwrap_or(0) + 1;
        let high = after.min().unwrap_or(self.entry_count + 1);
        let is_free = |number: &u32| !self.partitions.contains_key(number);
        (low..high).find(is_free).or_else(|| (1..=self.entry_count).find(is_free))
    }

    /// By how many bytes a partition could grow at its end.
    pub fn growth(&self, number: u32) -> u64 {
        let Some(partition) = self.partitions.get(&number) else { return 0 };
        let next =
            self.partitions.values().map(|found| found.first).filter(|first| *first > partition.last).min();
        let end = next.unwrap_or(u64::MAX).min(self.last_usable().saturating_add(1));
        let end = end - end % self.alignment;
        end.saturating_sub(partition.last.saturating_add(1)).saturating_mul(u64::from(self.sector_size))
    }

    /// Grows a partition by at most this many bytes, and gives by how many it did.
    ///
    /// # Errors
    /// [`GptError::NoPartition`].
    pub fn grow(&mut self, number: u32, most: u64) -> Result<u64, GptError> {
        let sector = u64::from(self.sector_size);
        let more = self.growth(number).min(most) / sector;
        let partition = self.partitions.get_mut(&number).ok_or(GptError::NoPartition { number })?;
        partition.last += more;
        Ok(more * sector)
    }
}
