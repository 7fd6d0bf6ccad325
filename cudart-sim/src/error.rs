//! Error codes: the short form used inside, their names and their texts.

use crate::sys::{self, cudaError};
use std::ffi::CStr;

/// What a function answers inside the simulator: nothing, or the code that the C function returns.
pub(crate) type Answer<T = ()> = Result<T, cudaError>;

pub(crate) const INVALID_VALUE: cudaError = cudaError::cudaErrorInvalidValue;
pub(crate) const OUT_OF_MEMORY: cudaError = cudaError::cudaErrorMemoryAllocation;
pub(crate) const INVALID_DEVICE: cudaError = cudaError::cudaErrorInvalidDevice;
pub(crate) const INVALID_HANDLE: cudaError = cudaError::cudaErrorInvalidResourceHandle;
pub(crate) const NOT_READY: cudaError = cudaError::cudaErrorNotReady;
pub(crate) const NOT_PERMITTED: cudaError = cudaError::cudaErrorNotPermitted;
pub(crate) const NOT_SUPPORTED: cudaError = cudaError::cudaErrorNotSupported;

macro_rules! names {
    ($($name:ident)*) => {
        /// The name of a code as a C string.
        pub(crate) fn name(code: cudaError) -> &'static CStr {
            $(if code == sys::cudaError::$name {
                return const {
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    }
                };
            })*
            c"unrecognized error code"
        }
    };
}

names! {
    cudaSuccess cudaErrorInvalidValue cudaErrorMemoryAllocation cudaErrorInitializationError
    cudaErrorCudartUnloading cudaErrorProfilerDisabled cudaErrorProfilerNotInitialized
    cudaErrorProfilerAlreadyStarted cudaErrorProfilerAlreadyStopped cudaErrorInvalidConfiguration
    cudaErrorInvalidPitchValue cudaErrorInvalidSymbol cudaErrorInvalidHostPointer cudaErrorInvalidDevicePointer
    cudaErrorInvalidTexture cudaErrorInvalidTextureBinding cudaErrorInvalidChannelDescriptor
    cudaErrorInvalidMemcpyDirection cudaErrorAddressOfConstant cudaErrorTextureFetchFailed
    cudaErrorTextureNotBound cudaErrorSynchronizationError cudaErrorInvalidFilterSetting
    cudaErrorInvalidNormSetting cudaErrorMixedDeviceExecution cudaErrorNotYetImplemented
    cudaErrorMemoryValueTooLarge cudaErrorStubLibrary cudaErrorInsufficientDriver
    cudaErrorCallRequiresNewerDriver cudaErrorInvalidSurface cudaErrorDuplicateVariableName
    cudaErrorDuplicateTextureName cudaErrorDuplicateSurfaceName cudaErrorDevicesUnavailable
    cudaErrorIncompatibleDriverContext cudaErrorMissingConfiguration cudaErrorPriorLaunchFailure
    cudaErrorLaunchMaxDepthExceeded cudaErrorLaunchFileScopedTex cudaErrorLaunchFileScopedSurf
    cudaErrorSyncDepthExceeded cudaErrorLaunchPendingCountExceeded cudaErrorInvalidDeviceFunction
    cudaErrorNoDevice cudaErrorInvalidDevice cudaErrorDeviceNotLicensed cudaErrorSoftwareValidityNotEstablished
    cudaErrorStartupFailure cudaErrorInvalidKernelImage cudaErrorDeviceUninitialized
    cudaErrorMapBufferObjectFailed cudaErrorUnmapBufferObjectFailed cudaErrorArrayIsMapped cudaErrorAlreadyMapped
    cudaErrorNoKernelImageForDevice cudaErrorAlreadyAcquired cudaErrorNotMapped cudaErrorNotMappedAsArray
    cudaErrorNotMappedAsPointer cudaErrorECCUncorrectable cudaErrorUnsupportedLimit cudaErrorDeviceAlreadyInUse
    cudaErrorPeerAccessUnsupported cudaErrorInvalidPtx cudaErrorInvalidGraphicsContext
    cudaErrorNvlinkUncorrectable cudaErrorJitCompilerNotFound cudaErrorUnsupportedPtxVersion
    cudaErrorJitCompilationDisabled cudaErrorUnsupportedExecAffinity cudaErrorUnsupportedDevSideSync
    cudaErrorContained cudaErrorInvalidSource cudaErrorFileNotFound cudaErrorSharedObjectSymbolNotFound
    cudaErrorSharedObjectInitFailed cudaErrorOperatingSystem cudaErrorInvalidResourceHandle cudaErrorIllegalState
    cudaErrorLossyQuery cudaErrorSymbolNotFound cudaErrorNotReady cudaErrorIllegalAddress
    cudaErrorLaunchOutOfResources cudaErrorLaunchTimeout cudaErrorLaunchIncompatibleTexturing
    cudaErrorPeerAccessAlreadyEnabled cudaErrorPeerAccessNotEnabled cudaErrorSetOnActiveProcess
    cudaErrorContextIsDestroyed cudaErrorAssert cudaErrorTooManyPeers cudaErrorHostMemoryAlreadyRegistered
    cudaErrorHostMemoryNotRegistered cudaErrorHardwareStackError cudaErrorIllegalInstruction
    cudaErrorMisalignedAddress cudaErrorInvalidAddressSpace cudaErrorInvalidPc cudaErrorLaunchFailure
    cudaErrorCooperativeLaunchTooLarge cudaErrorTensorMemoryLeak cudaErrorNotPermitted cudaErrorNotSupported
    cudaErrorSystemNotReady cudaErrorSystemDriverMismatch cudaErrorCompatNotSupportedOnDevice
    cudaErrorMpsConnectionFailed cudaErrorMpsRpcFailure cudaErrorMpsServerNotReady cudaErrorMpsMaxClientsReached
    cudaErrorMpsMaxConnectionsReached cudaErrorMpsClientTerminated cudaErrorCdpNotSupported
    cudaErrorCdpVersionMismatch cudaErrorStreamCaptureUnsupported cudaErrorStreamCaptureInvalidated
    cudaErrorStreamCaptureMerge cudaErrorStreamCaptureUnmatched cudaErrorStreamCaptureUnjoined
    cudaErrorStreamCaptureIsolation cudaErrorStreamCaptureImplicit cudaErrorCapturedEvent
    cudaErrorStreamCaptureWrongThread cudaErrorTimeout cudaErrorGraphExecUpdateFailure cudaErrorExternalDevice
    cudaErrorInvalidClusterSize cudaErrorFunctionNotLoaded cudaErrorInvalidResourceType
    cudaErrorInvalidResourceConfiguration cudaErrorUnknown cudaErrorApiFailureBase
}

