//! `ssl.principal.mapping.rules`: the name of a certificate's subject in ACLs.
//!
//! A rule is `DEFAULT` or `RULE:pattern/replacement/[LU]`. The first rule whose pattern matches the whole name is used; if none does, the
//! peer is refused. Patterns are Java's: those that mean something else here, or nothing, are refused when the rules are read. Replacing is
//! Java's `replaceAll`.

mod java;

use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::SecurityError;

/// The rules of a listener.
#[derive(Debug, Clone)]
pub struct PrincipalMapping {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone)]
enum Rule {
    Default,
    Pattern(Box<PatternRule>),
}

#[derive(Debug, Clone)]
struct PatternRule {
    /// As written.
    pattern: String,
    replacement: String,
    whole: Regex,
    anywhere: Regex,
    parts: Vec<java::Part>,
    case: Option<Case>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Lower,
    Upper,
}

/// Kafka's own pattern of a rule.
const RULE: &str = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)";

static SPLITTER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(&format!(r"(?-u:\s)*({RULE})(?-u:\s)*(,(?-u:\s)*|$)")).expect("the pattern is constant")
});
static PARSER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(&format!("^(?:{RULE})")).expect("the pattern is constant"));

impl PrincipalMapping {
    /// Reads the rules.
    ///
    /// # Errors
    /// When one is malformed, or has an unsupported pattern or replacement.
    pub fn parse(text: &str) -> Result<PrincipalMapping, SecurityError> {
        let mut rules = Vec::new();
        for found in java::find_all(&SPLITTER, text.trim()) {
            let rule = found.get(1).map_or("", |rule| rule.as_str());
            let parsed = PARSER.captures(rule).ok_or_else(|| invalid(rule, "it is no rule"))?;
            let end = parsed.get(0).map_or(0, |whole| whole.end());
            if end != rule.len() {
                return Err(invalid(rule, &format!("unmatched substring `{}`", &rule[end..])));
            }
            let part = |group: usize| parsed.get(group).map(|part| part.as_str());
            match (part(1), part(2)) {
                (Some(_), _) => rules.push(Rule::Default),
                (None, Some(pattern)) => {
                    let case = match part(4) {
                        Some("L") => Some(Case::Lower),
                        Some("U") => Some(Case::Upper),
                        _ => None,
                    };
                    let rule = PatternRule::new(pattern, part(3).unwrap_or_default(), case)?;
                    rules.push(Rule::Pattern(Box::new(rule)));
                }
                (None, None) => {}
            }
        }
        Ok(PrincipalMapping { rules })
    }

    /// The name that the rules give to a subject; none if no rule applies.
    pub fn name(&self, subject: &str) -> Option<String> {
        self.rules.iter().find_map(|rule| match rule {
            Rule::Default => Some(subject.to_owned()),
            Rule::Pattern(rule) => rule.apply(subject),
        })
    }
}

impl Default for PrincipalMapping {
    /// The subject as it is.
    fn default() -> PrincipalMapping {
        PrincipalMapping { rules: vec![Rule::Default] }
    }
}

fn invalid(rule: &str, what: &str) -> SecurityError {
    SecurityError::MappingRule { rule: rule.to_owned(), what: what.to_owned() }
}

impl PatternRule {
    fn new(pattern: &str, replacement: &str, case: Option<Case>) -> Result<PatternRule, SecurityError> {
        let shown = format!("RULE:{pattern}/{replacement}/");
        let fault = |what: &str| invalid(&shown, what);
        let translated = java::translate(pattern).map_err(|what| fault(&what))?;
        let compile = |text: &str| Regex::new(text).map_err(|error| fault(&error.to_string()));
        let anywhere = compile(&translated)?;
        let groups = anywhere.captures_len() - 1;
        let names: Vec<&str> = anywhere.capture_names().flatten().collect();
        let parts =
            java::replacement(&java::escape_literal_back_references(replacement, groups), groups, &names)
                .map_err(|what| fault(&what))?;
        Ok(PatternRule {
            whole: compile(&format!("^(?:{translated})$"))?,
            anywhere,
            parts,
            case,
            pattern: pattern.to_owned(),
            replacement: replacement.to_owned(),
        })
    }

