//! Which memory has a handle for other processes. Calls CUDA functions only.

mod cuda;
use cuda::*;
use std::ptr::null_mut;

#[test]
fn memory_of_cuda_malloc_has_a_handle_and_other_memory_has_none() {
    let _turn = turn();
    let mut handle = sys::cudaIpcMemHandle_t::default();
    let plain = malloc(1 << 20);
    assert_eq!(cuda!(cudaIpcGetMemHandle(&mut handle, plain)), 0);
    let v = Mapped::new(CHUNK, 1);
    let mut pooled = null_mut();
    assert_eq!(cuda!(cudaMallocAsync(&mut pooled, 4096, null_mut())), 0);
    let mut pinned = null_mut();
    assert_eq!(cuda!(cudaHostAlloc(&mut pinned, 4096, 0)), 0);
    for other in [v.pointer(0), pooled, pinned, null_mut()] {
        assert_eq!(cuda!(cudaIpcGetMemHandle(&mut handle, other)), 1);
        assert_eq!(cuda!(cudaGetLastError()), 1);
    }
    assert_eq!(cuda!(cudaFree(plain)), 0);
    assert_eq!(cuda!(cudaFreeAsync(pooled, null_mut())), 0);
    assert_eq!(cuda!(cudaFreeHost(pinned)), 0);
    v.end();
}
