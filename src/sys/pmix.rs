//! Calls libpmix, the client library of launchers that speak PMIx.

use super::dynamic::Dynamic;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;

const KEY: &CStr = c"ringtree";
/// `PMIX_GLOBAL`: every process of the job can read the value.
const SCOPE_GLOBAL: u8 = 3;
/// `PMIX_STRING`: the type of the value.
const TYPE_STRING: u16 = 3;
/// Maximum length of a name of a job, plus the zero byte.
const NAME_BYTES: usize = 256;

/// `pmix_proc_t`: a job and a rank in it.
#[repr(C)]
struct Process {
    job: [c_char; NAME_BYTES],
    rank: u32,
}

/// `pmix_value_t`: a type, and a union of at most 24 bytes.
#[repr(C)]
struct Value {
    kind: u16,
    text: *const c_char,
    _rest: [u64; 2],
}

type Init = unsafe extern "C" fn(*mut Process, *const c_void, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *const Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Process, usize, *const c_void, usize) -> c_int;
type Get = unsafe extern "C" fn(
    *const Process,
    *const c_char,
    *const c_void,
    usize,
    *mut *const ValueHead,
) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;

/// The beginning of a `pmix_value_t`, which is the same in all versions.
#[repr(C)]
struct ValueHead {
    kind: u16,
    text: *const c_char,
}

/// The functions of libpmix that an exchange needs.
struct Library {
    init: Init,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    finalize: Finalize,
}

impl Library {
    /// Loads libpmix. Returns `None` if it is not installed.
    fn load() -> Option<Self> {
        let library = Dynamic::open(c"libpmix.so.2", libc::RTLD_NOW)?;
        let find = |name: &CStr| library.find(name);
        let (init, put, commit) = (
            find(c"PMIx_Init")?,
            find(c"PMIx_Put")?,
            find(c"PMIx_Commit")?,
        );
        let (fence, get) = (find(c"PMIx_Fence")?, find(c"PMIx_Get")?);
        let finalize = find(c"PMIx_Finalize")?;
        // SAFETY: these are the signatures in `pmix.h`, which are the same in all versions of
        // libpmix.so.2.
        unsafe {
            Some(Self {
                init: transmute::<*mut c_void, Init>(init),
                put: transmute::<*mut c_void, Put>(put),
                commit: transmute::<*mut c_void, Commit>(commit),
                fence: transmute::<*mut c_void, Fence>(fence),
                get: transmute::<*mut c_void, Get>(get),
                finalize: transmute::<*mut c_void, Finalize>(finalize),
            })
        }
    }
}

/// Passes `value` from rank 0 to all ranks of the job, and returns it. The other ranks pass `None`.
/// Waits until every rank has called this function.
///
/// # Errors
/// Returns a message if libpmix is not installed or reports an error.
pub(crate) fn exchange(value: Option<&str>) -> Result<String, String> {
    let library = Library::load().ok_or("libpmix.so.2 is not installed")?;
    let mut own = Process {
        job: [0; NAME_BYTES],
        rank: 0,
    };
    let check = |what: &str, code: c_int| match code {
        0 => Ok(()),
        code => Err(format!("{what} failed with the error code {code}")),
    };
    // SAFETY: `own` is a valid place for the process, and there are no attributes.
    check("PMIx_Init", unsafe {
        (library.init)(&raw mut own, ptr::null(), 0)
    })?;
    let passed = passed(&library, &own, value, &check);
    // SAFETY: PMIx was initialized above, and there are no attributes.
    check("PMIx_Finalize", unsafe {
        (library.finalize)(ptr::null(), 0)
    })?;
    passed
}

fn passed(
    library: &Library,
    own: &Process,
    value: Option<&str>,
    check: &dyn Fn(&str, c_int) -> Result<(), String>,
) -> Result<String, String> {
    if let Some(value) = value {
        let text = CString::new(value).map_err(|_| "the value contains a zero byte")?;
        let value = Value {
            kind: TYPE_STRING,
            text: text.as_ptr(),
            _rest: [0; 2],
        };
        // SAFETY: the key and the value end with zero bytes and live until the call returns, which
        // copies them.
        check("PMIx_Put", unsafe {
            (library.put)(SCOPE_GLOBAL, KEY.as_ptr(), &raw const value)
        })?;
        // SAFETY: PMIx is initialized.
        check("PMIx_Commit", unsafe { (library.commit)() })?;
    }
    // SAFETY: a null pointer stands for all processes of the job, and there are no attributes.
    check("PMIx_Fence", unsafe {
        (library.fence)(ptr::null(), 0, ptr::null(), 0)
    })?;
    let first = Process {
        job: own.job,
        rank: 0,
    };
    let mut found = ptr::null();
    // SAFETY: the process and the key live until the call returns, and `found` is a valid place for
    // the pointer to the value.
    check("PMIx_Get", unsafe {
        (library.get)(
            &raw const first,
            KEY.as_ptr(),
            ptr::null(),
            0,
            &raw mut found,
        )
    })?;
    // SAFETY: after success, `found` points to a value, which the library has allocated for this
    // caller. The value is never freed, because a process exchanges only one.
    let found = unsafe { found.as_ref() }.filter(|found| found.kind == TYPE_STRING);
    let found = found.filter(|found| !found.text.is_null());
    let found = found.ok_or("PMIx_Get returned no text")?;
    // SAFETY: a value of this type holds a string that ends with a zero byte.
    let text = unsafe { CStr::from_ptr(found.text) };
    text.to_str()
        .map(str::to_owned)
        .map_err(|_| "PMIx_Get returned garbage".to_owned())
}
