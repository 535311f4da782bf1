//! `machine.systemDiskEncryption`: the older way to encrypt system volumes.

use crate::model::{List, section};

section! {
    /// Encryption of the system partitions.
    pub struct SystemDiskEncryption {
        /// The STATE partition.
        "state" => state: Option<Encryption>,
        /// The EPHEMERAL partition.
        "ephemeral" => ephemeral: Option<Encryption>,
    }
}

section! {
    /// Encryption of a partition.
    pub struct Encryption {
        /// Kind of encryption: `luks2`.
        @always
        "provider" => provider: String,
        /// Keys, each in its own slot.
        @always
        "keys" => keys: List<EncryptionKey>,
        /// Cipher.
        "cipher" => cipher: String,
        /// Size of the key in bits.
        "keySize" => key_size: u64,
        /// Size of the blocks in bytes.
        "blockSize" => block_size: u64,
        /// Performance options.
        "options" => options: List<String>,
    }
}

section! {
    /// A key of an encrypted partition.
    pub struct EncryptionKey {
        /// A fixed passphrase.
        "static" => static_key: Option<StaticKey>,
        /// A key derived from the identity of the machine.
        "nodeID" => node_id: Option<NodeIdKey>,
        /// A key sealed by a key server.
        "kms" => kms: Option<KmsKey>,
        /// Slot of the key.
        @always
        "slot" => slot: i64,
        /// A key sealed by the TPM.
        "tpm" => tpm: Option<TpmKey>,
    }
}

section! {
    /// A fixed passphrase.
    pub struct StaticKey {
        /// The passphrase.
        "passphrase" => passphrase: String,
    }
}

section! {
    /// A key derived from the identity of the machine.
    pub struct NodeIdKey {}
}

section! {
    /// A key sealed by a key server.
    pub struct KmsKey {
        /// Where the server listens.
        @always
        "endpoint" => endpoint: String,
    }
}

section! {
    /// A key sealed by the TPM.
    pub struct TpmKey {
        /// Refuse to enrol unless secure boot is on.
        @default("false")
        "checkSecurebootStatusOnEnroll" => check_secureboot_status_on_enroll: Option<bool>,
    }
}
