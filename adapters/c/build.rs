//! Sets the SONAME of the shared library and keeps the library loaded until the process exits.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let part = |name| std::env::var(name).expect("invariant: cargo sets it");
    let (major, minor) = (
        part("CARGO_PKG_VERSION_MAJOR"),
        part("CARGO_PKG_VERSION_MINOR"),
    );
    // Before version 1, every minor version may change the interface.
    let interface = match &*major {
        "0" => format!("0.{minor}"),
        _ => major,
    };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libringtree.so.{interface}");
    // Threads of the library may still run when a program closes it with `dlclose`.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
