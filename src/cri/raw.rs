//! A codec that hands out the reply's bytes, for replies that may not need decoding.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

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
        ProstCodec::<T, ()>::raw_encoder(super::codec::buffers())
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
