//! The table of facts as a model: what `schema/kafka-*.txt` says, parsed. Used by the build script and, for test
//! input that does not come from the generated code, by the `sample` module.

/// A range of message versions, both ends included; empty when `low > high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) low: i16,
    pub(crate) high: i16,
}

impl Versions {
    /// No version at all.
    pub(crate) const NONE: Versions = Versions { low: 1, high: 0 };

    fn parse(text: &str) -> Result<Versions, String> {
        let number = |text: &str| text.parse::<i16>().map_err(|_| format!("{text} is not a version"));
        if text == "none" {
            return Ok(Versions::NONE);
        }
        if let Some(low) = text.strip_suffix('+') {
            return Ok(Versions { low: number(low)?, high: i16::MAX });
        }
        match text.split_once('-') {
            Some((low, high)) => Ok(Versions { low: number(low)?, high: number(high)? }),
            None => number(text).map(|only| Versions { low: only, high: only }),
        }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.low > self.high
    }

    pub(crate) fn intersect(self, other: Versions) -> Versions {
        let both = Versions { low: self.low.max(other.low), high: self.high.min(other.high) };
        if both.is_empty() { Versions::NONE } else { both }
    }

    pub(crate) fn contains(self, version: i16) -> bool {
        self.low <= version && version <= self.high
    }

    pub(crate) fn contains_all(self, other: Versions) -> bool {
        other.is_empty() || (self.low <= other.low && other.high <= self.high)
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            versions if versions.is_empty() => write!(f, "none"),
            Versions { low, high: i16::MAX } => write!(f, "{low}+"),
            Versions { low, high } if low == high => write!(f, "{low}"),
            Versions { low, high } => write!(f, "{low}-{high}"),
        }
    }
}

/// The purpose of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Response,
    Header,
    Data,
    CoordinatorKey,
    CoordinatorValue,
    Metadata,
}

impl Kind {
    fn parse(text: &str) -> Result<Kind, String> {
        Ok(match text {
            "request" => Kind::Request,
            "response" => Kind::Response,
            "header" => Kind::Header,
            "data" => Kind::Data,
            "coordinator-key" => Kind::CoordinatorKey,
            "coordinator-value" => Kind::CoordinatorValue,
            "metadata" => Kind::Metadata,
            other => return Err(format!("{other} is not a kind of message")),
        })
    }
}

/// The type of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FieldType {
    Bool,
    Int8,
    Int16,
    Uint16,
    Int32,
    Uint32,
    Int64,
    Float64,
    Uuid,
    String,
    Bytes,
    Records,
    Struct(String),
    Array(Box<FieldType>),
}

impl FieldType {
    fn parse(text: &str) -> FieldType {
        if let Some(element) = text.strip_prefix("[]") {
            return FieldType::Array(Box::new(FieldType::parse(element)));
        }
        match text {
            "bool" => FieldType::Bool,
            "int8" => FieldType::Int8,
            "int16" => FieldType::Int16,
            "uint16" => FieldType::Uint16,
            "int32" => FieldType::Int32,
            "uint32" => FieldType::Uint32,
            "int64" => FieldType::Int64,
            "float64" => FieldType::Float64,
            "uuid" => FieldType::Uuid,
            "string" => FieldType::String,
            "bytes" => FieldType::Bytes,
            "records" => FieldType::Records,
            name => FieldType::Struct(name.to_string()),
        }
    }

    /// The structure that a field of this type holds or lists.
    pub(crate) fn struct_name(&self) -> Option<&str> {
        match self {
            FieldType::Struct(name) => Some(name),
            FieldType::Array(element) => element.struct_name(),
            _ => None,
        }
    }
}

/// One field of a structure.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) type_: FieldType,
    /// The type as the schema spells it.
    pub(crate) type_text: String,
    pub(crate) versions: Versions,
    pub(crate) nullable: Versions,
    pub(crate) tag: Option<u32>,
    pub(crate) default: Option<String>,
    pub(crate) ignorable: bool,
    /// True if the field keeps the classic encoding in flexible versions (the client id of a request header).
    pub(crate) never_flexible: bool,
}

