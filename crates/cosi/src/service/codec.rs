//! Messages that are bytes already.

use std::marker::PhantomData;

use bytes::{BufMut, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// The first buffer of a stream. Most streams are watches that mostly say nothing; the default of
/// 8 KiB would be most of their memory.
const BUFFER: usize = 256;

/// Frames are sent on when this much has gathered.
const YIELD: usize = 32 * 1024;

/// The body of one message, in pieces.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    first: Bytes,
    rest: Vec<Bytes>,
}

impl Frame {
    pub(crate) fn push(&mut self, piece: Bytes) {
        if self.first.is_empty() {
            self.first = piece;
        } else {
            self.rest.push(piece);
        }
    }
}

impl From<Bytes> for Frame {
    fn from(first: Bytes) -> Self {
        Self { first, rest: Vec::new() }
    }
}

/// Reads messages of type `M`, writes frames.
pub(crate) struct FrameCodec<M>(PhantomData<fn() -> M>);

impl<M> Default for FrameCodec<M> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<M: Message + Default + 'static> Codec for FrameCodec<M> {
    type Encode = Frame;
    type Decode = M;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<M> Encoder for FrameCodec<M> {
    type Item = Frame;
    type Error = Status;

    fn encode(&mut self, frame: Frame, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let rest: usize = frame.rest.iter().map(Bytes::len).sum();
        out.reserve(frame.first.len() + rest);
        out.put_slice(&frame.first);
        for piece in &frame.rest {
            out.put_slice(piece);
        }
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD)
    }
}

impl<M: Message + Default> Decoder for FrameCodec<M> {
    type Item = M;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<M>, Status> {
        let message = M::decode(buffer);
        message.map(Some).map_err(|error| Status::internal(format!("decode request: {error}")))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD)
    }
}
