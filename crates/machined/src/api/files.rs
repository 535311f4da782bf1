//! Files: list, read, copy, disk usage. Every step is short work; a client that does not
//! read holds no thread.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use tonic::{Response, Status};

use ichor_wire::machine::list_request::Type as FileKind;
use ichor_wire::{common, machine};

use super::archive::{self, Archive, Step};
use super::mode;
use super::reply::{self, CHUNK, Replies, data, data_error, io_status, io_text, streaming};
use super::walk::{Found, Walk};
use crate::lanes::FILES;

/// Entries gathered in one step of a walk.
const BATCH: usize = 128;

/// Streams one regular file.
pub async fn read(request: machine::ReadRequest) -> Result<Response<Replies<common::Data>>, Status> {
    let path = reply::request_path(&request.path)?;
    let file = FILES.run(move || open_regular(&path)).await??;
    let chunks = stream::unfold(Some(file), |file| async move {
        let mut file = file?;
        let step = FILES.run(move || {
            let mut buffer = vec![0; CHUNK];
            let len = fill(&mut file, &mut buffer)?;
            buffer.truncate(len);
            Ok::<_, std::io::Error>((file, buffer))
        });
        match step.await {
            Ok(Ok((_, buffer))) if buffer.is_empty() => None,
            Ok(Ok((file, buffer))) => Some((Ok(data(buffer)), Some(file))),
            Ok(Err(error)) => Some((Ok(data_error(error.to_string())), None)),
            Err(status) => Some((Err(status), None)),
        }
    });
    Ok(streaming(chunks))
}

fn open_regular(path: &Path) -> Result<File, Status> {
    let found = fs::metadata(path).map_err(|error| io_status("stat", path, &error))?;
    if !found.is_file() {
        return Err(Status::unknown("path must be a regular file"));
    }
    let file = archive::open(path).map_err(|error| io_status("open", path, &error))?;
    // Looked at again through the descriptor: the name may have been given to something else.
    match file.metadata() {
        Ok(opened) if opened.is_file() => Ok(file),
        Ok(_) => Err(Status::unknown("path must be a regular file")),
        Err(error) => Err(io_status("stat", path, &error)),
    }
}

fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read(&mut buffer[have..]) {
            Ok(0) => break,
            Ok(len) => have += len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // What was read goes out first; the error comes back on the next call.
            Err(_) if have > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(have)
}

/// Streams a tree as a gzip-compressed tar. What goes wrong once the path is known to be good is told
/// inside the stream, last.
pub async fn copy(request: machine::CopyRequest) -> Result<Response<Replies<common::Data>>, Status> {
    if !request.root_path.starts_with('/') {
        let shown = match request.root_path.as_str() {
            "" => ".",
            path => path,
        };
        return Err(Status::unknown(format!("path is not absolute {shown}")));
    }
    let path = reply::request_path(&request.root_path)?;
    let root = match FILES.run(move || root(path)).await? {
        Ok(root) => root,
        Err(error) => return Ok(streaming(stream::iter([Ok(data_error(error))]))),
    };
    let pieces = stream::unfold(Some(Archive::new(root)), |archive| async move {
        let mut archive = archive?;
        let step = FILES.run(move || archive.step().map(|step| (archive, step)));
        match step.await {
            Ok(Ok((archive, Step::Data(bytes)))) => Some((chunks(bytes, None), Some(archive))),
            Ok(Ok((_, Step::End(bytes, error)))) => Some((chunks(bytes, error), None)),
            Ok(Err(error)) => Some((vec![Ok(data_error(error.to_string()))], None)),
            Err(status) => Some((vec![Err(status)], None)),
        }
    });
    Ok(streaming(pieces.flat_map(stream::iter)))
}

/// Where a walk begins: a link is followed to its end, everything else is taken as it is named.
fn root(path: PathBuf) -> Result<PathBuf, String> {
    let found = fs::symlink_metadata(&path).map_err(|error| io_text("lstat", &path, &error))?;
    match found.is_symlink() {
        true => fs::canonicalize(&path).map_err(|error| io_text("lstat", &path, &error)),
        false => Ok(path),
    }
}

