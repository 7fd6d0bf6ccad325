//! Versions, devices and contexts.

use super::{
    DeviceAttr,
    call::{call, gate},
    count::{Call, count},
    error::{NOT_PERMITTED, OUT_OF_MEMORY},
    memory::{free, malloc},
};
use crate::{
    error::{Error, Result},
    process,
};
use cuda_sys as sys;

pub(crate) fn driver_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: `version` is a place for one int.
    call(Call::DriverGetVersion, || unsafe {
        sys::cudaDriverGetVersion(&mut version)
    })?;
    Ok(version)
}

pub(crate) fn runtime_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: `version` is a place for one int.
    call(Call::RuntimeGetVersion, || unsafe {
        sys::cudaRuntimeGetVersion(&mut version)
    })?;
    Ok(version)
}

pub(crate) fn device_count() -> Result<i32> {
    let mut count = 0;
    // SAFETY: `count` is a place for one int.
    call(Call::GetDeviceCount, || unsafe {
        sys::cudaGetDeviceCount(&mut count)
    })?;
    Ok(count)
}

/// The calling thread's current device.
pub(crate) fn get_device() -> Result<i32> {
    let mut device = 0;
    // SAFETY: `device` is a place for one int.
    call(Call::GetDevice, || unsafe {
        sys::cudaGetDevice(&mut device)
    })?;
    Ok(device)
}

/// The id of a context, of the current one if the handle is 0, or the driver's code. Leaves no error behind.
pub(crate) fn context_id(context: usize) -> Result<u64, i32> {
    gate(Call::CtxGetId).map_err(|_| NOT_PERMITTED)?;
    process::before_first_call();
    count(Call::CtxGetId);
    sys::context_id(context)
}

/// The current context: its handle and its id.
pub(crate) fn current_context() -> Option<(usize, u64)> {
    gate(Call::CtxGetCurrent).ok()?;
    process::before_first_call();
    count(Call::CtxGetCurrent);
    let handle = sys::current_context()?;
    Some((handle, context_id(handle).ok()?))
}

pub(crate) fn set_device(device: i32) -> Result<()> {
    // SAFETY: any ordinal may be passed; a wrong one is answered with an error.
    call(Call::SetDevice, || unsafe { sys::cudaSetDevice(device) })
}

pub(crate) fn device_attribute(attribute: DeviceAttr, device: i32) -> Result<i32> {
    let mut value = 0;
    // SAFETY: `value` is a place for one int.
    call(Call::DeviceGetAttribute, || unsafe {
        sys::cudaDeviceGetAttribute(&mut value, attribute, device)
    })?;
    Ok(value)
}

/// Whether a device can be given access to another one's memory.
pub(crate) fn can_access_peer(device: i32, peer: i32) -> Result<bool> {
    let mut can = 0;
    // SAFETY: `can` is a place for one int.
    call(Call::DeviceCanAccessPeer, || unsafe {
        sys::cudaDeviceCanAccessPeer(&mut can, device, peer)
    })?;
    Ok(can != 0)
}

/// The device's name.
pub(crate) fn device_name(device: i32) -> Result<String> {
    let mut properties = Box::<sys::cudaDeviceProp>::new_uninit();
    // SAFETY: `properties` is a place for one cudaDeviceProp of the headers that the bindings were made from.
    call(Call::GetDeviceProperties, || unsafe {
        sys::cudaGetDeviceProperties(properties.as_mut_ptr(), device)
    })?;
    // SAFETY: the call succeeded and filled the structure; all its fields are plain numbers.
    let properties = unsafe { properties.assume_init() };
    let name: Vec<u8> = properties
        .name
        .iter()
        .map(|c| *c as u8)
        .take_while(|c| *c != 0)
        .collect();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// Free and total memory of the current device, in bytes.
pub(crate) fn mem_get_info() -> Result<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are places for one size.
    call(Call::MemGetInfo, || unsafe {
        sys::cudaMemGetInfo(&mut free, &mut total)
    })?;
    Ok((free, total))
}

/// Waits for everything that was submitted to the current device. By `cudaFree`, which waits as
/// `cudaDeviceSynchronize` does and, on a relaxed thread, leaves captures alone; by the latter only where no memory is left.
pub(crate) fn wait_for_device() -> Result<()> {
    match malloc(1) {
        // SAFETY: the block was just made and nobody knows it.
        Ok(address) => unsafe { free(address) },
        Err(Error::Cuda {
            code: OUT_OF_MEMORY,
            ..
        }) => device_synchronize(),
        Err(error) => Err(error),
    }
}

/// Waits for everything that was submitted to the current device, as promised; ends every capture.
pub(crate) fn device_synchronize() -> Result<()> {
    // SAFETY: the function has no preconditions.
    call(Call::DeviceSynchronize, || unsafe {
        sys::cudaDeviceSynchronize()
    })
}
