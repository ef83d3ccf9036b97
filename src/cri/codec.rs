//! Codecs: protobuf with buffers that fit the messages of this interface, and replies that stay encoded.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Most requests and replies are smaller; what is larger makes its buffer grow. Every call that waits
/// for admission holds such a buffer, and tonic's own would be 8 KiB.
const BUFFER: usize = 1024;

/// From how many bytes on a stream's messages are sent on (tonic's own value).
const YIELD: usize = 32 * 1024;

/// The settings of both directions.
fn buffers() -> BufferSettings {
    BufferSettings::new(BUFFER, YIELD)
}

/// Encodes `T`, decodes `U`.
pub struct SmallBuffers<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallBuffers<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallBuffers<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstCodec::<T, U>::raw_encoder(buffers())
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstCodec::<T, U>::raw_decoder(buffers())
    }
}

/// Encodes requests of type `T`; replies stay as they came.
pub(super) struct RawReply<T>(PhantomData<T>);

impl<T> RawReply<T> {
    pub(super) fn new() -> RawReply<T> {
        RawReply(PhantomData)
    }
}

impl<T: Message + Send + 'static> Codec for RawReply<T> {
    type Encode = T;
    type Decode = Bytes;
    type Encoder = ProstEncoder<T>;
    type Decoder = BytesDecoder;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstCodec::<T, ()>::raw_encoder(buffers())
    }

    fn decoder(&mut self) -> BytesDecoder {
        BytesDecoder
    }
}

/// Takes the whole message out of the buffer without copying it.
pub(super) struct BytesDecoder;

impl Decoder for BytesDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = src.remaining();
        Ok(Some(src.copy_to_bytes(length)))
    }
}