fn chunks(bytes: Vec<u8>, error: Option<String>) -> Vec<Result<common::Data, Status>> {
    let mut bytes = Bytes::from(bytes);
    let mut out = Vec::new();
    while !bytes.is_empty() {
        out.push(Ok(data(bytes.split_to(bytes.len().min(CHUNK)))));
    }
    out.extend(error.map(|error| Ok(data_error(error))));
    out
}

/// Streams directory entries.
pub async fn list(request: machine::ListRequest) -> Result<Response<Replies<machine::FileInfo>>, Status> {
    let asked = reply::request_path(&request.root)?;
    let root = FILES.run(move || root(asked)).await?.map_err(Status::unknown)?;
    let depth = match (request.recurse, request.recursion_depth) {
        (false, _) => Some(1),
        (true, depth) => usize::try_from(depth).ok().filter(|depth| *depth > 0),
    };
    let kinds: Vec<FileKind> = request.types().collect();
    let xattrs = request.report_xattrs;
    let single = root.clone();
    Ok(streaming(batches(Walk::new(root, depth), move |found| {
        let wanted = match &found.metadata {
            Ok(metadata) => kinds.is_empty() || kinds.iter().any(|kind| is_kind(metadata, *kind)),
            Err(_) => true,
        };
        wanted.then(|| file_info(found, &single, xattrs))
    })))
}

fn is_kind(metadata: &fs::Metadata, kind: FileKind) -> bool {
    match kind {
        FileKind::Regular => metadata.is_file(),
        FileKind::Directory => metadata.is_dir(),
        FileKind::Symlink => metadata.is_symlink(),
    }
}

fn file_info(found: &Found, root: &Path, xattrs: bool) -> machine::FileInfo {
    let mut relative_name = found.relative.to_string_lossy().into_owned();
    let name = found.path.to_string_lossy().into_owned();
    let metadata = match &found.metadata {
        Ok(metadata) => metadata,
        Err(error) => {
            return machine::FileInfo {
                name,
                relative_name,
                error: io_text("lstat", &found.path, error),
                ..machine::FileInfo::default()
            };
        }
    };
    if found.path == root && !metadata.is_dir() {
        relative_name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
    }
    let link = match metadata.is_symlink() {
        true => fs::read_link(&found.path).unwrap_or_default().to_string_lossy().into_owned(),
        false => String::new(),
    };
    machine::FileInfo {
        metadata: None,
        name,
        size: i64::try_from(metadata.len()).unwrap_or(i64::MAX),
        mode: mode::from_stat(metadata.mode()),
        modified: metadata.mtime(),
        is_dir: metadata.is_dir(),
        error: String::new(),
        link,
        relative_name,
        uid: metadata.uid(),
        gid: metadata.gid(),
        xattrs: if xattrs { read_xattrs(&found.path) } else { Vec::new() },
    }
}

fn read_xattrs(path: &Path) -> Vec<machine::Xattr> {
    ichor_sys::xattr::list(path)
        .unwrap_or_default()
        .into_iter()
        .map(|(name, data)| machine::Xattr { name, data })
        .collect()
}

/// Streams sizes of files and directories, each directory after what is in it, one path after the other.
pub async fn disk_usage(
    request: machine::DiskUsageRequest,
) -> Result<Response<Replies<machine::DiskUsageInfo>>, Status> {
    /// Paths in one request.
    const PATHS_MAX: usize = 256;
    if request.paths.len() > PATHS_MAX {
        return Err(Status::invalid_argument(format!("at most {PATHS_MAX} paths in one request")));
    }
    let mut paths = Vec::with_capacity(request.paths.len());
    for path in request.paths.iter().rev() {
        paths.push(reply::request_path(path)?);
    }
    let mut usage = Usage { request, paths, current: None, open: Vec::new(), ready: Vec::new() };
    let next = move || usage.next_batch();
    Ok(streaming(stepped(next)))
}

