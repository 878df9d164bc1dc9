//! Parsing of a key's value from text, with Kafka's rules and Kafka's messages.

use std::fmt;

use super::key::{ConfigKey, ConfigType, Valid};

/// A value of a key, parsed and valid.
#[derive(Debug, Clone, PartialEq)]
pub enum ConfigValue {
    /// A boolean.
    Bool(bool),
    /// An integer of any width; the key's type bounds it.
    Int(i64),
    /// A floating point number.
    Double(f64),
    /// A text, class name or password.
    Str(String),
    /// A list without duplicates.
    List(Vec<String>),
}

/// Kafka's canonical text of a value: what DescribeConfigs shows.
impl fmt::Display for ConfigValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigValue::Bool(value) => write!(f, "{value}"),
            ConfigValue::Int(value) => write!(f, "{value}"),
            ConfigValue::Double(value) => f.write_str(&java_double(*value)),
            ConfigValue::Str(value) => f.write_str(value),
            ConfigValue::List(values) => f.write_str(&values.join(",")),
        }
    }
}

/// A value that a key does not accept. The text is Kafka's: key, value and the allowed values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidValue {
    /// The key.
    pub key: String,
    /// The mistake, for the user.
    pub message: String,
}

impl InvalidValue {
    fn new(key: &ConfigKey, value: &dyn fmt::Display, why: impl fmt::Display) -> InvalidValue {
        let shown = if key.is_sensitive() { "[hidden]".to_string() } else { value.to_string() };
        InvalidValue {
            key: key.name.to_string(),
            message: format!("Invalid value {shown} for configuration {}: {why}", key.name),
        }
    }

    fn list(key: &ConfigKey, problem: String) -> InvalidValue {
        let message = format!("Configuration '{}' {problem}", key.name);
        InvalidValue { key: key.name.to_string(), message }
    }
}

impl ConfigKey {
    /// Parses and validates a value, as Kafka's `ConfigDef` does: white space around it is dropped, duplicates
    /// in a list are dropped.
    pub fn parse(&self, text: &str) -> Result<ConfigValue, InvalidValue> {
        let value = self.parse_type(text)?;
        self.check(&value)?;
        Ok(value)
    }

    /// The default, parsed; `None` if the key has none.
    pub fn default_value(&self) -> Option<ConfigValue> {
        self.default.map(|text| self.parse(text).expect("a test parses every default of the table"))
    }

    /// Messages show the value as it was given, white space included.
    fn parse_type(&self, given: &str) -> Result<ConfigValue, InvalidValue> {
        let text = given.trim();
        let not_a_number =
            || InvalidValue::new(self, &given, format!("Not a number of type {}", self.kind.name()));
        Ok(match self.kind {
            ConfigType::Bool if text.eq_ignore_ascii_case("true") => ConfigValue::Bool(true),
            ConfigType::Bool if text.eq_ignore_ascii_case("false") => ConfigValue::Bool(false),
            ConfigType::Bool => {
                return Err(InvalidValue::new(self, &given, "Expected value to be either true or false"));
            }
            ConfigType::Short => ConfigValue::Int(text.parse::<i16>().map_err(|_| not_a_number())?.into()),
            ConfigType::Int => ConfigValue::Int(text.parse::<i32>().map_err(|_| not_a_number())?.into()),
            ConfigType::Long => ConfigValue::Int(text.parse::<i64>().map_err(|_| not_a_number())?),
            ConfigType::Double => ConfigValue::Double(parse_double(text).ok_or_else(not_a_number)?),
            ConfigType::Str | ConfigType::Class | ConfigType::Password => ConfigValue::Str(text.to_string()),
            ConfigType::List => ConfigValue::List(split_list(text)),
        })
    }

