//! Splitting and opening frames.

use mainstem_wire::frame::{FrameError, Version, frame_len, open_request, split_frame};
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::{ApiKey, Malformed};

#[test]
fn a_frame_is_split_off_when_it_is_complete() {
    let bytes = b"\0\0\0\x03abcde";
    for end in 0..7 {
        assert_eq!(split_frame(&bytes[..end], 3), Ok(None), "{end}");
    }
    assert_eq!(split_frame(bytes, 3), Ok(Some((&b"abc"[..], 7))));
    assert_eq!(frame_len(&bytes[..4], 3), Ok(Some(3)));
    assert_eq!(split_frame(b"\0\0\0\0", 3), Ok(Some((&b""[..], 4))));
}

/// The length is refused as soon as it is there, before its bytes are waited for.
#[test]
fn absurd_lengths_are_refused() {
    assert_eq!(split_frame(b"\0\0\0\x04", 3), Err(FrameError::Length { len: 4, max: 3 }));
    assert_eq!(split_frame(b"\xff\xff\xff\xff", 3), Err(FrameError::Length { len: -1, max: 3 }));
    assert_eq!(frame_len(b"GET /", 1 << 20), Err(FrameError::Length { len: 0x4745_5420, max: 1 << 20 }));
}

#[test]
fn a_newer_api_versions_request_is_answered_in_version_0() {
    let mut request = open_request(b"\0\x12\0\x63\0\0\0\x07\0\x02me\0\xff\xff").unwrap();
    assert_eq!(request.version, Version::NewerApiVersions);
    assert_eq!(request.response_version(), 0);
    assert_eq!((request.header.correlation_id, request.header.client_id.as_deref()), (7, Some("me")));
    let error = request.decode::<ApiVersionsRequest<'_>>().unwrap_err();
    assert_eq!(error.kind, Malformed::Version(99));
}

#[test]
fn other_unknown_versions_and_apis_are_refused() {
    let refused = |key: i16, version: i16| {
        let body = [&key.to_be_bytes()[..], &version.to_be_bytes(), &[0, 0, 0, 1, 0xff, 0xff, 0]].concat();
        open_request(&body).err()
    };
    let unsupported = |api_key, version| Some(FrameError::UnsupportedVersion { api_key, version });
    assert_eq!(refused(0, 2), unsupported(ApiKey::Produce, 2));
    assert_eq!(refused(0, 14), unsupported(ApiKey::Produce, 14));
    assert_eq!(refused(18, -1), unsupported(ApiKey::ApiVersions, -1));
    assert_eq!(refused(4, 0), Some(FrameError::UnknownApi(4)));
    assert_eq!(refused(-1, 0), Some(FrameError::UnknownApi(-1)));
    assert_eq!(refused(3, 12), None);
}

#[test]
fn a_short_header_is_malformed() {
    for end in 0..10 {
        let body = b"\0\x03\0\x0c\0\0\0\x07\xff\xff\0";
        assert!(matches!(open_request(&body[..end]), Err(FrameError::Malformed(_))), "{end}");
    }
}
