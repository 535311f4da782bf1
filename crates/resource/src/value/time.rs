//! Spans and points of time.

use jiff::Timestamp as Instant;

use super::wire::{put_nested, put_number};
use super::{Field, GoDuration, HardwareAddr, Reader, Sampler, Value, WireError, Yaml};

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Seconds and nanoseconds, as both well-known types have them.
fn put_parts(tag: u32, seconds: i64, nanos: i64, out: &mut Vec<u8>) {
    put_nested(tag, out, |out| {
        if seconds != 0 {
            put_number(1, seconds as u64, out);
        }
        if nanos != 0 {
            put_number(2, nanos as u64, out);
        }
    });
}

fn read_parts(field: Field<'_>) -> Result<(i64, i32), WireError> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader::new(field.bytes()?);
    while let Some((tag, field)) = reader.next_field()? {
        match tag {
            1 => seconds = field.varint()? as i64,
            2 => nanos = field.varint()? as i32,
            _ => {}
        }
    }
    Ok((seconds, nanos))
}

impl Value for GoDuration {
    fn proto_type() -> String {
        "google.protobuf.Duration".into()
    }

    fn is_zero(&self) -> bool {
        GoDuration::is_zero(*self)
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        let nanos = self.as_nanos();
        put_parts(tag, nanos / NANOS_PER_SECOND, nanos % NANOS_PER_SECOND, out);
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        let (seconds, nanos) = read_parts(field)?;
        *self =
            GoDuration::from_nanos(seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(i64::from(nanos)));
        Ok(())
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        yaml.string(&self.to_string());
    }

    fn sample(sampler: &mut Sampler) -> Self {
        GoDuration::from_nanos(i64::from(sampler.number()) * 61_000_000_000 + 1_500_000)
    }
}

/// A point in time; unset prints as the first instant of year one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub Option<Instant>);

impl From<Instant> for Timestamp {
    fn from(time: Instant) -> Self {
        Self(Some(time))
    }
}

impl Value for Timestamp {
    fn proto_type() -> String {
        "google.protobuf.Timestamp".into()
    }

    fn is_zero(&self) -> bool {
        self.0.is_none()
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        let nanos = self.0.unwrap_or_default().as_nanosecond();
        let unit = i128::from(NANOS_PER_SECOND);
        put_parts(tag, nanos.div_euclid(unit) as i64, nanos.rem_euclid(unit) as i64, out);
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        let (seconds, nanos) = read_parts(field)?;
        let time = Instant::new(seconds, nanos).map_err(|_| WireError::Value("time out of range".into()))?;
        self.0 = Some(time);
        Ok(())
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        match self.0 {
            Some(time) => yaml.display(time),
            None => yaml.plain("0001-01-01T00:00:00Z"),
        }
    }

    fn sample(sampler: &mut Sampler) -> Self {
        let nanos = i128::from(sampler.number()) * 1_000_000_000_000_000 + 120_000_000;
        Self(Instant::from_nanosecond(nanos).ok())
    }
}

impl Value for HardwareAddr {
    fn proto_type() -> String {
        "bytes".into()
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        super::wire::put_bytes(tag, &self.0, out);
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        self.0 = field.bytes()?.to_vec();
        Ok(())
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        yaml.string(&self.to_string());
    }

    fn sample(sampler: &mut Sampler) -> Self {
        Self((0..6).map(|_| sampler.number()).collect())
    }
}
