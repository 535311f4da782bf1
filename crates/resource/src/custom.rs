//! Specs with a form of their own: no derive fits them, so this macro ties a hand-written
//! [`Message`](crate::value::Message) to the traits of a resource.

/// Implements `Spec` and `TypedSpec` over a hand-written `Message`.
macro_rules! custom_spec {
    ($name:ident, $($key:ident: $value:expr),+ $(,)?) => {
        impl $crate::Spec for $name {
            fn encode_proto(&self, out: &mut Vec<u8>) {
                $crate::value::Message::encode_message(self, out);
            }

            fn encode_yaml(&self, out: &mut String) {
                $crate::value::Message::yaml_message(self, &mut $crate::value::Yaml::new(out));
            }

            fn same(&self, other: &dyn $crate::Spec) -> bool {
                other.as_any().downcast_ref::<Self>() == Some(self)
            }

            fn as_any(&self) -> &dyn std::any::Any {
                self
            }
        }

        impl $crate::TypedSpec for $name {
            fn definition() -> &'static $crate::Definition {
                static DEFINITION: $crate::Definition =
                    $crate::Definition { $($key: $value,)+ ..$crate::Definition::EMPTY };
                &DEFINITION
            }

            fn decode_proto(bytes: &[u8]) -> Result<Self, $crate::DecodeError> {
                $crate::spec::decode(bytes)
            }
        }
    };
}

pub(crate) use custom_spec;
