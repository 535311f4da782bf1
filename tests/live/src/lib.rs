//! What the live suites share: clusters that clean up after themselves, bounded waits.
