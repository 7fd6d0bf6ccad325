//! Reads JSON into the values of a pickle, so that a snapshot is understood in one place.
//!
//! Text and keys are kept once; nothing else is copied, and the parser goes no deeper than 128 levels, so memory is bounded by
//! the length of the file.

use std::fmt;

use rustc_hash::FxHashMap;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::machine::{MOST_NODES, TOO_LONG};
use super::pickle::{Id, Node};

/// All values, and the one that holds the others; what is text goes behind `text`.
pub fn read(bytes: &[u8], text: &mut Vec<u8>) -> Result<(Vec<Node>, Id), String> {
    let mut values = Values {
        text,
        nodes: Vec::new(),
        words: FxHashMap::default(),
    };
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let root = Value(&mut values).deserialize(&mut json);
    let root = root.and_then(|root| json.end().map(|()| root));
    let root = root.map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let reason = text.split(" at line").next().unwrap_or_default();
        format!("line {line}, column {column}: {reason}")
    })?;
    Ok((values.nodes, root))
}

struct Values<'t> {
    text: &'t mut Vec<u8>,
    nodes: Vec<Node>,
    words: FxHashMap<Box<str>, Id>,
}

impl Values<'_> {
    fn add<E: Error>(&mut self, node: Node) -> Result<Id, E> {
        let id = Id::try_from(self.nodes.len()).ok();
        let id = id.filter(|_| self.nodes.len() < MOST_NODES);
        let id = id.ok_or_else(|| E::custom(TOO_LONG))?;
        self.nodes.push(node);
        Ok(id)
    }

    fn word<E: Error>(&mut self, word: &str) -> Result<Id, E> {
        if let Some(id) = self.words.get(word) {
            return Ok(*id);
        }
        let at = self.text.len();
        self.text.extend_from_slice(word.as_bytes());
        let len = word.len();
        let id = self.add(Node::Text { at, len })?;
        self.words.insert(word.into(), id);
        Ok(id)
    }
}

/// One value, with all that is in it.
struct Value<'v, 't>(&'v mut Values<'t>);

impl<'de> DeserializeSeed<'de> for Value<'_, '_> {
    type Value = Id;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Id, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_, '_> {
    type Value = Id;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Id, E> {
        self.0.add(Node::Bool)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Id, E> {
        self.0.add(Node::Int(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Id, E> {
        let node = i64::try_from(number).map_or(Node::Large(number), Node::Int);
        self.0.add(node)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Id, E> {
        self.0.add(Node::Float(number))
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Id, E> {
        self.0.word(word)
    }

    fn visit_unit<E: Error>(self) -> Result<Id, E> {
        self.0.add(Node::None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Id, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(Value(&mut *self.0))? {
            items.push(item);
        }
        self.0.add(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Id, A::Error> {
        let mut all = Vec::new();
        while let Some(key) = pairs.next_key_seed(Value(&mut *self.0))? {
            let value = pairs.next_value_seed(Value(&mut *self.0))?;
            all.push((key, value));
        }
        self.0.add(Node::Dict(all))
    }
}

#[cfg(test)]
mod tests {
    use super::super::pickle::Pickle;
    use super::*;

    #[test]
    fn values_are_those_of_a_pickle() {
        let json = br#"{"a": [1, 18446744073709551615, 0.5, "a", "\u00e9\n"], "b": {"c": null}}"#;
        let mut text = Vec::new();
        let (nodes, root) = read(json, &mut text).expect("JSON");
        let values = Pickle::of(&text, nodes, root);
        let list = values.get(root, "a").and_then(|id| values.list(id));
        let list = list.expect("a list");
        assert_eq!(values.number(list[0]), Some(1));
        assert_eq!(values.number(list[1]), Some(u64::MAX));
        assert_eq!(values.text(list[3]), Some("a"));
        assert_eq!(values.text(list[4]), Some("é\n"));
        let inner = values.get(root, "b").expect("a dictionary");
        let nothing = values.get(inner, "c").map(|id| values.kind(id));
        assert_eq!(nothing, Some("nothing"));
    }

    #[test]
    fn what_is_no_json_is_named_by_line() {
        for bad in ["{", "{\"a\": }", "[1] 2", "{1: 2}", "{\"a\": \"\\ud800\"}"] {
            let error = read(bad.as_bytes(), &mut Vec::new()).expect_err(bad);
            assert!(error.starts_with("line 1, column "), "{bad}: {error}");
        }
        let deep = "[".repeat(1000);
        assert!(read(deep.as_bytes(), &mut Vec::new()).is_err());
    }
}
