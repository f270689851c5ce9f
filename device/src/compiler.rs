//! The compilers of GPU code: which there are, and what each is asked. Nothing else names one.

use crate::nvrtc::{CompileError, Compiled, Nvrtc, Options, SearchPath};

/// An opened compiler.
pub trait Compiler {
    /// Major and minor version.
    fn version(&self) -> (i32, i32);

    /// Compiles one header-free text for one architecture.
    ///
    /// # Errors
    /// What the compiler says against the text, or that it does not know the architecture.
    fn compile(
        &self,
        source: &str,
        arch: &str,
        options: &Options,
    ) -> Result<Compiled, CompileError>;
}

impl Compiler for Nvrtc {
    fn version(&self) -> (i32, i32) {
        Nvrtc::version(self)
    }

    fn compile(
        &self,
        source: &str,
        arch: &str,
        options: &Options,
    ) -> Result<Compiled, CompileError> {
        Nvrtc::compile(self, source, arch, options)
    }
}

/// One row of the table.
pub struct CompilerRow {
    /// How results name it.
    pub name: &'static str,
    /// How the names of its architectures begin.
    architectures: &'static str,
    open: fn(&SearchPath) -> Result<Box<dyn Compiler>, CompileError>,
    arguments: fn(&Options, &str, &str) -> Vec<String>,
}

/// Each compiler once.
static COMPILERS: [CompilerRow; 1] = [CompilerRow {
    name: "nvrtc",
    architectures: "sm_",
    open: |search| Ok(Box::new(Nvrtc::open(search)?)),
    arguments: Options::arguments,
}];

/// The compiler for an architecture.
///
/// # Errors
/// [`CompileError::Architecture`]
pub fn compiler(arch: &str) -> Result<&'static CompilerRow, CompileError> {
    let mut all = COMPILERS.iter();
    all.find(|row| arch.starts_with(row.architectures))
        .ok_or_else(|| CompileError::Architecture {
            arch: arch.to_owned(),
        })
}

impl CompilerRow {
    /// Opens its library.
    ///
    /// # Errors
    /// [`CompileError::NotFound`]
    pub fn open(&self, search: &SearchPath) -> Result<Box<dyn Compiler>, CompileError> {
        (self.open)(search)
    }

    /// All that decides what it makes of a text, beside its version.
    pub fn arguments(&self, options: &Options, arch: &str, source: &str) -> Vec<String> {
        (self.arguments)(options, arch, source)
    }
}
