//! Values of the application as JSON. serde_json writes a number that JSON cannot hold, NaN or an infinity, as `null`: the handler would
//! read another value than was given. It is refused.

use serde::ser::{
    Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use serde_json::{Error, Result};

/// Returns a value as JSON.
///
/// # Errors
/// If JSON cannot hold it.
pub(crate) fn to_json(value: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string(value)?;
    // Few values have one: the second pass costs as much as the first.
    if json.contains("null") {
        value.serialize(Numbers)?;
    }
    Ok(json)
}

/// Writes nothing, and refuses numbers that are not finite.
#[derive(Clone, Copy)]
struct Numbers;

macro_rules! accept {
    ($($method:ident($($type:ty),*))*) => {
        $(fn $method(self, $(_: $type),*) -> Result<()> { Ok(()) })*
    };
}

macro_rules! compound {
    ($($method:ident($($type:ty),*) -> $kind:ident)*) => {
        $(
            type $kind = Self;
            fn $method(self, $(_: $type),*) -> Result<Self> { Ok(self) }
        )*
    };
}

impl Serializer for Numbers {
    type Ok = ();
    type Error = Error;

    accept! {
        serialize_bool(bool) serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_i64(i64) serialize_i128(i128)
        serialize_u8(u8) serialize_u16(u16) serialize_u32(u32) serialize_u64(u64) serialize_u128(u128) serialize_char(char)
        serialize_str(&str) serialize_bytes(&[u8]) serialize_none() serialize_unit() serialize_unit_struct(&'static str)
        serialize_unit_variant(&'static str, u32, &'static str)
    }

    compound! {
        serialize_seq(Option<usize>) -> SerializeSeq
        serialize_tuple(usize) -> SerializeTuple
        serialize_tuple_struct(&'static str, usize) -> SerializeTupleStruct
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> SerializeTupleVariant
        serialize_map(Option<usize>) -> SerializeMap
        serialize_struct(&'static str, usize) -> SerializeStruct
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> SerializeStructVariant
    }

    fn serialize_f32(self, number: f32) -> Result<()> {
        self.serialize_f64(number.into())
    }

    fn serialize_f64(self, number: f64) -> Result<()> {
        if number.is_finite() { Ok(()) } else { Err(Error::custom(format!("{number} is no number of JSON"))) }
    }

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Result<()> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: ?Sized + Serialize>(self, _: &'static str, value: &T) -> Result<()> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T>(self, _: &'static str, _: u32, _: &'static str, value: &T) -> Result<()>
    where
        T: ?Sized + Serialize,
    {
        value.serialize(self)
    }
}

macro_rules! elements {
    ($($kind:ident: $($method:ident($($type:ty),*)),*;)*) => {
        $(impl $kind for Numbers {
            type Ok = ();
            type Error = Error;

            $(fn $method<T: ?Sized + Serialize>(&mut self, $(_: $type,)* value: &T) -> Result<()> {
                value.serialize(*self)
            })*

            fn end(self) -> Result<()> { Ok(()) }
        })*
    };
}

elements! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeMap: serialize_key(), serialize_value();
    SerializeStruct: serialize_field(&'static str);
    SerializeStructVariant: serialize_field(&'static str);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;

    use super::to_json;

    #[derive(Serialize)]
    struct Named {
        price: f64,
        note: Option<String>,
    }

    #[derive(Serialize)]
    enum Kind {
        Unit,
        One(f32),
        Pair(f64, f64),
        Named { at: f64 },
    }

    #[test]
    fn a_number_that_json_cannot_hold_is_refused_wherever_it_is() {
        let bad = f64::NAN;
        let refused = [
            to_json(&bad),
            to_json(&f32::INFINITY),
            to_json(&Some(bad)),
            to_json(&[1.0, bad]),
            to_json(&(1, bad)),
            to_json(&BTreeMap::from([("price", bad)])),
            to_json(&Named { price: bad, note: None }),
            to_json(&Kind::One(f32::NEG_INFINITY)),
            to_json(&Kind::Pair(1.0, bad)),
            to_json(&vec![Kind::Named { at: bad }]),
        ];
        for (at, refused) in refused.into_iter().enumerate() {
            let error = refused.expect_err("a number that JSON cannot hold").to_string();
            assert!(error.ends_with(" is no number of JSON"), "{at}: {error}");
        }
    }

    #[test]
    fn what_is_null_stays_null() {
        let named = Named { price: 0.1, note: None };
        assert_eq!(to_json(&named).unwrap(), r#"{"price":0.1,"note":null}"#);
        let all = (None::<f64>, (), "null", Kind::Unit, BTreeMap::from([(1u128, [Some(1.5), None])]));
        assert_eq!(to_json(&all).unwrap(), r#"[null,null,"null","Unit",{"1":[1.5,null]}]"#);
    }
}
