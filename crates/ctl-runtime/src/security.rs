//! What guards the machine: secure boot, SELinux, FIPS, module signatures.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive};
use ichor_resource::runtime::{FIPSState, SELinuxState, SecurityState};
use ichor_types::Cmdline;

use crate::ports::Files;

const EFI_GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
const EFI_LOADER: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// Writes `SecurityStates`, once.
#[derive(Debug)]
pub struct SecurityStateController<F> {
    files: F,
    signatures_enforced: bool,
}

impl<F: Files> SecurityStateController<F> {
    /// A controller that looks at these files.
    pub fn new(files: F, cmdline: &str) -> Self {
        let signatures_enforced = Cmdline::parse(cmdline).first("module.sig_enforce") == Some("1");
        Self { files, signatures_enforced }
    }

    fn state(&self) -> SecurityState {
        SecurityState {
            secure_boot: self.efi_flag("SecureBoot") && !self.efi_flag("SetupMode"),
            selinux_state: match self.text("/sys/fs/selinux/enforce").as_deref() {
                Some("1") => SELinuxState::Enforcing,
                Some(_) => SELinuxState::Permissive,
                None => SELinuxState::Disabled,
            },
            pcr_signing_key_fingerprint: self.pcr_key_fingerprint().unwrap_or_default(),
            fips_state: match self.text("/proc/sys/crypto/fips_enabled").as_deref() {
                Some("1") => FIPSState::Enabled,
                Some(_) | None => FIPSState::Disabled,
            },
            booted_with_uki: self.booted_with_uki(),
            module_signature_enforced: self.signatures_enforced,
            ..SecurityState::default()
        }
    }

    fn booted_with_uki(&self) -> bool {
        let ours = |name: &str| name.starts_with("Talos-");
        match self.efi_text("LoaderEntryDefault").filter(|entry| !entry.is_empty()) {
            Some(entry) => ours(&entry),
            None => self
                .efi_text("StubImageIdentifier")
                .is_some_and(|image| ours(image.rsplit(['\\', '/']).next().unwrap_or_default())),
        }
    }

    fn text(&self, path: &str) -> Option<String> {
        let contents = self.files.read(path).ok()?;
        Some(String::from_utf8_lossy(&contents).trim().to_owned())
    }

    fn efi_flag(&self, name: &str) -> bool {
        efi(&self.files, name, EFI_GLOBAL).is_some_and(|value| value == [1])
    }

    fn efi_text(&self, name: &str) -> Option<String> {
        efi_text(&self.files, name)
    }

    /// The fingerprint of the key that signs measurements, which the boot stub leaves in the first root.
    fn pcr_key_fingerprint(&self) -> Option<String> {
        let pem = self.files.read("/.extra/tpm2-pcr-public-key.pem").ok()?;
        let key = pem::parse(pem).ok()?;
        let bytes = ichor_pki::sha256(key.contents()).map(|byte| format!("{byte:02X}"));
        Some(bytes.join(":"))
    }
}

/// The value of an EFI variable, without the four bytes of attributes in front.
fn efi(files: &impl Files, name: &str, vendor: &str) -> Option<Vec<u8>> {
    let contents = files.read(&format!("/sys/firmware/efi/efivars/{name}-{vendor}")).ok()?;
    contents.get(4..).map(<[u8]>::to_vec)
}

/// A text that the boot loader left in an EFI variable.
pub(crate) fn efi_text(files: &impl Files, name: &str) -> Option<String> {
    let value = efi(files, name, EFI_LOADER)?;
    let units = value.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    Some(char::decode_utf16(units.take_while(|unit| *unit != 0)).filter_map(Result::ok).collect())
}

impl<F: Files> Controller for SecurityStateController<F> {
    const NAME: &'static str = "runtime.SecurityStateController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<SecurityState>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let state = self.state();
        ctx.modify::<SecurityState>("securitystate", |spec| spec.clone_from(&state))?;
        Ok(())
    }
}
