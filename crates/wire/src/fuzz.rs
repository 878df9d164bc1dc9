//! Bodies for fuzzing: each takes any bytes and asserts what must hold for all of them.

use crate::catalogue::MESSAGES;
use crate::frame::{self, Version};
use crate::metadata_frame::MetadataRecord;

/// The largest frame that the bodies accept.
const FRAME_MAX: usize = 1 << 20;

/// Two bytes choose a message, one its version, the rest is the body. What decodes can be encoded, and encoding is
/// stable from then on.
pub fn message(data: &[u8]) {
    let [high, low, version, body @ ..] = data else { return };
    let message = &MESSAGES[usize::from(u16::from_be_bytes([*high, *low])) % MESSAGES.len()];
    let versions = message.newest - message.oldest + 1;
    let version = message.oldest + i16::from(*version) % versions;
    if let Err(crate::catalogue::CodecError::Encode(error)) = message.reencode(body, version) {
        panic!("{} version {version} decodes but cannot be encoded: {error}", message.name);
    }
    if let Ok(once) = message.reencode(body, version) {
        let twice = message.reencode(&once, version);
        assert_eq!(twice.as_ref(), Ok(&once), "{} version {version} is not stable", message.name);
    }
}

/// The bytes that a connection receives: frames are split off and opened, bodies decoded as their header says.
pub fn connection(data: &[u8]) {
    let mut rest = data;
    while let Ok(Some((body, used))) = frame::split_frame(rest, FRAME_MAX) {
        assert!(used <= rest.len() && body.len() + frame::LENGTH_BYTES == used);
        rest = &rest[used..];
        if let Ok(request) = frame::open_request(body)
            && let Version::Known(version) = request.version
        {
            assert!(request.api_key.has_version(version));
            let name = format!("{}Request", request.api_key.name());
            let message = crate::catalogue::MessageInfo::find(&name).expect("every API has a request");
            let _ = message.reencode(request.body.rest(), version);
        }
    }
}

/// A value of the metadata log. Encoding is stable, by the bytes: a number that is none does not equal itself.
pub fn metadata_record(data: &[u8]) {
    let Ok((record, version)) = MetadataRecord::decode(data) else { return };
    let mut bytes = Vec::new();
    record.encode(&mut bytes, version).expect("what was decoded can be encoded");
    let (again, again_version) = MetadataRecord::decode(&bytes).expect("what was encoded can be decoded");
    assert_eq!(again_version, version);
    let mut twice = Vec::new();
    again.encode(&mut twice, version).expect("what was decoded can be encoded");
    assert_eq!(twice, bytes, "{record:?} in version {version} is not stable");
}
