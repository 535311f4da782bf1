//! Private keys: Ed25519, ECDSA and RSA, in the PEM dialect of the original.

use std::fmt;

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use zeroize::Zeroizing;

use crate::{PkiError, der, oid, text};

/// The kind of a key to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAlgorithm {
    /// Ed25519, the default of the node API.
    Ed25519,
    /// ECDSA over P-256, the default of Kubernetes and etcd.
    EcdsaP256,
    /// RSA with 4096 bits, for service accounts. Slow to make.
    Rsa4096,
}

/// The family of a key. A certificate must be signed by a key of the family its request used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFamily {
    /// Ed25519.
    Ed25519,
    /// ECDSA over any curve.
    Ecdsa,
    /// RSA of any size.
    Rsa,
}

impl KeyFamily {
    /// What a leaf key of this family is made as.
    pub const fn leaf_algorithm(self) -> KeyAlgorithm {
        match self {
            KeyFamily::Ed25519 => KeyAlgorithm::Ed25519,
            KeyFamily::Ecdsa => KeyAlgorithm::EcdsaP256,
            KeyFamily::Rsa => KeyAlgorithm::Rsa4096,
        }
    }
}

impl fmt::Display for KeyFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyFamily::Ed25519 => "Ed25519",
            KeyFamily::Ecdsa => "ECDSA",
            KeyFamily::Rsa => "RSA",
        })
    }
}

struct Curve {
    oid: &'static [u8],
    signature_oid: &'static [u8],
    scalar_len: usize,
    signing: &'static EcdsaSigningAlgorithm,
}

static CURVES: [Curve; 3] = [
    Curve {
        oid: oid::P256,
        signature_oid: oid::ECDSA_SHA256,
        scalar_len: 32,
        signing: &ECDSA_P256_SHA256_ASN1_SIGNING,
    },
    Curve {
        oid: oid::P384,
        signature_oid: oid::ECDSA_SHA384,
        scalar_len: 48,
        signing: &ECDSA_P384_SHA384_ASN1_SIGNING,
    },
    Curve {
        oid: oid::P521,
        signature_oid: oid::ECDSA_SHA512,
        scalar_len: 66,
        signing: &ECDSA_P521_SHA512_ASN1_SIGNING,
    },
];

enum Signer {
    Ed25519(Ed25519KeyPair),
    Ecdsa(EcdsaKeyPair, &'static Curve),
    Rsa(Box<aws_lc_rs::rsa::KeyPair>),
}

/// A private key that can sign and print itself.
pub struct PrivateKey {
    signer: Signer,
    /// PKCS#8 for Ed25519, SEC1 for ECDSA, PKCS#1 for RSA.
    der: Zeroizing<Vec<u8>>,
    spki: Vec<u8>,
}

/// Searches for the primes of one key at most; more cores bring ever less.
const SEARCHES_MAX: usize = 4;

impl PrivateKey {
    /// Makes a new key. RSA takes about half a second: primes are searched on up to [`SEARCHES_MAX`] cores at once,
    /// and the first key found is taken. The other searches end with their keys unused, or with the program.
    pub fn generate(algorithm: KeyAlgorithm) -> Result<Self, PkiError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if algorithm != KeyAlgorithm::Rsa4096 || cores < 2 {
            return Self::search(algorithm);
        }
        let (found, first) = std::sync::mpsc::sync_channel(SEARCHES_MAX);
        for _ in 1..cores.min(SEARCHES_MAX) {
            let found = found.clone();
            // Without another thread the search goes on in this one.
            let _ = std::thread::Builder::new().spawn(move || found.send(Self::search(algorithm)));
        }
        let own = std::thread::Builder::new().spawn(move || found.send(Self::search(algorithm)));
        match own {
            Ok(_) => first.recv().unwrap_or(Err(PkiError::Generate)),
            Err(_) => Self::search(algorithm),
        }
    }

