//! Every provider of machines there is. A new one is a crate and a line here.

use ichor_provision::{Registration, Registry};

static ALL: &[Registration] = &[ichor_provision_sandbox::REGISTRATION, ichor_provision_qemu::REGISTRATION];

/// All providers; the first one is the default.
pub static PROVIDERS: Registry = Registry::new(ALL);
