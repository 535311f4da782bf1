//! The resources that describe all others: namespaces and definitions.

use ichor_cosi::{State, StateError};
use ichor_resource::meta::{NAMESPACES, Namespace, OWNER, ResourceDefinition};
use ichor_resource::value::Message;
use ichor_resource::{TypedSpec, Visitor, visit_all};

struct Register<'a> {
    state: &'a State,
    result: Result<(), StateError>,
}

impl Visitor for Register<'_> {
    fn visit<T: TypedSpec + Message>(&mut self) {
        self.state.register::<T>();
        let definition = T::definition();
        let id = definition.type_name.to_lowercase();
        let created = self.state.create("meta", &id, ResourceDefinition::from(definition), OWNER);
        if let (Err(error), Ok(())) = (created, &self.result) {
            self.result = Err(error);
        }
    }
}

/// Makes every resource type and every namespace known.
pub fn register(state: &State) -> Result<(), StateError> {
    state.register::<Namespace>();
    for (name, description) in NAMESPACES {
        let spec = Namespace { description: (*description).to_owned() };
        state.create("meta", name, spec, OWNER)?;
    }
    let mut register = Register { state, result: Ok(()) };
    visit_all(&mut register);
    register.result
}

#[cfg(test)]
mod tests {
    use ichor_cosi::SystemClock;

    use super::*;

    #[test]
    fn every_type_has_its_definition() {
        let state = State::new(SystemClock);
        register(&state).unwrap();
        let definitions = state.list::<ResourceDefinition>("meta");
        assert_eq!(definitions.len(), ichor_resource::catalogue().count());
        assert!(definitions.len() > 150, "{}", definitions.len());
        assert_eq!(state.list::<Namespace>("meta").len(), NAMESPACES.len());
        assert!(definitions.iter().all(|definition| definition.meta().owner() == OWNER));
    }
}
