//! Zstandard (KIP-110): frames one after another.
//!
//! A frame declares a window that its reader must hold: 2 MiB at the default level, 128 MiB at level 22, however
//! little it contains. So small input is first decoded in one go into the piece buffer, which needs no window
//! at all; what does not fit is streamed through a window of at most 8 MiB; and a frame that declares a larger
//! one is decoded in one go into a buffer of that size.

use super::{DecodeError, PIECE_BYTES};
use zstd::zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, get_error_name};

/// The largest window that is streamed through: 8 MiB, which RFC 8878 asks of every decoder.
const WINDOW_LOG_MAX: u32 = 23;

/// Input beyond this is not expected to fit the piece buffer, so that trying would be in vain.
const ONE_GO_INPUT_MAX: usize = PIECE_BYTES / 2;

/// `ZSTD_error_frameParameter_windowTooLarge` and `ZSTD_error_dstSize_tooSmall`, which zstd returns negated.
const WINDOW_TOO_LARGE: usize = 16_usize.wrapping_neg();
const OUTPUT_TOO_SMALL: usize = 70_usize.wrapping_neg();

/// A decoder's reusable state: about 160 KiB, plus the window of the largest frame streamed.
pub(super) fn new_state() -> Result<DCtx<'static>, DecodeError> {
    let mut context = DCtx::try_create().ok_or_else(|| DecodeError::corrupt("out of memory"))?;
    context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(corrupt)?;
    Ok(context)
}

pub(super) struct ZstdDecoder<'s> {
    input: &'s [u8],
    context: &'s mut DCtx<'static>,
    stage: Stage,
}

enum Stage {
    Start,
    Streaming { in_frame: bool },
    Done,
}

impl<'s> ZstdDecoder<'s> {
    pub(super) fn new(input: &'s [u8], context: &'s mut DCtx<'static>) -> Self {
        ZstdDecoder { input, context, stage: Stage::Start }
    }

    /// Fills the start of `window`; returns how much, 0 at the end.
    pub(super) fn fill(&mut self, window: &mut Vec<u8>, allowed: usize) -> Result<usize, DecodeError> {
        match self.stage {
            Stage::Done => Ok(0),
            Stage::Streaming { in_frame } => self.stream(in_frame, window),
            Stage::Start => self.start(window, allowed),
        }
    }

    fn start(&mut self, window: &mut Vec<u8>, allowed: usize) -> Result<usize, DecodeError> {
        if self.input.len() <= ONE_GO_INPUT_MAX
            && let Ok(length) = self.in_one_go(window, PIECE_BYTES)
        {
            return Ok(length);
        }
        self.context.reset(zstd::zstd_safe::ResetDirective::SessionOnly).map_err(corrupt)?;
        match self.stream(false, window) {
            Err(DecodeError::TooLarge) => {
                self.in_one_go(window, allowed.min(1 << WINDOW_LOG_MAX)).map_err(|code| match code {
                    OUTPUT_TOO_SMALL => DecodeError::TooLarge,
                    code => corrupt(code),
                })
            }
            result => result,
        }
    }

    fn in_one_go(&mut self, window: &mut Vec<u8>, output_bytes_max: usize) -> Result<usize, usize> {
        window.clear();
        window.reserve(output_bytes_max);
        let length = self.context.decompress(window, self.input)?;
        self.stage = Stage::Done;
        Ok(length)
    }

    /// Returns the size of the next piece, 0 at the end. [`DecodeError::TooLarge`] says that the frame's window is too
    /// large.
    fn stream(&mut self, mut in_frame: bool, window: &mut Vec<u8>) -> Result<usize, DecodeError> {
        window.reserve(PIECE_BYTES.saturating_sub(window.len()));
        while in_frame || !self.input.is_empty() {
            window.clear();
            let mut output = OutBuffer::around(window);
            let mut input = InBuffer::around(self.input);
            let hint =
                self.context.decompress_stream(&mut output, &mut input).map_err(|code| match code {
                    WINDOW_TOO_LARGE => DecodeError::TooLarge,
                    code => corrupt(code),
                })?;
            let (consumed, produced) = (input.pos(), output.pos());
            self.input = &self.input[consumed..];
            in_frame = hint != 0;
            self.stage = Stage::Streaming { in_frame };
            if produced > 0 {
                return Ok(produced);
            }
            if in_frame && self.input.is_empty() {
                return Err(DecodeError::cut_off());
            }
        }
        self.stage = Stage::Done;
        Ok(0)
    }
}

pub(super) struct ZstdEncoder(CCtx<'static>);

impl ZstdEncoder {
    /// `level` is zstd's, 1 to 22 or negative; Kafka's default is 3. With `size` known, zstd takes memory for
    /// that size and not for the largest.
    pub(super) fn new(level: Option<i32>, size: Option<usize>) -> Result<Self, String> {
        let mut context = CCtx::try_create().ok_or("out of memory")?;
        let level = level.unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL);
        context.set_parameter(CParameter::CompressionLevel(level)).map_err(reason)?;
        context.set_pledged_src_size(size.map(|size| size as u64)).map_err(reason)?;
        Ok(ZstdEncoder(context))
    }

    pub(super) fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let mut input = InBuffer::around(bytes);
        while input.pos() < bytes.len() {
            out.reserve(1 << 10);
            let at = out.len();
            self.0.compress_stream(&mut OutBuffer::around_pos(out, at), &mut input).map_err(reason)?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self, out: &mut Vec<u8>) -> Result<(), String> {
        loop {
            out.reserve(1 << 10);
            let at = out.len();
            if self.0.end_stream(&mut OutBuffer::around_pos(out, at)).map_err(reason)? == 0 {
                return Ok(());
            }
        }
    }
}

fn reason(code: usize) -> String {
    get_error_name(code).into()
}

fn corrupt(code: usize) -> DecodeError {
    DecodeError::corrupt(get_error_name(code))
}
