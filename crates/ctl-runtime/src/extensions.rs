//! System extensions: which are installed, the files of their services, and the parts list of the system.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, strong};
use ichor_resource::runtime::{
    ExtensionMetadata, ExtensionServiceConfig, ExtensionServiceConfigStatus, ExtensionStatus, SBOMItem,
};
use ichor_yaml::Node;
use serde_json::Value;
use tracing::warn;

/// The list of what was laid over the image.
const LIST: &str = "etc/extensions.yaml";

/// Where files of extension services go.
const SERVICE_FILES: &str = "system/overlays/extensions";

/// Where parts lists are, those of extensions last.
const SBOM: [(&str, bool); 2] = [("usr/share/spdx", false), ("usr/local/share/spdx", true)];

/// A larger list is not read.
const SBOM_LEN_MAX: u64 = 32 << 20;

/// Writes `ExtensionStatuses`, once.
#[derive(Debug)]
pub struct ExtensionStatusController {
    /// Where the system is.
    pub root: PathBuf,
}

impl Controller for ExtensionStatusController {
    const NAME: &'static str = "runtime.ExtensionStatusController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<ExtensionStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let text = match fs::read_to_string(self.root.join(LIST)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        Ok(ctx.publish(layers(&text)?)?)
    }
}

/// The layers of `extensions.yaml`, by the name of their file.
fn layers(text: &str) -> Result<Vec<(String, ExtensionStatus)>, ichor_yaml::Error> {
    let documents = ichor_yaml::parse(text)?;
    let list = documents.first().and_then(|document| document.root.get("layers")?.as_seq());
    let field = |node: Option<&Node>, key: &str| {
        node.and_then(|node| node.get(key)?.as_str()).unwrap_or_default().to_owned()
    };
    Ok(list
        .unwrap_or_default()
        .iter()
        .map(|layer| {
            let (image, about) = (field(Some(layer), "image"), layer.get("metadata"));
            let mut metadata = ExtensionMetadata {
                name: field(about, "name"),
                version: field(about, "version"),
                author: field(about, "author"),
                description: field(about, "description"),
                extra_info: field(about, "extraInfo"),
                ..ExtensionMetadata::default()
            };
            let fits = about.and_then(|about| about.get("compatibility")?.get("talos"));
            metadata.compatibility.talos.version = field(fits, "version");
            (image.strip_suffix(".sqsh").unwrap_or(&image).to_owned(), ExtensionStatus { image, metadata })
        })
        .filter(|(id, _)| !id.is_empty())
        .collect())
}

/// Writes the files of `ExtensionServiceConfigs`, and their `ExtensionServiceConfigStatuses`.
#[derive(Debug)]
pub struct ExtensionServiceConfigFilesController {
    /// Where the system is.
    pub root: PathBuf,
}

impl Controller for ExtensionServiceConfigFilesController {
    const NAME: &'static str = "runtime.ExtensionServiceConfigFilesController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<ExtensionServiceConfig>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<ExtensionServiceConfigStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let configs = ctx.list::<ExtensionServiceConfig>()?;
        let folder = self.root.join(SERVICE_FILES);
        let mut statuses = Vec::new();
        for config in &configs {
            let own = inside(&folder, config.id().as_str())?;
            let files = config.files.iter();
            let files = files.map(|file| (file.mount_path.replace('/', "-"), file.content.clone()));
            let files: Vec<(String, String)> = files.collect();
            tokio::task::spawn_blocking(move || write_files(&own, &files)).await??;
            let spec_version = config.meta().version().to_string();
            statuses.push((config.id().clone(), ExtensionServiceConfigStatus { spec_version }));
        }
        for old in ctx.list::<ExtensionServiceConfigStatus>()? {
            if !configs.iter().any(|config| config.id() == old.id()) {
                let own = inside(&folder, old.id().as_str())?;
                tokio::task::spawn_blocking(move || remove(&own)).await??;
            }
        }
        Ok(ctx.publish(statuses)?)
    }
}

fn inside(folder: &Path, name: &str) -> io::Result<PathBuf> {
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} names no service")));
    }
    Ok(folder.join(name))
}

