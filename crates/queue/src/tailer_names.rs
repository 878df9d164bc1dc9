//! Names of tailers as names of files.

/// Returns a file name for any name: bytes other than letters, digits, `-` and `_` become `%` and two digits.
pub fn file_of_name(name: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02x}"),
    };
    name.bytes().map(encode).collect()
}

/// Returns the name that [`file_of_name`] has encoded; `None` if the file's name is no such one.
pub fn name_of_file(file: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(file.len());
    let mut rest = file.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
                digit(rest.next()?)? << 4 | digit(rest.next()?)?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_becomes_a_file_name_and_back() {
        for name in ["me", "a/b", "..", "größe %41", "x y"] {
            assert!(!file_of_name(name).contains(['/', '.', ' ']));
            assert_eq!(name_of_file(&file_of_name(name)).as_deref(), Some(name));
        }
        assert_eq!(name_of_file("%4"), None);
        assert_eq!(name_of_file("%zz"), None);
    }
}
