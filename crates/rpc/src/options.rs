//! The arguments of the small daemons: `--option value` and `--option=value`, nothing else.

/// An argument that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOption {
    /// An option nobody knows.
    #[error("unknown option {option:?}; known are {known}")]
    Unknown {
        /// What was given.
        option: String,
        /// What would be understood.
        known: &'static str,
    },
    /// An option without its value.
    #[error("{0} needs a value")]
    NoValue(String),
    /// A value that does not fit its option.
    #[error("{option} cannot be {value:?}")]
    BadValue {
        /// The option.
        option: String,
        /// What was given.
        value: String,
    },
}

/// Hands each option with its value to `set`, which says false for one it does not know.
pub fn read(
    args: &[String],
    known: &'static str,
    mut set: impl FnMut(&str, &str) -> Result<bool, BadOption>,
) -> Result<(), BadOption> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (option, value) = match arg.split_once('=') {
            Some(pair) => pair,
            None => (arg.as_str(), args.next().ok_or_else(|| BadOption::NoValue(arg.clone()))?.as_str()),
        };
        if !set(option, value)? {
            return Err(BadOption::Unknown { option: option.to_owned(), known });
        }
    }
    Ok(())
}

/// A value of a type that is written as text.
pub fn parse<T: std::str::FromStr>(option: &str, value: &str) -> Result<T, BadOption> {
    let bad = |_| BadOption::BadValue { option: option.to_owned(), value: value.to_owned() };
    value.parse().map_err(bad)
}
