//! Kernel modules: loading what is wanted, showing what is there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, strong, weak};
use ichor_resource::runtime::{KernelModuleSpec, LoadedKernelModule};
use ichor_sys::{host, module};

use crate::ports::Files;

/// How often the table is looked at; the kernel does not tell who is not a device manager.
const EVERY: Duration = Duration::from_secs(30);

/// Writes `LoadedKernelModules`.
#[derive(Debug)]
pub struct LoadedKernelModuleController<F> {
    files: F,
    last: Vec<u8>,
}

impl<F: Files> LoadedKernelModuleController<F> {
    /// A controller that reads these files.
    pub fn new(files: F) -> Self {
        Self { files, last: Vec::new() }
    }
}

impl<F: Files> Controller for LoadedKernelModuleController<F> {
    const NAME: &'static str = "runtime.LoadedKernelModuleController";

    fn inputs(&self) -> Vec<Input> {
        // Whoever wants a module loaded wants to see it soon.
        vec![weak::<KernelModuleSpec>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<LoadedKernelModule>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        // A kernel without modules has no such file.
        let Ok(table) = self.files.read("/proc/modules") else { return Ok(()) };
        if table != self.last {
            let modules = module::parse(&String::from_utf8_lossy(&table));
            ctx.publish(modules.into_iter().map(|module| {
                let spec = LoadedKernelModule {
                    size: module.size,
                    reference_count: module.references,
                    dependencies: module.users,
                    state: module.state,
                    address: module.address,
                };
                (module.name, spec)
            }))?;
            self.last = table;
        }
        ctx.requeue_after(EVERY);
        Ok(())
    }
}

/// A module that could not be loaded.
#[derive(Debug, thiserror::Error)]
#[error("load kernel module {name}")]
struct LoadError {
    name: String,
    #[source]
    source: std::io::Error,
}

/// Loads what `KernelModuleSpecs` name; nothing is ever unloaded.
#[derive(Debug)]
pub struct KernelModuleSpecController {
    root: PathBuf,
}

impl KernelModuleSpecController {
    /// A controller that finds modules under this root.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }
}

/// Loads a module unless the kernel has it, built in or loaded.
fn load(root: &Path, name: &str, parameters: &str) -> std::io::Result<()> {
    if name.is_empty() || name.contains('/') || name.contains('.') {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "no name of a module"));
    }
    if root.join("sys/module").join(name.replace('-', "_")).exists() {
        return Ok(());
    }
    let release = host::uname().release;
    let folder = ["usr/lib/modules", "lib/modules"].map(|base| root.join(base).join(&release));
    let folder = folder.iter().find(|folder| folder.is_dir()).unwrap_or(&folder[0]);
    module::load_by_name(folder, name, parameters)
}

impl Controller for KernelModuleSpecController {
    const NAME: &'static str = "runtime.KernelModuleSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<KernelModuleSpec>()]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let mut failed = None;
        for spec in ctx.list::<KernelModuleSpec>()? {
            let (root, name) = (self.root.clone(), spec.name.clone());
            let parameters = spec.parameters.join(" ");
            let loaded = tokio::task::spawn_blocking(move || load(&root, &name, &parameters)).await?;
            if let Err(source) = loaded {
                // One bad module must not keep the others out.
                failed.get_or_insert(LoadError { name: spec.name.clone(), source });
            }
        }
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}
