//! cudarc and the manager on the same streams and the same memory: a kernel that NVRTC compiles and cudarc launches. On a GPU alone:
//! cudarc loads the driver itself.
//!
//! Raw handles are all that they share. Neither depends on the other.

use std::sync::Arc;

use cudarc::{
    driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg},
    nvrtc::compile_ptx,
};
use memmgr::{Config, DeviceBuffer, MemoryManager, Stream};

const KERNEL: &str = r#"
extern "C" __global__ void scale(float *out, const float *in, float factor, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = factor * in[i];
}
"#;

const LEN: usize = 1_000_003;

fn scale(context: &Arc<CudaContext>) -> CudaFunction {
    let module = context
        .load_module(compile_ptx(KERNEL).expect("NVRTC compiles"))
        .expect("the module loads");
    module.load_function("scale").expect("the kernel is there")
}

/// Launches the kernel with cudarc, on buffers of the manager's.
fn launch(
    stream: &CudaStream,
    function: &CudaFunction,
    out: &DeviceBuffer<f32>,
    input: &DeviceBuffer<f32>,
    factor: f32,
) {
    let (to, from, n) = (out.as_ptr() as u64, input.as_ptr() as u64, LEN as u64);
    let mut arguments = stream.launch_builder(function);
    arguments.arg(&to).arg(&from).arg(&factor).arg(&n);
    // SAFETY: the kernel takes two pointers to `n` floats, a float and a number; both buffers have as many, and what uses them next
    // is in the same stream.
    unsafe { arguments.launch(LaunchConfig::for_num_elems(LEN as u32)) }.expect("it is launched");
}

/// Pinned in, two kernels, pinned out; every element is verified.
fn there_and_back(mm: &MemoryManager, ours: &Stream, theirs: &CudaStream, function: &CudaFunction) {
    for turn in 0..20 {
        let mut host = mm.pinned::<f32>(LEN).unwrap();
        for (i, value) in host.as_mut_slice().unwrap().iter_mut().enumerate() {
            *value = (i % 1000) as f32 + turn as f32;
        }
        let input = mm.device::<f32>(LEN, ours).unwrap();
        let _ = ours.copy_to_device(&host, &input).unwrap();
        let between = mm.device::<f32>(LEN, ours).unwrap();
        launch(theirs, function, &between, &input, 2.0);
        // Given back in the stream's order while the kernel may still run; the next buffer may be the same memory.
        drop((input, host));
        let out = mm.device::<f32>(LEN, ours).unwrap();
        launch(theirs, function, &out, &between, 0.5);
        drop(between);
        let mut back = mm.pinned::<f32>(LEN).unwrap();
        let _ = ours.copy_to_host(&out, &mut back).unwrap();
        ours.synchronize().unwrap();
        for (i, value) in back.as_slice().unwrap().iter().enumerate() {
            assert_eq!(
                *value,
                (i % 1000) as f32 + turn as f32,
                "turn {turn}, element {i}"
            );
        }
    }
}

#[test]
fn cudarc_launches_on_a_stream_and_on_buffers_of_the_manager() {
    let context = CudaContext::new(0).expect("a GPU");
    let function = scale(&context);
    let mm = MemoryManager::new(Config::default()).unwrap();
    let ours = Stream::new().unwrap();
    // SAFETY: `ours` lives until the end of this function, and all work is submitted by this thread.
    let theirs = unsafe { context.wrap_borrowed_stream(ours.as_raw().cast()) };
    there_and_back(&mm, &ours, &theirs, &function);
    assert_eq!(mm.stats().in_use(), 0);
    mm.check().unwrap();
    println!(
        "backend: {}; cudarc ran on a stream of the manager's",
        memmgr::backend()
    );
}

#[test]
fn the_pool_serves_a_stream_that_cudarc_owns() {
    let context = CudaContext::new(0).expect("a GPU");
    let function = scale(&context);
    let mm = MemoryManager::new(Config::default()).unwrap();
    let theirs = context.new_stream().expect("a stream");
    // SAFETY: cudarc's stream outlives the handle, which is dropped first.
    let ours = unsafe { Stream::borrow_raw(theirs.cu_stream().cast()) }.unwrap();
    there_and_back(&mm, &ours, &theirs, &function);
    drop(ours);
    drop(theirs);
    assert_eq!(mm.stats().in_use(), 0);
    mm.check().unwrap();
    println!(
        "backend: {}; the pool served a stream of cudarc's",
        memmgr::backend()
    );
}
