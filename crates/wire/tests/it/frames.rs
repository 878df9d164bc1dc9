//! Splitting and opening frames.

use mainstem_wire::frame::{FrameError, Version, frame_len, open_request, split_frame, write_response};
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::describe_groups_response::{DescribeGroupsResponse, DescribedGroup};
use mainstem_wire::{ApiKey, ListFrame, Malformed};

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

/// A group whose id has this many bytes.
fn group(id_bytes: usize) -> DescribedGroup<'static> {
    DescribedGroup { group_id: "g".repeat(id_bytes).into(), ..Default::default() }
}

/// A response that is written element by element, behind other bytes, has the same bytes as a whole one, in every version.
#[test]
fn a_list_frame_has_the_bytes_of_the_whole_response() {
    for version in 0..=6 {
        for count in [0, 1, 3, 200] {
            let message = |throttle_time_ms, groups| DescribeGroupsResponse {
                throttle_time_ms,
                groups,
                ..Default::default()
            };
            let mut whole = b"before".to_vec();
            let groups: Vec<_> = (0..count).map(group).collect();
            write_response(&mut whole, ApiKey::DescribeGroups, version, 7, &message(5, groups)).unwrap();
            let mut listed = b"before".to_vec();
            let name = (ApiKey::DescribeGroups, version, 7);
            let mut frame = ListFrame::begin(&mut listed, name, &message(0, Vec::new()), count).unwrap();
            for id_bytes in 0..count {
                let mut element = Vec::new();
                frame.write(&mut element, &group(id_bytes)).unwrap();
                listed.extend_from_slice(&element);
            }
            frame.finish(&mut listed, &message(5, Vec::new())).unwrap();
            assert_eq!(listed, whole, "v{version}, {count} groups");
        }
    }
}

#[test]
fn an_element_that_cannot_be_written_leaves_nothing_behind() {
    let mut buffer = Vec::new();
    let response = DescribeGroupsResponse::default();
    let mut frame = ListFrame::begin(&mut buffer, (ApiKey::DescribeGroups, 5, 7), &response, 1).unwrap();
    let before = buffer.clone();
    assert!(frame.write(&mut buffer, &group(40_000)).is_err());
    assert_eq!(buffer, before);
    frame.write(&mut buffer, &group(4)).unwrap();
    frame.finish(&mut buffer, &response).unwrap();
}