struct Usage {
    request: machine::DiskUsageRequest,
    /// Paths still to walk, last first.
    paths: Vec<PathBuf>,
    /// The walk of one path and the depth it starts at.
    current: Option<(Walk, usize)>,
    /// Directories on the way to the current entry.
    open: Vec<(PathBuf, machine::DiskUsageInfo)>,
    ready: Vec<machine::DiskUsageInfo>,
}

impl Usage {
    fn next_batch(&mut self) -> Option<Vec<machine::DiskUsageInfo>> {
        for _ in 0..BATCH * 8 {
            match self.current.as_mut().map(|(walk, _)| walk.next()) {
                Some(Some(found)) => self.take(found),
                Some(None) => {
                    while !self.open.is_empty() {
                        self.close();
                    }
                    self.current = None;
                }
                None => match self.paths.pop() {
                    Some(path) => self.begin(path),
                    None => {
                        let rest = std::mem::take(&mut self.ready);
                        return (!rest.is_empty()).then_some(rest);
                    }
                },
            }
            if self.ready.len() >= BATCH {
                break;
            }
        }
        Some(std::mem::take(&mut self.ready))
    }

    fn begin(&mut self, path: PathBuf) {
        let name = path.to_string_lossy().into_owned();
        match root(path) {
            Ok(root) => {
                let depth = depth(&root);
                self.current = Some((Walk::new(root, None), depth));
            }
            Err(error) => self.ready.push(machine::DiskUsageInfo {
                relative_name: name.clone(),
                name,
                error,
                ..machine::DiskUsageInfo::default()
            }),
        }
    }

    fn take(&mut self, found: Found) {
        while self.open.last().is_some_and(|(dir, _)| !found.path.starts_with(dir)) {
            self.close();
        }
        let mut info = machine::DiskUsageInfo {
            metadata: None,
            name: found.path.to_string_lossy().into_owned(),
            relative_name: found.relative.to_string_lossy().into_owned(),
            ..machine::DiskUsageInfo::default()
        };
        match &found.metadata {
            Ok(metadata) => {
                // The kernel's memory claims the size of the address space.
                if found.path != Path::new("/proc/kcore") {
                    info.size = i64::try_from(metadata.len()).unwrap_or(i64::MAX);
                }
                if metadata.is_dir() {
                    self.open.push((found.path, info));
                } else {
                    if info.relative_name == "." {
                        info.relative_name =
                            found.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    }
                    self.emit(info, &found.path, false);
                }
            }
            Err(error) => {
                info.error = io_text("lstat", &found.path, error);
                self.ready.push(info);
            }
        }
    }

    fn close(&mut self) {
        if let Some((path, info)) = self.open.pop() {
            self.emit(info, &path, true);
        }
    }

    fn emit(&mut self, info: machine::DiskUsageInfo, path: &Path, is_dir: bool) {
        if let Some((_, parent)) = self.open.last_mut() {
            parent.size = parent.size.saturating_add(info.size);
        }
        let start = self.current.as_ref().map_or(0, |(_, depth)| *depth);
        let limit = usize::try_from(self.request.recursion_depth).unwrap_or(0);
        let threshold = self.request.threshold;
        let hidden = (limit > 0 && depth(path).saturating_sub(start) >= limit)
            || (!is_dir && !self.request.all)
            || (threshold > 0 && info.size < threshold)
            || (threshold < 0 && info.size > threshold.saturating_neg());
        if !hidden {
            self.ready.push(info);
        }
    }
}

/// Clients count the slashes of a path; what is right below the root is as deep as the root itself.
fn depth(path: &Path) -> usize {
    path.as_os_str().as_encoded_bytes().iter().filter(|byte| **byte == b'/').count()
}