    fn check(&self, value: &ConfigValue) -> Result<(), InvalidValue> {
        match (value, self.valid) {
            (_, Valid::Any) => Ok(()),
            (ConfigValue::Int(number), valid) => self.check_int(*number, valid),
            (ConfigValue::Double(number), Valid::BetweenF64(min, max)) => {
                self.check_double(*number, min, max)
            }
            (ConfigValue::Str(text), valid) => self.check_text(text, valid),
            (ConfigValue::List(items), valid) => self.check_list(items, valid),
            (value, valid) => unreachable!("{}: {valid:?} does not apply to {value:?}", self.name),
        }
    }

    fn check_int(&self, number: i64, valid: Valid) -> Result<(), InvalidValue> {
        let why = match valid {
            Valid::AtLeast(min) | Valid::Between(min, _) if number < min => {
                format!("Value must be at least {min}")
            }
            Valid::Between(_, max) if number > max => format!("Value must be no more than {max}"),
            Valid::GzipLevel if number != -1 && !(1..=9).contains(&number) => {
                "Value must be between 1 and 9 or equal to -1".to_string()
            }
            _ => return Ok(()),
        };
        Err(InvalidValue::new(self, &number, why))
    }

    /// NaN passes, as it does in Kafka: it is neither below nor above a bound.
    fn check_double(&self, number: f64, min: f64, max: f64) -> Result<(), InvalidValue> {
        let shown = java_double(number);
        if number < min {
            return Err(InvalidValue::new(self, &shown, format!("Value must be at least {min}")));
        }
        if number > max {
            return Err(InvalidValue::new(self, &shown, format!("Value must be no more than {max}")));
        }
        Ok(())
    }

    fn check_text(&self, text: &str, valid: Valid) -> Result<(), InvalidValue> {
        let why = match valid {
            Valid::OneOf(values) if !values.contains(&text) => {
                format!("String must be one of: {}", values.join(", "))
            }
            Valid::OneOfIgnoringCase(values) if !values.iter().any(|v| v.eq_ignore_ascii_case(text)) => {
                format!("String must be one of (case insensitive): {}", values.join(", "))
            }
            Valid::NonEmpty if text.is_empty() => "String must be non-empty".to_string(),
            Valid::OffsetReset if !is_offset_reset(text) => {
                format!("{} must be `latest`, `earliest` or `by_duration:` and a duration", self.name)
            }
            _ => return Ok(()),
        };
        Err(InvalidValue::new(self, &text, why))
    }

    fn check_list(&self, items: &[String], valid: Valid) -> Result<(), InvalidValue> {
        if valid == Valid::ThrottledReplicas {
            return self.check_throttled_replicas(items);
        }
        let allowed = match valid {
            Valid::ListOf(values) | Valid::NonEmptyListOf(values) => values,
            _ => &[],
        };
        if items.is_empty() && matches!(valid, Valid::NonEmptyList | Valid::NonEmptyListOf(_)) {
            let values = match allowed {
                [] => "any non-empty value".to_string(),
                _ => format!("[{}]", allowed.join(", ")),
            };
            return Err(InvalidValue::list(
                self,
                format!("must not be empty. Valid values include: {values}"),
            ));
        }
        for item in items {
            if item.is_empty() {
                return Err(InvalidValue::list(self, "values must not be empty.".to_string()));
            }
            if !allowed.is_empty() && !allowed.contains(&item.as_str()) {
                let why = format!("String must be one of: {}", allowed.join(", "));
                return Err(InvalidValue::new(self, item, why));
            }
        }
        Ok(())
    }

    fn check_throttled_replicas(&self, items: &[String]) -> Result<(), InvalidValue> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_pair = |item: &String| item.split_once(':').is_some_and(|(p, b)| is_number(p) && is_number(b));
        if matches!(items, [only] if only == "*" || only.is_empty()) || items.iter().all(is_pair) {
            return Ok(());
        }
        let why = format!(
            "{} must be the literal '*' or a list of replicas in the following format: \
             [partitionId]:[brokerId],[partitionId]:[brokerId],...",
            self.name
        );
        Err(InvalidValue::new(self, &format!("[{}]", items.join(", ")), why))
    }
}

