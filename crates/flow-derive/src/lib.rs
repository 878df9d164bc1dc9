//! `derive(Event)`: an enum whose variant is chosen by the header `type` of a record.
//!
//! The names of variants are the types, or what `#[event("NAME")]` says; each variant has one field, read and written as
//! JSON, or none.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, Ident, LitStr, Type, Variant, parse_macro_input};

/// Makes an enum a payload; see the crate's page.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// A variant: its name, that of its type of events, and what it holds.
struct Kind<'a> {
    ident: &'a Ident,
    name: String,
    field: Option<&'a Type>,
}

fn expand(input: &DeriveInput) -> Result<Tokens, Error> {
    let Data::Enum(data) = &input.data else {
        return Err(Error::new_spanned(
            &input.ident,
            "Event is derived for enums: the header `type` chooses the variant",
        ));
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(&input.generics, "an enum of events has no parameters"));
    }
    let kinds = data.variants.iter().map(kind).collect::<Result<Vec<_>, _>>()?;
    for (index, one) in kinds.iter().enumerate() {
        if kinds[..index].iter().any(|other| other.name == one.name) {
            return Err(Error::new_spanned(one.ident, format!("two variants are of type {:?}", one.name)));
        }
    }
    let (decode, encode) = (decode(&input.ident, &kinds), encode(&input.ident, &kinds));
    Ok(quote! { #decode #encode })
}

fn kind(variant: &Variant) -> Result<Kind<'_>, Error> {
    let mut name = variant.ident.to_string();
    for attribute in variant.attrs.iter().filter(|attribute| attribute.path().is_ident("event")) {
        name = attribute.parse_args::<LitStr>()?.value();
    }
    let field = match &variant.fields {
        Fields::Unit => None,
        Fields::Unnamed(fields) if fields.unnamed.len() == 1 => fields.unnamed.first().map(|field| &field.ty),
        other => return Err(Error::new_spanned(other, "a variant of events holds one value, or none")),
    };
    Ok(Kind { ident: &variant.ident, name, field })
}

fn decode(event: &Ident, kinds: &[Kind<'_>]) -> Tokens {
    let arms = kinds.iter().map(|Kind { ident, name, field }| match field {
        Some(_) => quote! { #name => ::mainstem_flow::payload::from_json(value()?).map(#event::#ident) },
        None => quote! { #name => ::core::result::Result::Ok(#event::#ident) },
    });
    let known = kinds.iter().map(|kind| kind.name.as_str()).collect::<Vec<_>>().join(", ");
    quote! {
        impl ::mainstem_flow::Payload for #event {
            type Event = #event;

            fn decode(record: &::mainstem_flow::Received) -> ::core::result::Result<Self, ::mainstem_flow::DecodeError> {
                let kind = ::mainstem_flow::payload::event_type(record, #known)?;
                let value = || ::mainstem_flow::payload::event_value(record, kind);
                match kind {
                    #(#arms,)*
                    other => ::core::result::Result::Err(::mainstem_flow::payload::unknown_event(other, #known)),
                }
            }

            fn event(&self) -> &#event {
                self
            }

            fn into_event(self) -> #event {
                self
            }
        }
    }
}

fn encode(event: &Ident, kinds: &[Kind<'_>]) -> Tokens {
    let values = kinds.iter().map(|Kind { ident, field, .. }| match field {
        Some(_) => quote! { #event::#ident(value) => ::mainstem_flow::payload::Encode::encode(
            &::mainstem_flow::payload::JsonRef(value)
        ) },
        None => quote! { #event::#ident => ::mainstem_flow::payload::Encode::encode(
            &::mainstem_flow::payload::JsonRef(&())
        ) },
    });
    let types = kinds.iter().map(|Kind { ident, name, field }| match field {
        Some(_) => quote! { #event::#ident(_) => #name },
        None => quote! { #event::#ident => #name },
    });
    // Only where all variants can be written: an event may be read alone.
    let fields: Vec<_> = kinds.iter().filter_map(|kind| kind.field).collect();
    quote! {
        impl ::mainstem_flow::Encode for #event
        where
            #(for<'de> ::mainstem_flow::payload::JsonRef<'de, #fields>: ::mainstem_flow::Encode,)*
        {
            fn encode(
                &self,
            ) -> ::core::result::Result<
                ::core::option::Option<::mainstem_flow::payload::Bytes>,
                ::mainstem_flow::EncodeError,
            > {
                match self {
                    #(#values,)*
                }
            }

            fn event_type(&self) -> ::core::option::Option<&str> {
                ::core::option::Option::Some(match self {
                    #(#types,)*
                })
            }
        }
    }
}
