//! Derives the encodings and the definition of a resource spec from its struct.