impl Field {
    pub(crate) fn is_nullable(&self) -> bool {
        !self.nullable.is_empty()
    }
}

/// One structure: the message itself or one nested in it.
#[derive(Debug, Clone)]
pub(crate) struct Struct {
    pub(crate) name: String,
    /// The stable versions in which the structure occurs.
    pub(crate) versions: Versions,
    pub(crate) fields: Vec<Field>,
}

/// One message with all its structures, the message's own first.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) key: Option<i16>,
    /// The stable versions.
    pub(crate) versions: Versions,
    pub(crate) flexible: Versions,
    pub(crate) structs: Vec<Struct>,
}

impl Message {
    /// The structure called `name`; the table was checked to have it.
    pub(crate) fn structure(&self, name: &str) -> &Struct {
        self.structs.iter().find(|each| each.name == name).expect("the table names a structure that it holds")
    }

    /// Returns true if any stable version is flexible (KIP-482).
    pub(crate) fn has_flexible_versions(&self) -> bool {
        !self.flexible.intersect(self.versions).is_empty()
    }
}

/// Parses the whole table; an error names the line.
pub(crate) fn parse(text: &str) -> Result<Vec<Message>, String> {
    let mut parser = Parser { messages: Vec::new(), open: Vec::new() };
    for (number, line) in text.lines().enumerate() {
        if !line.trim().is_empty() && !line.starts_with('#') {
            parser.line(line).map_err(|error| format!("line {}: {error}", number + 1))?;
        }
    }
    let mut messages = parser.messages;
    clip_to_stable_requests(&mut messages);
    for message in &mut messages {
        narrow(message).map_err(|error| format!("{}: {error}", message.name))?;
    }
    Ok(messages)
}

struct Parser {
    messages: Vec<Message>,
    /// The structures (by index in the last message) whose fields may follow, one per level of indentation.
    open: Vec<usize>,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let depth = (line.len() - line.trim_start().len()) / 2;
        if depth == 0 {
            return self.message(&words);
        }
        if depth == 1 && words[0] == "struct" {
            let [_, name, versions] = words[..] else { return Err("want: struct NAME VERSIONS".into()) };
            let index = self.add_struct(name, Versions::parse(versions)?)?;
            self.open = vec![0, index];
            return Ok(());
        }
        self.field(depth, &words)
    }

    fn message(&mut self, words: &[&str]) -> Result<(), String> {
        let ["message", name, kind, attributes @ ..] = words else {
            return Err("want: message NAME KIND ...".into());
        };
        let mut message = Message {
            name: name.to_string(),
            kind: Kind::parse(kind)?,
            key: None,
            versions: Versions::NONE,
            flexible: Versions::NONE,
            structs: Vec::new(),
        };
        for attribute in attributes {
            match attribute.split_once('=') {
                Some(("key", key)) => message.key = key.parse().ok(),
                Some(("versions", versions)) => message.versions = Versions::parse(versions)?,
                Some(("flexible", versions)) => message.flexible = Versions::parse(versions)?,
                None if *attribute == "unstable-latest" => message.versions.high -= 1,
                _ => return Err(format!("unknown attribute {attribute}")),
            }
        }
        let versions = message.versions;
        self.messages.push(message);
        self.open = vec![self.add_struct(name, versions)?];
        Ok(())
    }

    fn add_struct(&mut self, name: &str, versions: Versions) -> Result<usize, String> {
        let message = self.messages.last_mut().ok_or("a structure before the first message")?;
        if message.structs.iter().any(|each| each.name == name) {
            return Err(format!("a second structure {name}"));
        }
        message.structs.push(Struct { name: name.to_string(), versions, fields: Vec::new() });
        Ok(message.structs.len() - 1)
    }

    fn field(&mut self, depth: usize, words: &[&str]) -> Result<(), String> {
        let field = parse_field(words)?;
        if self.open.len() < depth {
            // The first line below a field of a structure type opens that structure.
            let owner = *self.open.last().ok_or("a field before the first message")?;
            let message = self.messages.last().ok_or("a field before the first message")?;
            let parent = message.structs[owner].fields.last().ok_or("a field nested in nothing")?;
            let name = parent.type_.struct_name().ok_or("fields below a primitive")?.to_string();
            let versions = parent.versions;
            let index = self.add_struct(&name, versions)?;
            self.open.push(index);
        }
        self.open.truncate(depth);
        let owner = self.open[depth - 1];
        let message = self.messages.last_mut().ok_or("a field before the first message")?;
        message.structs[owner].fields.push(field);
        Ok(())
    }
}

