//! Machine configuration: documents, defaults, validation, patches, generation.
