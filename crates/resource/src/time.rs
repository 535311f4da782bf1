//! Time.

use ichor_resource_derive::ResourceSpec;

use crate::value::GoDuration;

/// Kernel adjtimex state.
///
/// Id: `node`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "AdjtimeStatuses.v1alpha1.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.time.AdjtimeStatusSpec")]
#[resource(columns(
    ("Offset", "{.offset}"),
    ("EstError", "{.estError}"),
    ("MaxError", "{.maxError}"),
    ("Status", "{.status}"),
    ("Sync", "{.syncStatus}"),
))]
pub struct AdjtimeStatus {
    #[spec(1, "offset")]
    pub offset: GoDuration,
    #[spec(2, "frequencyAdjustmentRatio")]
    pub frequency_adjustment_ratio: f64,
    #[spec(3, "maxError")]
    pub max_error: GoDuration,
    #[spec(4, "estError")]
    pub est_error: GoDuration,
    #[spec(5, "status")]
    pub status: String,
    #[spec(6, "constant")]
    pub constant: i64,
    #[spec(7, "syncStatus")]
    pub sync_status: bool,
    #[spec(8, "state")]
    pub state: String,
}

/// Time sync state; `epoch` counts jumps and makes certificates regenerate.
///
/// Id: `node`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "TimeStatuses.v1alpha1.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.time.StatusSpec")]
#[resource(columns(("Synced", "{.synced}")))]
pub struct TimeStatus {
    #[spec(1, "synced")]
    pub synced: bool,
    #[spec(2, "epoch")]
    pub epoch: i64,
    #[spec(3, "syncDisabled")]
    pub sync_disabled: bool,
}
