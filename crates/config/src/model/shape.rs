//! What the values of a type look like: the source of documentation, schema and completion.

/// The look of a value.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Text.
    String,
    /// True or false.
    Bool,
    /// A whole number within bounds.
    Integer {
        /// Smallest value.
        min: i64,
        /// Largest value.
        max: u64,
    },
    /// Text of a certain form, named for people (`duration`, `URL`, `CIDR`).
    Format(&'static str),
    /// One of a few texts.
    Choice(&'static [&'static str]),
    /// A number of bytes or text such as `10GiB`.
    Size,
    /// A mapping with any content.
    Free,
    /// A list.
    List(Box<Shape>, ListMerge),
    /// A mapping with free keys.
    Map(Box<Shape>),
    /// A mapping with a fixed set of keys.
    Object(&'static ObjectInfo),
}

/// What a strategic patch does to a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListMerge {
    /// Items of the patch come after the items that are there.
    Append,
    /// The list of the patch takes the place of the one that is there.
    Replace,
    /// Items with the same key are merged, others appended.
    ByKey(&'static str),
}

/// Description of a mapping with a fixed set of keys.
#[derive(Debug)]
pub struct ObjectInfo {
    /// Name of the Rust type.
    pub name: &'static str,
    /// Module of the Rust type; two types may share a name.
    pub module: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Keys in the order they are written.
    pub fields: &'static [FieldInfo],
}

/// Description of one key.
#[derive(Debug)]
pub struct FieldInfo {
    /// The key.
    pub key: &'static str,
    /// Name of the Rust field.
    pub field: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Flags of the description with their values.
    pub flags: &'static [(&'static str, &'static str)],
    /// The look of its value.
    pub shape: fn() -> Shape,
}

impl FieldInfo {
    /// The value of a flag.
    pub fn flag(&self, name: &str) -> Option<&'static str> {
        self.flags.iter().find(|(flag, _)| *flag == name).map(|(_, value)| *value)
    }

    /// What to use instead of a deprecated key.
    pub fn deprecated(&self) -> Option<&'static str> {
        self.flag("deprecated")
    }

    /// The first sentence of the documentation.
    pub fn summary(&self) -> String {
        self.doc.lines().map(str::trim).take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

impl ObjectInfo {
    /// The description of a key.
    pub fn field(&self, key: &str) -> Option<&'static FieldInfo> {
        self.fields.iter().find(|field| field.key == key)
    }
}

impl Shape {
    /// A short name for people.
    pub fn name(&self) -> String {
        match self {
            Self::String => "string".to_owned(),
            Self::Bool => "boolean".to_owned(),
            Self::Integer { .. } => "integer".to_owned(),
            Self::Format(name) => (*name).to_owned(),
            Self::Choice(texts) => texts.join(" | "),
            Self::Size => "size".to_owned(),
            Self::Free => "free-form mapping".to_owned(),
            Self::List(item, _) => format!("list of {}", item.name()),
            Self::Map(value) => format!("map of {}", value.name()),
            Self::Object(info) => info.name.to_owned(),
        }
    }
}

/// True if a flag is among names; usable in constants.
pub const fn has_flag(names: &[&str], wanted: &str) -> bool {
    let mut i = 0;
    while i < names.len() {
        if equal(names[i].as_bytes(), wanted.as_bytes()) {
            return true;
        }
        i += 1;
    }
    false
}

const fn equal(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let mut i = 0;
    while i < left.len() {
        if left[i] != right[i] {
            return false;
        }
        i += 1;
    }
    true
}
