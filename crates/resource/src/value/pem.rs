//! Certificates and keys: PEM bytes on the wire, base64 of the PEM in YAML.

use bytes::Bytes;

use super::binary::base64;
use super::wire::{put_bytes, put_nested};
use super::{Field, Reader, Sampler, Value, WireError, Yaml};

macro_rules! pem_value {
    ($(#[$doc:meta])* $name:ident, $proto:literal, $($(#[$field_doc:meta])* $field:ident = $tag:literal),+) => {
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, Hash)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: Bytes,)+
        }

        impl std::fmt::Debug for $name {
            /// Keys stay out of logs: only lengths show.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &self.$field.len()))+.finish()
            }
        }

        impl Value for $name {
            fn proto_type() -> String {
                $proto.into()
            }

            fn is_zero(&self) -> bool {
                $(self.$field.is_empty())&&+
            }

            fn put(&self, tag: u32, out: &mut Vec<u8>) {
                put_nested(tag, out, |out| {
                    $(if !self.$field.is_empty() {
                        put_bytes($tag, &self.$field, out);
                    })+
                });
            }

            fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
                let mut reader = Reader::new(field.bytes()?);
                while let Some((tag, field)) = reader.next_field()? {
                    match tag {
                        $($tag => self.$field = Bytes::copy_from_slice(field.bytes()?),)+
                        _ => {}
                    }
                }
                Ok(())
            }

            fn yaml(&self, yaml: &mut Yaml<'_>) {
                let mut frame = yaml.begin();
                $(
                    yaml.key(&mut frame, stringify!($field));
                    yaml.string(&base64(&self.$field));
                )+
                yaml.end_map(frame);
            }

            fn sample(sampler: &mut Sampler) -> Self {
                Self { $($field: sampler.text().into(),)+ }
            }
        }
    };
}

pem_value! {
    /// A certificate.
    PemCertificate, "common.PEMEncodedCertificate",
    /// The certificate in PEM.
    crt = 1
}

pem_value! {
    /// A certificate and its key.
    PemCertificateAndKey, "common.PEMEncodedCertificateAndKey",
    /// The certificate in PEM.
    crt = 1,
    /// The key in PEM.
    key = 2
}

pem_value! {
    /// A key.
    PemKey, "common.PEMEncodedKey",
    /// The key in PEM.
    key = 1
}