/// Exactly these files, with these contents.
fn write_files(folder: &Path, files: &[(String, String)]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, contents) in files {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|old| old == contents.as_bytes()) {
            continue;
        }
        fs::write(&path, contents)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !files.iter().any(|(name, _)| entry.file_name() == name.as_str()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes `SBOMItems` from the parts lists in the image, once.
#[derive(Debug)]
pub struct SBOMItemController {
    /// Where the system is.
    pub root: PathBuf,
}

impl Controller for SBOMItemController {
    const NAME: &'static str = "runtime.SBOMItemController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<SBOMItem>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let root = self.root.clone();
        let items = tokio::task::spawn_blocking(move || items(&root)).await?;
        Ok(ctx.publish(items)?)
    }
}

/// What all lists under `root` name; a list that does not parse is told and left out.
fn items(root: &Path) -> Vec<(String, SBOMItem)> {
    let mut items = Vec::new();
    for (folder, extension) in SBOM {
        let Ok(entries) = fs::read_dir(root.join(folder)) else { continue };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.to_string_lossy().ends_with(".spdx.json"));
        paths.sort();
        for path in paths {
            match read_list(&path) {
                Ok(list) => items.extend(packages(&list, extension).map(|item| (item.name.clone(), item))),
                Err(error) => warn!(path = %path.display(), %error, "a parts list is left out"),
            }
        }
    }
    items
}

fn read_list(path: &Path) -> io::Result<Value> {
    if fs::metadata(path)?.len() > SBOM_LEN_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too large"));
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// The packages of an SPDX document.
fn packages(list: &Value, extension: bool) -> impl Iterator<Item = SBOMItem> + '_ {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    list["packages"].as_array().into_iter().flatten().filter_map(move |package| {
        let name = text(package, "name");
        let references = |kind: &str| {
            let all = package["externalRefs"].as_array().into_iter().flatten();
            let of_kind = all.filter(|reference| reference["referenceType"].as_str() == Some(kind));
            of_kind.map(|reference| text(reference, "referenceLocator")).collect()
        };
        let license = text(package, "licenseDeclared");
        (!name.is_empty()).then(|| SBOMItem {
            version: text(package, "versionInfo"),
            license: if license == "NOASSERTION" { String::new() } else { license },
            cpes: references("cpe23Type"),
            purls: references("purl"),
            extension,
            name,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_named_after_their_files() {
        let text = "layers:\n  - image: 000.hello.sqsh\n    metadata:\n      name: hello\n      version: v1\n      \
                    compatibility:\n        talos:\n          version: \">= v1.0.0\"\n  - image: \"\"\n";
        let found = layers(text).unwrap();
        assert_eq!(found.len(), 1);
        let (id, status) = &found[0];
        assert_eq!((id.as_str(), status.metadata.name.as_str()), ("000.hello", "hello"));
        assert_eq!(status.metadata.compatibility.talos.version, ">= v1.0.0");
        assert!(layers("").unwrap().is_empty());
        assert!(layers("layers: 7").unwrap().is_empty());
    }

    #[test]
    fn parts_are_read_with_their_references() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/local/share/spdx");
        fs::create_dir_all(&folder).unwrap();
        fs::write(
            folder.join("a.spdx.json"),
            r#"{"packages": [
                {"name": "tokio", "versionInfo": "1.0", "licenseDeclared": "MIT", "externalRefs": [
                    {"referenceType": "purl", "referenceLocator": "pkg:cargo/tokio@1.0"},
                    {"referenceType": "cpe23Type", "referenceLocator": "cpe:2.3:a:tokio"}]},
                {"name": "odd", "licenseDeclared": "NOASSERTION"},
                {"versionInfo": "nameless"}]}"#,
        )
        .unwrap();
        fs::write(folder.join("b.spdx.json"), "{").unwrap();
        let found = items(root.path());
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].1.purls, ["pkg:cargo/tokio@1.0"]);
        assert!(found[0].1.extension);
        assert_eq!((found[1].1.name.as_str(), found[1].1.license.as_str()), ("odd", ""));
    }

    #[test]
    fn files_of_a_service_are_exactly_the_configured_ones() {
        let root = tempfile::tempdir().unwrap();
        let folder = inside(root.path(), "hello").unwrap();
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        write_files(&folder, &[file("-etc-a", "1"), file("-etc-b", "2")]).unwrap();
        write_files(&folder, &[file("-etc-b", "3")]).unwrap();
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["-etc-b"]);
        assert_eq!(fs::read_to_string(folder.join("-etc-b")).unwrap(), "3");
        remove(&folder).unwrap();
        remove(&folder).unwrap();
        assert!(inside(root.path(), "../x").is_err());
    }
}
