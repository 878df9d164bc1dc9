//! A response frame whose array is written element by element: the elements need not exist side by side.

use crate::frame::{finish_frame, write_response};
use crate::{ApiKey, Element, EncodeError, Encoder, Message};

/// A response frame that ends in an array of which some elements are not written yet.
///
/// The array is the last field of the message that is not tagged, and no tagged field is set.
#[derive(Debug)]
pub struct ListFrame {
    api_key: ApiKey,
    version: i16,
    correlation_id: i32,
    is_flexible: bool,
    /// The index in the buffer at which the frame begins.
    start: usize,
    /// The index at which its array begins.
    array: usize,
    /// Elements that still have to follow.
    left: usize,
}

impl ListFrame {
    /// Appends the part before the elements to `buffer`. `message` has no elements, and `count` of them follow. After an error
    /// the buffer is unchanged.
    pub fn begin<'a, M: Message<'a>>(
        buffer: &mut Vec<u8>,
        (api_key, version, correlation_id): (ApiKey, i16, i32),
        message: &M,
        count: usize,
    ) -> Result<ListFrame, EncodeError> {
        let start = buffer.len();
        let holes = write_response(buffer, api_key, version, correlation_id, message)?;
        let is_flexible = M::is_flexible(version);
        let end: &[u8] = if is_flexible { &[1, 0] } else { &[0; 4] };
        let is_empty = buffer.ends_with(end) && holes.is_empty();
        assert!(is_empty, "{} v{version} ends in an array, which has no element", M::NAME);
        let array = buffer.len() - end.len();
        buffer.truncate(array);
        if let Err(error) = Encoder::new(buffer).array_length(is_flexible, count, M::NAME) {
            buffer.truncate(start);
            return Err(EncodeError { version, ..error });
        }
        Ok(ListFrame { api_key, version, correlation_id, is_flexible, start, array, left: count })
    }

    /// Appends the next element to `buffer`: that of the frame, or another one whose bytes go there. After an error the buffer is
    /// as it was.
    ///
    /// # Panics
    /// When there are more elements than were announced.
    pub fn write(&mut self, buffer: &mut Vec<u8>, element: &impl Element) -> Result<(), EncodeError> {
        self.rewrite(buffer, element)?;
        self.left = self.left.checked_sub(1).expect("no more elements than were announced");
        Ok(())
    }

    /// Appends to `buffer` what takes the place of the element that was written last, whose bytes the caller drops. After an error
    /// the buffer is as it was.
    pub fn rewrite(&self, buffer: &mut Vec<u8>, element: &impl Element) -> Result<(), EncodeError> {
        let before = buffer.len();
        let mut encoder = Encoder::new(buffer);
        let written = element.encode_element(&mut encoder, self.version);
        assert!(encoder.holes().is_empty(), "elements have no holes");
        if let Err(error) = written {
            buffer.truncate(before);
            return Err(EncodeError { version: self.version, ..error });
        }
        Ok(())
    }

    /// Ends the frame. What `message` has before the array takes the place of what it had when the frame was begun: it has to be
    /// as long. After an error the buffer is as it was before the frame.
    ///
    /// # Panics
    /// When elements are missing.
    pub fn finish<'a, M: Message<'a>>(self, buffer: &mut Vec<u8>, message: &M) -> Result<(), EncodeError> {
        assert_eq!(self.left, 0, "elements are missing");
        let finished = self.write_ends(buffer, message);
        if finished.is_err() {
            buffer.truncate(self.start);
        }
        finished
    }

    fn write_ends<'a, M: Message<'a>>(&self, buffer: &mut Vec<u8>, message: &M) -> Result<(), EncodeError> {
        let mut head = Vec::new();
        write_response(&mut head, self.api_key, self.version, self.correlation_id, message)?;
        let length = self.array - self.start;
        buffer[self.start..self.array].copy_from_slice(&head[..length]);
        if self.is_flexible {
            buffer.push(0);
        }
        finish_frame(buffer, self.start, &[])
    }
}
