//! Roles in request metadata.

use http::{HeaderMap, HeaderName, HeaderValue};
use ichor_pki::{Role, RoleSet};
use tonic::metadata::AsciiMetadataValue;

use crate::peer::PeerIdentity;

/// The metadata key that carries roles, one value per role.
pub const ROLE_KEY: &str = "talos-role";

pub(crate) const ROLE: HeaderName = HeaderName::from_static(ROLE_KEY);

/// The roles named in the headers of a request.
pub fn from_headers(headers: &HeaderMap) -> RoleSet {
    RoleSet::parse(headers.get_all(ROLE).iter().filter_map(|value| value.to_str().ok()))
}

/// The roles a TCP peer acts with: its own, or, for an impersonator, the ones it names.
pub fn effective(own: &RoleSet, headers: &HeaderMap) -> RoleSet {
    if own.contains(Role::Impersonator) && headers.contains_key(ROLE) {
        from_headers(headers)
    } else {
        own.clone()
    }
}

/// Roles as header values, made once and put on many requests.
pub fn header_values(roles: &RoleSet) -> Vec<HeaderValue> {
    // A role with bytes that no header can carry is a role nobody knows: it may be left out.
    roles.iter().filter_map(|role| HeaderValue::from_str(role).ok()).collect()
}

/// Replaces the roles in `headers`.
pub fn write(headers: &mut HeaderMap, values: &[HeaderValue]) {
    headers.remove(ROLE);
    for value in values {
        headers.append(ROLE, value.clone());
    }
}

/// Adds roles to a request made by a client on the node itself.
pub fn add<T>(request: &mut tonic::Request<T>, roles: &RoleSet) {
    for role in roles.iter() {
        if let Ok(value) = AsciiMetadataValue::try_from(role) {
            request.metadata_mut().append(ROLE_KEY, value);
        }
    }
}

/// The roles of the caller, as the layers before the handler found them; none when nothing is known.
pub fn of_request<T>(request: &tonic::Request<T>) -> RoleSet {
    of_extensions(request.extensions())
}

/// The same, from the extensions alone.
pub fn of_extensions(extensions: &http::Extensions) -> RoleSet {
    if let Some(Caller(roles)) = extensions.get::<Caller>() {
        return roles.clone();
    }
    let peer = extensions.get::<std::sync::Arc<PeerIdentity>>();
    peer.map(|peer| peer.roles.clone()).unwrap_or_default()
}

/// The roles a request was let in with. Put into its extensions by [`crate::authorize::ByRole`].
#[derive(Clone, Debug, Default)]
pub struct Caller(pub RoleSet);

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(roles: &[&'static str]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for role in roles {
            map.append(ROLE, HeaderValue::from_static(role));
        }
        map
    }

    #[test]
    fn only_an_impersonator_may_name_roles() {
        let reader = RoleSet::of(&[Role::Reader]);
        assert_eq!(effective(&reader, &headers(&["os:admin"])), reader);
        let machine = RoleSet::of(&[Role::Impersonator]);
        assert_eq!(effective(&machine, &headers(&["os:admin"])), RoleSet::of(&[Role::Admin]));
        assert_eq!(effective(&machine, &headers(&[])), machine);
    }

    #[test]
    fn written_roles_replace_the_ones_that_were_there() {
        let mut map = headers(&["os:admin", "os:reader"]);
        write(&mut map, &header_values(&RoleSet::of(&[Role::Reader, Role::Operator])));
        assert_eq!(from_headers(&map), RoleSet::of(&[Role::Reader, Role::Operator]));
        write(&mut map, &[]);
        assert!(!map.contains_key(ROLE));
    }
}
