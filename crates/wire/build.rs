//! Compiles the service packages to Rust, without `protoc`.
//!
//! The packages of resource specs are not compiled: `ichor-resource` describes each spec once, in
//! Rust, and a test there holds it against the same `.proto` files.
//!
//! Clients and messages are the libraries' work. The servers are written here: all their methods take the one path
//! of `src/serve.rs` through the gRPC stack, where generated ones have a copy of it each.

use std::fmt::Write;

use prost_build::{Config, Method, Service, ServiceGenerator};

const SERVICES: &[&str] = &[
    "common/common.proto",
    "machine/machine.proto",
    "cluster/cluster.proto",
    "inspect/inspect.proto",
    "storage/storage.proto",
    "time/time.proto",
    "security/security.proto",
    "v1alpha1/state.proto",
    "v1alpha1/meta.proto",
    "google/rpc/status.proto",
    "discovery/server.proto",
    "discovery/client.proto",
    "containerd/containerd.proto",
    "cri/cri.proto",
    "etcd/etcd.proto",
    "ichor/node.proto",
    "ichor/audit.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(SERVICES, ["proto"])?;
    let clients = tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .codec_path("crate::codec::Codec")
        .service_generator();
    Config::new()
        .bytes([".common.Data.bytes", ".etcd.SnapshotResponse.blob", ".cosi.resource.Spec.proto_spec"])
        .service_generator(Box::new(Services { clients }))
        .compile_fds(descriptors)?;
    Ok(())
}

/// Clients by the library, servers by us.
struct Services {
    clients: Box<dyn ServiceGenerator>,
}

impl ServiceGenerator for Services {
    fn generate(&mut self, service: Service, buf: &mut String) {
        // Writing to a String cannot fail.
        let _ = server(&service, buf);
        self.clients.generate(service, buf);
    }

    fn finalize(&mut self, buf: &mut String) {
        self.clients.finalize(buf);
    }

    fn finalize_package(&mut self, package: &str, buf: &mut String) {
        self.clients.finalize_package(package, buf);
    }
}

/// The trait to implement, and the server around it: names and signatures are those the library would give them.
fn server(service: &Service, out: &mut String) -> std::fmt::Result {
    let (name, full) = (&service.name, format!("{}.{}", service.package, service.proto_name));
    let module = snake(name);
    writeln!(out, "/// The server side of `{full}`.")?;
    writeln!(out, "pub mod {module}_server {{")?;
    writeln!(out, "use tonic::codegen::*;")?;
    writeln!(out, "/// The methods of `{full}`.\n#[async_trait]")?;
    writeln!(out, "pub trait {name}: Send + Sync + 'static {{")?;
    for method in &service.methods {
        let (input, output) = (request(method), path(&method.output_type));
        let answer = if method.server_streaming {
            let stream = &method.proto_name;
            writeln!(
                out,
                "type {stream}Stream: tokio_stream::Stream<Item = Result<{output}, tonic::Status>> + Send + 'static;"
            )?;
            format!("Self::{stream}Stream")
        } else {
            output
        };
        method.comments.append_with_indent(0, out);
        writeln!(
            out,
            "async fn {}(&self, request: tonic::Request<{input}>) -> Result<tonic::Response<{answer}>, tonic::Status>;",
            method.name
        )?;
    }
    writeln!(out, "}}")?;
    writeln!(out, "/// Serves a [`{name}`].\n#[derive(Debug)]")?;
    writeln!(out, "pub struct {name}Server<T> {{ inner: Arc<T>, limits: crate::serve::Limits }}")?;
    writeln!(out, "impl<T> {name}Server<T> {{")?;
    writeln!(out, "pub fn new(inner: T) -> Self {{ Self::from_arc(Arc::new(inner)) }}")?;
    writeln!(
        out,
        "pub fn from_arc(inner: Arc<T>) -> Self {{ Self {{ inner, limits: Default::default() }} }}"
    )?;
    for limit in ["max_decoding_message_size", "max_encoding_message_size"] {
        writeln!(
            out,
            "#[must_use] pub fn {limit}(mut self, limit: usize) -> Self {{ self.limits.{limit} = Some(limit); self }}"
        )?;
    }
    writeln!(out, "}}")?;
    writeln!(
        out,
        "impl<T: {name}, B> Service<http::Request<B>> for {name}Server<T>
        where B: Body<Data = Bytes> + Send + 'static, B::Error: Into<StdError> + Send + 'static {{
            type Response = http::Response<tonic::body::Body>;
            type Error = std::convert::Infallible;
            type Future = BoxFuture<Self::Response, Self::Error>;
            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {{
                Poll::Ready(Ok(()))
            }}
            fn call(&mut self, req: http::Request<B>) -> Self::Future {{
                let (inner, limits) = (Arc::clone(&self.inner), self.limits);
                match req.uri().path() {{"
    )?;
    for method in &service.methods {
        write!(out, "\"/{full}/{}\" => ", method.proto_name)?;
        arm(name, method, out)?;
    }
    writeln!(out, "_ => crate::serve::unknown(),")?;
    writeln!(out, "}} }} }}")?;
    writeln!(
        out,
        "impl<T> Clone for {name}Server<T> {{
            fn clone(&self) -> Self {{ Self {{ inner: Arc::clone(&self.inner), limits: self.limits }} }}
        }}
        /// The full name of the service.
        pub const SERVICE_NAME: &str = \"{full}\";
        impl<T> tonic::server::NamedService for {name}Server<T> {{ const NAME: &'static str = SERVICE_NAME; }}"
    )?;
    writeln!(out, "}}")
}

/// What becomes of a call of one method.
fn arm(service: &str, method: &Method, out: &mut String) -> std::fmt::Result {
    let call = format!("<T as {service}>::{}(&inner, request).await", method.name);
    if method.client_streaming {
        assert!(!method.server_streaming, "no service streams both ways yet");
        let (input, output) = (path(&method.input_type), path(&method.output_type));
        return writeln!(
            out,
            "{{
                struct Method<T>(Arc<T>);
                impl<T: {service}> tonic::server::ClientStreamingService<{input}> for Method<T> {{
                    type Response = {output};
                    type Future = BoxFuture<tonic::Response<Self::Response>, tonic::Status>;
                    fn call(&mut self, request: tonic::Request<tonic::Streaming<{input}>>) -> Self::Future {{
                        let inner = Arc::clone(&self.0);
                        Box::pin(async move {{ {call} }})
                    }}
                }}
                crate::serve::client_streaming(limits, req, Method(inner))
            }}"
        );
    }
    let (serve, outgoing) = if method.server_streaming { ("streaming", "stream") } else { ("unary", "item") };
    writeln!(
        out,
        "crate::serve::{serve}(limits, crate::serve::own(req), Box::new(move |request| Box::pin(async move {{
            let request = crate::serve::read(request)?;
            {call}.map(crate::serve::{outgoing})
        }}))),"
    )
}

fn request(method: &Method) -> String {
    let input = path(&method.input_type);
    if method.client_streaming { format!("tonic::Streaming<{input}>") } else { input }
}

/// A type as the server's module sees it.
fn path(of: &str) -> String {
    if of == "()" || of.starts_with("::") { of.to_owned() } else { format!("super::{of}") }
}

fn snake(name: &str) -> String {
    let mut out = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}
