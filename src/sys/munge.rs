//! Calls libmunge, with which processes of a cluster prove which user runs them.
//!
//! A *credential* is a text that contains bytes, encrypted with the cluster's key, and the user who
//! created it. Munge's daemon on any host of the cluster can read it, but only once, and only for
//! the user whom the creator named.

use super::dynamic::Dynamic;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;

/// `MUNGE_OPT_UID_RESTRICTION`: the user who can read a credential.
const OPTION_READER: c_int = 9;

type Create = unsafe extern "C" fn() -> *mut c_void;
type Destroy = unsafe extern "C" fn(*mut c_void);
type Set = unsafe extern "C" fn(*mut c_void, c_int, ...) -> c_int;
type Encode = unsafe extern "C" fn(*mut *mut c_char, *mut c_void, *const c_void, c_int) -> c_int;
type Decode = unsafe extern "C" fn(
    *const c_char,
    *mut c_void,
    *mut *mut c_void,
    *mut c_int,
    *mut u32,
    *mut u32,
) -> c_int;
type Describe = unsafe extern "C" fn(c_int) -> *const c_char;

/// The functions of libmunge.
pub(crate) struct Munge {
    create: Create,
    destroy: Destroy,
    set: Set,
    encode: Encode,
    decode: Decode,
    describe: Describe,
}

impl Munge {
    /// Loads libmunge. Returns `None` if it is not installed.
    pub(crate) fn load() -> Option<Self> {
        let library = Dynamic::open(c"libmunge.so.2", libc::RTLD_NOW)?;
        let (create, destroy) = (
            library.find(c"munge_ctx_create")?,
            library.find(c"munge_ctx_destroy")?,
        );
        let (set, describe) = (
            library.find(c"munge_ctx_set")?,
            library.find(c"munge_strerror")?,
        );
        let (encode, decode) = (
            library.find(c"munge_encode")?,
            library.find(c"munge_decode")?,
        );
        // SAFETY: these are the signatures in `munge.h`, which are the same in all versions of
        // libmunge.so.2. `uid_t` and `gid_t` are `u32` on Linux.
        unsafe {
            Some(Self {
                create: transmute::<*mut c_void, Create>(create),
                destroy: transmute::<*mut c_void, Destroy>(destroy),
                set: transmute::<*mut c_void, Set>(set),
                encode: transmute::<*mut c_void, Encode>(encode),
                decode: transmute::<*mut c_void, Decode>(decode),
                describe: transmute::<*mut c_void, Describe>(describe),
            })
        }
    }

    /// Returns a credential that contains `bytes` and that only this process's user can read.
    ///
    /// # Errors
    /// Returns munge's message, for example if its daemon is not running.
    pub(crate) fn encode(&self, bytes: &[u8]) -> Result<String, String> {
        let length = c_int::try_from(bytes.len()).map_err(|_| "too many bytes")?;
        let user = rustix::process::geteuid().as_raw();
        let mut text = ptr::null_mut();
        // SAFETY: a new context has no preconditions.
        let context = unsafe { (self.create)() };
        if context.is_null() {
            return Err("no memory".to_owned());
        }
        // SAFETY: the context is valid, and the option takes a `uid_t`.
        let mut code = unsafe { (self.set)(context, OPTION_READER, user) };
        if code == 0 {
            // SAFETY: the context is valid, and `bytes` contains `length` bytes. The call sets
            // `text` to memory that this function frees, or to null.
            code = unsafe { (self.encode)(&raw mut text, context, bytes.as_ptr().cast(), length) };
        }
        // SAFETY: the context is valid and is not used any more.
        unsafe { (self.destroy)(context) };
        let credential = (!text.is_null()).then(|| {
            // SAFETY: munge has set `text` to a text that ends with a zero byte.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        });
        // SAFETY: `text` is null or was allocated by munge with `malloc`, and is not used any more.
        unsafe { libc::free(text.cast()) };
        self.check(code)?;
        credential.ok_or_else(|| "munge returned no credential".to_owned())
    }

    /// Returns the bytes in a credential that this process's user has created.
    ///
    /// # Errors
    /// Returns munge's message, or a message that names the user who has created the credential.
    pub(crate) fn decode(&self, credential: &str) -> Result<Vec<u8>, String> {
        let credential = CString::new(credential).map_err(|_| "it contains a zero byte")?;
        let (mut bytes, mut length) = (ptr::null_mut::<c_void>(), 0);
        let (mut user, mut group) = (u32::MAX, u32::MAX);
        // SAFETY: the credential ends with a zero byte. A null context means the defaults. The
        // other arguments are valid places. The call sets `bytes` to memory that this function
        // frees, or to null.
        let code = unsafe {
            (self.decode)(
                credential.as_ptr(),
                ptr::null_mut(),
                &raw mut bytes,
                &raw mut length,
                &raw mut user,
                &raw mut group,
            )
        };
        let length = usize::try_from(length).unwrap_or(0);
        let content = match bytes.is_null() {
            true => Vec::new(),
            // SAFETY: munge has set `bytes` to `length` bytes.
            false => unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) }.to_vec(),
        };
        // SAFETY: `bytes` is null or was allocated by munge with `malloc`, and is not used any
        // more.
        unsafe { libc::free(bytes) };
        self.check(code)?;
        match user == rustix::process::geteuid().as_raw() {
            true => Ok(content),
            false => Err(format!("it comes from user {user}")),
        }
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the call returns a static text for any code, or null.
        let text = unsafe { (self.describe)(code) };
        if text.is_null() {
            return Err(format!("munge failed with the error code {code}"));
        }
        // SAFETY: the text is not null and ends with a zero byte.
        let text = unsafe { CStr::from_ptr(text) };
        Err(format!("munge: {}", text.to_string_lossy()))
    }
}
