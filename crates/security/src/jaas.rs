//! The text of `sasl.jaas.config`: `MODULE FLAG (KEY=VALUE)*;`, read as Kafka reads it.
//!
//! Kafka's other modules are refused by name: without them, the broker would accept clients that they keep out.

mod tokenizer;

use std::collections::BTreeMap;

use tokenizer::{Token, Tokenizer};

use crate::plain::PlainUsers;
use crate::{Secret, SecurityError};

/// The module of PLAIN: `username` and `password` for a client, `user_NAME` for a broker's users.
pub const PLAIN_LOGIN_MODULE: &str = "org.apache.kafka.common.security.plain.PlainLoginModule";
/// The module of SCRAM: `username`, `password`, and `tokenauth` for a delegation token.
pub const SCRAM_LOGIN_MODULE: &str = "org.apache.kafka.common.security.scram.ScramLoginModule";

/// The contents of the text: one login module and its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JaasConfig {
    /// The login module.
    pub module: LoginModule,
    options: BTreeMap<String, Secret>,
}

/// A supported login module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginModule {
    /// [`PLAIN_LOGIN_MODULE`].
    Plain,
    /// [`SCRAM_LOGIN_MODULE`].
    Scram,
}

/// The login of a client, or of a broker at other brokers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The user's name, or the id of a delegation token.
    pub user: String,
    /// The password, or the token's HMAC.
    pub password: Secret,
    /// True if it is a delegation token (KIP-48).
    pub is_token: bool,
}

impl JaasConfig {
    /// Reads the value of `sasl.jaas.config`.
    ///
    /// # Errors
    /// When the text is malformed, has not exactly one module, or an unsupported one. The message holds no value.
    pub fn parse(text: &str) -> Result<JaasConfig, SecurityError> {
        let mut entries = entries(text)?;
        let count = entries.len();
        match entries.pop() {
            None => Err(fault("Login module not specified in JAAS config")),
            Some(_) if count > 1 => {
                Err(fault(format!("JAAS config property contains {count} login modules, should be 1 module")))
            }
            Some(entry) => JaasConfig::obeyed(entry),
        }
    }

    fn obeyed(entry: Entry) -> Result<JaasConfig, SecurityError> {
        let module = match entry.module.as_str() {
            PLAIN_LOGIN_MODULE => LoginModule::Plain,
            SCRAM_LOGIN_MODULE => LoginModule::Scram,
            other => {
                return Err(fault(format!(
                    "login module {other} is not supported: use {PLAIN_LOGIN_MODULE} or {SCRAM_LOGIN_MODULE}"
                )));
            }
        };
        Ok(JaasConfig { module, options: entry.options })
    }

    /// An option's value.
    pub fn option(&self, name: &str) -> Option<&Secret> {
        self.options.get(name)
    }

    /// The users that a broker's PLAIN accepts. Those of another module are none, as in Kafka.
    pub fn plain_users(&self) -> PlainUsers {
        let user = |(key, password)| Some((str::strip_prefix(key, "user_")?, password));
        match self.module {
            LoginModule::Plain => PlainUsers::new(
                self.options.iter().map(|(key, value)| (key.as_str(), value)).filter_map(user),
            ),
            LoginModule::Scram => PlainUsers::default(),
        }
    }

    /// The login, if a name and a password are given.
    pub fn login(&self) -> Option<Login> {
        let text =
            |name: &str| self.option(name).map(|value| String::from_utf8_lossy(value.expose()).into_owned());
        let is_token = text("tokenauth").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        Some(Login { user: text("username")?, password: self.option("password")?.clone(), is_token })
    }
}

/// One `MODULE FLAG (KEY=VALUE)*;`.
struct Entry {
    module: String,
    options: BTreeMap<String, Secret>,
}

fn fault(what: impl Into<String>) -> SecurityError {
    SecurityError::Jaas(what.into())
}

fn entries(text: &str) -> Result<Vec<Entry>, SecurityError> {
    let mut tokens = Tokenizer::new(text);
    let mut entries = Vec::new();
    while let Some(first) = tokens.next() {
        let Token::Word(module) = first else {
            return Err(fault("Login module not specified in JAAS config"));
        };
        entries.push(Entry { module, options: options(&mut tokens)? });
    }
    Ok(entries)
}

/// Reads the rest behind the module: its flag, which has no effect, and the options to the semicolon.
fn options(tokens: &mut Tokenizer<'_>) -> Result<BTreeMap<String, Secret>, SecurityError> {
    match tokens.next() {
        None => return Err(fault("Login module control flag not specified in JAAS config")),
        Some(Token::Word(flag)) if is_control_flag(&flag) => {}
        // This may be a password that lost its key: it is not repeated.
        Some(Token::Word(_)) => return Err(fault("Invalid login module control flag in JAAS config")),
        Some(_) => return Err(fault("Login module control flag is not available in the JAAS config")),
    }
    let mut options = BTreeMap::new();
    loop {
        let key = match tokens.next() {
            None => return Err(fault("JAAS config entry not terminated by semi-colon")),
            Some(Token::Character(';')) => return Ok(options),
            Some(Token::Word(key)) => key,
            Some(_) => {
                return Err(fault("a character or a number is in the place of a key, as in KEY=\"VALUE\""));
            }
        };
        match (tokens.next(), tokens.next()) {
            (Some(Token::Character('=')), Some(Token::Word(value))) => {
                options.insert(key, Secret::from(value))
            }
            // An unquoted number is no value in Kafka either.
            _ => return Err(fault(format!("Value not specified for key '{key}' in JAAS config"))),
        };
    }
}