    fn apply(&self, subject: &str) -> Option<String> {
        if !self.whole.is_match(subject) {
            return None;
        }
        let mut result = String::new();
        let mut end = 0;
        for found in java::find_all(&self.anywhere, subject) {
            let Some(whole) = found.get(0) else { continue };
            result.push_str(&subject[end..whole.start()]);
            self.replace(&found, &mut result);
            end = whole.end();
        }
        result.push_str(&subject[end..]);
        Some(match self.case {
            Some(Case::Lower) => result.to_lowercase(),
            Some(Case::Upper) => result.to_uppercase(),
            None => result,
        })
    }

    fn replace(&self, found: &Captures<'_>, result: &mut String) {
        for part in &self.parts {
            match part {
                java::Part::Text(text) => result.push_str(text),
                java::Part::Group(group) => {
                    result.push_str(found.get(*group).map_or("", |group| group.as_str()))
                }
                java::Part::Named(name) => {
                    result.push_str(found.name(name).map_or("", |group| group.as_str()))
                }
            }
        }
    }
}

/// As Kafka prints the rules.
impl std::fmt::Display for PrincipalMapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rules = self.rules.iter().map(|rule| match rule {
            Rule::Default => "DEFAULT".to_owned(),
            Rule::Pattern(rule) => {
                let case = match rule.case {
                    Some(Case::Lower) => "/L",
                    Some(Case::Upper) => "/U",
                    None => "",
                };
                format!("RULE:{}/{}{case}", rule.pattern, rule.replacement)
            }
        });
        write!(f, "SslPrincipalMapper(rules = [{}])", rules.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(rules: &str, subject: &str) -> Option<String> {
        PrincipalMapping::parse(rules).unwrap().name(subject)
    }

    /// Kafka's SslPrincipalMapperTest.
    #[test]
    fn kafkas_examples() {
        let rules = "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, \
                     RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, \
                     RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, \
                     RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT";
        let check = |subject: &str, expected: &str| assert_eq!(name(rules, subject).unwrap(), expected);
        check("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke");
        check("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme");
        check("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME");
        check("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE");
        check("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US");
        let comma = r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT";
        assert_eq!(name(comma, r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz").unwrap(), r"Tkac\, Adam");
    }

    #[test]
    fn rules_are_split_as_in_kafka() {
        let check = |rules: &str, expected: &str| {
            let shown = PrincipalMapping::parse(rules).unwrap().to_string();
            assert_eq!(shown, format!("SslPrincipalMapper(rules = {expected})"), "{rules}");
        };
        check("", "[]");
        check("DEFAULT", "[DEFAULT]");
        check("RULE://", "[RULE:/]");
        check("RULE:/.*/", "[RULE:/.*]");
        check("RULE:/.*/L", "[RULE:/.*/L]");
        check("RULE://,DEFAULT", "[RULE:/, DEFAULT]");
        check("  RULE:// ,  DEFAULT  ", "[RULE:/, DEFAULT]");
        check("  RULE:   /     / ,  DEFAULT  ", "[RULE:   /     , DEFAULT]");
        check("  RULE:  /     /U   ,DEFAULT  ", "[RULE:  /     /U, DEFAULT]");
        check(
            "  RULE:([A-Z]*)/$1/U   ,RULE:([a-z]+)/$1/,   DEFAULT  ",
            "[RULE:([A-Z]*)/$1/U, RULE:([a-z]+)/$1, DEFAULT]",
        );
        check(",   , , ,      , , ,   ", "[]");
        check(",,RULE://,,,DEFAULT,,", "[RULE:/, DEFAULT]");
        check(r"RULE:\/\\\(\)\n\t/\/\//", r"[RULE:\/\\\(\)\n\t/\/\/]");
        check(r"RULE:\**\/+/*/L,RULE:\/*\**/**/", r"[RULE:\**\/+/*/L, RULE:\/*\**/**]");
        check(
            r"RULE:,RULE:,/,RULE:,\//U,RULE:,/RULE:,/,RULE:,RULE:,/L,RULE:,/L,RULE:, DEFAULT, /DEFAULT/,DEFAULT",
            r"[RULE:,RULE:,/,RULE:,\//U, RULE:,/RULE:,, RULE:,RULE:,/L,RULE:,/L, RULE:, DEFAULT, /DEFAULT, DEFAULT]",
        );
    }

    #[test]
    fn rules_that_are_none() {
        for rules in [
            "default",
            "DEFAUL",
            "DEFAULT/L",
            "DEFAULT/U",
            "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
            "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        ] {
            assert!(PrincipalMapping::parse(rules).is_err(), "{rules}");
        }
    }

    /// Java's `(?i)` concerns ASCII only, to the end of its group.
    #[test]
    fn case_is_that_of_ascii() {
        let matches = |pattern: &str, subject: &str| name(&format!("RULE:{pattern}/x/"), subject).is_some();
        for (pattern, subject, expected) in [
            ("(?i)cn=kim", "CN=KIM", true),
            ("(?i)cn=kim", "CN=\u{212a}im", false),
            ("(?i)cn=[a-z]+", "CN=KIm", true),
            ("(?i)cn=[a-z]+", "CN=\u{212a}im", false),
            ("(?i)cn=[^a-k]", "CN=A", false),
            ("(?i)cn=[^a-k]", "CN=\u{212a}", true),
            (r"(?i)cn=\w", "CN=ſ", false),
            ("(?i)ü", "Ü", false),
            ("(?i:a)b", "Ab", true),
            ("(?i:a)b", "AB", false),
            ("(x(?i)a)?b", "xAb", true),
            ("(x(?i)a)?b", "xAB", false),
            ("a|(?i)b|c", "C", true),
        ] {
            assert_eq!(matches(pattern, subject), expected, "{pattern} of {subject}");
        }
        assert_eq!(name("RULE:(?i)cn=(?<n>.*)/${n}/", "CN=a").unwrap(), "a");
        for refused in ["(?<a_b>x)", r"(?i)[\.-z]", r"(?i)[a-\.]", "a(?i)*"] {
            assert!(PrincipalMapping::parse(&format!("RULE:{refused}/x/")).is_err(), "{refused}");
        }
    }

    #[test]
    fn nothing_applies() {
        assert_eq!(name("RULE:CN=a/x/", "CN=ab"), None, "the whole name has to match");
        assert_eq!(name("", "CN=ab"), None);
        assert_eq!(PrincipalMapping::default().name("CN=ab").unwrap(), "CN=ab");
    }

    /// Compares with the answers of Java 17, by `Matcher.matches` and `String.replaceAll`.
    #[test]
    fn replacing_as_java_does() {
        let lines = include_str!("mapping/java_rules.txt").lines();
        let mut counts = [0; 3];
        for line in lines {
            let [rules, subject, expected] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let answer = match PrincipalMapping::parse(rules) {
                Err(_) => "refused".to_owned(),
                Ok(mapping) => mapping.name(subject).map_or("none".to_owned(), |name| format!("={name}")),
            };
            let is_java_only = answer == "refused" && expected != "refused";
            assert!(
                answer == expected || is_java_only,
                "{rules:?} of {subject:?}: {answer:?}, not {expected:?}"
            );
            counts[usize::from(is_java_only) + 2 * usize::from(answer == "refused" && !is_java_only)] += 1;
        }
        // Java notices a replacement that it cannot make only when a name matches.
        assert!(counts[0] > counts[1], "{counts:?}: most rules mean the same");
    }
}
