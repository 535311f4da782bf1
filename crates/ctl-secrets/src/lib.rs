//! Controllers of root secrets and API certificates.