fn parse_field(words: &[&str]) -> Result<Field, String> {
    let [name, type_text, versions, attributes @ ..] = words else {
        return Err("want: FIELD TYPE VERSIONS ...".into());
    };
    let mut field = Field {
        name: name.to_string(),
        type_: FieldType::parse(type_text),
        type_text: type_text.to_string(),
        versions: Versions::parse(versions)?,
        nullable: Versions::NONE,
        tag: None,
        default: None,
        ignorable: false,
        never_flexible: false,
    };
    for attribute in attributes {
        match attribute.split_once('=') {
            Some(("nullable", versions)) => field.nullable = Versions::parse(versions)?,
            Some(("tag", tag)) => field.tag = Some(tag.parse().map_err(|_| "a tag is a number")?),
            Some(("default", default)) => field.default = Some(default.to_string()),
            Some(("flexible", "none")) => field.never_flexible = true,
            Some(("entity", _)) => {}
            None if *attribute == "ignorable" => field.ignorable = true,
            _ => return Err(format!("unknown attribute {attribute}")),
        }
    }
    Ok(field)
}

/// An unstable version of a request is one of its response too.
fn clip_to_stable_requests(messages: &mut [Message]) {
    let requests: Vec<(Option<i16>, Versions)> = messages
        .iter()
        .filter(|message| message.kind == Kind::Request)
        .map(|message| (message.key, message.versions))
        .collect();
    for response in messages.iter_mut().filter(|message| message.kind == Kind::Response) {
        if let Some((_, versions)) = requests.iter().find(|(key, _)| *key == response.key) {
            response.versions = response.versions.intersect(*versions);
        }
    }
}

/// Cuts the versions of structures and fields to those that are stable, and drops fields that are left with none.
fn narrow(message: &mut Message) -> Result<(), String> {
    let mut seen = vec![message.name.clone()];
    let mut queue = vec![(message.name.clone(), message.versions)];
    let mut uses = std::collections::BTreeMap::<String, usize>::new();
    for field in message.structs.iter().flat_map(|each| &each.fields) {
        if let Some(name) = field.type_.struct_name() {
            *uses.entry(name.to_string()).or_default() += 1;
        }
    }
    while let Some((name, allowed)) = queue.pop() {
        let stable = message.versions;
        let structure = message
            .structs
            .iter_mut()
            .find(|each| each.name == name)
            .ok_or_else(|| format!("no structure {name}"))?;
        // A structure with several users occurs in all versions that any of them has.
        let shared = uses.get(&name).is_some_and(|&uses| uses > 1);
        structure.versions = if shared { stable } else { structure.versions.intersect(allowed) };
        for field in &mut structure.fields {
            field.versions = field.versions.intersect(structure.versions);
            field.nullable = field.nullable.intersect(field.versions);
        }
        structure.fields.retain(|field| !field.versions.is_empty());
        for field in &structure.fields {
            if let Some(nested) = field.type_.struct_name()
                && !seen.iter().any(|each| each == nested)
            {
                seen.push(nested.to_string());
                queue.push((nested.to_string(), field.versions));
            }
        }
    }
    message.structs.retain(|each| seen.contains(&each.name));
    Ok(())
}
