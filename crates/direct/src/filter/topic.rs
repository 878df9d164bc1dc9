//! Patterns over names that have levels, as MQTT has them: `eu/+/carts/#`.

/// A pattern of a topic. `+` matches any one level. `#`, as the last level, matches any number of levels, also none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPattern {
    levels: Vec<String>,
    takes_rest: bool,
}

impl TopicPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// The reason why it is no pattern.
    pub fn parse(pattern: &str) -> Result<TopicPattern, String> {
        if pattern.is_empty() {
            return Err("it is empty".to_owned());
        }
        let mut levels: Vec<String> = pattern.split('/').map(str::to_owned).collect();
        let takes_rest = levels.pop_if(|last| last == "#").is_some();
        if levels.iter().any(|level| level.contains('#')) {
            return Err("# stands for all further levels, only as the last one and alone".to_owned());
        }
        if levels.iter().any(|level| level.contains('+') && level != "+") {
            return Err("+ stands for a whole level, alone between slashes".to_owned());
        }
        Ok(TopicPattern { levels, takes_rest })
    }

    /// Returns true if a topic matches.
    pub fn matches(&self, topic: &str) -> bool {
        let mut names = topic.split('/');
        let begins_so =
            self.levels.iter().all(|level| names.next().is_some_and(|name| level == "+" || level == name));
        begins_so && (self.takes_rest || names.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_mqtt() {
        for (pattern, topic, matches) in [
            ("a/b", "a/b", true),
            ("a/b", "a/b/c", false),
            ("a/b", "a", false),
            ("a/+", "a/b", true),
            ("a/+", "a", false),
            ("a/+", "a/", true),
            ("a/+/c", "a/b/c", true),
            ("+", "a/b", false),
            ("#", "a/b", true),
            ("a/#", "a", true),
            ("a/#", "a/b/c", true),
            ("a/#", "b", false),
            ("+/b/#", "a/b/c/d", true),
            ("a//b", "a//b", true),
        ] {
            assert_eq!(TopicPattern::parse(pattern).unwrap().matches(topic), matches, "{pattern} {topic}");
        }
        for pattern in ["", "a/#/b", "a#", "a/b+", "#/a"] {
            TopicPattern::parse(pattern).unwrap_err();
        }
    }
}