    /// Makes a new RSA key of 2048 bits, for TPM policies.
    pub fn generate_rsa_2048() -> Result<Self, PkiError> {
        let pair = aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048);
        Self::from_signer(Signer::Rsa(Box::new(pair.map_err(|_| PkiError::Generate)?)))
    }

    fn search(algorithm: KeyAlgorithm) -> Result<Self, PkiError> {
        let signer = match algorithm {
            KeyAlgorithm::Ed25519 => Ed25519KeyPair::generate().map(Signer::Ed25519),
            KeyAlgorithm::EcdsaP256 => {
                EcdsaKeyPair::generate(CURVES[0].signing).map(|pair| Signer::Ecdsa(pair, &CURVES[0]))
            }
            KeyAlgorithm::Rsa4096 => aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa4096)
                .map(|pair| Signer::Rsa(Box::new(pair))),
        };
        Self::from_signer(signer.map_err(|_| PkiError::Generate)?)
    }

    /// Reads the first PEM block of `pem` that is no certificate, under any of the labels in use: kubelets keep their
    /// key behind their certificate, in one file.
    pub fn from_pem(pem: impl AsRef<[u8]>) -> Result<Self, PkiError> {
        let block = text::key(pem.as_ref())?;
        let der = block.contents();
        let signer = match block.tag() {
            text::ED25519_PRIVATE_KEY => ed25519(der),
            text::EC_PRIVATE_KEY => ecdsa_sec1(der),
            text::RSA_PRIVATE_KEY => rsa_pkcs1(der),
            text::PRIVATE_KEY => ed25519(der).or_else(|| ecdsa_pkcs8(der)).or_else(|| rsa_pkcs8(der)),
            other => return Err(PkiError::Label { expected: "private key", found: other.to_owned() }),
        };
        Self::from_signer(signer.ok_or(PkiError::BadKey)?)
    }

    fn from_signer(signer: Signer) -> Result<Self, PkiError> {
        let der = Zeroizing::new(encode(&signer).ok_or(PkiError::BadKey)?);
        let spki = encode_public(&signer);
        Ok(Self { signer, der, spki })
    }

    /// The key as PEM, with the label the original uses for its kind.
    pub fn to_pem(&self) -> String {
        let label = match self.signer {
            Signer::Ed25519(_) => text::ED25519_PRIVATE_KEY,
            Signer::Ecdsa(..) => text::EC_PRIVATE_KEY,
            Signer::Rsa(_) => text::RSA_PRIVATE_KEY,
        };
        text::encode(label, &self.der)
    }

    /// The public half as PEM.
    pub fn public_pem(&self) -> String {
        let label = match self.signer {
            Signer::Ed25519(_) => text::ED25519_PUBLIC_KEY,
            Signer::Ecdsa(..) => text::EC_PUBLIC_KEY,
            Signer::Rsa(_) => text::PUBLIC_KEY,
        };
        text::encode(label, &self.spki)
    }

    /// The public half as DER SubjectPublicKeyInfo.
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }

    /// The family of the key.
    pub fn family(&self) -> KeyFamily {
        match self.signer {
            Signer::Ed25519(_) => KeyFamily::Ed25519,
            Signer::Ecdsa(..) => KeyFamily::Ecdsa,
            Signer::Rsa(_) => KeyFamily::Rsa,
        }
    }

    /// The key as rustls takes it.
    pub fn to_rustls(&self) -> PrivateKeyDer<'static> {
        let der = self.der.to_vec();
        match self.signer {
            Signer::Ed25519(_) => PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der)),
            Signer::Ecdsa(..) => PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(der)),
            Signer::Rsa(_) => PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(der)),
        }
    }

    /// Signs `message` with the hash that belongs to the key.
    pub(crate) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, PkiError> {
        match &self.signer {
            Signer::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Signer::Ecdsa(pair, _) => {
                let signature = pair.sign(&SystemRandom::new(), message).map_err(|_| PkiError::Sign)?;
                Ok(signature.as_ref().to_vec())
            }
            Signer::Rsa(pair) => {
                let mut out = vec![0; pair.public_modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA512, &SystemRandom::new(), message, &mut out)
                    .map_err(|_| PkiError::Sign)?;
                Ok(out)
            }
        }
    }

    /// Signs `message` with SHA-256 where an RSA key is wanted.
    pub(crate) fn sign_rsa_sha256(&self, message: &[u8]) -> Result<Vec<u8>, PkiError> {
        let Signer::Rsa(pair) = &self.signer else { return Err(PkiError::Sign) };
        let mut out = vec![0; pair.public_modulus_len()];
        pair.sign(&signature::RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut out)
            .map_err(|_| PkiError::Sign)?;
        Ok(out)
    }

    /// The AlgorithmIdentifier of what `sign` makes.
    pub(crate) fn signature_algorithm(&self) -> Vec<u8> {
        match self.signer {
            Signer::Ed25519(_) => der::nest(der::SEQUENCE, &[der::element(der::OID, oid::ED25519)]),
            Signer::Ecdsa(_, curve) => {
                der::nest(der::SEQUENCE, &[der::element(der::OID, curve.signature_oid)])
            }
            Signer::Rsa(_) => der::nest(
                der::SEQUENCE,
                &[der::element(der::OID, oid::RSA_SHA512), der::element(der::NULL, &[])],
            ),
        }
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({})", self.family())
    }
}

fn ed25519(der: &[u8]) -> Option<Signer> {
    Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).ok().map(Signer::Ed25519)
}

fn ecdsa_sec1(der: &[u8]) -> Option<Signer> {
    CURVES.iter().find_map(|curve| {
        let pair = EcdsaKeyPair::from_private_key_der(curve.signing, der).ok()?;
        Some(Signer::Ecdsa(pair, curve))
    })
}

fn ecdsa_pkcs8(der: &[u8]) -> Option<Signer> {
    CURVES.iter().find_map(|curve| {
        let pair = EcdsaKeyPair::from_pkcs8(curve.signing, der).ok()?;
        Some(Signer::Ecdsa(pair, curve))
    })
}

fn rsa_pkcs1(der: &[u8]) -> Option<Signer> {
    aws_lc_rs::rsa::KeyPair::from_der(der).ok().map(|pair| Signer::Rsa(Box::new(pair)))
}

