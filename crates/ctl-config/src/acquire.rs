//! Where a configuration comes from at boot, in which order, and when the search ends. Pure.

/// A place a configuration can come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// What an earlier boot persisted.
    State,
    /// Part of the image.
    Embedded,
    /// `talos.config.early` on the kernel command line.
    CmdlineEarly,
    /// The platform.
    Platform,
    /// `talos.config.inline` on the kernel command line.
    CmdlineLate,
    /// Handed in over the maintenance API.
    Maintenance,
}

impl Source {
    /// The name in logs; the platform goes by its own.
    pub fn name(self, platform: &str) -> &str {
        match self {
            Self::State => "state",
            Self::Embedded => "embedded",
            Self::CmdlineEarly => "cmdline-early",
            Self::Platform => platform,
            Self::CmdlineLate => "cmdline-late",
            Self::Maintenance => "maintenance",
        }
    }

    /// Whether a configuration from here has to fit the platform. What was persisted or built in
    /// was checked before, and may be of an older day.
    pub fn is_checked_for_platform(self) -> bool {
        match self {
            Self::State | Self::Embedded => false,
            Self::CmdlineEarly | Self::Platform | Self::CmdlineLate | Self::Maintenance => true,
        }
    }
}

/// What a source had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// Documents, but not the one a machine boots with.
    Partial,
    /// A configuration to boot with.
    Complete,
}

/// Where the search goes on; `None` when it is over.
pub fn next(source: Source, found: Found) -> Option<Source> {
    match (source, found) {
        (_, Found::Complete) => None,
        (Source::State, Found::Partial) => Some(Source::Maintenance),
        (Source::State, Found::Nothing) => Some(Source::Embedded),
        (Source::Embedded, _) => Some(Source::CmdlineEarly),
        (Source::CmdlineEarly, _) => Some(Source::Platform),
        (Source::Platform, _) => Some(Source::CmdlineLate),
        (Source::CmdlineLate | Source::Maintenance, _) => Some(Source::Maintenance),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(had: &[(Source, Found)]) -> Vec<&'static str> {
        let mut names = Vec::new();
        let mut source = Some(Source::State);
        while let Some(now) = source {
            names.push(now.name("metal"));
            if now == Source::Maintenance {
                break;
            }
            let found = had.iter().find(|(at, _)| *at == now).map_or(Found::Nothing, |(_, found)| *found);
            source = next(now, found);
        }
        names
    }

    #[test]
    fn an_empty_machine_ends_in_maintenance() {
        assert_eq!(path(&[]), ["state", "embedded", "cmdline-early", "metal", "cmdline-late", "maintenance"]);
    }

    #[test]
    fn a_complete_configuration_ends_the_search() {
        assert_eq!(path(&[(Source::State, Found::Complete)]), ["state"]);
        assert_eq!(
            path(&[(Source::Platform, Found::Complete)]),
            ["state", "embedded", "cmdline-early", "metal"]
        );
    }

    #[test]
    fn a_partial_one_on_state_leads_straight_to_maintenance() {
        assert_eq!(path(&[(Source::State, Found::Partial)]), ["state", "maintenance"]);
        assert_eq!(path(&[(Source::Embedded, Found::Partial)]).len(), 6);
    }
}
