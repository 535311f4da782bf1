//! Long tests as stories: parts in their order on one cluster, each with its name and its time.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::Fleet;

/// One part of a story.
pub type Part = fn(&Fleet) -> Result<()>;

/// Plays the parts; the first that fails ends the test with its name.
#[track_caller]
pub fn tell(fleet: &Fleet, story: &[(&'static str, Part)]) {
    for (what, part) in story {
        let start = Instant::now();
        part(fleet).context(*what).unwrap();
        println!("{what}: {:.1} s", start.elapsed().as_secs_f64());
    }
}