/// Splits at commas, drops white space around the items and repeated items. Empty items stay, so that they can be reported.
pub(super) fn split_list(text: &str) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut items: Vec<String> = Vec::new();
    for item in text.split(',').map(str::trim) {
        if !items.iter().any(|known| known == item) {
            items.push(item.to_string());
        }
    }
    items
}

/// Java accepts a type suffix (`0.3d`) and spells the extremes `NaN` and `Infinity`.
fn parse_double(text: &str) -> Option<f64> {
    match text.trim_start_matches(['+', '-']) {
        "NaN" => return Some(f64::NAN),
        "Infinity" => return Some(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY }),
        _ => {}
    }
    let digits = text.strip_suffix(['d', 'D', 'f', 'F']).unwrap_or(text);
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    digits.parse().ok().filter(|_| plain)
}

/// `Double.toString`: at least one decimal, scientific from 10^7 on and below 10^-3.
fn java_double(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return if value.is_nan() { "NaN".into() } else { format!("{value}").replace("inf", "Infinity") };
    }
    if size == 0.0 || (1e-3..1e7).contains(&size) {
        return format!("{value:?}");
    }
    let text = format!("{value:E}");
    match text.split_once('E') {
        Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0E{exponent}"),
        _ => text,
    }
}

/// An ISO 8601 duration of days and smaller units, such as `P2DT3H4M5.5S`, not negative.
fn is_offset_reset(text: &str) -> bool {
    match text.split_once(':') {
        None => text == "latest" || text == "earliest",
        Some((name, duration)) => name == "by_duration" && is_duration(duration),
    }
}

fn is_duration(text: &str) -> bool {
    let upper = text.to_ascii_uppercase();
    let Some(rest) = upper.strip_prefix('P') else { return false };
    let (days, time) = rest.split_once('T').map_or((rest, None), |(days, time)| (days, Some(time)));
    let days_ok = days.is_empty() || is_unit_sequence(days, &['D']);
    let time_ok = time.is_none_or(|time| is_unit_sequence(time, &['H', 'M', 'S']));
    days_ok && time_ok && !(days.is_empty() && time.is_none())
}

fn is_unit_sequence(text: &str, units: &[char]) -> bool {
    let (mut rest, mut next) = (text, 0);
    while let Some(end) = rest.find(|c: char| c.is_ascii_alphabetic()) {
        let (number, tail) = rest.split_at(end);
        let Some(unit) = units[next..].iter().position(|unit| tail.starts_with(*unit)) else { return false };
        if number.is_empty() || number.parse::<f64>().is_err() {
            return false;
        }
        (rest, next) = (&tail[1..], next + unit + 1);
    }
    rest.is_empty() && next > 0
}

#[cfg(test)]
mod tests {
    use super::super::key::Scope;
    use super::super::table;
    use super::*;

