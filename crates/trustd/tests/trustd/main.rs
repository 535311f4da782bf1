//! trustd from end to end: who gets a certificate, who is turned away, who stalls.

mod signing;
mod strangers;
mod support;
