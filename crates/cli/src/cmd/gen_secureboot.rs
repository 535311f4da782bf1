//! `gen secureboot uki|pcr|database`: keys that sign what firmware boots, and the variables that make it trust them.

use std::path::{Path, PathBuf};

use ichor_pki::{Authority, KeyAlgorithm, PrivateKey, pkcs7, random};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::failure::{Context as _, Failure};
use crate::files;
use crate::flags::flags;
use crate::parse::Call;
use crate::table::{Command, Complete, Flag};

/// Mode of every file.
const PRIVATE: u32 = 0o600;

/// The parent.
pub static SECUREBOOT: Command = Command {
    name: "secureboot",
    about: "Make keys and variables for secure boot",
    shared_flags: &[Flag::text("output", "directory of the files")
        .short('o')
        .default("_out")
        .complete(Complete::File)],
    subcommands: &[&UKI, &PCR, &DATABASE],
    ..Command::EMPTY
};

static UKI: Command = Command {
    name: "uki",
    about: "Make the key and certificate that sign boot images",
    flags: &[Flag::text("common-name", "name in the certificate").default("Test UKI Signing Key")],
    run: Some(uki),
    ..Command::EMPTY
};

static PCR: Command =
    Command { name: "pcr", about: "Make the key that signs TPM policies", run: Some(pcr), ..Command::EMPTY };

static DATABASE: Command = Command {
    name: "database",
    about: "Make the signed variables (PK, KEK, db) that enroll a certificate",
    flags: &[
        Flag::text(
            "enrolled-certificate",
            "certificate to enroll; that of `gen secureboot uki` when left out",
        )
        .complete(Complete::File),
        Flag::text(
            "signing-certificate",
            "certificate of the signing key; that of `gen secureboot uki` when left out",
        )
        .complete(Complete::File),
        Flag::text("signing-key", "key that signs; that of `gen secureboot uki` when left out")
            .complete(Complete::File),
        Flag::switch(
            "include-well-known-uefi-certs",
            "also enroll the certificates of Microsoft (not offered)",
        ),
    ],
    run: Some(database),
    ..Command::EMPTY
};

flags! {
    /// Where files go.
    Output { directory: text("output"), force: on("force") }
}

/// Writes files into the directory of the call, all or none.
fn write(output: &Output, contents: Vec<(&str, Vec<u8>)>) -> Result<(), Failure> {
    let directory = Path::new(&output.directory);
    let contents: Vec<(PathBuf, Vec<u8>)> =
        contents.into_iter().map(|(name, content)| (directory.join(name), content)).collect();
    for (path, _) in &contents {
        files::check_absent(path, output.force)?;
    }
    files::write_together(&contents, PRIVATE)?;
    for (path, _) in &contents {
        eprintln!("writing {}", path.display());
    }
    Ok(())
}

fn uki(call: &Call) -> Result<(), Failure> {
    let authority = Authority::generate(
        KeyAlgorithm::Rsa4096,
        call.text("common-name"),
        Timestamp::now(),
        Authority::TEN_YEARS,
    )
    .context("make the certificate")?;
    let der = pkcs7::certificate_der(authority.crt_pem()).context("read the certificate")?;
    write(
        &Output::of(call),
        vec![
            ("uki-signing-cert.pem", authority.crt_pem().as_bytes().to_vec()),
            ("uki-signing-cert.der", der),
            ("uki-signing-key.pem", authority.key_pem().into_bytes()),
        ],
    )
}

fn pcr(call: &Call) -> Result<(), Failure> {
    let key = PrivateKey::generate_rsa_2048().context("make the key")?;
    write(&Output::of(call), vec![("pcr-signing-key.pem", key.to_pem().as_bytes().to_vec())])
}

/// The namespace of PK and KEK, as it is stored: 8be4df61-93ca-11d2-aa0d-00e098032b8c.
const GLOBAL: [u8; 16] =
    [0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c];
/// The namespace of db: d719b2cb-3d3a-4596-a3bc-dad00e67656f.
const SECURITY: [u8; 16] =
    [0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f];
/// A list of X.509 certificates: a5c059a1-94e4-4aa7-87b5-ab155c2bf072.
const X509: [u8; 16] =
    [0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72];
/// A PKCS#7 signature: 4aafd29d-68df-49ee-8aa9-347d375665a7.
const PKCS7: [u8; 16] =
    [0x9d, 0xd2, 0xaf, 0x4a, 0xdf, 0x68, 0xee, 0x49, 0x8a, 0xa9, 0x34, 0x7d, 0x37, 0x56, 0x65, 0xa7];