    fn check(scope: Scope, name: &str, value: &str, expect: &str) {
        let key = table::find(scope, name).expect("the test names a key of the table");
        let got = match key.parse(value) {
            Ok(value) => format!("ok {value}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, expect, "{name}={value}");
    }

    fn topic(name: &str, value: &str, expect: &str) {
        check(Scope::Topic, name, value, expect);
    }

    fn broker(name: &str, value: &str, expect: &str) {
        check(Scope::Broker, name, value, expect);
    }

    /// Each text was printed by Kafka 4.3.0 for the same key and value.
    #[test]
    fn values_are_judged_as_kafka_judges_them() {
        const RETENTION: &str = "for configuration retention.ms:";
        topic("retention.ms", "x", &format!("Invalid value x {RETENTION} Not a number of type LONG"));
        topic("retention.ms", "", &format!("Invalid value  {RETENTION} Not a number of type LONG"));
        topic("retention.ms", "-2", &format!("Invalid value -2 {RETENTION} Value must be at least -1"));
        topic("retention.ms", " x ", &format!("Invalid value  x  {RETENTION} Not a number of type LONG"));
        topic("retention.ms", " 5 ", "ok 5");
        topic("retention.bytes", "-5", "ok -5");
        topic(
            "segment.bytes",
            "99999999999",
            "Invalid value 99999999999 for configuration segment.bytes: Not a number of type INT",
        );
        topic("preallocate", "TRUE", "ok true");
        topic(
            "preallocate",
            "yes",
            "Invalid value yes for configuration preallocate: Expected value to be either true or false",
        );
        topic("min.cleanable.dirty.ratio", "0.3d", "ok 0.3");
        topic("min.cleanable.dirty.ratio", "NaN", "ok NaN");
        topic(
            "min.cleanable.dirty.ratio",
            "2",
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        );
        topic(
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration compression.gzip.level: \
             Value must be between 1 and 9 or equal to -1",
        );
        topic(
            "compression.zstd.level",
            "23",
            "Invalid value 23 for configuration compression.zstd.level: Value must be no more than 22",
        );
        topic(
            "message.timestamp.type",
            "x",
            "Invalid value x for configuration message.timestamp.type: \
             String must be one of: CreateTime, LogAppendTime",
        );
        broker("num.partitions", "+5", "ok 5");
        broker(
            "offsets.topic.replication.factor",
            "40000",
            "Invalid value 40000 for configuration offsets.topic.replication.factor: \
             Not a number of type SHORT",
        );
        broker(
            "group.consumer.migration.policy",
            "x",
            "Invalid value x for configuration group.consumer.migration.policy: String must be one of \
             (case insensitive): DISABLED, DOWNGRADE, UPGRADE, BIDIRECTIONAL",
        );
        broker("group.consumer.migration.policy", "upgrade", "ok upgrade");
    }

    #[test]
    fn lists_drop_space_and_repetition_and_refuse_empty_items() {
        topic("cleanup.policy", "compact, delete", "ok compact,delete");
        topic("cleanup.policy", "delete,delete", "ok delete");
        topic("cleanup.policy", "", "ok ");
        topic("cleanup.policy", "delete,", "Configuration 'cleanup.policy' values must not be empty.");
        topic(
            "cleanup.policy",
            "delete,foo",
            "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
        );
        topic("leader.replication.throttled.replicas", "*", "ok *");
        topic("leader.replication.throttled.replicas", ",", "ok ");
        topic("leader.replication.throttled.replicas", "0:1,1:1", "ok 0:1,1:1");
        topic(
            "leader.replication.throttled.replicas",
            "x",
            "Invalid value [x] for configuration leader.replication.throttled.replicas: \
             leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the \
             following format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        );
        broker(
            "process.roles",
            "",
            "Configuration 'process.roles' must not be empty. Valid values include: [broker, controller]",
        );
        broker(
            "log.dirs",
            "",
            "Configuration 'log.dirs' must not be empty. Valid values include: any non-empty value",
        );
    }

    #[test]
    fn a_wrong_password_is_not_repeated() {
        let key = table::find(Scope::Broker, "ssl.key.password").expect("a key of the table");
        let error = InvalidValue::new(key, &"secret", "too short");
        assert!(!error.message.contains("secret"), "{error}");
    }

    #[test]
    fn offset_resets_take_a_duration() {
        for good in ["latest", "earliest", "by_duration:P1D", "by_duration:PT1H30M", "by_duration:PT0.5S"] {
            check(Scope::Group, "share.auto.offset.reset", good, &format!("ok {good}"));
        }
        for bad in [
            "none",
            "by_duration:",
            "by_duration:P",
            "by_duration:PT",
            "by_duration:1D",
            "by_duration:PT1M1H",
        ] {
            let key = table::find(Scope::Group, "share.auto.offset.reset").expect("a key of the table");
            assert!(key.parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn doubles_print_as_java_prints_them() {
        for (value, text) in [
            (0.5, "0.5"),
            (1.0, "1.0"),
            (1e7, "1.0E7"),
            (f64::MAX, "1.7976931348623157E308"),
            (2.5e-4, "2.5E-4"),
        ] {
            assert_eq!(java_double(value), text);
        }
    }
}
