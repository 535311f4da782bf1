//! The kernel command line of an image, as it is composed for a platform.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use ichor_boot::cmdline::Composition;
use ichor_types::cmdline::Cmdline;

use crate::{Arch, Error, Meta};

/// Platforms that images are made for.
const PLATFORMS: &[&str] = &["metal", "nocloud"];

/// META in an argument is compressed from this length on.
const META_PLAIN_MAX: usize = 256;

/// What the kernel passes to a process at most, less a little for the boot loader.
const LEN_MAX: usize = 2000;

/// The command line of an image for `platform`, before anything is added.
pub fn for_platform(platform: &str, arch: Arch, iso: bool) -> Result<Cmdline, Error> {
    if !PLATFORMS.contains(&platform) {
        let reason = format!("no image is made for it; there are {}", PLATFORMS.join(" and "));
        return Err(Error::bad(format!("platform {platform:?}"), reason));
    }
    let composition = Composition {
        platform,
        architecture: &arch.to_string(),
        is_iso: iso,
        // Media stay where they are for somebody to read what went wrong.
        recovers: !iso,
        ..Composition::default()
    };
    Ok(composition.compose())
}

/// Adds values of META for machines whose image has no such partition.
pub fn append_meta(cmdline: &mut Cmdline, meta: &Meta) -> Result<(), Error> {
    if meta.is_empty() {
        return Ok(());
    }
    let mut values = Vec::new();
    for (key, value) in meta {
        let text = std::str::from_utf8(value).ok().filter(|text| !text.contains(';')).ok_or_else(|| {
            let reason = "only text without ';' can be passed on the kernel command line; use a disk image";
            Error::bad(format!("META value {key:#x}"), reason)
        })?;
        values.push(format!("{key:#x}={text}"));
    }
    let mut bytes = values.join(";").into_bytes();
    if bytes.len() > META_PLAIN_MAX {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let result = packed.write_all(&bytes).and_then(|()| packed.finish());
        bytes = result.map_err(|error| Error::bad("META values", error.to_string()))?;
    }
    cmdline.append("talos.environment", &format!("INSTALLER_META_BASE64={}", STANDARD.encode(bytes)));
    Ok(())
}

/// An error when it is longer than kernels take.
pub fn check(cmdline: &Cmdline) -> Result<(), Error> {
    let len = cmdline.to_string().len();
    if len > LEN_MAX {
        let (what, max) = ("kernel command line".to_owned(), LEN_MAX as u64);
        return Err(Error::TooLarge { what, len: len as u64, max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_for_metal_is_that_of_the_original() {
        let cmdline = for_platform("metal", Arch::Amd64, false).unwrap();
        assert_eq!(
            cmdline.to_string(),
            "talos.platform=metal console=tty0 init_on_alloc=1 slab_nomerge pti=on consoleblank=0 \
             nvme_core.io_timeout=4294967295 printk.devkmsg=on selinux=1 module.sig_enforce=1 panic=10 \
             softlockup_panic=1 watchdog_thresh=30"
        );
        let iso = for_platform("metal", Arch::Amd64, true).unwrap().to_string();
        assert!(
            iso.starts_with("talos.platform=metal console=tty0 talos.halt_if_installed=1 init_on"),
            "{iso}"
        );
    }

    #[test]
    fn an_unknown_platform_is_named() {
        let error = for_platform("mars", Arch::Amd64, false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "platform \"mars\": no image is made for it; there are metal and nocloud"
        );
    }

    #[test]
    fn meta_is_an_argument_where_there_is_no_partition() {
        let mut cmdline = Cmdline::default();
        append_meta(&mut cmdline, &Meta::from([(10, b"x".to_vec()), (0xc, b"y".to_vec())])).unwrap();
        assert_eq!(cmdline.to_string(), "talos.environment=INSTALLER_META_BASE64=MHhhPXg7MHhjPXk=");
        let error = append_meta(&mut cmdline, &Meta::from([(10, b"a;b".to_vec())])).unwrap_err();
        assert!(error.to_string().starts_with("META value 0xa: "), "{error}");
    }

    #[test]
    fn long_meta_is_compressed() {
        let mut cmdline = Cmdline::default();
        append_meta(&mut cmdline, &Meta::from([(10, vec![b'x'; 5000])])).unwrap();
        let text = cmdline.to_string();
        let packed = STANDARD.decode(text.rsplit_once("BASE64=").unwrap().1).unwrap();
        assert_eq!(packed[..2], [0x1f, 0x8b]);
        assert!(check(&cmdline).is_ok());
    }

    #[test]
    fn a_command_line_that_no_kernel_takes_is_refused() {
        let error = check(&Cmdline::parse(&"x".repeat(3000))).unwrap_err();
        assert_eq!(error.to_string(), "kernel command line has 3000 bytes, at most 2000 fit");
    }
}
