//! The State service: access rules, codes, shapes of replies.

use ichor_cosi::{
    AccessRequest, AllowAll, CoreState, EventKind, ReadOnly, RemoteState, State, StateOptions, StateService,
    SystemClock, Typed, WatchOptions,
};
use ichor_resource::RawSpec;
use ichor_testkit::{A, B, state};
use ichor_wire::cosi::resource as wire;
use ichor_wire::cosi::resource::state_client::StateClient;
use tonic::Code;

const TYPE: &str = "As.test.ichor.dev";

/// Defines a type or a namespace as the meta resources do.
fn define(state: &State, kind: &str, id: &str) {
    let kind = state.kind("meta", kind);
    let draft = kind.draft(id, std::sync::Arc::new(RawSpec::default()));
    kind.create(draft, "meta").unwrap();
}

fn is_admin(request: &AccessRequest<'_>) -> bool {
    request.metadata.get("role").is_some_and(|role| role == "os:admin")
}

fn get(namespace: &str, type_name: &str) -> wire::GetRequest {
    wire::GetRequest {
        namespace: namespace.to_owned(),
        r#type: type_name.to_owned(),
        id: "x".to_owned(),
        options: None,
    }
}

#[tokio::test]
async fn the_rules_of_the_resource_api_are_checked_in_order() {
    let (state, _) = state();
    state.register::<A>();
    define(&state, "ResourceDefinitions.meta.cosi.dev", "as.test.ichor.dev");
    define(&state, "ResourceDefinitions.meta.cosi.dev", "secrets.test.ichor.dev");
    define(&state, "Namespaces.meta.cosi.dev", "ns-a");
    state.create("ns-a", "x", A::new(1), "").unwrap();
    let filter = ReadOnly::new(state.clone(), is_admin);
    let mut client = StateClient::new(StateService::new(state, filter));

    assert!(client.get(get("ns-a", TYPE)).await.is_ok());
    let cases = [
        ("ns-a", "Unknown", "resource type \"Unknown\" is not supported"),
        ("nowhere", "Unknown", "resource type \"Unknown\" is not supported"),
        // Defined, but nothing is known about it: sensitive to be safe.
        ("nowhere", "Secrets.test.ichor.dev", "not authorized"),
        ("nowhere", TYPE, "namespace \"nowhere\" is not supported"),
    ];
    for (namespace, type_name, text) in cases {
        let status = client.get(get(namespace, type_name)).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::PermissionDenied, text));
    }
    let mut request = tonic::Request::new(get("ns-a", "Secrets.test.ichor.dev"));
    request.metadata_mut().insert("role", "os:admin".parse().unwrap());
    assert_eq!(client.get(request).await.unwrap_err().code(), Code::NotFound);

    let destroy = wire::DestroyRequest {
        namespace: "ns-a".to_owned(),
        r#type: TYPE.to_owned(),
        id: "x".to_owned(),
        options: None,
    };
    let status = client.destroy(destroy).await.unwrap_err();
    let expected = (Code::PermissionDenied, "write access is not allowed");
    assert_eq!((status.code(), status.message()), expected);
}

