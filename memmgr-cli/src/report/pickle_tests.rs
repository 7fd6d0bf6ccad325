//! Tests of `pickle.rs`.

use super::*;

fn error(bytes: &[u8]) -> String {
    Pickle::read(bytes, |_| {}).err().expect("an error")
}

#[test]
fn plain_data_is_read() {
    // pickle.dumps({'a': [1, -2, 2**63, 1.5, None, True], 'b': 'ü'}, 4)
    let bytes = b"\x80\x04\x95\x2d\0\0\0\0\0\0\0}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xff\
        \x8a\x09\0\0\0\0\0\0\0\x80\0G\x3f\xf8\0\0\0\0\0\0N\x88e\x8c\x01b\x94\x8c\x02\xc3\xbc\x94u.";
    let pickle = Pickle::read(bytes, |_| {}).expect("read");
    let a = pickle.get(pickle.root, "a").expect("a");
    let items = pickle.list(a).expect("a list");
    let numbers: Vec<_> = items.iter().map(|&item| pickle.number(item)).collect();
    assert_eq!(numbers, [Some(1), None, Some(1 << 63), Some(1), None, None]);
    let b = pickle.get(pickle.root, "b").expect("b");
    assert_eq!(pickle.text(b), Some("ü"));
    assert_eq!(pickle.get(pickle.root, "c"), None);
}

#[test]
fn code_is_refused() {
    // pickle.dumps(os.system): a global.
    let text = error(b"\x80\x02cposix\nsystem\nq\0.");
    assert!(text.starts_with("byte 2: it names Python code"), "{text}");
}

#[test]
fn each_truncation_is_an_error_that_names_a_byte() {
    let bytes = b"\x80\x04}\x94(\x8c\x01a\x94]\x94(K\x01M\x01\x02J\0\0\0\0eu.";
    assert!(Pickle::read(bytes, |_| {}).is_ok());
    for len in 0..bytes.len() {
        let text = error(&bytes[..len]);
        assert!(text.starts_with("byte "), "{len}: {text}");
    }
    assert!(error(&[bytes.as_slice(), b"x"].concat()).contains("more data"));
}

#[test]
fn neither_depth_nor_sharing_costs_more_than_the_file() {
    let mut deep = b"\x80\x02".to_vec();
    deep.extend(std::iter::repeat_n(b']', 200_000));
    deep.extend(std::iter::repeat_n(b'a', 199_999));
    deep.push(b'.');
    assert!(Pickle::read(&deep, |_| {}).is_ok());
    // Each list holds the one before it twice: 2^200 lists, were they copied.
    let mut shared = b"\x80\x02]q\0".to_vec();
    for level in 1..200 {
        shared.extend([
            b']',
            b'q',
            level,
            b'h',
            level - 1,
            b'a',
            b'h',
            level - 1,
            b'a',
        ]);
    }
    shared.push(b'.');
    let pickle = Pickle::read(&shared, |_| {}).expect("read");
    assert_eq!(pickle.list(pickle.root).map(<[Id]>::len), Some(2));
}

#[test]
fn a_missing_value_is_an_error() {
    for bad in [
        &b"\x80\x02."[..],
        b"\x80\x02a.",
        b"\x80\x02(0.",
        b"\x80\x02N(\x85.",
        b"\x80\x02u.",
    ] {
        assert!(error(bad).contains("missing"), "{}", error(bad));
    }
    assert!(error(b"\x80\x02}(Nu.").contains("a key without a value"));
    assert!(error(b"\x80\x02h\x07.").contains("not remembered"));
    assert!(error(b"\x80\x09.").contains("protocol 9"));
}
