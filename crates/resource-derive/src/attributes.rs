//! Reads the attributes of a spec struct.

use syn::{
    Data, DeriveInput, Error, Fields, Ident, LitInt, LitStr, Token, Type, parenthesized, parse::ParseStream,
    punctuated::Punctuated,
};

/// A struct with everything its attributes say.
pub(crate) struct Struct {
    /// The name of the struct.
    pub name: Ident,
    /// The full type name of the resource.
    pub type_name: Option<LitStr>,
    /// The default namespace.
    pub namespace: Option<LitStr>,
    /// The protobuf message.
    pub proto: Option<LitStr>,
    /// Aliases given by hand.
    pub aliases: Vec<LitStr>,
    /// Heading and path of each column.
    pub columns: Vec<(LitStr, LitStr)>,
    /// For administrators only.
    pub sensitive: bool,
    /// No automatic aliases.
    pub skip_automatic_aliases: bool,
    /// The YAML is that of the one field.
    pub transparent: bool,
    /// The fields in order.
    pub fields: Vec<Field>,
}

/// One field.
pub(crate) struct Field {
    /// The name in Rust.
    pub name: Ident,
    /// The type in Rust.
    pub ty: Type,
    /// The protobuf number.
    pub tag: u32,
    /// The YAML key; none for an inlined field.
    pub key: Option<LitStr>,
    /// Left out when empty.
    pub omit: bool,
}

impl Struct {
    /// Reads the struct and its attributes.
    pub(crate) fn parse(input: &DeriveInput) -> Result<Self, Error> {
        let Data::Struct(data) = &input.data else {
            return Err(Error::new_spanned(&input.ident, "a spec is a struct"));
        };
        let mut parsed = Self {
            name: input.ident.clone(),
            type_name: None,
            namespace: None,
            proto: None,
            aliases: Vec::new(),
            columns: Vec::new(),
            sensitive: false,
            skip_automatic_aliases: false,
            transparent: false,
            fields: Vec::new(),
        };
        for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("resource")) {
            attribute.parse_nested_meta(|meta| parsed.option(meta))?;
        }
        match &data.fields {
            Fields::Named(named) => {
                for field in &named.named {
                    parsed.fields.push(Field::parse(field)?);
                }
            }
            Fields::Unit => {}
            Fields::Unnamed(fields) => return Err(Error::new_spanned(fields, "fields of a spec have names")),
        }
        if parsed.transparent && parsed.fields.len() != 1 {
            return Err(Error::new_spanned(&parsed.name, "a transparent spec has one field"));
        }
        Ok(parsed)
    }

    fn option(&mut self, meta: syn::meta::ParseNestedMeta<'_>) -> Result<(), Error> {
        let name = meta.path.require_ident()?.to_string();
        match name.as_str() {
            "type_name" => self.type_name = Some(meta.value()?.parse()?),
            "namespace" => self.namespace = Some(meta.value()?.parse()?),
            "proto" => self.proto = Some(meta.value()?.parse()?),
            "aliases" => {
                let list;
                parenthesized!(list in meta.input);
                self.aliases.extend(list.parse_terminated(<LitStr as syn::parse::Parse>::parse, Token![,])?);
            }
            "columns" => {
                let list;
                parenthesized!(list in meta.input);
                let columns: Punctuated<_, Token![,]> = list.parse_terminated(column, Token![,])?;
                self.columns.extend(columns);
            }
            "sensitive" => self.sensitive = true,
            "skip_automatic_aliases" => self.skip_automatic_aliases = true,
            "transparent" => self.transparent = true,
            _ => return Err(meta.error("unknown option of `resource`")),
        }
        Ok(())
    }
}

fn column(input: ParseStream<'_>) -> Result<(LitStr, LitStr), Error> {
    let pair;
    parenthesized!(pair in input);
    let heading = pair.parse()?;
    pair.parse::<Token![,]>()?;
    Ok((heading, pair.parse()?))
}

impl Field {
    fn parse(field: &syn::Field) -> Result<Self, Error> {
        let name =
            field.ident.clone().ok_or_else(|| Error::new_spanned(field, "fields of a spec have names"))?;
        let attribute = field
            .attrs
            .iter()
            .find(|attribute| attribute.path().is_ident("spec"))
            .ok_or_else(|| Error::new_spanned(&name, "a field needs #[spec(number, \"key\")]"))?;
        attribute.parse_args_with(|input: ParseStream<'_>| {
            let tag = input.parse::<LitInt>()?.base10_parse()?;
            let mut parsed = Self { name: name.clone(), ty: field.ty.clone(), tag, key: None, omit: false };
            input.parse::<Token![,]>()?;
            if input.peek(LitStr) {
                parsed.key = Some(input.parse()?);
            } else {
                let word: Ident = input.parse()?;
                if word != "inline" {
                    return Err(Error::new(word.span(), "expected a YAML key or `inline`"));
                }
            }
            if input.peek(Token![,]) {
                input.parse::<Token![,]>()?;
                let word: Ident = input.parse()?;
                if word != "omit" {
                    return Err(Error::new(word.span(), "expected `omit`"));
                }
                parsed.omit = true;
            }
            Ok(parsed)
        })
    }
}
