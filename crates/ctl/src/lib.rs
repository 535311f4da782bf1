//! What controller families share: the parsed machine configuration and small helpers.
