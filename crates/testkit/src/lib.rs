//! For tests only: fakes, a fake clock, golden helpers.
