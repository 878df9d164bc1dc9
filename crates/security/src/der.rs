//! DER, as far as certificates and key stores need it: definite lengths, one byte of tag, nothing copied.

/// A part that is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

pub(crate) type Result<T> = std::result::Result<T, Malformed>;

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const OID: u8 = 0x06;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

/// A tag constructed in its context, as `[0]`.
pub(crate) const fn context(number: u8) -> u8 {
    0xa0 | number
}

/// A tag and what follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Element<'a> {
    pub(crate) tag: u8,
    /// The contents.
    pub(crate) value: &'a [u8],
    /// Tag, length and contents.
    pub(crate) whole: &'a [u8],
}

/// Reads elements one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next element, whatever it is; none at the end.
    pub(crate) fn any(&mut self) -> Result<Option<Element<'a>>> {
        let Some((&tag, rest)) = self.rest.split_first() else { return Ok(None) };
        if tag & 0x1f == 0x1f {
            return Err(Malformed("a tag of several bytes"));
        }
        let (length, header) = length(rest)?;
        let end = 1 + header + length;
        let whole = self.rest.get(..end).ok_or(Malformed("it ends too early"))?;
        self.rest = &self.rest[end..];
        Ok(Some(Element { tag, value: &whole[1 + header..], whole }))
    }

    /// The contents of the next element, which has this tag.
    pub(crate) fn take(&mut self, tag: u8, what: &'static str) -> Result<&'a [u8]> {
        self.optional(tag)?.ok_or(Malformed(what))
    }

    /// The contents of the next element if it has this tag.
    pub(crate) fn optional(&mut self, tag: u8) -> Result<Option<&'a [u8]>> {
        if self.rest.first() != Some(&tag) {
            return Ok(None);
        }
        Ok(self.any()?.map(|element| element.value))
    }

    /// The elements of the next one, which has this tag.
    pub(crate) fn enter(&mut self, tag: u8, what: &'static str) -> Result<Reader<'a>> {
        self.take(tag, what).map(Reader::new)
    }

    /// A number that is not negative and fits.
    pub(crate) fn unsigned(&mut self, what: &'static str) -> Result<u32> {
        let value = self.take(INTEGER, what)?;
        let digits = value.strip_prefix(&[0]).unwrap_or(value);
        if value.first().is_none_or(|first| *first >= 0x80) || digits.len() > 4 {
            return Err(Malformed(what));
        }
        Ok(digits.iter().fold(0, |number, digit| number << 8 | u32::from(*digit)))
    }
}

/// Returns a length, and the number of bytes that encode it.
fn length(bytes: &[u8]) -> Result<(usize, usize)> {
    let short = Malformed("it ends within a length");
    let &first = bytes.first().ok_or(short)?;
    match first {
        0..=0x7f => Ok((usize::from(first), 1)),
        0x81..=0x84 => {
            let count = usize::from(first & 0x7f);
            let digits = bytes.get(1..=count).ok_or(short)?;
            Ok((digits.iter().fold(0, |number, digit| number << 8 | usize::from(*digit)), 1 + count))
        }
        _ => Err(Malformed("a length that is indefinite or too large: convert the file to DER")),
    }
}

/// An object identifier with dots, as `2.5.4.3`.
pub(crate) fn dotted(oid: &[u8]) -> String {
    let mut arcs: Vec<u128> = Vec::new();
    let mut arc: u128 = 0;
    for byte in oid {
        arc = (arc << 7 & (u128::MAX >> 8)) | u128::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            if arcs.is_empty() {
                let first = (arc / 40).min(2);
                arcs.push(first);
                arc -= 40 * first;
            }
            arcs.push(arc);
            arc = 0;
        }
    }
    arcs.iter().map(ToString::to_string).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements() {
        let mut reader = Reader::new(&[0x30, 3, 2, 1, 5, 4, 0x81, 2, 7, 8, 5, 0]);
        let mut inner = reader.enter(SEQUENCE, "").unwrap();
        assert_eq!(inner.unsigned("n"), Ok(5));
        assert!(inner.is_empty() && inner.any() == Ok(None));
        assert_eq!(reader.optional(SET), Ok(None));
        assert_eq!(reader.take(OCTET_STRING, ""), Ok([7, 8].as_slice()));
        assert_eq!(reader.any().unwrap().unwrap().whole, [5, 0]);
        for bad in [&[4][..], &[4, 1], &[4, 0x80], &[4, 0x85, 0, 0, 0, 0, 1], &[4, 0x82, 1], &[0x1f, 1, 0]] {
            assert!(Reader::new(bad).any().is_err(), "{bad:?}");
        }
        for bad in [&[2, 0][..], &[2, 1, 0x80], &[2, 6, 0, 1, 0, 0, 0, 0], &[4, 1, 1]] {
            assert!(Reader::new(bad).unsigned("n").is_err(), "{bad:?}");
        }
        assert_eq!(Reader::new(&[2, 5, 0, 0xff, 0xff, 0xff, 0xff]).unsigned("n"), Ok(u32::MAX));
    }

    #[test]
    fn identifiers() {
        assert_eq!(dotted(&[0x55, 4, 3]), "2.5.4.3");
        assert_eq!(dotted(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1]), "1.2.840.113549.1.9.1");
        assert_eq!(dotted(&[0x88, 0x37, 1]), "2.999.1");
        assert_eq!(dotted(&[]), "");
        dotted(&[0xff; 100]);
    }
}
