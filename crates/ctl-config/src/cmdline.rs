//! Configurations on the kernel command line: base64 of zstd of YAML.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The most a few kilobytes of command line may unpack to.
const UNPACKED_MAX: usize = 4 * 1024 * 1024;

/// A payload that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Not base64.
    #[error("{parameter} is not base64")]
    Base64 {
        /// The kernel parameter.
        parameter: &'static str,
    },
    /// Not zstd, or too large.
    #[error("{parameter} is not zstd, or unpacks to more than 4 MiB")]
    Zstd {
        /// The kernel parameter.
        parameter: &'static str,
    },
}

/// The configuration in all values of a parameter; they are joined before decoding.
pub fn decode(parameter: &'static str, values: &[String]) -> Result<Option<Vec<u8>>, PayloadError> {
    if values.is_empty() {
        return Ok(None);
    }
    let packed = STANDARD.decode(values.concat()).map_err(|_| PayloadError::Base64 { parameter })?;
    zstd::bulk::decompress(&packed, UNPACKED_MAX).map(Some).map_err(|_| PayloadError::Zstd { parameter })
}

/// The configuration in the environment of a container: plain YAML in base64.
pub fn decode_plain(text: &str) -> Result<Vec<u8>, PayloadError> {
    STANDARD.decode(text.trim()).map_err(|_| PayloadError::Base64 { parameter: "USERDATA" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_joined_before_decoding() {
        let packed = STANDARD.encode(zstd::bulk::compress(b"version: v1alpha1\n", 3).unwrap());
        let (head, tail) = packed.split_at(7);
        let values = [head.to_owned(), tail.to_owned()];
        assert_eq!(decode("x", &values).unwrap().as_deref(), Some(&b"version: v1alpha1\n"[..]));
        assert_eq!(decode("x", &[]).unwrap(), None);
    }

    #[test]
    fn nonsense_names_the_parameter() {
        let error = decode("talos.config.early", &["%%".to_owned()]).unwrap_err();
        assert_eq!(error.to_string(), "talos.config.early is not base64");
        let error = decode("talos.config.early", &["aGVsbG8=".to_owned()]).unwrap_err();
        assert!(matches!(error, PayloadError::Zstd { .. }));
    }
}
