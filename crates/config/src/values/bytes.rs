//! Bytes written as base64: certificates and keys.

use base64::{Engine, engine::general_purpose::STANDARD};
use ichor_yaml::Node;

use crate::model::{Decoder, Field, MergeError, Shape, section};

/// A key with this text is kept as it is instead of being read as base64.
pub const REDACTED: &str = "******";

fn decode_text(node: &Node, decoder: &mut Decoder) -> Vec<u8> {
    let Some(text) = decoder.text(node, "base64 text") else { return Vec::new() };
    // Line breaks are part of many hand-made files and the reference reader skips them.
    let compact: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    match STANDARD.decode(compact.as_bytes()) {
        Ok(bytes) => bytes,
        Err(error) => {
            let message = base64_error(compact.len(), &error);
            let help = "write the base64 of the whole PEM text, standard alphabet, with padding";
            decoder.problem(node.span, message, Some(help.to_owned()));
            Vec::new()
        }
    }
}

/// What is wrong with base64 text, by the first byte that does not fit.
pub(crate) fn base64_error(length: usize, error: &base64::DecodeError) -> String {
    let offset = match error {
        base64::DecodeError::InvalidByte(offset, _) | base64::DecodeError::InvalidLastSymbol(offset, _) => {
            *offset
        }
        base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => length / 4 * 4,
    };
    format!("illegal base64 data at input byte {offset}")
}

/// Optional bytes; a patch replaces them when it has some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base64(pub Option<Vec<u8>>);

impl Field for Base64 {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        Self(Some(decode_text(node, decoder)))
    }

    fn encode(&self) -> Node {
        Node::string(STANDARD.encode(self.0.as_deref().unwrap_or_default()))
    }

    fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(Vec::is_empty)
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        if right.0.is_some() {
            self.clone_from(right);
        }
        Ok(())
    }

    fn shape() -> Shape {
        Shape::Format("base64")
    }
}

/// One half of a certificate pair: always taken from the patch, since the pair as a whole is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PemBytes(pub Vec<u8>);

impl PemBytes {
    /// The PEM text, if it is text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl From<&str> for PemBytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for PemBytes {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl Field for PemBytes {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        if node.as_str() == Some(REDACTED) {
            return Self(REDACTED.as_bytes().to_vec());
        }
        Self(decode_text(node, decoder))
    }

    fn encode(&self) -> Node {
        if self.0 == REDACTED.as_bytes() {
            return Node::string(REDACTED);
        }
        Node::string(STANDARD.encode(&self.0))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        self.clone_from(right);
        Ok(())
    }

    fn shape() -> Shape {
        Shape::Format("base64")
    }
}

section! {
    /// A certificate and its private key, each as base64 of PEM text.
    pub struct PemPair {
        /// The certificate.
        @always
        "crt" => crt: PemBytes,
        /// The private key; empty where only the certificate may be known.
        @always
        "key" => key: PemBytes,
    }
}

section! {
    /// A certificate as base64 of PEM text.
    pub struct PemCert {
        /// The certificate.
        @always
        "crt" => crt: PemBytes,
    }
}

section! {
    /// A private key as base64 of PEM text.
    pub struct PemKey {
        /// The private key.
        @always
        "key" => key: PemBytes,
    }
}
