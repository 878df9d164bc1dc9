//! Gzip: one member after another (RFC 1952). Kafka's writers make one; its reader takes several.

use super::{DecodeError, open, take, take_array};
use flate2::{Compress, Compression, Crc, Decompress, FlushCompress, FlushDecompress, Status};

/// The window bits of gzip: 32 KiB, the only size that every reader has.
const WINDOW_BITS: u8 = 15;

/// Bytes put into the window at once; deflate keeps its own history.
const PIECE_BYTES: usize = 16 << 10;

const MAGIC_AND_METHOD: [u8; 3] = [0x1f, 0x8b, 8];
const HAS_HEADER_CRC: u8 = 0x02;
const HAS_EXTRA: u8 = 0x04;
const HAS_NAME: u8 = 0x08;
const HAS_COMMENT: u8 = 0x10;
const RESERVED: u8 = 0xe0;

/// A decoder's reusable state, about 50 KiB. It is for raw deflate, since a reset of the one for gzip allocates. So
/// members are parsed here.
pub(super) fn new_state() -> Box<Decompress> {
    Box::new(Decompress::new(false))
}

pub(super) struct GzipDecoder<'s> {
    input: &'s [u8],
    inflate: &'s mut Decompress,
    member: Option<Crc>,
}

impl<'s> GzipDecoder<'s> {
    pub(super) fn new(input: &'s [u8], inflate: &'s mut Decompress) -> Self {
        GzipDecoder { input, inflate, member: None }
    }

    /// Fills the start of `window`; returns how much, 0 at the end.
    pub(super) fn fill(&mut self, window: &mut Vec<u8>) -> Result<usize, DecodeError> {
        let window = open(window, PIECE_BYTES);
        while self.member.is_some() || !self.input.is_empty() {
            if self.member.is_none() {
                skip_header(&mut self.input)?;
                self.inflate.reset(false);
                self.member = Some(Crc::new());
            }
            let produced = self.inflate(window)?;
            if produced > 0 {
                return Ok(produced);
            }
        }
        Ok(0)
    }

    fn inflate(&mut self, window: &mut [u8]) -> Result<usize, DecodeError> {
        let (total_in, total_out) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self
            .inflate
            .decompress(self.input, window, FlushDecompress::None)
            .map_err(|error| DecodeError::corrupt(error.to_string()))?;
        let consumed = (self.inflate.total_in() - total_in) as usize;
        let produced = (self.inflate.total_out() - total_out) as usize;
        self.input = &self.input[consumed..];
        let mut crc = self.member.take().expect("a member is open while it is inflated");
        crc.update(&window[..produced]);
        match status {
            Status::StreamEnd => check_trailer(&mut self.input, &crc)?,
            _ if consumed == 0 && produced == 0 => return Err(DecodeError::cut_off()),
            _ => self.member = Some(crc),
        }
        Ok(produced)
    }
}

fn skip_header(input: &mut &[u8]) -> Result<(), DecodeError> {
    let start = *input;
    let header: [u8; 10] = take_array(input)?;
    let flags = header[3];
    if header[..3] != MAGIC_AND_METHOD || flags & RESERVED != 0 {
        return Err(DecodeError::corrupt("not a gzip member"));
    }
    if flags & HAS_EXTRA != 0 {
        let length = u16::from_le_bytes(take_array(input)?);
        take(input, usize::from(length))?;
    }
    for flag in [HAS_NAME, HAS_COMMENT] {
        if flags & flag != 0 {
            let end = input.iter().position(|byte| *byte == 0).ok_or_else(DecodeError::cut_off)?;
            take(input, end + 1)?;
        }
    }
    if flags & HAS_HEADER_CRC != 0 {
        let mut crc = Crc::new();
        crc.update(&start[..start.len() - input.len()]);
        if u16::from_le_bytes(take_array(input)?) != crc.sum() as u16 {
            return Err(DecodeError::corrupt("gzip header checksum mismatch"));
        }
    }
    Ok(())
}

fn check_trailer(input: &mut &[u8], crc: &Crc) -> Result<(), DecodeError> {
    let sum = u32::from_le_bytes(take_array(input)?);
    let length = u32::from_le_bytes(take_array(input)?);
    match sum == crc.sum() && length == crc.amount() {
        true => Ok(()),
        false => Err(DecodeError::corrupt("gzip checksum or length mismatch")),
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
