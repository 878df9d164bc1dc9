//! One encoder of whichever codec, fed piece by piece.

use super::gzip::GzipEncoder;
use super::lz4::Lz4Encoder;
use super::snappy::SnappyEncoder;
use super::zstd::ZstdEncoder;
use crate::batch::Compression;
use crate::builder::BuildError;

/// Appends what it is given to a vector, compressed.
pub(crate) struct Compressor {
    compression: Compression,
    encoder: Encoder,
}

enum Encoder {
    None,
    Gzip(GzipEncoder),
    Snappy(SnappyEncoder),
    Lz4(Lz4Encoder),
    Zstd(Box<ZstdEncoder>),
}

impl Compressor {
    /// Starts a stream at the end of `out`. `size` is the number of bytes that will come, if known.
    pub(crate) fn start(
        compression: Compression,
        level: Option<i32>,
        size: Option<usize>,
        out: &mut Vec<u8>,
    ) -> Result<Compressor, BuildError> {
        let encoder = match compression {
            Compression::None => Encoder::None,
            Compression::Gzip => Encoder::Gzip(GzipEncoder::new(level)),
            Compression::Snappy => Encoder::Snappy(SnappyEncoder::new(out)),
            Compression::Lz4 => Encoder::Lz4(Lz4Encoder::new(out)),
            Compression::Zstd => {
                let encoder = ZstdEncoder::new(level, size).map_err(failed(compression))?;
                Encoder::Zstd(Box::new(encoder))
            }
        };
        Ok(Compressor { compression, encoder })
    }

    /// Takes in `bytes`; some of their output may come later.
    pub(crate) fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), BuildError> {
        match &mut self.encoder {
            Encoder::None => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            Encoder::Gzip(encoder) => encoder.write(bytes, out),
            Encoder::Snappy(encoder) => encoder.write(bytes, out),
            Encoder::Lz4(encoder) => encoder.write(bytes, out),
            Encoder::Zstd(encoder) => encoder.write(bytes, out),
        }
        .map_err(failed(self.compression))
    }

    /// Writes what is pending and the end of the stream.
    pub(crate) fn finish(self, out: &mut Vec<u8>) -> Result<(), BuildError> {
        match self.encoder {
            Encoder::None => Ok(()),
            Encoder::Gzip(encoder) => encoder.finish(out),
            Encoder::Snappy(encoder) => encoder.finish(out),
            Encoder::Lz4(encoder) => encoder.finish(out),
            Encoder::Zstd(encoder) => encoder.finish(out),
        }
        .map_err(failed(self.compression))
    }
}

fn failed(compression: Compression) -> impl Fn(String) -> BuildError {
    move |reason| BuildError::Compress { codec: compression.name(), reason }
}
