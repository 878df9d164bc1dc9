//! Values of the metadata log's records: frame version, record type and version as unsigned variable-length numbers,
//! then the body. The same as Kafka's MetadataRecordSerde.

use crate::{DecodeError, Decoder, EncodeError, Encoder, Malformed, Message, Unencodable, messages};

include!(concat!(env!("OUT_DIR"), "/metadata_record.rs"));

/// The only version of the frame.
const FRAME_VERSION: u32 = 1;
const NAME: &str = "MetadataRecord";

impl<'a> MetadataRecord<'a> {
    /// Appends the record in a version of its schema.
    pub fn encode(&self, buffer: &mut Vec<u8>, version: i16) -> Result<(), EncodeError> {
        let unsigned = u32::try_from(version).map_err(|_| EncodeError {
            field: self.name(),
            version,
            kind: Unencodable::Version,
        })?;
        let mut encoder = Encoder::new(buffer);
        encoder.unsigned_varint(FRAME_VERSION);
        encoder.unsigned_varint(self.record_type().unsigned_abs().into());
        encoder.unsigned_varint(unsigned);
        self.encode_body(&mut encoder, version)
    }

    /// Reads a record that takes all of `bytes`. Gives the version too.
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, i16), DecodeError> {
        let mut decoder = Decoder::new(bytes);
        let frame_version = decoder.unsigned_varint("MetadataRecord.frameVersion")?;
        if frame_version != FRAME_VERSION {
            return Err(decoder.fault(NAME, Malformed::Version(frame_version.into())));
        }
        let record_type = decoder.unsigned_varint("MetadataRecord.type")?;
        let version = decoder.unsigned_varint("MetadataRecord.version")?;
        let Ok(version) = i16::try_from(version) else {
            return Err(decoder.fault(NAME, Malformed::Version(version.into())));
        };
        let record = Self::decode_body(&mut decoder, record_type, version)
            .unwrap_or_else(|| Err(decoder.fault(NAME, Malformed::Type(record_type.into()))))?;
        decoder.finish(record.name())?;
        Ok((record, version))
    }
}