fn is_control_flag(word: &str) -> bool {
    ["required", "requisite", "sufficient", "optional"].iter().any(|flag| word.eq_ignore_ascii_case(flag))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(text: &str, expect: Expect) {
        let shown = match JaasConfig::parse(text) {
            Err(error) => error.to_string(),
            Ok(config) => {
                let value = |(key, value): (&String, &Secret)| {
                    format!(" {key}={}", String::from_utf8_lossy(value.expose()))
                };
                format!("{:?}{}", config.module, config.options.iter().map(value).collect::<String>())
            }
        };
        expect.assert_eq(&shown);
    }

    #[test]
    fn modules_and_options() {
        check(
            "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"admin\" \
             password='a\"b' user_admin=admin-secret user_al.ice=\"a;=\\\"\\n\\101\";",
            expect![[r#"
                Plain password=a"b user_admin=admin-secret user_al.ice=a;="
                A username=admin"#]],
        );
        check(
            "/* users */ org.apache.kafka.common.security.scram.ScramLoginModule // SCRAM\n REQUIRED\n;",
            expect!["Scram"],
        );
        check(
            "org.apache.kafka.common.security.plain.PlainLoginModule required\n  user_zoë=\"schlüssel\" ;",
            expect!["Plain user_zoë=schlüssel"],
        );
        check(
            "org.apache.kafka.common.security.plain.PlainLoginModule required user_a=b / to the end;\n;",
            expect!["Plain user_a=b"],
        );
    }

    #[test]
    fn what_kafka_refuses() {
        check("", expect!["sasl.jaas.config: Login module not specified in JAAS config"]);
        check(";", expect!["sasl.jaas.config: Login module not specified in JAAS config"]);
        check("a.B", expect!["sasl.jaas.config: Login module control flag not specified in JAAS config"]);
        check(
            "a.B secret x=y;",
            expect!["sasl.jaas.config: Invalid login module control flag in JAAS config"],
        );
        check(
            "a.B ;",
            expect!["sasl.jaas.config: Login module control flag is not available in the JAAS config"],
        );
        check("a.B required", expect!["sasl.jaas.config: JAAS config entry not terminated by semi-colon"]);
        check(
            "a.B required x=y",
            expect!["sasl.jaas.config: JAAS config entry not terminated by semi-colon"],
        );
        check("a.B required x", expect!["sasl.jaas.config: Value not specified for key 'x' in JAAS config"]);
        check(
            "a.B required x=;",
            expect!["sasl.jaas.config: Value not specified for key 'x' in JAAS config"],
        );
        check(
            "a.B required x=1234;",
            expect!["sasl.jaas.config: Value not specified for key 'x' in JAAS config"],
        );
        check(
            "a.B required; a.C required;",
            expect!["sasl.jaas.config: JAAS config property contains 2 login modules, should be 1 module"],
        );
    }

    #[test]
    fn modules_that_are_not_obeyed() {
        check(
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;",
            expect![
                "sasl.jaas.config: login module com.sun.security.auth.module.Krb5LoginModule is not supported: use \
                 org.apache.kafka.common.security.plain.PlainLoginModule or \
                 org.apache.kafka.common.security.scram.ScramLoginModule"
            ],
        );
    }

    #[test]
    fn users_and_logins() {
        let text =
            format!("{PLAIN_LOGIN_MODULE} required username=u password=p user_b=x user_a=\"y\" user_=z;");
        let config = JaasConfig::parse(&text).unwrap();
        let users = config.plain_users();
        assert_eq!(users.names().collect::<Vec<_>>(), ["", "a", "b"]);
        assert!(users.is_valid("a", b"y") && !users.is_valid("a", b"x") && !users.is_valid("u", b"p"));
        let login = config.login().unwrap();
        assert_eq!(
            (login.user.as_str(), login.password.expose(), login.is_token),
            ("u", b"p".as_slice(), false)
        );
        let token =
            format!("{SCRAM_LOGIN_MODULE} required username=id password=hmac tokenauth=\"True\" user_a=b;");
        let token = JaasConfig::parse(&token).unwrap();
        assert!(token.login().unwrap().is_token);
        assert_eq!(token.plain_users(), PlainUsers::default());
        assert!(!format!("{config:?}").contains("\"y\"") && format!("{config:?}").contains("[hidden]"));
    }
}
