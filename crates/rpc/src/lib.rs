//! mTLS servers with reload, peer identity and roles, Unix sockets, the raw proxy.
