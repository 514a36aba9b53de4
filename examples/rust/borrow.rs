// SPDX-License-Identifier: MIT
// Borrows a tensor of float32 by its handle, from Rust, through the C calls, and lends it on in a group. No crate is
// needed:
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
    layout: u32,
    attrs: u32,
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
    fn lend_rebuild(handle: *const u8, bytes: usize, opts: *const c_void, ret: *mut *mut c_void,
                    error: *mut Error) -> c_int;
    fn lend_tensor_info(tensor: *const c_void, ret: *mut Info) -> c_int;
    fn lend_tensor_ref(tensor: *mut c_void) -> *mut c_void;
    fn lend_tensor_unref(tensor: *mut c_void);
    fn lend_group_new(ret: *mut *mut c_void, error: *mut Error) -> c_int;
    fn lend_group_add(group: *mut c_void, name: *const c_char, tensor: *mut c_void, error: *mut Error) -> c_int;
    fn lend_group_reduce(group: *mut c_void, opts: *const c_void, ret_handle: *mut *mut c_void, ret_bytes: *mut usize,
                         error: *mut Error) -> c_int;
    fn lend_group_rebuild(handle: *const u8, bytes: usize, names: *const *const c_char, n_names: usize,
                          opts: *const c_void, ret: *mut *mut c_void, error: *mut Error) -> c_int;
    fn lend_group_get(group: *const c_void, index: usize, ret_name: *mut *const c_char) -> *mut c_void;
    fn lend_group_unref(group: *mut c_void);
    fn lend_free(array: *mut c_void);
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
        let mut handle = vec![0u8; text.len()]; // a handle is shorter than its text
        let (mut bytes, mut tensor) = (0, null_mut());
        let text = CString::new(text).map_err(|e| e.to_string())?;
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
        let float32 = DataType { code: 2, bits: 32, lanes: 1 };
        if info.layout != 0 || info.dtype != float32 || info.flags & 8 == 0 || info.flags & 1 != 0 {
            return Err("not a contiguous, writable tensor of float32".into());
        }
        if info.data.is_null() {
            return if info.numel == 0 { Ok(&[]) } else { Err("a tensor without memory".into()) };
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

/// Many named tensors under one handle.
struct Group<'a>(*mut c_void, &'a Context);

impl<'a> Group<'a> {
    fn new(context: &'a Context) -> Result<Group<'a>, String> {
        let mut group = null_mut();
        check(|error| unsafe { lend_group_new(&mut group, error) })?;
        Ok(Group(group, context))
    }

    fn add(&mut self, name: &str, tensor: &Tensor) -> Result<(), String> {
        let name = CString::new(name).map_err(|e| e.to_string())?;
        check(|error| unsafe { lend_group_add(self.0, name.as_ptr(), tensor.0, error) }).map(|_| ())
    }

    /// The handle; it is good while somebody holds the tensors.
    fn reduce(&self) -> Result<Vec<u8>, String> {
        let (mut handle, mut bytes) = (null_mut(), 0);
        check(|error| unsafe { lend_group_reduce(self.0, null(), &mut handle, &mut bytes, error) })?;
        let copy = unsafe { std::slice::from_raw_parts(handle.cast::<u8>(), bytes) }.to_vec();
        unsafe { lend_free(handle) };
        Ok(copy)
    }

    fn rebuild(context: &'a Context, handle: &[u8]) -> Result<Group<'a>, String> {
        let mut group = null_mut();
        let (bytes, n) = (handle.as_ptr(), handle.len());
        check(|error| unsafe { lend_group_rebuild(bytes, n, null(), 0, null(), &mut group, error) })?;
        Ok(Group(group, context))
    }

    fn get(&self, index: usize) -> Option<(String, Tensor<'a>)> {
        let mut name = null();
        let tensor = unsafe { lend_group_get(self.0, index, &mut name) };
        if tensor.is_null() {
            return None;
        }
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        Some((name, Tensor(unsafe { lend_tensor_ref(tensor) }, self.1)))
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        unsafe { lend_group_unref(self.0) };
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

    // What was borrowed can be lent on. Whoever rebuilds that asks the first lender, not this process.
    let mut group = Group::new(&context)?;
    group.add("weight", &tensor)?;
    let rebuilt = Group::rebuild(&context, &group.reduce()?)?;
    let mut index = 0;
    while let Some((name, tensor)) = rebuilt.get(index) {
        println!("{name} in a group: the same memory, {}", std::ptr::eq(tensor.floats()?, cells));
        index += 1;
    }
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