/// Kept, for boot services and the running system, writes signed with a time.
const ATTRIBUTES: u32 = 0x27;

fn database(call: &Call) -> Result<(), Failure> {
    if call.on("include-well-known-uefi-certs") {
        return Err(Failure::new("the certificates of Microsoft are not part of this program")
            .hint("enroll them with the tools of the firmware, or leave the flag out"));
    }
    let output = Output::of(call);
    let directory = Path::new(&output.directory);
    let file =
        |flag: &str, name: &str| call.some_text(flag).map_or_else(|| directory.join(name), PathBuf::from);
    let certificate = files::read(&file("enrolled-certificate", "uki-signing-cert.pem"))?;
    let signing = files::read(&file("signing-certificate", "uki-signing-cert.pem"))?;
    let key = file("signing-key", "uki-signing-key.pem");
    let key = PrivateKey::from_pem(files::read(&key)?).context(format!("read {}", key.display()))?;
    let enrolled = pkcs7::certificate_der(certificate).context("read the certificate to enroll")?;
    let mut owner = random::bytes::<16>().context("draw an identifier")?;
    // A random identifier says so in two places (RFC 4122).
    owner[7] = owner[7] & 0x0f | 0x40;
    owner[8] = owner[8] & 0x3f | 0x80;
    let list = signature_list(&owner, &enrolled);
    let now = Timestamp::now();
    let mut contents = Vec::new();
    for (file, name, namespace) in
        [("db.auth", "db", SECURITY), ("KEK.auth", "KEK", GLOBAL), ("PK.auth", "PK", GLOBAL)]
    {
        let signed = signed_content(name, &namespace, &efi_time(now), &list);
        let signature = pkcs7::detached(&signed, &signing, &key, now).context(format!("sign {name}"))?;
        contents.push((file, variable(&efi_time(now), &signature, &list)));
    }
    write(&output, contents)
}

/// EFI_SIGNATURE_LIST with one certificate.
fn signature_list(owner: &[u8; 16], certificate: &[u8]) -> Vec<u8> {
    let entry = 16 + certificate.len() as u32;
    let mut out = X509.to_vec();
    for number in [28 + entry, 0, entry] {
        out.extend(number.to_le_bytes());
    }
    out.extend(owner);
    out.extend(certificate);
    out
}

/// EFI_TIME, in UTC.
fn efi_time(now: Timestamp) -> [u8; 16] {
    let at = now.to_zoned(TimeZone::UTC).datetime();
    let mut out = [0; 16];
    out[..2].copy_from_slice(&at.year().to_le_bytes());
    for (place, part) in out[2..7].iter_mut().zip([at.month(), at.day(), at.hour(), at.minute(), at.second()])
    {
        *place = part as u8;
    }
    out
}

/// What the signature of a variable is over.
fn signed_content(name: &str, namespace: &[u8; 16], time: &[u8; 16], list: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    out.extend(namespace);
    out.extend(ATTRIBUTES.to_le_bytes());
    out.extend(time);
    out.extend(list);
    out
}

/// EFI_VARIABLE_AUTHENTICATION_2 and the value behind it.
fn variable(time: &[u8; 16], signature: &[u8], list: &[u8]) -> Vec<u8> {
    let mut out = time.to_vec();
    out.extend((24 + signature.len() as u32).to_le_bytes());
    out.extend(0x0200_u16.to_le_bytes());
    out.extend(0x0ef1_u16.to_le_bytes());
    out.extend(PKCS7);
    out.extend(signature);
    out.extend(list);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_the_layout_that_firmware_reads() {
        let now = Timestamp::from_second(1_794_738_097).unwrap();
        let time = efi_time(now);
        assert_eq!(time[..8], [0xea, 0x07, 11, 15, 10, 21, 37, 0]);
        let list = signature_list(&[7; 16], &[0x30; 100]);
        assert_eq!(list.len(), 28 + 16 + 100);
        assert_eq!(list[16..28], [144, 0, 0, 0, 0, 0, 0, 0, 116, 0, 0, 0]);
        let whole = variable(&time, &[1, 2, 3], &list);
        assert_eq!(whole[16..24], [27, 0, 0, 0, 0, 2, 0xf1, 0x0e]);
        assert_eq!(whole[40..43], [1, 2, 3]);
        let signed = signed_content("db", &SECURITY, &time, &list);
        assert_eq!(signed[..4], *b"d\0b\0");
        assert_eq!(signed[20..24], [0x27, 0, 0, 0]);
    }
}
