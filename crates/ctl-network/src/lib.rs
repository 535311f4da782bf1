//! Controllers of links, addresses, routes, host name, resolvers and their status.
