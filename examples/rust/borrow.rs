// SPDX-License-Identifier: MIT
// Borrows a tensor of float32 by its handle, from Rust, through the C calls. No crate is needed:
//
//     rustc borrow.rs -o borrow $(pkg-config --libs-only-L liblend)
//     ./borrow lend1:...
//
// Each struct is declared as in include/lend; only what is used here is.
use std::env;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::process::exit;
use std::ptr::{null, null_mut};

#[repr(C)]
struct Error {
    code: i32,
    os_code: i32,
    operation: [c_char; 32],
    asked: u64,
    available: u64,
    text: [c_char; 256],
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Device {
    device_type: c_int,
    device_id: i32,
}

#[repr(C)]
struct Info {
    size: usize,
    dtype: DataType,
    device: Device,
    ndim: i32,
    flags: u32, // bit 0: read-only, bit 3: contiguous
    shape: *const i64,
    strides: *const i64,
    data: *mut c_void,
    data_bit: u32,
    numel: i64,
    nbytes: u64,
    storage_data: *mut c_void,
    storage_bytes: u64,
    storage_id: u64,
    storage_offset_bits: u64,
    allocation_inode: u64,
    allocation_offset: u64,
    allocation_bytes: u64,
}

#[link(name = "lend")]
extern "C" {
    fn lend_open(opts: *const c_void, error: *mut Error) -> c_int;
    fn lend_close(error: *mut Error) -> c_int;
    fn lend_handle_parse(text: *const c_char, buf: *mut u8, bytes: usize, ret: *mut usize) -> c_int;
    fn lend_rebuild(handle: *const u8, bytes: usize, opts: *const c_void, ret: *mut *mut c_void, error: *mut Error) -> c_int;
    fn lend_tensor_info(tensor: *const c_void, ret: *mut Info) -> c_int;
    fn lend_tensor_unref(tensor: *mut c_void);
}

/// The library's context; dropped last, it closes it.
struct Context;

impl Context {
    fn open() -> Result<Context, String> {
        check(|error| unsafe { lend_open(null(), error) }).map(|_| Context)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        unsafe { lend_close(null_mut()) };
    }
}

/// A borrowed tensor; dropped, it goes back to its lender. It cannot outlive the context.
struct Tensor<'a>(*mut c_void, &'a Context);

impl<'a> Tensor<'a> {
    fn rebuild(context: &'a Context, text: &str) -> Result<Tensor<'a>, String> {
        let text = CString::new(text).map_err(|e| e.to_string())?;
        let (mut handle, mut bytes, mut tensor) = ([0u8; 2048], 0, null_mut());
        if unsafe { lend_handle_parse(text.as_ptr(), handle.as_mut_ptr(), handle.len(), &mut bytes) } < 0 {
            return Err("not a handle".into());
        }
        check(|error| unsafe { lend_rebuild(handle.as_ptr(), bytes, null(), &mut tensor, error) })?;
        Ok(Tensor(tensor, context))
    }

    /// Other processes may write the same bytes at any time, so the elements are cells and not a slice of plain floats.
    fn floats(&self) -> Result<&[std::sync::atomic::AtomicU32], String> {
        let mut info: Info = unsafe { std::mem::zeroed() };
        info.size = std::mem::size_of::<Info>();
        if unsafe { lend_tensor_info(self.0, &mut info) } < 0 {
            return Err("no info".into());
        }
        if info.dtype != (DataType { code: 2, bits: 32, lanes: 1 }) || info.flags & 8 == 0 || info.flags & 1 != 0 {
            return Err("not a contiguous, writable tensor of float32".into());
        }
        if info.numel == 0 {
            return Ok(&[]);
        }
        Ok(unsafe { std::slice::from_raw_parts(info.data.cast(), info.numel as usize) })
    }
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        let _ = self.1;
        unsafe { lend_tensor_unref(self.0) };
    }
}

fn check(call: impl FnOnce(*mut Error) -> c_int) -> Result<c_int, String> {
    let mut error: Error = unsafe { std::mem::zeroed() };
    match call(&mut error) {
        code if code < 0 => Err(unsafe { CStr::from_ptr(error.text.as_ptr()) }.to_string_lossy().into_owned()),
        outcome => Ok(outcome),
    }
}

fn run(text: &str) -> Result<(), String> {
    use std::sync::atomic::Ordering::Relaxed;
    let context = Context::open()?;
    let tensor = Tensor::rebuild(&context, text)?;
    let cells = tensor.floats()?;
    let sum: f32 = cells.iter().map(|cell| f32::from_bits(cell.load(Relaxed))).sum();
    if let Some(last) = cells.last() {
        last.store((-sum).to_bits(), Relaxed);
    }
    println!("sum {sum}, negated into the last element");
    Ok(())
}

fn main() {
    let Some(text) = env::args().nth(1) else {
        eprintln!("usage: borrow HANDLE");
        exit(2);
    };
    if let Err(why) = run(&text) {
        eprintln!("{why}");
        exit(1);
    }
}
