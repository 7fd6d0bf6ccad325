//! A kernel that writes beyond the end of its block and stays in the segment, for compute-sanitizer: with the feature `nvtx` it is
//! found, without it is not, since the memory is the program's. On a GPU alone:
//!
//! `compute-sanitizer --tool memcheck --error-exitcode 9 overrun [sound]`
//!
//! With `sound` the kernel stays in its block, and nothing may be found. Prints what it did; fails if it could not.

use cudarc::{
    driver::{CudaContext, LaunchConfig, PushKernelArg},
    nvrtc::Ptx,
};
use memmgr::{Config, DeviceSource, MemoryManager, Stream};

/// One byte for each thread; made by hand, so that no compiler is needed.
const KERNEL: &str = r#"
.version 7.0
.target sm_70
.address_size 64
.visible .entry fill(.param .u64 to, .param .u32 count)
{
    .reg .pred %past;
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [count];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %past, %r5, %r1;
    @%past bra done;
    cvt.u64.u32 %rd2, %r5;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u8 [%rd3], %r5;
done:
    ret;
}
"#;

/// What the block has, and by how much more the kernel writes: what is left of its last 256 bytes, and free memory.
const SIZE: usize = 1000;
const PAST: usize = 300;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sound = std::env::args().any(|word| word == "sound");
    let source = std::env::var("MEMMGR_DEVICE_SOURCE").ok();
    let source: DeviceSource = source.map_or(Ok(DeviceSource::Malloc), |name| name.parse())?;
    let context = CudaContext::new(0)?;
    let function = context
        .load_module(Ptx::from_src(KERNEL))?
        .load_function("fill")?;
    let theirs = context.new_stream()?;
    // SAFETY: cudarc's stream outlives the handle.
    let ours = unsafe { Stream::borrow_raw(theirs.cu_stream().cast()) }?;
    let manager = MemoryManager::new(Config::default().device_source(source))?;
    let block = manager.device::<u8>(SIZE, &ours)?;
    let to = block.as_ptr() as u64;
    let past = if sound { 0 } else { PAST };
    let count = (SIZE + past) as u32;
    let end = to as usize + SIZE + past;
    let snapshot = manager.snapshot();
    let holds = |start: usize, size: usize| (start..start + size).contains(&end);
    if !(snapshot.segments.iter()).any(|segment| holds(segment.address, segment.size)) {
        return Err("the segment ends too early".into());
    }
    let mut arguments = theirs.launch_builder(&function);
    arguments.arg(&to).arg(&count);
    // SAFETY: the kernel takes a pointer and a number; what it writes beyond the block is memory of the segment that nobody
    // has.
    unsafe { arguments.launch(LaunchConfig::for_num_elems(count)) }?;
    theirs.synchronize()?;
    drop(block);
    manager.shutdown()?;
    let nvtx = if cfg!(feature = "nvtx") {
        "with"
    } else {
        "without"
    };
    println!("{count} bytes written to a block of {SIZE} ({nvtx} nvtx, {source:?})");
    Ok(())
}