fn rsa_pkcs8(der: &[u8]) -> Option<Signer> {
    aws_lc_rs::rsa::KeyPair::from_pkcs8(der).ok().map(|pair| Signer::Rsa(Box::new(pair)))
}

fn encode(signer: &Signer) -> Option<Vec<u8>> {
    match signer {
        Signer::Ed25519(pair) => Some(pair.to_pkcs8v1().ok()?.as_ref().to_vec()),
        Signer::Ecdsa(pair, curve) => {
            // By hand: the original names the curve inside the key, the provider leaves it out.
            let scalar: aws_lc_rs::encoding::EcPrivateKeyBin<'_> =
                aws_lc_rs::encoding::AsBigEndian::as_be_bytes(&pair.private_key()).ok()?;
            let scalar = scalar.as_ref();
            let mut padded = Zeroizing::new(vec![0; curve.scalar_len.checked_sub(scalar.len())?]);
            padded.extend_from_slice(scalar);
            Some(der::nest(
                der::SEQUENCE,
                &[
                    der::unsigned(&[1]),
                    der::element(der::OCTET_STRING, &padded),
                    der::nest(der::context(0), &[der::element(der::OID, curve.oid)]),
                    der::nest(der::context(1), &[der::bits(pair.public_key().as_ref())]),
                ],
            ))
        }
        Signer::Rsa(pair) => {
            let pkcs8: aws_lc_rs::encoding::Pkcs8V1Der<'_> = pair.as_der().ok()?;
            Some(der::pkcs8_inner(pkcs8.as_ref())?.to_vec())
        }
    }
}

fn encode_public(signer: &Signer) -> Vec<u8> {
    let (algorithm, key) = match signer {
        Signer::Ed25519(pair) => (vec![der::element(der::OID, oid::ED25519)], pair.public_key().as_ref()),
        Signer::Ecdsa(pair, curve) => (
            vec![der::element(der::OID, oid::EC_PUBLIC_KEY), der::element(der::OID, curve.oid)],
            pair.public_key().as_ref(),
        ),
        Signer::Rsa(pair) => {
            (vec![der::element(der::OID, oid::RSA), der::element(der::NULL, &[])], pair.public_key().as_ref())
        }
    };
    der::nest(der::SEQUENCE, &[der::nest(der::SEQUENCE, &algorithm), der::bits(key)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn round_trip(algorithm: KeyAlgorithm, label: &str, public_label: &str) {
        let key = PrivateKey::generate(algorithm).expect("generate");
        let pem = key.to_pem();
        assert!(pem.starts_with(&format!("-----BEGIN {label}-----\n")), "{}", pem.lines().next().unwrap());
        assert!(key.public_pem().starts_with(&format!("-----BEGIN {public_label}-----\n")));
        let back = PrivateKey::from_pem(&pem).expect("read back");
        assert_eq!(back.spki(), key.spki());
        assert_eq!(back.to_pem(), pem);
    }

    #[test]
    fn ed25519_keys_read_back_what_they_write() {
        round_trip(KeyAlgorithm::Ed25519, "ED25519 PRIVATE KEY", "ED25519 PUBLIC KEY");
    }

    #[test]
    fn ecdsa_keys_read_back_what_they_write() {
        round_trip(KeyAlgorithm::EcdsaP256, "EC PRIVATE KEY", "EC PUBLIC KEY");
    }

    #[test]
    fn the_standard_label_is_read_for_every_family() {
        let ed = PrivateKey::generate(KeyAlgorithm::Ed25519).expect("generate");
        let plain = ed.to_pem().replace("ED25519 PRIVATE KEY", "PRIVATE KEY");
        assert_eq!(PrivateKey::from_pem(plain).expect("read").spki(), ed.spki());

        let Signer::Ecdsa(pair, _) = PrivateKey::generate(KeyAlgorithm::EcdsaP256).expect("generate").signer
        else {
            panic!("not ECDSA")
        };
        let pkcs8 = text::encode(text::PRIVATE_KEY, pair.to_pkcs8v1().expect("pkcs8").as_ref());
        assert_eq!(PrivateKey::from_pem(pkcs8).expect("read").family(), KeyFamily::Ecdsa);
    }

    #[test]
    fn a_certificate_label_is_not_a_key() {
        let error = PrivateKey::from_pem(text::encode(text::CERTIFICATE, b"x")).expect_err("label");
        assert_eq!(error.to_string(), "expected a private key in PEM, found `CERTIFICATE`");
        assert!(matches!(PrivateKey::from_pem("nonsense"), Err(PkiError::NoPem { .. })));
        assert!(matches!(
            PrivateKey::from_pem(text::encode(text::ED25519_PRIVATE_KEY, &[1, 2, 3])),
            Err(PkiError::BadKey)
        ));
    }

    #[test]
    fn debug_text_does_not_show_the_key() {
        let key = PrivateKey::generate(KeyAlgorithm::Ed25519).expect("generate");
        assert_eq!(format!("{key:?}"), "PrivateKey(Ed25519)");
    }
}
