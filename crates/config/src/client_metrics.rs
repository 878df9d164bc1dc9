//! The values that a subscription to client metrics may have (KIP-714), and Kafka's messages for others.

use std::collections::BTreeMap;

use super::alter::{AlterError, Change, Changed, alter_values};
use super::key::Scope;
use super::table;
use super::value::ConfigValue;
use crate::client_match::check_match;

/// Milliseconds between pushes: from a tenth of a second to an hour.
const INTERVAL_MS: std::ops::RangeInclusive<i64> = 100..=3_600_000;

/// Changes the values of a subscription.
///
/// # Errors
/// See [`AlterError`].
pub fn alter_client_metrics(
    own: &BTreeMap<String, String>,
    changes: &[Change<'_>],
) -> Result<Changed, AlterError> {
    alter_values(Scope::ClientMetrics, own, changes, validate)
}

fn validate(after: &BTreeMap<String, String>) -> Result<(), AlterError> {
    if let Some(unknown) = after.keys().find(|name| table::find(Scope::ClientMetrics, name).is_none()) {
        let message = format!("Unknown client metrics configuration: {unknown}");
        return Err(AlterError::InvalidRequest(message));
    }
    for (name, text) in after {
        let key = table::find(Scope::ClientMetrics, name).expect("all names are known by now");
        let value = key.parse(text).map_err(|error| AlterError::InvalidConfig(error.message))?;
        match value {
            ConfigValue::Int(interval) if !INTERVAL_MS.contains(&interval) => {
                return Err(AlterError::InvalidRequest(format!(
                    "Invalid value {interval} for {name}, interval must be between 100 and 3600000 (1 hour)"
                )));
            }
            _ if name == "match" => check_match(text).map_err(AlterError::InvalidConfig)?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::alter::Operation;
    use super::*;

    fn check(changes: &[(&str, &str)], expect: &str) {
        let changes: Vec<_> = changes
            .iter()
            .map(|&(name, value)| Change { name, operation: Operation::Set, value: Some(value) })
            .collect();
        let said = match alter_client_metrics(&BTreeMap::new(), &changes) {
            Ok(_) => "ok".to_owned(),
            Err(AlterError::InvalidRequest(message)) => format!("INVALID_REQUEST {message}"),
            Err(AlterError::InvalidConfig(message)) => format!("INVALID_CONFIG {message}"),
        };
        assert_eq!(said, expect);
    }

    #[test]
    fn subscriptions_are_checked() {
        check(&[("metrics", "a.,b."), ("interval.ms", "100"), ("match", "client_id=a.*")], "ok");
        check(&[("metrics", "*")], "ok");
        check(&[("color", "red")], "INVALID_REQUEST Unknown client metrics configuration: color");
        for interval in ["99", "3600001"] {
            let expect = format!(
                "INVALID_REQUEST Invalid value {interval} for interval.ms, \
                 interval must be between 100 and 3600000 (1 hour)"
            );
            check(&[("interval.ms", interval)], &expect);
        }
        check(&[("match", "a=b")], "INVALID_CONFIG Illegal client matching pattern: a=b");
        check(
            &[("interval.ms", "soon")],
            "INVALID_CONFIG Invalid value soon for configuration interval.ms: Not a number of type INT",
        );
    }
}
