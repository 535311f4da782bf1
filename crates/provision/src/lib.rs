//! What every provider of machines offers: create, start, stop, cut the power, console, destroy.