/// The text of a code. The common ones read as the real runtime's do; the others repeat the name.
pub(crate) fn text(code: cudaError) -> &'static CStr {
    match code.0 {
        0 => c"no error",
        1 => c"invalid argument",
        2 => c"out of memory",
        3 => c"initialization error",
        4 => c"driver shutting down",
        34 => c"CUDA driver is a stub library",
        35 => c"CUDA driver version is insufficient for CUDA runtime version",
        100 => c"no CUDA-capable device is detected",
        101 => c"invalid device ordinal",
        400 => c"invalid resource handle",
        600 => c"device not ready",
        700 => c"an illegal memory access was encountered",
        704 => c"peer access is already enabled",
        705 => c"peer access has not been enabled",
        709 => c"context is destroyed",
        712 => c"part or all of the requested memory range is already mapped",
        713 => c"pointer does not correspond to a registered memory region",
        719 => c"unspecified launch failure",
        800 => c"operation not permitted",
        801 => c"operation not supported",
        900 => c"operation not permitted when stream is capturing",
        901 => c"operation failed due to a previous error during capture",
        999 => c"unknown error",
        _ => name(code),
    }
}

/// The driver's name of a code, for those that its functions answer here.
pub(crate) fn driver_name(code: u32) -> Option<&'static CStr> {
    Some(match code {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        4 => c"CUDA_ERROR_DEINITIALIZED",
        100 => c"CUDA_ERROR_NO_DEVICE",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        401 => c"CUDA_ERROR_ILLEGAL_STATE",
        500 => c"CUDA_ERROR_NOT_FOUND",
        600 => c"CUDA_ERROR_NOT_READY",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        800 => c"CUDA_ERROR_NOT_PERMITTED",
        801 => c"CUDA_ERROR_NOT_SUPPORTED",
        999 => c"CUDA_ERROR_UNKNOWN",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_and_texts() {
        assert_eq!(name(OUT_OF_MEMORY), c"cudaErrorMemoryAllocation");
        assert_eq!(text(OUT_OF_MEMORY), c"out of memory");
        assert_eq!(name(cudaError(4242)), c"unrecognized error code");
        assert_eq!(text(cudaError::cudaErrorInvalidPtx), c"cudaErrorInvalidPtx");
    }
}
