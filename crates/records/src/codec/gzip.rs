//! Gzip: one member after another (RFC 1952). Kafka's writers make one; its reader takes several.

use super::{DecodeError, open};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The window bits of gzip: 32 KiB, the only size that every reader has.
const WINDOW_BITS: u8 = 15;

/// Bytes put into the window at once; deflate keeps its own history.
const PIECE_BYTES: usize = 16 << 10;

/// A decoder's reusable state, about 50 KiB.
pub(super) fn new_state() -> Box<Decompress> {
    Box::new(Decompress::new_gzip(WINDOW_BITS))
}

pub(super) struct GzipDecoder<'s> {
    input: &'s [u8],
    inflate: &'s mut Decompress,
    in_member: bool,
}

impl<'s> GzipDecoder<'s> {
    pub(super) fn new(input: &'s [u8], inflate: &'s mut Decompress) -> Self {
        inflate.reset(false);
        GzipDecoder { input, inflate, in_member: false }
    }

    /// Fills the start of `window`; returns how much, 0 at the end.
    pub(super) fn fill(&mut self, window: &mut Vec<u8>) -> Result<usize, DecodeError> {
        let window = open(window, PIECE_BYTES);
        while self.in_member || !self.input.is_empty() {
            self.in_member = true;
            let (status, consumed, produced) = self.step(window)?;
            self.input = &self.input[consumed..];
            if status == Status::StreamEnd {
                self.in_member = false;
                self.inflate.reset(false);
            }
            if produced > 0 {
                return Ok(produced);
            }
            if self.in_member && consumed == 0 {
                return Err(DecodeError::cut_off());
            }
        }
        Ok(0)
    }

    fn step(&mut self, window: &mut [u8]) -> Result<(Status, usize, usize), DecodeError> {
        let (total_in, total_out) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self
            .inflate
            .decompress(self.input, window, FlushDecompress::None)
            .map_err(|error| DecodeError::corrupt(error.to_string()))?;
        let consumed = (self.inflate.total_in() - total_in) as usize;
        let produced = (self.inflate.total_out() - total_out) as usize;
        Ok((status, consumed, produced))
    }
}

pub(super) struct GzipEncoder(Box<Compress>);

impl GzipEncoder {
    /// `level` 0 to 9; Kafka's default of -1 is zlib's, which is 6.
    pub(super) fn new(level: Option<i32>) -> Self {
        let level = match level {
            Some(level) if level >= 0 => Compression::new(level.min(9) as u32),
            _ => Compression::default(),
        };
        GzipEncoder(Box::new(Compress::new_gzip(level, WINDOW_BITS)))
    }

    pub(super) fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        self.run(bytes, FlushCompress::None, out)
    }

    pub(super) fn finish(mut self, out: &mut Vec<u8>) -> Result<(), String> {
        self.run(&[], FlushCompress::Finish, out)
    }

    fn run(&mut self, mut input: &[u8], flush: FlushCompress, out: &mut Vec<u8>) -> Result<(), String> {
        loop {
            out.reserve((input.len() / 4).max(1 << 10));
            let before = self.0.total_in();
            let status = self.0.compress_vec(input, out, flush).map_err(|error| error.to_string())?;
            input = &input[(self.0.total_in() - before) as usize..];
            let done = match flush {
                FlushCompress::Finish => status == Status::StreamEnd,
                _ => input.is_empty(),
            };
            if done {
                return Ok(());
            }
        }
    }
}
