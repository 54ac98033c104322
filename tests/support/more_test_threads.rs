//! Runs twice as many tests concurrently as there are cores. Meant for binaries whose tests mostly
//! wait.

/// The C library calls the functions in this section before `main`, and so before the test harness
/// reads its number of threads.
#[used]
// SAFETY: the section holds pointers to functions of this type.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = set_test_threads;

extern "C" fn set_test_threads() {
    const NAME: &str = "RUST_TEST_THREADS";
    if std::env::var_os(NAME).is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // SAFETY: the process has one thread before `main`, so none reads the environment.
        unsafe { std::env::set_var(NAME, (2 * cores).to_string()) };
    }
}
