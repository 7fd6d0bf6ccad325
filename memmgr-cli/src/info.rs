//! `memmgr info`: runtime, driver, devices, and what the memory manager can do on each.

use std::io::Write;

use memmgr::{Config, DeviceAllocatorMode, DeviceInfo, DeviceSource};

use crate::device::{self, Machine};
use crate::error::Result;
use crate::table::{cuda_version, mib, wrapped_below};

pub fn run(machine: Machine, out: &mut impl Write) -> Result<()> {
    machine.prepare(None)?;
    let versions = memmgr::versions()?;
    let runtime = cuda_version(versions.runtime);
    let driver = match versions.driver {
        0 => "none".to_owned(),
        number => format!("for CUDA {}", cuda_version(number)),
    };
    writeln!(out, "runtime: CUDA {runtime}, driver: {driver}")?;
    for info in memmgr::devices()? {
        describe(&info, out)?;
    }
    Ok(())
}

fn describe(info: &DeviceInfo, out: &mut impl Write) -> Result<()> {
    let yes = |granted: bool| if granted { "yes" } else { "no" };
    let (major, minor) = info.compute_capability;
    let (total, free) = (mib(info.total_memory as u64), mib(info.free_memory as u64));
    writeln!(out, "device {}: {}", info.ordinal, info.name)?;
    writeln!(out, "  compute capability  {major}.{minor}")?;
    writeln!(out, "  memory              {total} MiB, {free} MiB free")?;
    writeln!(
        out,
        "  memory pools        {}",
        yes(info.memory_pools_supported)
    )?;
    writeln!(
        out,
        "  virtual memory      {}",
        yes(info.virtual_memory_supported)
    )?;
    let requested = Config::from_env()?.device_source;
    let cannot = |effective: DeviceSource| {
        let cannot = effective.cannot();
        cannot.map_or_else(String::new, |cannot| format!("; not for {cannot}"))
    };
    let pool = match requested.on(info.ordinal) {
        Ok(effective) => format!("{effective} (asked for: {requested}){}", cannot(effective)),
        Err(error) => error.to_string(),
    };
    writeln!(
        out,
        "  pool memory         {}",
        wrapped_below(&pool, 22, 22)
    )?;
    device::select(info.ordinal)?;
    let mut modes = Vec::new();
    for mode in DeviceAllocatorMode::ALL {
        let granted = device::granted(mode)?;
        modes.push(if granted == mode {
            mode.to_string()
        } else {
            format!("{mode} (not supported: {granted} is used)")
        });
    }
    writeln!(out, "  allocator modes     {}", modes.join(", "))?;
    Ok(())
}