#[tokio::test]
async fn unknown_kinds_and_methods_do_not_grow_the_state() {
    let (state, _) = state();
    let mut client = StateClient::new(StateService::new(state.clone(), AllowAll));
    assert_eq!(client.get(get("a", "b")).await.unwrap_err().code(), Code::NotFound);
    let list = wire::ListRequest { namespace: "a".to_owned(), r#type: "b".to_owned(), options: None };
    let mut stream = client.list(list).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_none());
    let watch =
        wire::WatchRequest { namespace: "a".to_owned(), r#type: "b".to_owned(), ..Default::default() };
    assert_eq!(client.watch(watch).await.unwrap_err().code(), Code::NotFound);
    assert!(state.kinds().is_empty());
}

#[tokio::test]
async fn the_number_of_kinds_has_a_bound() {
    let options = StateOptions { unregistered_types: true, max_kinds: 2, ..StateOptions::default() };
    let state = State::with_options(SystemClock, options);
    let mut client = StateClient::new(StateService::new(state, AllowAll));
    for (type_name, code) in
        [("a", Code::NotFound), ("b", Code::NotFound), ("c", Code::ResourceExhausted), ("a", Code::NotFound)]
    {
        let status = client.get(get("ns", type_name)).await.unwrap_err();
        assert_eq!(status.code(), code, "{type_name}");
    }
}

#[tokio::test]
async fn bad_requests_have_codes() {
    let (state, _) = state();
    state.create("ns-a", "x", A::new(1), "").unwrap();
    let mut client = StateClient::new(StateService::new(state, AllowAll));
    let watch = |id: Option<&str>, options: wire::WatchOptions| wire::WatchRequest {
        namespace: "ns-a".to_owned(),
        r#type: TYPE.to_owned(),
        id: id.map(str::to_owned),
        options: Some(options),
        api_version: 1,
    };
    let unknown_operator = wire::LabelQuery { terms: vec![wire::LabelTerm { op: 99, ..Default::default() }] };
    let cases = [
        (
            watch(Some("x"), wire::WatchOptions { bootstrap_contents: true, ..Default::default() }),
            Code::Unimplemented,
        ),
        (
            watch(
                Some("x"),
                wire::WatchOptions { label_query: vec![Default::default()], ..Default::default() },
            ),
            Code::Unimplemented,
        ),
        (
            watch(None, wire::WatchOptions { label_query: vec![unknown_operator], ..Default::default() }),
            Code::Unimplemented,
        ),
        (
            watch(
                None,
                wire::WatchOptions {
                    id_query: Some(wire::IdQuery { regexp: "(".to_owned() }),
                    ..Default::default()
                },
            ),
            Code::InvalidArgument,
        ),
        (
            watch(
                None,
                wire::WatchOptions { start_from_bookmark: Some(b"foreign".to_vec()), ..Default::default() },
            ),
            Code::FailedPrecondition,
        ),
    ];
    for (request, code) in cases {
        let status = client.watch(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), code, "{request:?}");
    }
    let create = wire::CreateRequest::default();
    let status = client.create(create).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "metadata is missing"));
}

#[tokio::test]
async fn old_clients_are_not_told_what_they_do_not_know() {
    let (state, _) = state();
    state.create("ns-a", "x", A::new(1), "").unwrap();
    let mut client = StateClient::new(StateService::new(state.clone(), AllowAll));
    let request = wire::WatchRequest {
        namespace: "ns-a".to_owned(),
        r#type: TYPE.to_owned(),
        options: Some(wire::WatchOptions { bootstrap_contents: true, ..Default::default() }),
        ..Default::default()
    };
    let mut stream = client.watch(request).await.unwrap().into_inner();
    let greeting = stream.message().await.unwrap().unwrap();
    assert!(greeting.event.is_empty());
    let first = stream.message().await.unwrap().unwrap();
    assert_eq!(first.event[0].event_type(), wire::EventType::Created);
    state.create("ns-a", "y", A::new(1), "").unwrap();
    let second = stream.message().await.unwrap().unwrap();
    let resource = second.event[0].resource.clone().unwrap();
    assert_eq!(resource.metadata.unwrap().id, "y");
}

#[tokio::test]
async fn typed_reads_and_watches_work_from_afar() {
    let (state, _) = state();
    state.register::<B>();
    state.create("ns-a", "x", A::new(1), "me").unwrap();
    let remote = RemoteState::new(StateService::new(state.clone(), AllowAll));

    let found = remote.get_typed::<A>("ns-a", "x").await.unwrap().unwrap();
    assert_eq!((found.number, found.meta().owner()), (1, "me"));
    assert!(remote.get_typed::<A>("ns-a", "none").await.unwrap().is_none());
    assert_eq!(remote.list_typed::<A>("ns-a").await.unwrap().len(), 1);
    assert!(remote.list_typed::<B>("ns-b").await.unwrap().is_empty());

    let options = WatchOptions::with_contents();
    let mut watch = remote.watch_typed::<A>("ns-a", options).await.unwrap();
    let batch = watch.next_batch().await.unwrap();
    let kinds: Vec<_> = batch.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Created, EventKind::Bootstrapped], "one batch");
    state.modify::<A>("ns-a", "x", "me", |a| a.number = 2).unwrap();
    let batch = watch.next_batch().await.unwrap();
    let changed = Typed::<A>::new(batch[0].resource.clone()).unwrap();
    assert_eq!(changed.number, 2);

    let mut watch = remote.watch_id_typed::<A>("ns-a", "none").await.unwrap();
    let batch = watch.next_batch().await.unwrap();
    assert_eq!(batch[0].kind, EventKind::Destroyed);

    // Typed contents are decoded when they are written.
    let kind = std::sync::Arc::new(ichor_resource::Kind::new("ns-a", TYPE));
    let written = CoreState::get(&remote, &kind, "x").await.unwrap();
    let mut draft = written.as_ref().clone();
    draft.set_spec(std::sync::Arc::new(A::new(9)));
    remote.update(draft, "me", None).await.unwrap();
    assert_eq!(state.get::<A>("ns-a", "x").unwrap().number, 9);
}
