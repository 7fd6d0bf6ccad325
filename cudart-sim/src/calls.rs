//! The table of every C function that the simulator exports: their names, and their places in the counters.

macro_rules! table {
    ($($name:ident)*) => {
        /// One entry for every exported C function.
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum Call { $($name),* }

        /// The C names, in the order of [`Call`].
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
        const ALL: &[Call] = &[$(Call::$name),*];
    };
}

table! {
    cudaDeviceReset cudaDeviceSynchronize cudaDeviceGetStreamPriorityRange cudaIpcGetMemHandle cudaGetLastError
    cudaPeekAtLastError cudaGetErrorName cudaGetErrorString cudaGetDeviceCount cudaGetDeviceProperties
    cudaDeviceGetAttribute cudaDeviceGetDefaultMemPool cudaDeviceSetMemPool cudaDeviceGetMemPool cudaInitDevice
    cudaSetDevice cudaGetDevice cudaStreamCreate cudaStreamCreateWithFlags cudaStreamCreateWithPriority
    cudaStreamGetPriority cudaStreamGetFlags cudaStreamGetId cudaStreamGetDevice cudaStreamDestroy
    cudaStreamWaitEvent cudaStreamSynchronize cudaStreamQuery cudaStreamBeginCapture
    cudaThreadExchangeStreamCaptureMode cudaStreamEndCapture cudaStreamIsCapturing cudaStreamGetCaptureInfo
    cudaEventCreate
    cudaEventCreateWithFlags cudaEventRecord cudaEventQuery cudaEventSynchronize cudaEventDestroy
    cudaEventElapsedTime cudaLaunchHostFunc cudaMalloc cudaMallocHost cudaFree cudaFreeHost cudaHostAlloc
    cudaHostRegister cudaHostUnregister cudaHostGetDevicePointer cudaHostGetFlags cudaMemGetInfo cudaMemcpy
    cudaMemcpy2D cudaMemcpyAsync cudaMemcpyPeerAsync cudaMemcpy2DAsync cudaMemset cudaMemsetAsync
    cudaMemset2DAsync cudaMallocAsync cudaFreeAsync cudaMemPoolTrimTo cudaMemPoolSetAttribute
    cudaMemPoolGetAttribute cudaMemPoolSetAccess cudaMemPoolGetAccess cudaMemPoolCreate cudaMemPoolDestroy
    cudaMallocFromPoolAsync cudaPointerGetAttributes cudaDeviceCanAccessPeer cudaDeviceEnablePeerAccess
    cudaDeviceDisablePeerAccess cudaDriverGetVersion cudaRuntimeGetVersion cudaGraphInstantiate cudaGraphLaunch
    cudaGraphExecDestroy cudaGraphDestroy cudaUserObjectCreate cudaUserObjectRelease cudaGraphRetainUserObject
    cudaGetDriverEntryPoint cudaGetDriverEntryPointByVersion
    make_cudaPitchedPtr make_cudaPos make_cudaExtent

    cuGetErrorName cuCtxGetCurrent cuCtxGetId cuCtxGetDevice cuMemGetAddressRange cuMemAddressReserve cuMemAddressFree
    cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess cuMemGetAllocationGranularity
    cuMemRetainAllocationHandle cuPointerGetAttribute cuDeviceGetAttribute
    cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuEventRecord cuStreamIsCapturing
}

/// The version of the driver that brought memory pools.
pub(crate) const POOLS_SINCE: i32 = 11_020;

/// How many functions there are.
pub(crate) const COUNT: usize = NAMES.len();

impl Call {
    /// The C name.
    #[cfg(test)]
    pub(crate) fn name(self) -> &'static str {
        NAMES.get(self as usize).copied().unwrap_or("?")
    }

    /// Whether it answers something else than a code.
    pub(crate) fn answers_no_code(self) -> bool {
        matches!(
            self,
            Call::cudaGetErrorName
                | Call::cudaGetErrorString
                | Call::make_cudaPitchedPtr
                | Call::make_cudaPos
                | Call::make_cudaExtent
        )
    }

    /// Since which version of the driver it works, where that is a version at which a runtime of the same major version
    /// could meet an older driver.
    pub(crate) fn since(self) -> i32 {
        match self {
            Call::cudaDeviceGetDefaultMemPool
            | Call::cudaDeviceSetMemPool
            | Call::cudaDeviceGetMemPool
            | Call::cudaMallocAsync
            | Call::cudaFreeAsync
            | Call::cudaMallocFromPoolAsync
            | Call::cudaMemPoolTrimTo
            | Call::cudaMemPoolSetAttribute
            | Call::cudaMemPoolGetAttribute
            | Call::cudaMemPoolSetAccess
            | Call::cudaMemPoolGetAccess
            | Call::cudaMemPoolCreate
            | Call::cudaMemPoolDestroy => POOLS_SINCE,
            Call::cudaStreamGetDevice => 12_080,
            _ => 0,
        }
    }

    /// The entry with that C name.
    pub(crate) fn find(name: &str) -> Option<Call> {
        let at = NAMES.iter().position(|n| *n == name)?;
        ALL.get(at).copied()
    }
}

/// Fails to compile when a function of ours and the header's declaration of it differ.
macro_rules! same_signatures {
    ($($name:ident),* $(,)?) => {
        const _: () = {
            $(let _ = [crate::sys::$name, self::$name];)*
        };
    };
}
pub(crate) use same_signatures;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_of_the_header_is_exported_and_none_besides() {
        let header: Vec<&str> = include_str!("bindings.rs")
            .lines()
            .filter_map(|l| l.strip_prefix("    pub fn "))
            .filter_map(|l| l.split('(').next())
            .collect();
        // The driver's functions, which are found by name, come after the header's.
        let (runtime, driver) = NAMES.split_at(header.len());
        assert_eq!(header, runtime);
        assert!(
            driver
                .iter()
                .all(|name| name.starts_with("cu") && !name.starts_with("cuda"))
        );
    }

    #[test]
    fn a_name_finds_its_entry() {
        assert_eq!(Call::find("cudaMalloc"), Some(Call::cudaMalloc));
        assert_eq!(Call::cudaMalloc.name(), "cudaMalloc");
        assert_eq!(Call::find("cudaNonsense"), None);
    }
}
