//! The codec of all generated services: protobuf through small buffers.
//!
//! tonic's default takes 8 KiB twice for every stream, however quiet it is; a thousand watches would hold
//! 16 MiB of nothing. These start small and grow with the message.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::BufferSettings;
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// What a buffer starts with.
pub(crate) const BUFFER: usize = 256;
/// How much is gathered before it is sent on.
pub(crate) const YIELD: usize = 32 * 1024;

/// Protobuf, as [`ProstCodec`], with other buffer sizes.
#[derive(Debug, Clone)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, YIELD))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, YIELD))
    }
}