/// A walk as a stream, a batch per blocking step.
fn batches<T: Send + 'static>(
    mut walk: Walk,
    make: impl Fn(&Found) -> Option<T> + Send + 'static,
) -> impl futures_util::Stream<Item = Result<T, Status>> + Send {
    stepped(move || {
        let mut batch = Vec::new();
        for found in walk.by_ref().take(BATCH * 8) {
            batch.extend(make(&found));
            if batch.len() >= BATCH {
                return Some(batch);
            }
        }
        // An empty batch is the end: eight batches without a match are only met at the end or in
        // trees where nearly everything is filtered out, and there the next step goes on.
        match (batch.is_empty(), walk.is_done()) {
            (true, true) => None,
            _ => Some(batch),
        }
    })
}

/// Calls `step` off the API thread until it gives nothing.
fn stepped<T: Send + 'static>(
    step: impl FnMut() -> Option<Vec<T>> + Send + 'static,
) -> impl futures_util::Stream<Item = Result<T, Status>> + Send {
    stream::unfold(Some(step), |step| async move {
        let mut step = step?;
        match FILES.run(move || (step(), step)).await {
            Ok((None, _)) => None,
            Ok((Some(batch), step)) => Some((batch.into_iter().map(Ok).collect::<Vec<_>>(), Some(step))),
            Err(status) => Some((vec![Err(status)], None)),
        }
    })
    .flat_map(stream::iter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/file"), vec![b'x'; 70_000]).unwrap();
        std::os::unix::fs::symlink("sub", dir.path().join("link")).unwrap();
        dir
    }

    async fn collect<T>(response: Response<Replies<T>>) -> Vec<T> {
        response.into_inner().map(Result::unwrap).collect().await
    }

    fn text(path: &Path) -> String {
        path.to_string_lossy().into_owned()
    }

    #[tokio::test]
    async fn a_file_is_read_whole() {
        let dir = tree();
        let path = text(&dir.path().join("sub/file"));
        let parts = collect(read(machine::ReadRequest { path }).await.unwrap()).await;
        assert_eq!(parts.iter().map(|part| part.bytes.len()).sum::<usize>(), 70_000);
        assert!(parts.iter().all(|part| part.bytes.len() <= CHUNK));
    }

    #[tokio::test]
    async fn a_file_of_the_kernel_is_read_though_it_claims_to_be_empty() {
        let path = "/proc/sys/kernel/random/boot_id".to_owned();
        let parts = collect(read(machine::ReadRequest { path }).await.unwrap()).await;
        assert_eq!(parts[0].bytes.len(), 37);
    }

    #[tokio::test]
    async fn missing_files_and_directories_are_refused() {
        let missing = read(machine::ReadRequest { path: "/no/such".into() }).await.err().unwrap();
        assert_eq!(missing.code(), tonic::Code::NotFound);
        assert_eq!(missing.message(), "stat /no/such: no such file or directory");
        for path in ["/", "/dev/null", "/dev/zero"] {
            let error = read(machine::ReadRequest { path: path.into() }).await.err().unwrap();
            assert_eq!(error.message(), "path must be a regular file", "{path}");
        }
    }

    #[tokio::test]
    async fn a_listing_has_names_modes_and_links() {
        let dir = tree();
        let request = machine::ListRequest { root: text(dir.path()), ..machine::ListRequest::default() };
        let entries = collect(list(request).await.unwrap()).await;
        let names: Vec<&str> = entries.iter().map(|entry| entry.relative_name.as_str()).collect();
        assert_eq!(names, [".", "link", "sub"]);
        assert_eq!(entries[1].link, "sub");
        assert_eq!(entries[1].mode >> 27, 1);
        assert!(entries[2].is_dir && entries[2].mode >> 31 == 1);
    }

    #[tokio::test]
    async fn kinds_filter_a_deep_listing() {
        let dir = tree();
        let request = machine::ListRequest {
            root: text(dir.path()),
            recurse: true,
            types: vec![FileKind::Regular.into()],
            ..machine::ListRequest::default()
        };
        let entries = collect(list(request).await.unwrap()).await;
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].relative_name.as_str(), entries[0].size), ("sub/file", 70_000));
    }

    #[tokio::test]
    async fn usage_adds_up_and_respects_depth() {
        let dir = tree();
        let ask = |recursion_depth, all| machine::DiskUsageRequest {
            recursion_depth,
            all,
            threshold: 0,
            paths: vec![text(dir.path())],
        };
        let top = collect(disk_usage(ask(1, false)).await.unwrap()).await;
        assert_eq!(top.len(), 1);
        assert!(top[0].size > 70_000 && top[0].relative_name == ".", "{top:?}");
        let all = collect(disk_usage(ask(0, true)).await.unwrap()).await;
        let names: Vec<&str> = all.iter().map(|info| info.relative_name.as_str()).collect();
        assert_eq!(names, ["link", "sub/file", "sub", "."]);
    }

    #[tokio::test]
    async fn a_copy_is_a_gzip_tar() {
        let dir = tree();
        let request = machine::CopyRequest { root_path: text(dir.path()) };
        let parts = collect(copy(request).await.unwrap()).await;
        let packed: Vec<u8> = parts.iter().flat_map(|part| part.bytes.to_vec()).collect();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&packed[..]));
        assert_eq!(archive.entries().unwrap().count(), 3);
    }

    #[tokio::test]
    async fn a_copy_of_nothing_tells_so_inside_the_stream() {
        let relative = copy(machine::CopyRequest { root_path: "etc".into() }).await.err().unwrap();
        assert_eq!(relative.message(), "path is not absolute etc");
        let missing = machine::CopyRequest { root_path: "/../no/such".into() };
        let parts = collect(copy(missing).await.unwrap()).await;
        assert_eq!(parts.len(), 1);
        let error = &parts[0].metadata.as_ref().unwrap().error;
        assert_eq!(error, "lstat /no/such: no such file or directory");
    }

    #[tokio::test]
    async fn a_link_as_root_is_followed() {
        let dir = tree();
        let link = text(&dir.path().join("link"));
        let request = machine::ListRequest { root: link.clone(), ..machine::ListRequest::default() };
        let entries = collect(list(request).await.unwrap()).await;
        assert_eq!(entries[1].name, text(&dir.path().canonicalize().unwrap().join("sub/file")));
        let parts = collect(copy(machine::CopyRequest { root_path: link }).await.unwrap()).await;
        let packed: Vec<u8> = parts.iter().flat_map(|part| part.bytes.to_vec()).collect();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&packed[..]));
        assert_eq!(archive.entries().unwrap().count(), 1);
        let missing = machine::ListRequest { root: "/no/such".into(), ..machine::ListRequest::default() };
        let error = list(missing).await.err().unwrap();
        assert_eq!(error.code(), tonic::Code::Unknown);
        assert_eq!(error.message(), "lstat /no/such: no such file or directory");
    }

    #[tokio::test]
    async fn usage_walks_every_path_and_tells_of_the_missing_ones() {
        let dir = tree();
        let ask = |threshold| machine::DiskUsageRequest {
            recursion_depth: 0,
            all: true,
            threshold,
            paths: vec!["/no/such".into(), text(&dir.path().join("sub")), text(&dir.path().join("sub/file"))],
        };
        let all = collect(disk_usage(ask(0)).await.unwrap()).await;
        assert_eq!(all[0].error, "lstat /no/such: no such file or directory");
        let names: Vec<&str> = all.iter().map(|info| info.relative_name.as_str()).collect();
        assert_eq!(names, ["/no/such", "file", ".", "file"]);
        let small = collect(disk_usage(ask(-10)).await.unwrap()).await;
        assert_eq!(small.len(), 1, "only the error is smaller than ten bytes");
        let large = collect(disk_usage(ask(70_001)).await.unwrap()).await;
        assert_eq!(large.len(), 2, "the directory is the only large thing");
    }
}
