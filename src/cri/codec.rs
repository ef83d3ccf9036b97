//! Codecs for gRPC: protobuf with small buffers, and replies that are not decoded.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Initial buffer size; sufficient for most requests and replies. Every call that waits for a permit holds such a
/// buffer, and tonic's default is 8 KiB.
const BUFFER: usize = 1024;

/// Number of buffered bytes after which messages of a stream are sent (tonic's default).
const YIELD: usize = 32 * 1024;

/// The buffer settings for both directions.
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

/// Encodes requests of type `T`; replies stay encoded.
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
