//! Small values with exact text forms: sizes, durations, versions, addresses.
