pub const cudaHostAllocDefault: u32 = 0;
pub const cudaHostAllocPortable: u32 = 1;
pub const cudaHostAllocMapped: u32 = 2;
pub const cudaHostAllocWriteCombined: u32 = 4;
pub const cudaHostRegisterDefault: u32 = 0;
pub const cudaHostRegisterPortable: u32 = 1;
pub const cudaHostRegisterMapped: u32 = 2;
pub const cudaHostRegisterIoMemory: u32 = 4;
pub const cudaHostRegisterReadOnly: u32 = 8;
pub const cudaStreamDefault: u32 = 0;
pub const cudaStreamNonBlocking: u32 = 1;
pub const cudaEventDefault: u32 = 0;
pub const cudaEventBlockingSync: u32 = 1;
pub const cudaEventDisableTiming: u32 = 2;
pub const cudaEventInterprocess: u32 = 4;
pub const cudaEventRecordDefault: u32 = 0;
pub const cudaEventRecordExternal: u32 = 1;
pub const cudaEventWaitDefault: u32 = 0;
pub const cudaEventWaitExternal: u32 = 1;
pub const cudaCpuDeviceId: i32 = -1;
pub const cudaInvalidDeviceId: i32 = -2;
pub const CUDART_VERSION: u32 = 13000;
pub const CUDA_VERSION: u32 = 13000;
impl cudaError {
    pub const cudaSuccess: cudaError = cudaError(0);
    pub const cudaErrorInvalidValue: cudaError = cudaError(1);
    pub const cudaErrorMemoryAllocation: cudaError = cudaError(2);
    pub const cudaErrorInitializationError: cudaError = cudaError(3);
    pub const cudaErrorCudartUnloading: cudaError = cudaError(4);
    pub const cudaErrorProfilerDisabled: cudaError = cudaError(5);
    pub const cudaErrorProfilerNotInitialized: cudaError = cudaError(6);
    pub const cudaErrorProfilerAlreadyStarted: cudaError = cudaError(7);
    pub const cudaErrorProfilerAlreadyStopped: cudaError = cudaError(8);
    pub const cudaErrorInvalidConfiguration: cudaError = cudaError(9);
    pub const cudaErrorInvalidPitchValue: cudaError = cudaError(12);
    pub const cudaErrorInvalidSymbol: cudaError = cudaError(13);
    pub const cudaErrorInvalidHostPointer: cudaError = cudaError(16);
    pub const cudaErrorInvalidDevicePointer: cudaError = cudaError(17);
    pub const cudaErrorInvalidTexture: cudaError = cudaError(18);
    pub const cudaErrorInvalidTextureBinding: cudaError = cudaError(19);
    pub const cudaErrorInvalidChannelDescriptor: cudaError = cudaError(20);
    pub const cudaErrorInvalidMemcpyDirection: cudaError = cudaError(21);
    pub const cudaErrorAddressOfConstant: cudaError = cudaError(22);
    pub const cudaErrorTextureFetchFailed: cudaError = cudaError(23);
    pub const cudaErrorTextureNotBound: cudaError = cudaError(24);
    pub const cudaErrorSynchronizationError: cudaError = cudaError(25);
    pub const cudaErrorInvalidFilterSetting: cudaError = cudaError(26);
    pub const cudaErrorInvalidNormSetting: cudaError = cudaError(27);
    pub const cudaErrorMixedDeviceExecution: cudaError = cudaError(28);
    pub const cudaErrorNotYetImplemented: cudaError = cudaError(31);
    pub const cudaErrorMemoryValueTooLarge: cudaError = cudaError(32);
    pub const cudaErrorStubLibrary: cudaError = cudaError(34);
    pub const cudaErrorInsufficientDriver: cudaError = cudaError(35);
    pub const cudaErrorCallRequiresNewerDriver: cudaError = cudaError(36);
    pub const cudaErrorInvalidSurface: cudaError = cudaError(37);
    pub const cudaErrorDuplicateVariableName: cudaError = cudaError(43);
    pub const cudaErrorDuplicateTextureName: cudaError = cudaError(44);
    pub const cudaErrorDuplicateSurfaceName: cudaError = cudaError(45);
    pub const cudaErrorDevicesUnavailable: cudaError = cudaError(46);
    pub const cudaErrorIncompatibleDriverContext: cudaError = cudaError(49);
    pub const cudaErrorMissingConfiguration: cudaError = cudaError(52);
    pub const cudaErrorPriorLaunchFailure: cudaError = cudaError(53);
    pub const cudaErrorLaunchMaxDepthExceeded: cudaError = cudaError(65);
    pub const cudaErrorLaunchFileScopedTex: cudaError = cudaError(66);
    pub const cudaErrorLaunchFileScopedSurf: cudaError = cudaError(67);
    pub const cudaErrorSyncDepthExceeded: cudaError = cudaError(68);
    pub const cudaErrorLaunchPendingCountExceeded: cudaError = cudaError(69);
    pub const cudaErrorInvalidDeviceFunction: cudaError = cudaError(98);
    pub const cudaErrorNoDevice: cudaError = cudaError(100);
    pub const cudaErrorInvalidDevice: cudaError = cudaError(101);
    pub const cudaErrorDeviceNotLicensed: cudaError = cudaError(102);
    pub const cudaErrorSoftwareValidityNotEstablished: cudaError = cudaError(103);
    pub const cudaErrorStartupFailure: cudaError = cudaError(127);
    pub const cudaErrorInvalidKernelImage: cudaError = cudaError(200);
    pub const cudaErrorDeviceUninitialized: cudaError = cudaError(201);
    pub const cudaErrorMapBufferObjectFailed: cudaError = cudaError(205);
    pub const cudaErrorUnmapBufferObjectFailed: cudaError = cudaError(206);
    pub const cudaErrorArrayIsMapped: cudaError = cudaError(207);
    pub const cudaErrorAlreadyMapped: cudaError = cudaError(208);
    pub const cudaErrorNoKernelImageForDevice: cudaError = cudaError(209);
    pub const cudaErrorAlreadyAcquired: cudaError = cudaError(210);
    pub const cudaErrorNotMapped: cudaError = cudaError(211);
    pub const cudaErrorNotMappedAsArray: cudaError = cudaError(212);
    pub const cudaErrorNotMappedAsPointer: cudaError = cudaError(213);
    pub const cudaErrorECCUncorrectable: cudaError = cudaError(214);
    pub const cudaErrorUnsupportedLimit: cudaError = cudaError(215);
    pub const cudaErrorDeviceAlreadyInUse: cudaError = cudaError(216);
    pub const cudaErrorPeerAccessUnsupported: cudaError = cudaError(217);
    pub const cudaErrorInvalidPtx: cudaError = cudaError(218);
    pub const cudaErrorInvalidGraphicsContext: cudaError = cudaError(219);
    pub const cudaErrorNvlinkUncorrectable: cudaError = cudaError(220);
    pub const cudaErrorJitCompilerNotFound: cudaError = cudaError(221);
    pub const cudaErrorUnsupportedPtxVersion: cudaError = cudaError(222);
    pub const cudaErrorJitCompilationDisabled: cudaError = cudaError(223);
    pub const cudaErrorUnsupportedExecAffinity: cudaError = cudaError(224);
    pub const cudaErrorUnsupportedDevSideSync: cudaError = cudaError(225);
    pub const cudaErrorContained: cudaError = cudaError(226);
    pub const cudaErrorInvalidSource: cudaError = cudaError(300);
    pub const cudaErrorFileNotFound: cudaError = cudaError(301);
    pub const cudaErrorSharedObjectSymbolNotFound: cudaError = cudaError(302);
    pub const cudaErrorSharedObjectInitFailed: cudaError = cudaError(303);
    pub const cudaErrorOperatingSystem: cudaError = cudaError(304);
    pub const cudaErrorInvalidResourceHandle: cudaError = cudaError(400);
    pub const cudaErrorIllegalState: cudaError = cudaError(401);
    pub const cudaErrorLossyQuery: cudaError = cudaError(402);
    pub const cudaErrorSymbolNotFound: cudaError = cudaError(500);
    pub const cudaErrorNotReady: cudaError = cudaError(600);
    pub const cudaErrorIllegalAddress: cudaError = cudaError(700);
    pub const cudaErrorLaunchOutOfResources: cudaError = cudaError(701);
    pub const cudaErrorLaunchTimeout: cudaError = cudaError(702);
    pub const cudaErrorLaunchIncompatibleTexturing: cudaError = cudaError(703);
    pub const cudaErrorPeerAccessAlreadyEnabled: cudaError = cudaError(704);
    pub const cudaErrorPeerAccessNotEnabled: cudaError = cudaError(705);
    pub const cudaErrorSetOnActiveProcess: cudaError = cudaError(708);
    pub const cudaErrorContextIsDestroyed: cudaError = cudaError(709);
    pub const cudaErrorAssert: cudaError = cudaError(710);
    pub const cudaErrorTooManyPeers: cudaError = cudaError(711);
    pub const cudaErrorHostMemoryAlreadyRegistered: cudaError = cudaError(712);
    pub const cudaErrorHostMemoryNotRegistered: cudaError = cudaError(713);
    pub const cudaErrorHardwareStackError: cudaError = cudaError(714);
    pub const cudaErrorIllegalInstruction: cudaError = cudaError(715);
    pub const cudaErrorMisalignedAddress: cudaError = cudaError(716);
    pub const cudaErrorInvalidAddressSpace: cudaError = cudaError(717);
    pub const cudaErrorInvalidPc: cudaError = cudaError(718);
    pub const cudaErrorLaunchFailure: cudaError = cudaError(719);
    pub const cudaErrorCooperativeLaunchTooLarge: cudaError = cudaError(720);
    pub const cudaErrorTensorMemoryLeak: cudaError = cudaError(721);
    pub const cudaErrorNotPermitted: cudaError = cudaError(800);
    pub const cudaErrorNotSupported: cudaError = cudaError(801);
    pub const cudaErrorSystemNotReady: cudaError = cudaError(802);
    pub const cudaErrorSystemDriverMismatch: cudaError = cudaError(803);
    pub const cudaErrorCompatNotSupportedOnDevice: cudaError = cudaError(804);
    pub const cudaErrorMpsConnectionFailed: cudaError = cudaError(805);
    pub const cudaErrorMpsRpcFailure: cudaError = cudaError(806);
    pub const cudaErrorMpsServerNotReady: cudaError = cudaError(807);
    pub const cudaErrorMpsMaxClientsReached: cudaError = cudaError(808);
    pub const cudaErrorMpsMaxConnectionsReached: cudaError = cudaError(809);
    pub const cudaErrorMpsClientTerminated: cudaError = cudaError(810);
    pub const cudaErrorCdpNotSupported: cudaError = cudaError(811);
    pub const cudaErrorCdpVersionMismatch: cudaError = cudaError(812);
    pub const cudaErrorStreamCaptureUnsupported: cudaError = cudaError(900);
    pub const cudaErrorStreamCaptureInvalidated: cudaError = cudaError(901);
    pub const cudaErrorStreamCaptureMerge: cudaError = cudaError(902);
    pub const cudaErrorStreamCaptureUnmatched: cudaError = cudaError(903);
    pub const cudaErrorStreamCaptureUnjoined: cudaError = cudaError(904);
    pub const cudaErrorStreamCaptureIsolation: cudaError = cudaError(905);
    pub const cudaErrorStreamCaptureImplicit: cudaError = cudaError(906);
    pub const cudaErrorCapturedEvent: cudaError = cudaError(907);
    pub const cudaErrorStreamCaptureWrongThread: cudaError = cudaError(908);
    pub const cudaErrorTimeout: cudaError = cudaError(909);
    pub const cudaErrorGraphExecUpdateFailure: cudaError = cudaError(910);
    pub const cudaErrorExternalDevice: cudaError = cudaError(911);
    pub const cudaErrorInvalidClusterSize: cudaError = cudaError(912);
    pub const cudaErrorFunctionNotLoaded: cudaError = cudaError(913);
    pub const cudaErrorInvalidResourceType: cudaError = cudaError(914);
    pub const cudaErrorInvalidResourceConfiguration: cudaError = cudaError(915);
    pub const cudaErrorUnknown: cudaError = cudaError(999);
    pub const cudaErrorApiFailureBase: cudaError = cudaError(10000);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaError(pub ::std::os::raw::c_uint);
impl cudaMemoryType {
    pub const cudaMemoryTypeUnregistered: cudaMemoryType = cudaMemoryType(0);
    pub const cudaMemoryTypeHost: cudaMemoryType = cudaMemoryType(1);
    pub const cudaMemoryTypeDevice: cudaMemoryType = cudaMemoryType(2);
    pub const cudaMemoryTypeManaged: cudaMemoryType = cudaMemoryType(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaMemoryType(pub ::std::os::raw::c_uint);
impl cudaMemcpyKind {
    pub const cudaMemcpyHostToHost: cudaMemcpyKind = cudaMemcpyKind(0);
    pub const cudaMemcpyHostToDevice: cudaMemcpyKind = cudaMemcpyKind(1);
    pub const cudaMemcpyDeviceToHost: cudaMemcpyKind = cudaMemcpyKind(2);
    pub const cudaMemcpyDeviceToDevice: cudaMemcpyKind = cudaMemcpyKind(3);
    pub const cudaMemcpyDefault: cudaMemcpyKind = cudaMemcpyKind(4);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaMemcpyKind(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct cudaPitchedPtr {
    pub ptr: *mut ::std::os::raw::c_void,
    pub pitch: usize,
    pub xsize: usize,
    pub ysize: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of cudaPitchedPtr"][::std::mem::size_of::<cudaPitchedPtr>() - 32usize];
    ["Alignment of cudaPitchedPtr"][::std::mem::align_of::<cudaPitchedPtr>() - 8usize];
    [
        "Offset of field: cudaPitchedPtr::ptr",
    ][::std::mem::offset_of!(cudaPitchedPtr, ptr) - 0usize];
    [
        "Offset of field: cudaPitchedPtr::pitch",
    ][::std::mem::offset_of!(cudaPitchedPtr, pitch) - 8usize];
    [
        "Offset of field: cudaPitchedPtr::xsize",
    ][::std::mem::offset_of!(cudaPitchedPtr, xsize) - 16usize];
    [
        "Offset of field: cudaPitchedPtr::ysize",
    ][::std::mem::offset_of!(cudaPitchedPtr, ysize) - 24usize];
};
impl Default for cudaPitchedPtr {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct cudaExtent {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of cudaExtent"][::std::mem::size_of::<cudaExtent>() - 24usize];
    ["Alignment of cudaExtent"][::std::mem::align_of::<cudaExtent>() - 8usize];
    [
        "Offset of field: cudaExtent::width",
    ][::std::mem::offset_of!(cudaExtent, width) - 0usize];
    [
        "Offset of field: cudaExtent::height",
    ][::std::mem::offset_of!(cudaExtent, height) - 8usize];
    [
        "Offset of field: cudaExtent::depth",
    ][::std::mem::offset_of!(cudaExtent, depth) - 16usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct cudaPos {
    pub x: usize,
    pub y: usize,
    pub z: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of cudaPos"][::std::mem::size_of::<cudaPos>() - 24usize];
    ["Alignment of cudaPos"][::std::mem::align_of::<cudaPos>() - 8usize];
    ["Offset of field: cudaPos::x"][::std::mem::offset_of!(cudaPos, x) - 0usize];
    ["Offset of field: cudaPos::y"][::std::mem::offset_of!(cudaPos, y) - 8usize];
    ["Offset of field: cudaPos::z"][::std::mem::offset_of!(cudaPos, z) - 16usize];
};
pub type cudaHostFn_t = ::std::option::Option<
    unsafe extern "C" fn(userData: *mut ::std::os::raw::c_void),
>;
impl cudaStreamCaptureStatus {
    pub const cudaStreamCaptureStatusNone: cudaStreamCaptureStatus = cudaStreamCaptureStatus(
        0,
    );
    pub const cudaStreamCaptureStatusActive: cudaStreamCaptureStatus = cudaStreamCaptureStatus(
        1,
    );
    pub const cudaStreamCaptureStatusInvalidated: cudaStreamCaptureStatus = cudaStreamCaptureStatus(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaStreamCaptureStatus(pub ::std::os::raw::c_uint);
impl cudaStreamCaptureMode {
    pub const cudaStreamCaptureModeGlobal: cudaStreamCaptureMode = cudaStreamCaptureMode(
        0,
    );
    pub const cudaStreamCaptureModeThreadLocal: cudaStreamCaptureMode = cudaStreamCaptureMode(
        1,
    );
    pub const cudaStreamCaptureModeRelaxed: cudaStreamCaptureMode = cudaStreamCaptureMode(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaStreamCaptureMode(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct cudaPointerAttributes {
    pub type_: cudaMemoryType,
    pub device: ::std::os::raw::c_int,
    pub devicePointer: *mut ::std::os::raw::c_void,
    pub hostPointer: *mut ::std::os::raw::c_void,
    pub reserved: [::std::os::raw::c_long; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of cudaPointerAttributes",
    ][::std::mem::size_of::<cudaPointerAttributes>() - 88usize];
    [
        "Alignment of cudaPointerAttributes",
    ][::std::mem::align_of::<cudaPointerAttributes>() - 8usize];
    [
        "Offset of field: cudaPointerAttributes::type_",
    ][::std::mem::offset_of!(cudaPointerAttributes, type_) - 0usize];
    [
        "Offset of field: cudaPointerAttributes::device",
    ][::std::mem::offset_of!(cudaPointerAttributes, device) - 4usize];
    [
        "Offset of field: cudaPointerAttributes::devicePointer",
    ][::std::mem::offset_of!(cudaPointerAttributes, devicePointer) - 8usize];
    [
        "Offset of field: cudaPointerAttributes::hostPointer",
    ][::std::mem::offset_of!(cudaPointerAttributes, hostPointer) - 16usize];
    [
        "Offset of field: cudaPointerAttributes::reserved",
    ][::std::mem::offset_of!(cudaPointerAttributes, reserved) - 24usize];
};
impl Default for cudaPointerAttributes {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl cudaDeviceAttr {
    pub const cudaDevAttrMaxThreadsPerBlock: cudaDeviceAttr = cudaDeviceAttr(1);
    pub const cudaDevAttrMaxBlockDimX: cudaDeviceAttr = cudaDeviceAttr(2);
    pub const cudaDevAttrMaxBlockDimY: cudaDeviceAttr = cudaDeviceAttr(3);
    pub const cudaDevAttrMaxBlockDimZ: cudaDeviceAttr = cudaDeviceAttr(4);
    pub const cudaDevAttrMaxGridDimX: cudaDeviceAttr = cudaDeviceAttr(5);
    pub const cudaDevAttrMaxGridDimY: cudaDeviceAttr = cudaDeviceAttr(6);
    pub const cudaDevAttrMaxGridDimZ: cudaDeviceAttr = cudaDeviceAttr(7);
    pub const cudaDevAttrMaxSharedMemoryPerBlock: cudaDeviceAttr = cudaDeviceAttr(8);
    pub const cudaDevAttrTotalConstantMemory: cudaDeviceAttr = cudaDeviceAttr(9);
    pub const cudaDevAttrWarpSize: cudaDeviceAttr = cudaDeviceAttr(10);
    pub const cudaDevAttrMaxPitch: cudaDeviceAttr = cudaDeviceAttr(11);
    pub const cudaDevAttrMaxRegistersPerBlock: cudaDeviceAttr = cudaDeviceAttr(12);
    pub const cudaDevAttrClockRate: cudaDeviceAttr = cudaDeviceAttr(13);
    pub const cudaDevAttrTextureAlignment: cudaDeviceAttr = cudaDeviceAttr(14);
    pub const cudaDevAttrGpuOverlap: cudaDeviceAttr = cudaDeviceAttr(15);
    pub const cudaDevAttrMultiProcessorCount: cudaDeviceAttr = cudaDeviceAttr(16);
    pub const cudaDevAttrKernelExecTimeout: cudaDeviceAttr = cudaDeviceAttr(17);
    pub const cudaDevAttrIntegrated: cudaDeviceAttr = cudaDeviceAttr(18);
    pub const cudaDevAttrCanMapHostMemory: cudaDeviceAttr = cudaDeviceAttr(19);
    pub const cudaDevAttrComputeMode: cudaDeviceAttr = cudaDeviceAttr(20);
    pub const cudaDevAttrMaxTexture1DWidth: cudaDeviceAttr = cudaDeviceAttr(21);
    pub const cudaDevAttrMaxTexture2DWidth: cudaDeviceAttr = cudaDeviceAttr(22);
    pub const cudaDevAttrMaxTexture2DHeight: cudaDeviceAttr = cudaDeviceAttr(23);
    pub const cudaDevAttrMaxTexture3DWidth: cudaDeviceAttr = cudaDeviceAttr(24);
    pub const cudaDevAttrMaxTexture3DHeight: cudaDeviceAttr = cudaDeviceAttr(25);
    pub const cudaDevAttrMaxTexture3DDepth: cudaDeviceAttr = cudaDeviceAttr(26);
    pub const cudaDevAttrMaxTexture2DLayeredWidth: cudaDeviceAttr = cudaDeviceAttr(27);
    pub const cudaDevAttrMaxTexture2DLayeredHeight: cudaDeviceAttr = cudaDeviceAttr(28);
    pub const cudaDevAttrMaxTexture2DLayeredLayers: cudaDeviceAttr = cudaDeviceAttr(29);
    pub const cudaDevAttrSurfaceAlignment: cudaDeviceAttr = cudaDeviceAttr(30);
    pub const cudaDevAttrConcurrentKernels: cudaDeviceAttr = cudaDeviceAttr(31);
    pub const cudaDevAttrEccEnabled: cudaDeviceAttr = cudaDeviceAttr(32);
    pub const cudaDevAttrPciBusId: cudaDeviceAttr = cudaDeviceAttr(33);
    pub const cudaDevAttrPciDeviceId: cudaDeviceAttr = cudaDeviceAttr(34);
    pub const cudaDevAttrTccDriver: cudaDeviceAttr = cudaDeviceAttr(35);
    pub const cudaDevAttrMemoryClockRate: cudaDeviceAttr = cudaDeviceAttr(36);
    pub const cudaDevAttrGlobalMemoryBusWidth: cudaDeviceAttr = cudaDeviceAttr(37);
    pub const cudaDevAttrL2CacheSize: cudaDeviceAttr = cudaDeviceAttr(38);
    pub const cudaDevAttrMaxThreadsPerMultiProcessor: cudaDeviceAttr = cudaDeviceAttr(
        39,
    );
    pub const cudaDevAttrAsyncEngineCount: cudaDeviceAttr = cudaDeviceAttr(40);
    pub const cudaDevAttrUnifiedAddressing: cudaDeviceAttr = cudaDeviceAttr(41);
    pub const cudaDevAttrMaxTexture1DLayeredWidth: cudaDeviceAttr = cudaDeviceAttr(42);
    pub const cudaDevAttrMaxTexture1DLayeredLayers: cudaDeviceAttr = cudaDeviceAttr(43);
    pub const cudaDevAttrMaxTexture2DGatherWidth: cudaDeviceAttr = cudaDeviceAttr(45);
    pub const cudaDevAttrMaxTexture2DGatherHeight: cudaDeviceAttr = cudaDeviceAttr(46);
    pub const cudaDevAttrMaxTexture3DWidthAlt: cudaDeviceAttr = cudaDeviceAttr(47);
    pub const cudaDevAttrMaxTexture3DHeightAlt: cudaDeviceAttr = cudaDeviceAttr(48);
    pub const cudaDevAttrMaxTexture3DDepthAlt: cudaDeviceAttr = cudaDeviceAttr(49);
    pub const cudaDevAttrPciDomainId: cudaDeviceAttr = cudaDeviceAttr(50);
    pub const cudaDevAttrTexturePitchAlignment: cudaDeviceAttr = cudaDeviceAttr(51);
    pub const cudaDevAttrMaxTextureCubemapWidth: cudaDeviceAttr = cudaDeviceAttr(52);
    pub const cudaDevAttrMaxTextureCubemapLayeredWidth: cudaDeviceAttr = cudaDeviceAttr(
        53,
    );
    pub const cudaDevAttrMaxTextureCubemapLayeredLayers: cudaDeviceAttr = cudaDeviceAttr(
        54,
    );
    pub const cudaDevAttrMaxSurface1DWidth: cudaDeviceAttr = cudaDeviceAttr(55);
    pub const cudaDevAttrMaxSurface2DWidth: cudaDeviceAttr = cudaDeviceAttr(56);
    pub const cudaDevAttrMaxSurface2DHeight: cudaDeviceAttr = cudaDeviceAttr(57);
    pub const cudaDevAttrMaxSurface3DWidth: cudaDeviceAttr = cudaDeviceAttr(58);
    pub const cudaDevAttrMaxSurface3DHeight: cudaDeviceAttr = cudaDeviceAttr(59);
    pub const cudaDevAttrMaxSurface3DDepth: cudaDeviceAttr = cudaDeviceAttr(60);
    pub const cudaDevAttrMaxSurface1DLayeredWidth: cudaDeviceAttr = cudaDeviceAttr(61);
    pub const cudaDevAttrMaxSurface1DLayeredLayers: cudaDeviceAttr = cudaDeviceAttr(62);
    pub const cudaDevAttrMaxSurface2DLayeredWidth: cudaDeviceAttr = cudaDeviceAttr(63);
    pub const cudaDevAttrMaxSurface2DLayeredHeight: cudaDeviceAttr = cudaDeviceAttr(64);
    pub const cudaDevAttrMaxSurface2DLayeredLayers: cudaDeviceAttr = cudaDeviceAttr(65);
    pub const cudaDevAttrMaxSurfaceCubemapWidth: cudaDeviceAttr = cudaDeviceAttr(66);
    pub const cudaDevAttrMaxSurfaceCubemapLayeredWidth: cudaDeviceAttr = cudaDeviceAttr(
        67,
    );
    pub const cudaDevAttrMaxSurfaceCubemapLayeredLayers: cudaDeviceAttr = cudaDeviceAttr(
        68,
    );
    pub const cudaDevAttrMaxTexture1DLinearWidth: cudaDeviceAttr = cudaDeviceAttr(69);
    pub const cudaDevAttrMaxTexture2DLinearWidth: cudaDeviceAttr = cudaDeviceAttr(70);
    pub const cudaDevAttrMaxTexture2DLinearHeight: cudaDeviceAttr = cudaDeviceAttr(71);
    pub const cudaDevAttrMaxTexture2DLinearPitch: cudaDeviceAttr = cudaDeviceAttr(72);
    pub const cudaDevAttrMaxTexture2DMipmappedWidth: cudaDeviceAttr = cudaDeviceAttr(73);
    pub const cudaDevAttrMaxTexture2DMipmappedHeight: cudaDeviceAttr = cudaDeviceAttr(
        74,
    );
    pub const cudaDevAttrComputeCapabilityMajor: cudaDeviceAttr = cudaDeviceAttr(75);
    pub const cudaDevAttrComputeCapabilityMinor: cudaDeviceAttr = cudaDeviceAttr(76);
    pub const cudaDevAttrMaxTexture1DMipmappedWidth: cudaDeviceAttr = cudaDeviceAttr(77);
    pub const cudaDevAttrStreamPrioritiesSupported: cudaDeviceAttr = cudaDeviceAttr(78);
    pub const cudaDevAttrGlobalL1CacheSupported: cudaDeviceAttr = cudaDeviceAttr(79);
    pub const cudaDevAttrLocalL1CacheSupported: cudaDeviceAttr = cudaDeviceAttr(80);
    pub const cudaDevAttrMaxSharedMemoryPerMultiprocessor: cudaDeviceAttr = cudaDeviceAttr(
        81,
    );
    pub const cudaDevAttrMaxRegistersPerMultiprocessor: cudaDeviceAttr = cudaDeviceAttr(
        82,
    );
    pub const cudaDevAttrManagedMemory: cudaDeviceAttr = cudaDeviceAttr(83);
    pub const cudaDevAttrIsMultiGpuBoard: cudaDeviceAttr = cudaDeviceAttr(84);
    pub const cudaDevAttrMultiGpuBoardGroupID: cudaDeviceAttr = cudaDeviceAttr(85);
    pub const cudaDevAttrHostNativeAtomicSupported: cudaDeviceAttr = cudaDeviceAttr(86);
    pub const cudaDevAttrSingleToDoublePrecisionPerfRatio: cudaDeviceAttr = cudaDeviceAttr(
        87,
    );
    pub const cudaDevAttrPageableMemoryAccess: cudaDeviceAttr = cudaDeviceAttr(88);
    pub const cudaDevAttrConcurrentManagedAccess: cudaDeviceAttr = cudaDeviceAttr(89);
    pub const cudaDevAttrComputePreemptionSupported: cudaDeviceAttr = cudaDeviceAttr(90);
    pub const cudaDevAttrCanUseHostPointerForRegisteredMem: cudaDeviceAttr = cudaDeviceAttr(
        91,
    );
    pub const cudaDevAttrReserved92: cudaDeviceAttr = cudaDeviceAttr(92);
    pub const cudaDevAttrReserved93: cudaDeviceAttr = cudaDeviceAttr(93);
    pub const cudaDevAttrReserved94: cudaDeviceAttr = cudaDeviceAttr(94);
    pub const cudaDevAttrCooperativeLaunch: cudaDeviceAttr = cudaDeviceAttr(95);
    pub const cudaDevAttrReserved96: cudaDeviceAttr = cudaDeviceAttr(96);
    pub const cudaDevAttrMaxSharedMemoryPerBlockOptin: cudaDeviceAttr = cudaDeviceAttr(
        97,
    );
    pub const cudaDevAttrCanFlushRemoteWrites: cudaDeviceAttr = cudaDeviceAttr(98);
    pub const cudaDevAttrHostRegisterSupported: cudaDeviceAttr = cudaDeviceAttr(99);
    pub const cudaDevAttrPageableMemoryAccessUsesHostPageTables: cudaDeviceAttr = cudaDeviceAttr(
        100,
    );
    pub const cudaDevAttrDirectManagedMemAccessFromHost: cudaDeviceAttr = cudaDeviceAttr(
        101,
    );
    pub const cudaDevAttrMaxBlocksPerMultiprocessor: cudaDeviceAttr = cudaDeviceAttr(
        106,
    );
    pub const cudaDevAttrMaxPersistingL2CacheSize: cudaDeviceAttr = cudaDeviceAttr(108);
    pub const cudaDevAttrMaxAccessPolicyWindowSize: cudaDeviceAttr = cudaDeviceAttr(109);
    pub const cudaDevAttrReservedSharedMemoryPerBlock: cudaDeviceAttr = cudaDeviceAttr(
        111,
    );
    pub const cudaDevAttrSparseCudaArraySupported: cudaDeviceAttr = cudaDeviceAttr(112);
    pub const cudaDevAttrHostRegisterReadOnlySupported: cudaDeviceAttr = cudaDeviceAttr(
        113,
    );
    pub const cudaDevAttrTimelineSemaphoreInteropSupported: cudaDeviceAttr = cudaDeviceAttr(
        114,
    );
    pub const cudaDevAttrMemoryPoolsSupported: cudaDeviceAttr = cudaDeviceAttr(115);
    pub const cudaDevAttrGPUDirectRDMASupported: cudaDeviceAttr = cudaDeviceAttr(116);
    pub const cudaDevAttrGPUDirectRDMAFlushWritesOptions: cudaDeviceAttr = cudaDeviceAttr(
        117,
    );
    pub const cudaDevAttrGPUDirectRDMAWritesOrdering: cudaDeviceAttr = cudaDeviceAttr(
        118,
    );
    pub const cudaDevAttrMemoryPoolSupportedHandleTypes: cudaDeviceAttr = cudaDeviceAttr(
        119,
    );
    pub const cudaDevAttrClusterLaunch: cudaDeviceAttr = cudaDeviceAttr(120);
    pub const cudaDevAttrDeferredMappingCudaArraySupported: cudaDeviceAttr = cudaDeviceAttr(
        121,
    );
    pub const cudaDevAttrReserved122: cudaDeviceAttr = cudaDeviceAttr(122);
    pub const cudaDevAttrReserved123: cudaDeviceAttr = cudaDeviceAttr(123);
    pub const cudaDevAttrReserved124: cudaDeviceAttr = cudaDeviceAttr(124);
    pub const cudaDevAttrIpcEventSupport: cudaDeviceAttr = cudaDeviceAttr(125);
    pub const cudaDevAttrMemSyncDomainCount: cudaDeviceAttr = cudaDeviceAttr(126);
    pub const cudaDevAttrReserved127: cudaDeviceAttr = cudaDeviceAttr(127);
    pub const cudaDevAttrReserved128: cudaDeviceAttr = cudaDeviceAttr(128);
    pub const cudaDevAttrReserved129: cudaDeviceAttr = cudaDeviceAttr(129);
    pub const cudaDevAttrNumaConfig: cudaDeviceAttr = cudaDeviceAttr(130);
    pub const cudaDevAttrNumaId: cudaDeviceAttr = cudaDeviceAttr(131);
    pub const cudaDevAttrReserved132: cudaDeviceAttr = cudaDeviceAttr(132);
    pub const cudaDevAttrMpsEnabled: cudaDeviceAttr = cudaDeviceAttr(133);
    pub const cudaDevAttrHostNumaId: cudaDeviceAttr = cudaDeviceAttr(134);
    pub const cudaDevAttrD3D12CigSupported: cudaDeviceAttr = cudaDeviceAttr(135);
    pub const cudaDevAttrVulkanCigSupported: cudaDeviceAttr = cudaDeviceAttr(138);
    pub const cudaDevAttrGpuPciDeviceId: cudaDeviceAttr = cudaDeviceAttr(139);
    pub const cudaDevAttrGpuPciSubsystemId: cudaDeviceAttr = cudaDeviceAttr(140);
    pub const cudaDevAttrReserved141: cudaDeviceAttr = cudaDeviceAttr(141);
    pub const cudaDevAttrHostNumaMemoryPoolsSupported: cudaDeviceAttr = cudaDeviceAttr(
        142,
    );
    pub const cudaDevAttrHostNumaMultinodeIpcSupported: cudaDeviceAttr = cudaDeviceAttr(
        143,
    );
    pub const cudaDevAttrHostMemoryPoolsSupported: cudaDeviceAttr = cudaDeviceAttr(144);
    pub const cudaDevAttrReserved145: cudaDeviceAttr = cudaDeviceAttr(145);
    pub const cudaDevAttrOnlyPartialHostNativeAtomicSupported: cudaDeviceAttr = cudaDeviceAttr(
        147,
    );
    pub const cudaDevAttrMax: cudaDeviceAttr = cudaDeviceAttr(148);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaDeviceAttr(pub ::std::os::raw::c_uint);
impl cudaMemPoolAttr {
    pub const cudaMemPoolReuseFollowEventDependencies: cudaMemPoolAttr = cudaMemPoolAttr(
        1,
    );
    pub const cudaMemPoolReuseAllowOpportunistic: cudaMemPoolAttr = cudaMemPoolAttr(2);
    pub const cudaMemPoolReuseAllowInternalDependencies: cudaMemPoolAttr = cudaMemPoolAttr(
        3,
    );
    pub const cudaMemPoolAttrReleaseThreshold: cudaMemPoolAttr = cudaMemPoolAttr(4);
    pub const cudaMemPoolAttrReservedMemCurrent: cudaMemPoolAttr = cudaMemPoolAttr(5);
    pub const cudaMemPoolAttrReservedMemHigh: cudaMemPoolAttr = cudaMemPoolAttr(6);
    pub const cudaMemPoolAttrUsedMemCurrent: cudaMemPoolAttr = cudaMemPoolAttr(7);
    pub const cudaMemPoolAttrUsedMemHigh: cudaMemPoolAttr = cudaMemPoolAttr(8);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaMemPoolAttr(pub ::std::os::raw::c_uint);
impl cudaMemLocationType {
    pub const cudaMemLocationTypeInvalid: cudaMemLocationType = cudaMemLocationType(0);
    pub const cudaMemLocationTypeNone: cudaMemLocationType = cudaMemLocationType(0);
    pub const cudaMemLocationTypeDevice: cudaMemLocationType = cudaMemLocationType(1);
    pub const cudaMemLocationTypeHost: cudaMemLocationType = cudaMemLocationType(2);
    pub const cudaMemLocationTypeHostNuma: cudaMemLocationType = cudaMemLocationType(3);
    pub const cudaMemLocationTypeHostNumaCurrent: cudaMemLocationType = cudaMemLocationType(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaMemLocationType(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct cudaMemLocation {
    pub type_: cudaMemLocationType,
    pub id: ::std::os::raw::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of cudaMemLocation"][::std::mem::size_of::<cudaMemLocation>() - 8usize];
    ["Alignment of cudaMemLocation"][::std::mem::align_of::<cudaMemLocation>() - 4usize];
    [
        "Offset of field: cudaMemLocation::type_",
    ][::std::mem::offset_of!(cudaMemLocation, type_) - 0usize];
    [
        "Offset of field: cudaMemLocation::id",
    ][::std::mem::offset_of!(cudaMemLocation, id) - 4usize];
};
impl Default for cudaMemLocation {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl cudaMemAccessFlags {
    pub const cudaMemAccessFlagsProtNone: cudaMemAccessFlags = cudaMemAccessFlags(0);
    pub const cudaMemAccessFlagsProtRead: cudaMemAccessFlags = cudaMemAccessFlags(1);
    pub const cudaMemAccessFlagsProtReadWrite: cudaMemAccessFlags = cudaMemAccessFlags(
        3,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaMemAccessFlags(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct cudaMemAccessDesc {
    pub location: cudaMemLocation,
    pub flags: cudaMemAccessFlags,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of cudaMemAccessDesc"][::std::mem::size_of::<cudaMemAccessDesc>() - 12usize];
    [
        "Alignment of cudaMemAccessDesc",
    ][::std::mem::align_of::<cudaMemAccessDesc>() - 4usize];
    [
        "Offset of field: cudaMemAccessDesc::location",
    ][::std::mem::offset_of!(cudaMemAccessDesc, location) - 0usize];
    [
        "Offset of field: cudaMemAccessDesc::flags",
    ][::std::mem::offset_of!(cudaMemAccessDesc, flags) - 8usize];
};
impl Default for cudaMemAccessDesc {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl cudaMemAllocationType {
    pub const cudaMemAllocationTypeInvalid: cudaMemAllocationType = cudaMemAllocationType(
        0,
    );
    pub const cudaMemAllocationTypePinned: cudaMemAllocationType = cudaMemAllocationType(
        1,
    );
    pub const cudaMemAllocationTypeManaged: cudaMemAllocationType = cudaMemAllocationType(
        2,
    );
    pub const cudaMemAllocationTypeMax: cudaMemAllocationType = cudaMemAllocationType(
        2147483647,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaMemAllocationType(pub ::std::os::raw::c_uint);
impl cudaMemAllocationHandleType {
    pub const cudaMemHandleTypeNone: cudaMemAllocationHandleType = cudaMemAllocationHandleType(
        0,
    );
    pub const cudaMemHandleTypePosixFileDescriptor: cudaMemAllocationHandleType = cudaMemAllocationHandleType(
        1,
    );
    pub const cudaMemHandleTypeWin32: cudaMemAllocationHandleType = cudaMemAllocationHandleType(
        2,
    );
    pub const cudaMemHandleTypeWin32Kmt: cudaMemAllocationHandleType = cudaMemAllocationHandleType(
        4,
    );
    pub const cudaMemHandleTypeFabric: cudaMemAllocationHandleType = cudaMemAllocationHandleType(
        8,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaMemAllocationHandleType(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct cudaMemPoolProps {
    pub allocType: cudaMemAllocationType,
    pub handleTypes: cudaMemAllocationHandleType,
    pub location: cudaMemLocation,
    pub win32SecurityAttributes: *mut ::std::os::raw::c_void,
    pub maxSize: usize,
    pub usage: ::std::os::raw::c_ushort,
    pub reserved: [::std::os::raw::c_uchar; 54usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of cudaMemPoolProps"][::std::mem::size_of::<cudaMemPoolProps>() - 88usize];
    [
        "Alignment of cudaMemPoolProps",
    ][::std::mem::align_of::<cudaMemPoolProps>() - 8usize];
    [
        "Offset of field: cudaMemPoolProps::allocType",
    ][::std::mem::offset_of!(cudaMemPoolProps, allocType) - 0usize];
    [
        "Offset of field: cudaMemPoolProps::handleTypes",
    ][::std::mem::offset_of!(cudaMemPoolProps, handleTypes) - 4usize];
    [
        "Offset of field: cudaMemPoolProps::location",
    ][::std::mem::offset_of!(cudaMemPoolProps, location) - 8usize];
    [
        "Offset of field: cudaMemPoolProps::win32SecurityAttributes",
    ][::std::mem::offset_of!(cudaMemPoolProps, win32SecurityAttributes) - 16usize];
    [
        "Offset of field: cudaMemPoolProps::maxSize",
    ][::std::mem::offset_of!(cudaMemPoolProps, maxSize) - 24usize];
    [
        "Offset of field: cudaMemPoolProps::usage",
    ][::std::mem::offset_of!(cudaMemPoolProps, usage) - 32usize];
    [
        "Offset of field: cudaMemPoolProps::reserved",
    ][::std::mem::offset_of!(cudaMemPoolProps, reserved) - 34usize];
};
impl Default for cudaMemPoolProps {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct CUuuid_st {
    pub bytes: [::std::os::raw::c_char; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUuuid_st"][::std::mem::size_of::<CUuuid_st>() - 16usize];
    ["Alignment of CUuuid_st"][::std::mem::align_of::<CUuuid_st>() - 1usize];
    [
        "Offset of field: CUuuid_st::bytes",
    ][::std::mem::offset_of!(CUuuid_st, bytes) - 0usize];
};
pub type cudaUUID_t = CUuuid_st;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct cudaDeviceProp {
    pub name: [::std::os::raw::c_char; 256usize],
    pub uuid: cudaUUID_t,
    pub luid: [::std::os::raw::c_char; 8usize],
    pub luidDeviceNodeMask: ::std::os::raw::c_uint,
    pub totalGlobalMem: usize,
    pub sharedMemPerBlock: usize,
    pub regsPerBlock: ::std::os::raw::c_int,
    pub warpSize: ::std::os::raw::c_int,
    pub memPitch: usize,
    pub maxThreadsPerBlock: ::std::os::raw::c_int,
    pub maxThreadsDim: [::std::os::raw::c_int; 3usize],
    pub maxGridSize: [::std::os::raw::c_int; 3usize],
    pub totalConstMem: usize,
    pub major: ::std::os::raw::c_int,
    pub minor: ::std::os::raw::c_int,
    pub textureAlignment: usize,
    pub texturePitchAlignment: usize,
    pub multiProcessorCount: ::std::os::raw::c_int,
    pub integrated: ::std::os::raw::c_int,
    pub canMapHostMemory: ::std::os::raw::c_int,
    pub maxTexture1D: ::std::os::raw::c_int,
    pub maxTexture1DMipmap: ::std::os::raw::c_int,
    pub maxTexture2D: [::std::os::raw::c_int; 2usize],
    pub maxTexture2DMipmap: [::std::os::raw::c_int; 2usize],
    pub maxTexture2DLinear: [::std::os::raw::c_int; 3usize],
    pub maxTexture2DGather: [::std::os::raw::c_int; 2usize],
    pub maxTexture3D: [::std::os::raw::c_int; 3usize],
    pub maxTexture3DAlt: [::std::os::raw::c_int; 3usize],
    pub maxTextureCubemap: ::std::os::raw::c_int,
    pub maxTexture1DLayered: [::std::os::raw::c_int; 2usize],
    pub maxTexture2DLayered: [::std::os::raw::c_int; 3usize],
    pub maxTextureCubemapLayered: [::std::os::raw::c_int; 2usize],
    pub maxSurface1D: ::std::os::raw::c_int,
    pub maxSurface2D: [::std::os::raw::c_int; 2usize],
    pub maxSurface3D: [::std::os::raw::c_int; 3usize],
    pub maxSurface1DLayered: [::std::os::raw::c_int; 2usize],
    pub maxSurface2DLayered: [::std::os::raw::c_int; 3usize],
    pub maxSurfaceCubemap: ::std::os::raw::c_int,
    pub maxSurfaceCubemapLayered: [::std::os::raw::c_int; 2usize],
    pub surfaceAlignment: usize,
    pub concurrentKernels: ::std::os::raw::c_int,
    pub ECCEnabled: ::std::os::raw::c_int,
    pub pciBusID: ::std::os::raw::c_int,
    pub pciDeviceID: ::std::os::raw::c_int,
    pub pciDomainID: ::std::os::raw::c_int,
    pub tccDriver: ::std::os::raw::c_int,
    pub asyncEngineCount: ::std::os::raw::c_int,
    pub unifiedAddressing: ::std::os::raw::c_int,
    pub memoryBusWidth: ::std::os::raw::c_int,
    pub l2CacheSize: ::std::os::raw::c_int,
    pub persistingL2CacheMaxSize: ::std::os::raw::c_int,
    pub maxThreadsPerMultiProcessor: ::std::os::raw::c_int,
    pub streamPrioritiesSupported: ::std::os::raw::c_int,
    pub globalL1CacheSupported: ::std::os::raw::c_int,
    pub localL1CacheSupported: ::std::os::raw::c_int,
    pub sharedMemPerMultiprocessor: usize,
    pub regsPerMultiprocessor: ::std::os::raw::c_int,
    pub managedMemory: ::std::os::raw::c_int,
    pub isMultiGpuBoard: ::std::os::raw::c_int,
    pub multiGpuBoardGroupID: ::std::os::raw::c_int,
    pub hostNativeAtomicSupported: ::std::os::raw::c_int,
    pub pageableMemoryAccess: ::std::os::raw::c_int,
    pub concurrentManagedAccess: ::std::os::raw::c_int,
    pub computePreemptionSupported: ::std::os::raw::c_int,
    pub canUseHostPointerForRegisteredMem: ::std::os::raw::c_int,
    pub cooperativeLaunch: ::std::os::raw::c_int,
    pub sharedMemPerBlockOptin: usize,
    pub pageableMemoryAccessUsesHostPageTables: ::std::os::raw::c_int,
    pub directManagedMemAccessFromHost: ::std::os::raw::c_int,
    pub maxBlocksPerMultiProcessor: ::std::os::raw::c_int,
    pub accessPolicyMaxWindowSize: ::std::os::raw::c_int,
    pub reservedSharedMemPerBlock: usize,
    pub hostRegisterSupported: ::std::os::raw::c_int,
    pub sparseCudaArraySupported: ::std::os::raw::c_int,
    pub hostRegisterReadOnlySupported: ::std::os::raw::c_int,
    pub timelineSemaphoreInteropSupported: ::std::os::raw::c_int,
    pub memoryPoolsSupported: ::std::os::raw::c_int,
    pub gpuDirectRDMASupported: ::std::os::raw::c_int,
    pub gpuDirectRDMAFlushWritesOptions: ::std::os::raw::c_uint,
    pub gpuDirectRDMAWritesOrdering: ::std::os::raw::c_int,
    pub memoryPoolSupportedHandleTypes: ::std::os::raw::c_uint,
    pub deferredMappingCudaArraySupported: ::std::os::raw::c_int,
    pub ipcEventSupported: ::std::os::raw::c_int,
    pub clusterLaunch: ::std::os::raw::c_int,
    pub unifiedFunctionPointers: ::std::os::raw::c_int,
    pub deviceNumaConfig: ::std::os::raw::c_int,
    pub deviceNumaId: ::std::os::raw::c_int,
    pub mpsEnabled: ::std::os::raw::c_int,
    pub hostNumaId: ::std::os::raw::c_int,
    pub gpuPciDeviceID: ::std::os::raw::c_uint,
    pub gpuPciSubsystemID: ::std::os::raw::c_uint,
    pub hostNumaMultinodeIpcSupported: ::std::os::raw::c_int,
    pub reserved: [::std::os::raw::c_int; 56usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of cudaDeviceProp"][::std::mem::size_of::<cudaDeviceProp>() - 1008usize];
    ["Alignment of cudaDeviceProp"][::std::mem::align_of::<cudaDeviceProp>() - 8usize];
    [
        "Offset of field: cudaDeviceProp::name",
    ][::std::mem::offset_of!(cudaDeviceProp, name) - 0usize];
    [
        "Offset of field: cudaDeviceProp::uuid",
    ][::std::mem::offset_of!(cudaDeviceProp, uuid) - 256usize];
    [
        "Offset of field: cudaDeviceProp::luid",
    ][::std::mem::offset_of!(cudaDeviceProp, luid) - 272usize];
    [
        "Offset of field: cudaDeviceProp::luidDeviceNodeMask",
    ][::std::mem::offset_of!(cudaDeviceProp, luidDeviceNodeMask) - 280usize];
    [
        "Offset of field: cudaDeviceProp::totalGlobalMem",
    ][::std::mem::offset_of!(cudaDeviceProp, totalGlobalMem) - 288usize];
    [
        "Offset of field: cudaDeviceProp::sharedMemPerBlock",
    ][::std::mem::offset_of!(cudaDeviceProp, sharedMemPerBlock) - 296usize];
    [
        "Offset of field: cudaDeviceProp::regsPerBlock",
    ][::std::mem::offset_of!(cudaDeviceProp, regsPerBlock) - 304usize];
    [
        "Offset of field: cudaDeviceProp::warpSize",
    ][::std::mem::offset_of!(cudaDeviceProp, warpSize) - 308usize];
    [
        "Offset of field: cudaDeviceProp::memPitch",
    ][::std::mem::offset_of!(cudaDeviceProp, memPitch) - 312usize];
    [
        "Offset of field: cudaDeviceProp::maxThreadsPerBlock",
    ][::std::mem::offset_of!(cudaDeviceProp, maxThreadsPerBlock) - 320usize];
    [
        "Offset of field: cudaDeviceProp::maxThreadsDim",
    ][::std::mem::offset_of!(cudaDeviceProp, maxThreadsDim) - 324usize];
    [
        "Offset of field: cudaDeviceProp::maxGridSize",
    ][::std::mem::offset_of!(cudaDeviceProp, maxGridSize) - 336usize];
    [
        "Offset of field: cudaDeviceProp::totalConstMem",
    ][::std::mem::offset_of!(cudaDeviceProp, totalConstMem) - 352usize];
    [
        "Offset of field: cudaDeviceProp::major",
    ][::std::mem::offset_of!(cudaDeviceProp, major) - 360usize];
    [
        "Offset of field: cudaDeviceProp::minor",
    ][::std::mem::offset_of!(cudaDeviceProp, minor) - 364usize];
    [
        "Offset of field: cudaDeviceProp::textureAlignment",
    ][::std::mem::offset_of!(cudaDeviceProp, textureAlignment) - 368usize];
    [
        "Offset of field: cudaDeviceProp::texturePitchAlignment",
    ][::std::mem::offset_of!(cudaDeviceProp, texturePitchAlignment) - 376usize];
    [
        "Offset of field: cudaDeviceProp::multiProcessorCount",
    ][::std::mem::offset_of!(cudaDeviceProp, multiProcessorCount) - 384usize];
    [
        "Offset of field: cudaDeviceProp::integrated",
    ][::std::mem::offset_of!(cudaDeviceProp, integrated) - 388usize];
    [
        "Offset of field: cudaDeviceProp::canMapHostMemory",
    ][::std::mem::offset_of!(cudaDeviceProp, canMapHostMemory) - 392usize];
    [
        "Offset of field: cudaDeviceProp::maxTexture1D",
    ][::std::mem::offset_of!(cudaDeviceProp, maxTexture1D) - 396usize];
    [
        "Offset of field: cudaDeviceProp::maxTexture1DMipmap",
    ][::std::mem::offset_of!(cudaDeviceProp, maxTexture1DMipmap) - 400usize];
    [
        "Offset of field: cudaDeviceProp::maxTexture2D",
    ][::std::mem::offset_of!(cudaDeviceProp, maxTexture2D) - 404usize];
    [
        "Offset of field: cudaDeviceProp::maxTexture2DMipmap",
    ][::std::mem::offset_of!(cudaDeviceProp, maxTexture2DMipmap) - 412usize];
    [
        "Offset of field: cudaDeviceProp::maxTexture2DLinear",
    ][::std::mem::offset_of!(cudaDeviceProp, maxTexture2DLinear) - 420usize];
    [
        "Offset of field: cudaDeviceProp::maxTexture2DGather",
    ][::std::mem::offset_of!(cudaDeviceProp, maxTexture2DGather) - 432usize];
    [
        "Offset of field: cudaDeviceProp::maxTexture3D",
    ][::std::mem::offset_of!(cudaDeviceProp, maxTexture3D) - 440usize];
    [
        "Offset of field: cudaDeviceProp::maxTexture3DAlt",
    ][::std::mem::offset_of!(cudaDeviceProp, maxTexture3DAlt) - 452usize];
    [
        "Offset of field: cudaDeviceProp::maxTextureCubemap",
    ][::std::mem::offset_of!(cudaDeviceProp, maxTextureCubemap) - 464usize];
    [
        "Offset of field: cudaDeviceProp::maxTexture1DLayered",
    ][::std::mem::offset_of!(cudaDeviceProp, maxTexture1DLayered) - 468usize];
    [
        "Offset of field: cudaDeviceProp::maxTexture2DLayered",
    ][::std::mem::offset_of!(cudaDeviceProp, maxTexture2DLayered) - 476usize];
    [
        "Offset of field: cudaDeviceProp::maxTextureCubemapLayered",
    ][::std::mem::offset_of!(cudaDeviceProp, maxTextureCubemapLayered) - 488usize];
    [
        "Offset of field: cudaDeviceProp::maxSurface1D",
    ][::std::mem::offset_of!(cudaDeviceProp, maxSurface1D) - 496usize];
    [
        "Offset of field: cudaDeviceProp::maxSurface2D",
    ][::std::mem::offset_of!(cudaDeviceProp, maxSurface2D) - 500usize];
    [
        "Offset of field: cudaDeviceProp::maxSurface3D",
    ][::std::mem::offset_of!(cudaDeviceProp, maxSurface3D) - 508usize];
    [
        "Offset of field: cudaDeviceProp::maxSurface1DLayered",
    ][::std::mem::offset_of!(cudaDeviceProp, maxSurface1DLayered) - 520usize];
    [
        "Offset of field: cudaDeviceProp::maxSurface2DLayered",
    ][::std::mem::offset_of!(cudaDeviceProp, maxSurface2DLayered) - 528usize];
    [
        "Offset of field: cudaDeviceProp::maxSurfaceCubemap",
    ][::std::mem::offset_of!(cudaDeviceProp, maxSurfaceCubemap) - 540usize];
    [
        "Offset of field: cudaDeviceProp::maxSurfaceCubemapLayered",
    ][::std::mem::offset_of!(cudaDeviceProp, maxSurfaceCubemapLayered) - 544usize];
    [
        "Offset of field: cudaDeviceProp::surfaceAlignment",
    ][::std::mem::offset_of!(cudaDeviceProp, surfaceAlignment) - 552usize];
    [
        "Offset of field: cudaDeviceProp::concurrentKernels",
    ][::std::mem::offset_of!(cudaDeviceProp, concurrentKernels) - 560usize];
    [
        "Offset of field: cudaDeviceProp::ECCEnabled",
    ][::std::mem::offset_of!(cudaDeviceProp, ECCEnabled) - 564usize];
    [
        "Offset of field: cudaDeviceProp::pciBusID",
    ][::std::mem::offset_of!(cudaDeviceProp, pciBusID) - 568usize];
    [
        "Offset of field: cudaDeviceProp::pciDeviceID",
    ][::std::mem::offset_of!(cudaDeviceProp, pciDeviceID) - 572usize];
    [
        "Offset of field: cudaDeviceProp::pciDomainID",
    ][::std::mem::offset_of!(cudaDeviceProp, pciDomainID) - 576usize];
    [
        "Offset of field: cudaDeviceProp::tccDriver",
    ][::std::mem::offset_of!(cudaDeviceProp, tccDriver) - 580usize];
    [
        "Offset of field: cudaDeviceProp::asyncEngineCount",
    ][::std::mem::offset_of!(cudaDeviceProp, asyncEngineCount) - 584usize];
    [
        "Offset of field: cudaDeviceProp::unifiedAddressing",
    ][::std::mem::offset_of!(cudaDeviceProp, unifiedAddressing) - 588usize];
    [
        "Offset of field: cudaDeviceProp::memoryBusWidth",
    ][::std::mem::offset_of!(cudaDeviceProp, memoryBusWidth) - 592usize];
    [
        "Offset of field: cudaDeviceProp::l2CacheSize",
    ][::std::mem::offset_of!(cudaDeviceProp, l2CacheSize) - 596usize];
    [
        "Offset of field: cudaDeviceProp::persistingL2CacheMaxSize",
    ][::std::mem::offset_of!(cudaDeviceProp, persistingL2CacheMaxSize) - 600usize];
    [
        "Offset of field: cudaDeviceProp::maxThreadsPerMultiProcessor",
    ][::std::mem::offset_of!(cudaDeviceProp, maxThreadsPerMultiProcessor) - 604usize];
    [
        "Offset of field: cudaDeviceProp::streamPrioritiesSupported",
    ][::std::mem::offset_of!(cudaDeviceProp, streamPrioritiesSupported) - 608usize];
    [
        "Offset of field: cudaDeviceProp::globalL1CacheSupported",
    ][::std::mem::offset_of!(cudaDeviceProp, globalL1CacheSupported) - 612usize];
    [
        "Offset of field: cudaDeviceProp::localL1CacheSupported",
    ][::std::mem::offset_of!(cudaDeviceProp, localL1CacheSupported) - 616usize];
    [
        "Offset of field: cudaDeviceProp::sharedMemPerMultiprocessor",
    ][::std::mem::offset_of!(cudaDeviceProp, sharedMemPerMultiprocessor) - 624usize];
    [
        "Offset of field: cudaDeviceProp::regsPerMultiprocessor",
    ][::std::mem::offset_of!(cudaDeviceProp, regsPerMultiprocessor) - 632usize];
    [
        "Offset of field: cudaDeviceProp::managedMemory",
    ][::std::mem::offset_of!(cudaDeviceProp, managedMemory) - 636usize];
    [
        "Offset of field: cudaDeviceProp::isMultiGpuBoard",
    ][::std::mem::offset_of!(cudaDeviceProp, isMultiGpuBoard) - 640usize];
    [
        "Offset of field: cudaDeviceProp::multiGpuBoardGroupID",
    ][::std::mem::offset_of!(cudaDeviceProp, multiGpuBoardGroupID) - 644usize];
    [
        "Offset of field: cudaDeviceProp::hostNativeAtomicSupported",
    ][::std::mem::offset_of!(cudaDeviceProp, hostNativeAtomicSupported) - 648usize];
    [
        "Offset of field: cudaDeviceProp::pageableMemoryAccess",
    ][::std::mem::offset_of!(cudaDeviceProp, pageableMemoryAccess) - 652usize];
    [
        "Offset of field: cudaDeviceProp::concurrentManagedAccess",
    ][::std::mem::offset_of!(cudaDeviceProp, concurrentManagedAccess) - 656usize];
    [
        "Offset of field: cudaDeviceProp::computePreemptionSupported",
    ][::std::mem::offset_of!(cudaDeviceProp, computePreemptionSupported) - 660usize];
    [
        "Offset of field: cudaDeviceProp::canUseHostPointerForRegisteredMem",
    ][::std::mem::offset_of!(cudaDeviceProp, canUseHostPointerForRegisteredMem)
        - 664usize];
    [
        "Offset of field: cudaDeviceProp::cooperativeLaunch",
    ][::std::mem::offset_of!(cudaDeviceProp, cooperativeLaunch) - 668usize];
    [
        "Offset of field: cudaDeviceProp::sharedMemPerBlockOptin",
    ][::std::mem::offset_of!(cudaDeviceProp, sharedMemPerBlockOptin) - 672usize];
    [
        "Offset of field: cudaDeviceProp::pageableMemoryAccessUsesHostPageTables",
    ][::std::mem::offset_of!(cudaDeviceProp, pageableMemoryAccessUsesHostPageTables)
        - 680usize];
    [
        "Offset of field: cudaDeviceProp::directManagedMemAccessFromHost",
    ][::std::mem::offset_of!(cudaDeviceProp, directManagedMemAccessFromHost) - 684usize];
    [
        "Offset of field: cudaDeviceProp::maxBlocksPerMultiProcessor",
    ][::std::mem::offset_of!(cudaDeviceProp, maxBlocksPerMultiProcessor) - 688usize];
    [
        "Offset of field: cudaDeviceProp::accessPolicyMaxWindowSize",
    ][::std::mem::offset_of!(cudaDeviceProp, accessPolicyMaxWindowSize) - 692usize];
    [
        "Offset of field: cudaDeviceProp::reservedSharedMemPerBlock",
    ][::std::mem::offset_of!(cudaDeviceProp, reservedSharedMemPerBlock) - 696usize];
    [
        "Offset of field: cudaDeviceProp::hostRegisterSupported",
    ][::std::mem::offset_of!(cudaDeviceProp, hostRegisterSupported) - 704usize];
    [
        "Offset of field: cudaDeviceProp::sparseCudaArraySupported",
    ][::std::mem::offset_of!(cudaDeviceProp, sparseCudaArraySupported) - 708usize];
    [
        "Offset of field: cudaDeviceProp::hostRegisterReadOnlySupported",
    ][::std::mem::offset_of!(cudaDeviceProp, hostRegisterReadOnlySupported) - 712usize];
    [
        "Offset of field: cudaDeviceProp::timelineSemaphoreInteropSupported",
    ][::std::mem::offset_of!(cudaDeviceProp, timelineSemaphoreInteropSupported)
        - 716usize];
    [
        "Offset of field: cudaDeviceProp::memoryPoolsSupported",
    ][::std::mem::offset_of!(cudaDeviceProp, memoryPoolsSupported) - 720usize];
    [
        "Offset of field: cudaDeviceProp::gpuDirectRDMASupported",
    ][::std::mem::offset_of!(cudaDeviceProp, gpuDirectRDMASupported) - 724usize];
    [
        "Offset of field: cudaDeviceProp::gpuDirectRDMAFlushWritesOptions",
    ][::std::mem::offset_of!(cudaDeviceProp, gpuDirectRDMAFlushWritesOptions)
        - 728usize];
    [
        "Offset of field: cudaDeviceProp::gpuDirectRDMAWritesOrdering",
    ][::std::mem::offset_of!(cudaDeviceProp, gpuDirectRDMAWritesOrdering) - 732usize];
    [
        "Offset of field: cudaDeviceProp::memoryPoolSupportedHandleTypes",
    ][::std::mem::offset_of!(cudaDeviceProp, memoryPoolSupportedHandleTypes) - 736usize];
    [
        "Offset of field: cudaDeviceProp::deferredMappingCudaArraySupported",
    ][::std::mem::offset_of!(cudaDeviceProp, deferredMappingCudaArraySupported)
        - 740usize];
    [
        "Offset of field: cudaDeviceProp::ipcEventSupported",
    ][::std::mem::offset_of!(cudaDeviceProp, ipcEventSupported) - 744usize];
    [
        "Offset of field: cudaDeviceProp::clusterLaunch",
    ][::std::mem::offset_of!(cudaDeviceProp, clusterLaunch) - 748usize];
    [
        "Offset of field: cudaDeviceProp::unifiedFunctionPointers",
    ][::std::mem::offset_of!(cudaDeviceProp, unifiedFunctionPointers) - 752usize];
    [
        "Offset of field: cudaDeviceProp::deviceNumaConfig",
    ][::std::mem::offset_of!(cudaDeviceProp, deviceNumaConfig) - 756usize];
    [
        "Offset of field: cudaDeviceProp::deviceNumaId",
    ][::std::mem::offset_of!(cudaDeviceProp, deviceNumaId) - 760usize];
    [
        "Offset of field: cudaDeviceProp::mpsEnabled",
    ][::std::mem::offset_of!(cudaDeviceProp, mpsEnabled) - 764usize];
    [
        "Offset of field: cudaDeviceProp::hostNumaId",
    ][::std::mem::offset_of!(cudaDeviceProp, hostNumaId) - 768usize];
    [
        "Offset of field: cudaDeviceProp::gpuPciDeviceID",
    ][::std::mem::offset_of!(cudaDeviceProp, gpuPciDeviceID) - 772usize];
    [
        "Offset of field: cudaDeviceProp::gpuPciSubsystemID",
    ][::std::mem::offset_of!(cudaDeviceProp, gpuPciSubsystemID) - 776usize];
    [
        "Offset of field: cudaDeviceProp::hostNumaMultinodeIpcSupported",
    ][::std::mem::offset_of!(cudaDeviceProp, hostNumaMultinodeIpcSupported) - 780usize];
    [
        "Offset of field: cudaDeviceProp::reserved",
    ][::std::mem::offset_of!(cudaDeviceProp, reserved) - 784usize];
};
impl Default for cudaDeviceProp {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct cudaIpcMemHandle_st {
    pub reserved: [::std::os::raw::c_char; 64usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of cudaIpcMemHandle_st",
    ][::std::mem::size_of::<cudaIpcMemHandle_st>() - 64usize];
    [
        "Alignment of cudaIpcMemHandle_st",
    ][::std::mem::align_of::<cudaIpcMemHandle_st>() - 1usize];
    [
        "Offset of field: cudaIpcMemHandle_st::reserved",
    ][::std::mem::offset_of!(cudaIpcMemHandle_st, reserved) - 0usize];
};
impl Default for cudaIpcMemHandle_st {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type cudaIpcMemHandle_t = cudaIpcMemHandle_st;
pub use self::cudaError as cudaError_t;
#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type cudaStream_t = *mut CUstream_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUevent_st {
    _unused: [u8; 0],
}
pub type cudaEvent_t = *mut CUevent_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUgraph_st {
    _unused: [u8; 0],
}
pub type cudaGraph_t = *mut CUgraph_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUgraphNode_st {
    _unused: [u8; 0],
}
pub type cudaGraphNode_t = *mut CUgraphNode_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUuserObject_st {
    _unused: [u8; 0],
}
pub type cudaUserObject_t = *mut CUuserObject_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUmemPoolHandle_st {
    _unused: [u8; 0],
}
pub type cudaMemPool_t = *mut CUmemPoolHandle_st;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct cudaGraphEdgeData_st {
    pub from_port: ::std::os::raw::c_uchar,
    pub to_port: ::std::os::raw::c_uchar,
    pub type_: ::std::os::raw::c_uchar,
    pub reserved: [::std::os::raw::c_uchar; 5usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of cudaGraphEdgeData_st",
    ][::std::mem::size_of::<cudaGraphEdgeData_st>() - 8usize];
    [
        "Alignment of cudaGraphEdgeData_st",
    ][::std::mem::align_of::<cudaGraphEdgeData_st>() - 1usize];
    [
        "Offset of field: cudaGraphEdgeData_st::from_port",
    ][::std::mem::offset_of!(cudaGraphEdgeData_st, from_port) - 0usize];
    [
        "Offset of field: cudaGraphEdgeData_st::to_port",
    ][::std::mem::offset_of!(cudaGraphEdgeData_st, to_port) - 1usize];
    [
        "Offset of field: cudaGraphEdgeData_st::type_",
    ][::std::mem::offset_of!(cudaGraphEdgeData_st, type_) - 2usize];
    [
        "Offset of field: cudaGraphEdgeData_st::reserved",
    ][::std::mem::offset_of!(cudaGraphEdgeData_st, reserved) - 3usize];
};
pub type cudaGraphEdgeData = cudaGraphEdgeData_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUgraphExec_st {
    _unused: [u8; 0],
}
pub type cudaGraphExec_t = *mut CUgraphExec_st;
impl cudaGetDriverEntryPointFlags {
    pub const cudaEnableDefault: cudaGetDriverEntryPointFlags = cudaGetDriverEntryPointFlags(
        0,
    );
    pub const cudaEnableLegacyStream: cudaGetDriverEntryPointFlags = cudaGetDriverEntryPointFlags(
        1,
    );
    pub const cudaEnablePerThreadDefaultStream: cudaGetDriverEntryPointFlags = cudaGetDriverEntryPointFlags(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaGetDriverEntryPointFlags(pub ::std::os::raw::c_uint);
impl cudaDriverEntryPointQueryResult {
    pub const cudaDriverEntryPointSuccess: cudaDriverEntryPointQueryResult = cudaDriverEntryPointQueryResult(
        0,
    );
    pub const cudaDriverEntryPointSymbolNotFound: cudaDriverEntryPointQueryResult = cudaDriverEntryPointQueryResult(
        1,
    );
    pub const cudaDriverEntryPointVersionNotSufficent: cudaDriverEntryPointQueryResult = cudaDriverEntryPointQueryResult(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaDriverEntryPointQueryResult(pub ::std::os::raw::c_uint);
pub type CUdeviceptr_v2 = ::std::os::raw::c_ulonglong;
pub type CUdeviceptr = CUdeviceptr_v2;
pub type CUdevice_v1 = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug)]
pub struct CUctx_st {
    _unused: [u8; 0],
}
pub type CUcontext = *mut CUctx_st;
impl cudaError_enum {
    pub const CUDA_SUCCESS: cudaError_enum = cudaError_enum(0);
    pub const CUDA_ERROR_INVALID_VALUE: cudaError_enum = cudaError_enum(1);
    pub const CUDA_ERROR_OUT_OF_MEMORY: cudaError_enum = cudaError_enum(2);
    pub const CUDA_ERROR_NOT_INITIALIZED: cudaError_enum = cudaError_enum(3);
    pub const CUDA_ERROR_DEINITIALIZED: cudaError_enum = cudaError_enum(4);
    pub const CUDA_ERROR_PROFILER_DISABLED: cudaError_enum = cudaError_enum(5);
    pub const CUDA_ERROR_PROFILER_NOT_INITIALIZED: cudaError_enum = cudaError_enum(6);
    pub const CUDA_ERROR_PROFILER_ALREADY_STARTED: cudaError_enum = cudaError_enum(7);
    pub const CUDA_ERROR_PROFILER_ALREADY_STOPPED: cudaError_enum = cudaError_enum(8);
    pub const CUDA_ERROR_STUB_LIBRARY: cudaError_enum = cudaError_enum(34);
    pub const CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER: cudaError_enum = cudaError_enum(36);
    pub const CUDA_ERROR_DEVICE_UNAVAILABLE: cudaError_enum = cudaError_enum(46);
    pub const CUDA_ERROR_NO_DEVICE: cudaError_enum = cudaError_enum(100);
    pub const CUDA_ERROR_INVALID_DEVICE: cudaError_enum = cudaError_enum(101);
    pub const CUDA_ERROR_DEVICE_NOT_LICENSED: cudaError_enum = cudaError_enum(102);
    pub const CUDA_ERROR_INVALID_IMAGE: cudaError_enum = cudaError_enum(200);
    pub const CUDA_ERROR_INVALID_CONTEXT: cudaError_enum = cudaError_enum(201);
    pub const CUDA_ERROR_CONTEXT_ALREADY_CURRENT: cudaError_enum = cudaError_enum(202);
    pub const CUDA_ERROR_MAP_FAILED: cudaError_enum = cudaError_enum(205);
    pub const CUDA_ERROR_UNMAP_FAILED: cudaError_enum = cudaError_enum(206);
    pub const CUDA_ERROR_ARRAY_IS_MAPPED: cudaError_enum = cudaError_enum(207);
    pub const CUDA_ERROR_ALREADY_MAPPED: cudaError_enum = cudaError_enum(208);
    pub const CUDA_ERROR_NO_BINARY_FOR_GPU: cudaError_enum = cudaError_enum(209);
    pub const CUDA_ERROR_ALREADY_ACQUIRED: cudaError_enum = cudaError_enum(210);
    pub const CUDA_ERROR_NOT_MAPPED: cudaError_enum = cudaError_enum(211);
    pub const CUDA_ERROR_NOT_MAPPED_AS_ARRAY: cudaError_enum = cudaError_enum(212);
    pub const CUDA_ERROR_NOT_MAPPED_AS_POINTER: cudaError_enum = cudaError_enum(213);
    pub const CUDA_ERROR_ECC_UNCORRECTABLE: cudaError_enum = cudaError_enum(214);
    pub const CUDA_ERROR_UNSUPPORTED_LIMIT: cudaError_enum = cudaError_enum(215);
    pub const CUDA_ERROR_CONTEXT_ALREADY_IN_USE: cudaError_enum = cudaError_enum(216);
    pub const CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: cudaError_enum = cudaError_enum(217);
    pub const CUDA_ERROR_INVALID_PTX: cudaError_enum = cudaError_enum(218);
    pub const CUDA_ERROR_INVALID_GRAPHICS_CONTEXT: cudaError_enum = cudaError_enum(219);
    pub const CUDA_ERROR_NVLINK_UNCORRECTABLE: cudaError_enum = cudaError_enum(220);
    pub const CUDA_ERROR_JIT_COMPILER_NOT_FOUND: cudaError_enum = cudaError_enum(221);
    pub const CUDA_ERROR_UNSUPPORTED_PTX_VERSION: cudaError_enum = cudaError_enum(222);
    pub const CUDA_ERROR_JIT_COMPILATION_DISABLED: cudaError_enum = cudaError_enum(223);
    pub const CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY: cudaError_enum = cudaError_enum(224);
    pub const CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC: cudaError_enum = cudaError_enum(225);
    pub const CUDA_ERROR_CONTAINED: cudaError_enum = cudaError_enum(226);
    pub const CUDA_ERROR_INVALID_SOURCE: cudaError_enum = cudaError_enum(300);
    pub const CUDA_ERROR_FILE_NOT_FOUND: cudaError_enum = cudaError_enum(301);
    pub const CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND: cudaError_enum = cudaError_enum(
        302,
    );
    pub const CUDA_ERROR_SHARED_OBJECT_INIT_FAILED: cudaError_enum = cudaError_enum(303);
    pub const CUDA_ERROR_OPERATING_SYSTEM: cudaError_enum = cudaError_enum(304);
    pub const CUDA_ERROR_INVALID_HANDLE: cudaError_enum = cudaError_enum(400);
    pub const CUDA_ERROR_ILLEGAL_STATE: cudaError_enum = cudaError_enum(401);
    pub const CUDA_ERROR_LOSSY_QUERY: cudaError_enum = cudaError_enum(402);
    pub const CUDA_ERROR_NOT_FOUND: cudaError_enum = cudaError_enum(500);
    pub const CUDA_ERROR_NOT_READY: cudaError_enum = cudaError_enum(600);
    pub const CUDA_ERROR_ILLEGAL_ADDRESS: cudaError_enum = cudaError_enum(700);
    pub const CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: cudaError_enum = cudaError_enum(701);
    pub const CUDA_ERROR_LAUNCH_TIMEOUT: cudaError_enum = cudaError_enum(702);
    pub const CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING: cudaError_enum = cudaError_enum(
        703,
    );
    pub const CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED: cudaError_enum = cudaError_enum(
        704,
    );
    pub const CUDA_ERROR_PEER_ACCESS_NOT_ENABLED: cudaError_enum = cudaError_enum(705);
    pub const CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE: cudaError_enum = cudaError_enum(708);
    pub const CUDA_ERROR_CONTEXT_IS_DESTROYED: cudaError_enum = cudaError_enum(709);
    pub const CUDA_ERROR_ASSERT: cudaError_enum = cudaError_enum(710);
    pub const CUDA_ERROR_TOO_MANY_PEERS: cudaError_enum = cudaError_enum(711);
    pub const CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: cudaError_enum = cudaError_enum(
        712,
    );
    pub const CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED: cudaError_enum = cudaError_enum(
        713,
    );
    pub const CUDA_ERROR_HARDWARE_STACK_ERROR: cudaError_enum = cudaError_enum(714);
    pub const CUDA_ERROR_ILLEGAL_INSTRUCTION: cudaError_enum = cudaError_enum(715);
    pub const CUDA_ERROR_MISALIGNED_ADDRESS: cudaError_enum = cudaError_enum(716);
    pub const CUDA_ERROR_INVALID_ADDRESS_SPACE: cudaError_enum = cudaError_enum(717);
    pub const CUDA_ERROR_INVALID_PC: cudaError_enum = cudaError_enum(718);
    pub const CUDA_ERROR_LAUNCH_FAILED: cudaError_enum = cudaError_enum(719);
    pub const CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: cudaError_enum = cudaError_enum(
        720,
    );
    pub const CUDA_ERROR_TENSOR_MEMORY_LEAK: cudaError_enum = cudaError_enum(721);
    pub const CUDA_ERROR_NOT_PERMITTED: cudaError_enum = cudaError_enum(800);
    pub const CUDA_ERROR_NOT_SUPPORTED: cudaError_enum = cudaError_enum(801);
    pub const CUDA_ERROR_SYSTEM_NOT_READY: cudaError_enum = cudaError_enum(802);
    pub const CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: cudaError_enum = cudaError_enum(803);
    pub const CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: cudaError_enum = cudaError_enum(
        804,
    );
    pub const CUDA_ERROR_MPS_CONNECTION_FAILED: cudaError_enum = cudaError_enum(805);
    pub const CUDA_ERROR_MPS_RPC_FAILURE: cudaError_enum = cudaError_enum(806);
    pub const CUDA_ERROR_MPS_SERVER_NOT_READY: cudaError_enum = cudaError_enum(807);
    pub const CUDA_ERROR_MPS_MAX_CLIENTS_REACHED: cudaError_enum = cudaError_enum(808);
    pub const CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED: cudaError_enum = cudaError_enum(
        809,
    );
    pub const CUDA_ERROR_MPS_CLIENT_TERMINATED: cudaError_enum = cudaError_enum(810);
    pub const CUDA_ERROR_CDP_NOT_SUPPORTED: cudaError_enum = cudaError_enum(811);
    pub const CUDA_ERROR_CDP_VERSION_MISMATCH: cudaError_enum = cudaError_enum(812);
    pub const CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: cudaError_enum = cudaError_enum(
        900,
    );
    pub const CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: cudaError_enum = cudaError_enum(
        901,
    );
    pub const CUDA_ERROR_STREAM_CAPTURE_MERGE: cudaError_enum = cudaError_enum(902);
    pub const CUDA_ERROR_STREAM_CAPTURE_UNMATCHED: cudaError_enum = cudaError_enum(903);
    pub const CUDA_ERROR_STREAM_CAPTURE_UNJOINED: cudaError_enum = cudaError_enum(904);
    pub const CUDA_ERROR_STREAM_CAPTURE_ISOLATION: cudaError_enum = cudaError_enum(905);
    pub const CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: cudaError_enum = cudaError_enum(906);
    pub const CUDA_ERROR_CAPTURED_EVENT: cudaError_enum = cudaError_enum(907);
    pub const CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: cudaError_enum = cudaError_enum(
        908,
    );
    pub const CUDA_ERROR_TIMEOUT: cudaError_enum = cudaError_enum(909);
    pub const CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE: cudaError_enum = cudaError_enum(910);
    pub const CUDA_ERROR_EXTERNAL_DEVICE: cudaError_enum = cudaError_enum(911);
    pub const CUDA_ERROR_INVALID_CLUSTER_SIZE: cudaError_enum = cudaError_enum(912);
    pub const CUDA_ERROR_FUNCTION_NOT_LOADED: cudaError_enum = cudaError_enum(913);
    pub const CUDA_ERROR_INVALID_RESOURCE_TYPE: cudaError_enum = cudaError_enum(914);
    pub const CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION: cudaError_enum = cudaError_enum(
        915,
    );
    pub const CUDA_ERROR_KEY_ROTATION: cudaError_enum = cudaError_enum(916);
    pub const CUDA_ERROR_UNKNOWN: cudaError_enum = cudaError_enum(999);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaError_enum(pub ::std::os::raw::c_uint);
pub use self::cudaError_enum as CUresult;
pub type CUmemGenericAllocationHandle_v1 = ::std::os::raw::c_ulonglong;
pub type CUmemGenericAllocationHandle = CUmemGenericAllocationHandle_v1;
impl CUmemAllocationHandleType_enum {
    pub const CU_MEM_HANDLE_TYPE_NONE: CUmemAllocationHandleType_enum = CUmemAllocationHandleType_enum(
        0,
    );
    pub const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: CUmemAllocationHandleType_enum = CUmemAllocationHandleType_enum(
        1,
    );
    pub const CU_MEM_HANDLE_TYPE_WIN32: CUmemAllocationHandleType_enum = CUmemAllocationHandleType_enum(
        2,
    );
    pub const CU_MEM_HANDLE_TYPE_WIN32_KMT: CUmemAllocationHandleType_enum = CUmemAllocationHandleType_enum(
        4,
    );
    pub const CU_MEM_HANDLE_TYPE_FABRIC: CUmemAllocationHandleType_enum = CUmemAllocationHandleType_enum(
        8,
    );
    pub const CU_MEM_HANDLE_TYPE_MAX: CUmemAllocationHandleType_enum = CUmemAllocationHandleType_enum(
        2147483647,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUmemAllocationHandleType_enum(pub ::std::os::raw::c_uint);
pub use self::CUmemAllocationHandleType_enum as CUmemAllocationHandleType;
impl CUmemAccess_flags_enum {
    pub const CU_MEM_ACCESS_FLAGS_PROT_NONE: CUmemAccess_flags_enum = CUmemAccess_flags_enum(
        0,
    );
    pub const CU_MEM_ACCESS_FLAGS_PROT_READ: CUmemAccess_flags_enum = CUmemAccess_flags_enum(
        1,
    );
    pub const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: CUmemAccess_flags_enum = CUmemAccess_flags_enum(
        3,
    );
    pub const CU_MEM_ACCESS_FLAGS_PROT_MAX: CUmemAccess_flags_enum = CUmemAccess_flags_enum(
        2147483647,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUmemAccess_flags_enum(pub ::std::os::raw::c_uint);
pub use self::CUmemAccess_flags_enum as CUmemAccess_flags;
impl CUmemLocationType_enum {
    pub const CU_MEM_LOCATION_TYPE_INVALID: CUmemLocationType_enum = CUmemLocationType_enum(
        0,
    );
    pub const CU_MEM_LOCATION_TYPE_NONE: CUmemLocationType_enum = CUmemLocationType_enum(
        0,
    );
    pub const CU_MEM_LOCATION_TYPE_DEVICE: CUmemLocationType_enum = CUmemLocationType_enum(
        1,
    );
    pub const CU_MEM_LOCATION_TYPE_HOST: CUmemLocationType_enum = CUmemLocationType_enum(
        2,
    );
    pub const CU_MEM_LOCATION_TYPE_HOST_NUMA: CUmemLocationType_enum = CUmemLocationType_enum(
        3,
    );
    pub const CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: CUmemLocationType_enum = CUmemLocationType_enum(
        4,
    );
    pub const CU_MEM_LOCATION_TYPE_MAX: CUmemLocationType_enum = CUmemLocationType_enum(
        2147483647,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUmemLocationType_enum(pub ::std::os::raw::c_uint);
pub use self::CUmemLocationType_enum as CUmemLocationType;
impl CUmemAllocationType_enum {
    pub const CU_MEM_ALLOCATION_TYPE_INVALID: CUmemAllocationType_enum = CUmemAllocationType_enum(
        0,
    );
    pub const CU_MEM_ALLOCATION_TYPE_PINNED: CUmemAllocationType_enum = CUmemAllocationType_enum(
        1,
    );
    pub const CU_MEM_ALLOCATION_TYPE_MANAGED: CUmemAllocationType_enum = CUmemAllocationType_enum(
        2,
    );
    pub const CU_MEM_ALLOCATION_TYPE_MAX: CUmemAllocationType_enum = CUmemAllocationType_enum(
        2147483647,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUmemAllocationType_enum(pub ::std::os::raw::c_uint);
pub use self::CUmemAllocationType_enum as CUmemAllocationType;
impl CUmemAllocationGranularity_flags_enum {
    pub const CU_MEM_ALLOC_GRANULARITY_MINIMUM: CUmemAllocationGranularity_flags_enum = CUmemAllocationGranularity_flags_enum(
        0,
    );
    pub const CU_MEM_ALLOC_GRANULARITY_RECOMMENDED: CUmemAllocationGranularity_flags_enum = CUmemAllocationGranularity_flags_enum(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUmemAllocationGranularity_flags_enum(pub ::std::os::raw::c_uint);
pub use self::CUmemAllocationGranularity_flags_enum as CUmemAllocationGranularity_flags;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUmemLocation_st {
    pub type_: CUmemLocationType,
    pub id: ::std::os::raw::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUmemLocation_st"][::std::mem::size_of::<CUmemLocation_st>() - 8usize];
    [
        "Alignment of CUmemLocation_st",
    ][::std::mem::align_of::<CUmemLocation_st>() - 4usize];
    [
        "Offset of field: CUmemLocation_st::type_",
    ][::std::mem::offset_of!(CUmemLocation_st, type_) - 0usize];
    [
        "Offset of field: CUmemLocation_st::id",
    ][::std::mem::offset_of!(CUmemLocation_st, id) - 4usize];
};
impl Default for CUmemLocation_st {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type CUmemLocation_v1 = CUmemLocation_st;
pub type CUmemLocation = CUmemLocation_v1;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUmemAllocationProp_st {
    pub type_: CUmemAllocationType,
    pub requestedHandleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32HandleMetaData: *mut ::std::os::raw::c_void,
    pub allocFlags: CUmemAllocationProp_st__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct CUmemAllocationProp_st__bindgen_ty_1 {
    pub compressionType: ::std::os::raw::c_uchar,
    pub gpuDirectRDMACapable: ::std::os::raw::c_uchar,
    pub usage: ::std::os::raw::c_ushort,
    pub reserved: [::std::os::raw::c_uchar; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of CUmemAllocationProp_st__bindgen_ty_1",
    ][::std::mem::size_of::<CUmemAllocationProp_st__bindgen_ty_1>() - 8usize];
    [
        "Alignment of CUmemAllocationProp_st__bindgen_ty_1",
    ][::std::mem::align_of::<CUmemAllocationProp_st__bindgen_ty_1>() - 2usize];
    [
        "Offset of field: CUmemAllocationProp_st__bindgen_ty_1::compressionType",
    ][::std::mem::offset_of!(CUmemAllocationProp_st__bindgen_ty_1, compressionType)
        - 0usize];
    [
        "Offset of field: CUmemAllocationProp_st__bindgen_ty_1::gpuDirectRDMACapable",
    ][::std::mem::offset_of!(CUmemAllocationProp_st__bindgen_ty_1, gpuDirectRDMACapable)
        - 1usize];
    [
        "Offset of field: CUmemAllocationProp_st__bindgen_ty_1::usage",
    ][::std::mem::offset_of!(CUmemAllocationProp_st__bindgen_ty_1, usage) - 2usize];
    [
        "Offset of field: CUmemAllocationProp_st__bindgen_ty_1::reserved",
    ][::std::mem::offset_of!(CUmemAllocationProp_st__bindgen_ty_1, reserved) - 4usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of CUmemAllocationProp_st",
    ][::std::mem::size_of::<CUmemAllocationProp_st>() - 32usize];
    [
        "Alignment of CUmemAllocationProp_st",
    ][::std::mem::align_of::<CUmemAllocationProp_st>() - 8usize];
    [
        "Offset of field: CUmemAllocationProp_st::type_",
    ][::std::mem::offset_of!(CUmemAllocationProp_st, type_) - 0usize];
    [
        "Offset of field: CUmemAllocationProp_st::requestedHandleTypes",
    ][::std::mem::offset_of!(CUmemAllocationProp_st, requestedHandleTypes) - 4usize];
    [
        "Offset of field: CUmemAllocationProp_st::location",
    ][::std::mem::offset_of!(CUmemAllocationProp_st, location) - 8usize];
    [
        "Offset of field: CUmemAllocationProp_st::win32HandleMetaData",
    ][::std::mem::offset_of!(CUmemAllocationProp_st, win32HandleMetaData) - 16usize];
    [
        "Offset of field: CUmemAllocationProp_st::allocFlags",
    ][::std::mem::offset_of!(CUmemAllocationProp_st, allocFlags) - 24usize];
};
impl Default for CUmemAllocationProp_st {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type CUmemAllocationProp_v1 = CUmemAllocationProp_st;
pub type CUmemAllocationProp = CUmemAllocationProp_v1;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUmemAccessDesc_st {
    pub location: CUmemLocation,
    pub flags: CUmemAccess_flags,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of CUmemAccessDesc_st",
    ][::std::mem::size_of::<CUmemAccessDesc_st>() - 12usize];
    [
        "Alignment of CUmemAccessDesc_st",
    ][::std::mem::align_of::<CUmemAccessDesc_st>() - 4usize];
    [
        "Offset of field: CUmemAccessDesc_st::location",
    ][::std::mem::offset_of!(CUmemAccessDesc_st, location) - 0usize];
    [
        "Offset of field: CUmemAccessDesc_st::flags",
    ][::std::mem::offset_of!(CUmemAccessDesc_st, flags) - 8usize];
};
impl Default for CUmemAccessDesc_st {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type CUmemAccessDesc_v1 = CUmemAccessDesc_st;
pub type CUmemAccessDesc = CUmemAccessDesc_v1;
pub type PFN_cuGetErrorName_v6000 = ::std::option::Option<
    unsafe extern "C" fn(
        error: CUresult,
        pStr: *mut *const ::std::os::raw::c_char,
    ) -> CUresult,
>;
pub type PFN_cuCtxGetCurrent_v4000 = ::std::option::Option<
    unsafe extern "C" fn(pctx: *mut CUcontext) -> CUresult,
>;
pub type PFN_cuCtxGetDevice_v2000 = ::std::option::Option<
    unsafe extern "C" fn(device: *mut CUdevice_v1) -> CUresult,
>;
pub type PFN_cuMemGetAddressRange_v3020 = ::std::option::Option<
    unsafe extern "C" fn(
        pbase: *mut CUdeviceptr_v2,
        psize: *mut usize,
        dptr: CUdeviceptr_v2,
    ) -> CUresult,
>;
pub type PFN_cuMemAddressReserve_v10020 = ::std::option::Option<
    unsafe extern "C" fn(
        ptr: *mut CUdeviceptr_v2,
        size: usize,
        alignment: usize,
        addr: CUdeviceptr_v2,
        flags: ::std::os::raw::c_ulonglong,
    ) -> CUresult,
>;
pub type PFN_cuMemAddressFree_v10020 = ::std::option::Option<
    unsafe extern "C" fn(ptr: CUdeviceptr_v2, size: usize) -> CUresult,
>;
pub type PFN_cuMemCreate_v10020 = ::std::option::Option<
    unsafe extern "C" fn(
        handle: *mut CUmemGenericAllocationHandle_v1,
        size: usize,
        prop: *const CUmemAllocationProp_v1,
        flags: ::std::os::raw::c_ulonglong,
    ) -> CUresult,
>;
pub type PFN_cuMemRelease_v10020 = ::std::option::Option<
    unsafe extern "C" fn(handle: CUmemGenericAllocationHandle_v1) -> CUresult,
>;
pub type PFN_cuMemMap_v10020 = ::std::option::Option<
    unsafe extern "C" fn(
        ptr: CUdeviceptr_v2,
        size: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle_v1,
        flags: ::std::os::raw::c_ulonglong,
    ) -> CUresult,
>;
pub type PFN_cuMemUnmap_v10020 = ::std::option::Option<
    unsafe extern "C" fn(ptr: CUdeviceptr_v2, size: usize) -> CUresult,
>;
pub type PFN_cuMemSetAccess_v10020 = ::std::option::Option<
    unsafe extern "C" fn(
        ptr: CUdeviceptr_v2,
        size: usize,
        desc: *const CUmemAccessDesc_v1,
        count: usize,
    ) -> CUresult,
>;
pub type PFN_cuMemGetAllocationGranularity_v10020 = ::std::option::Option<
    unsafe extern "C" fn(
        granularity: *mut usize,
        prop: *const CUmemAllocationProp_v1,
        option: CUmemAllocationGranularity_flags,
    ) -> CUresult,
>;
pub type PFN_cuMemRetainAllocationHandle_v11000 = ::std::option::Option<
    unsafe extern "C" fn(
        handle: *mut CUmemGenericAllocationHandle_v1,
        addr: *mut ::std::os::raw::c_void,
    ) -> CUresult,
>;
unsafe extern "C" {
    pub fn cudaDeviceReset() -> cudaError_t;
    pub fn cudaDeviceSynchronize() -> cudaError_t;
    pub fn cudaDeviceGetStreamPriorityRange(
        leastPriority: *mut ::std::os::raw::c_int,
        greatestPriority: *mut ::std::os::raw::c_int,
    ) -> cudaError_t;
    pub fn cudaIpcGetMemHandle(
        handle: *mut cudaIpcMemHandle_t,
        devPtr: *mut ::std::os::raw::c_void,
    ) -> cudaError_t;
    pub fn cudaGetLastError() -> cudaError_t;
    pub fn cudaPeekAtLastError() -> cudaError_t;
    pub fn cudaGetErrorName(error: cudaError_t) -> *const ::std::os::raw::c_char;
    pub fn cudaGetErrorString(error: cudaError_t) -> *const ::std::os::raw::c_char;
    pub fn cudaGetDeviceCount(count: *mut ::std::os::raw::c_int) -> cudaError_t;
    pub fn cudaGetDeviceProperties(
        prop: *mut cudaDeviceProp,
        device: ::std::os::raw::c_int,
    ) -> cudaError_t;
    pub fn cudaDeviceGetAttribute(
        value: *mut ::std::os::raw::c_int,
        attr: cudaDeviceAttr,
        device: ::std::os::raw::c_int,
    ) -> cudaError_t;
    pub fn cudaDeviceGetDefaultMemPool(
        memPool: *mut cudaMemPool_t,
        device: ::std::os::raw::c_int,
    ) -> cudaError_t;
    pub fn cudaDeviceSetMemPool(
        device: ::std::os::raw::c_int,
        memPool: cudaMemPool_t,
    ) -> cudaError_t;
    pub fn cudaDeviceGetMemPool(
        memPool: *mut cudaMemPool_t,
        device: ::std::os::raw::c_int,
    ) -> cudaError_t;
    pub fn cudaInitDevice(
        device: ::std::os::raw::c_int,
        deviceFlags: ::std::os::raw::c_uint,
        flags: ::std::os::raw::c_uint,
    ) -> cudaError_t;
    pub fn cudaSetDevice(device: ::std::os::raw::c_int) -> cudaError_t;
    pub fn cudaGetDevice(device: *mut ::std::os::raw::c_int) -> cudaError_t;
    pub fn cudaStreamCreate(pStream: *mut cudaStream_t) -> cudaError_t;
    pub fn cudaStreamCreateWithFlags(
        pStream: *mut cudaStream_t,
        flags: ::std::os::raw::c_uint,
    ) -> cudaError_t;
    pub fn cudaStreamCreateWithPriority(
        pStream: *mut cudaStream_t,
        flags: ::std::os::raw::c_uint,
        priority: ::std::os::raw::c_int,
    ) -> cudaError_t;
    pub fn cudaStreamGetPriority(
        hStream: cudaStream_t,
        priority: *mut ::std::os::raw::c_int,
    ) -> cudaError_t;
    pub fn cudaStreamGetFlags(
        hStream: cudaStream_t,
        flags: *mut ::std::os::raw::c_uint,
    ) -> cudaError_t;
    pub fn cudaStreamGetId(
        hStream: cudaStream_t,
        streamId: *mut ::std::os::raw::c_ulonglong,
    ) -> cudaError_t;
    pub fn cudaStreamGetDevice(
        hStream: cudaStream_t,
        device: *mut ::std::os::raw::c_int,
    ) -> cudaError_t;
    pub fn cudaStreamDestroy(stream: cudaStream_t) -> cudaError_t;
    pub fn cudaStreamWaitEvent(
        stream: cudaStream_t,
        event: cudaEvent_t,
        flags: ::std::os::raw::c_uint,
    ) -> cudaError_t;
    pub fn cudaStreamSynchronize(stream: cudaStream_t) -> cudaError_t;
    pub fn cudaStreamQuery(stream: cudaStream_t) -> cudaError_t;
    pub fn cudaStreamBeginCapture(
        stream: cudaStream_t,
        mode: cudaStreamCaptureMode,
    ) -> cudaError_t;
    pub fn cudaThreadExchangeStreamCaptureMode(
        mode: *mut cudaStreamCaptureMode,
    ) -> cudaError_t;
    pub fn cudaStreamEndCapture(
        stream: cudaStream_t,
        pGraph: *mut cudaGraph_t,
    ) -> cudaError_t;
    pub fn cudaStreamIsCapturing(
        stream: cudaStream_t,
        pCaptureStatus: *mut cudaStreamCaptureStatus,
    ) -> cudaError_t;
    pub fn cudaStreamGetCaptureInfo(
        stream: cudaStream_t,
        captureStatus_out: *mut cudaStreamCaptureStatus,
        id_out: *mut ::std::os::raw::c_ulonglong,
        graph_out: *mut cudaGraph_t,
        dependencies_out: *mut *const cudaGraphNode_t,
        edgeData_out: *mut *const cudaGraphEdgeData,
        numDependencies_out: *mut usize,
    ) -> cudaError_t;
    pub fn cudaEventCreate(event: *mut cudaEvent_t) -> cudaError_t;
    pub fn cudaEventCreateWithFlags(
        event: *mut cudaEvent_t,
        flags: ::std::os::raw::c_uint,
    ) -> cudaError_t;
    pub fn cudaEventRecord(event: cudaEvent_t, stream: cudaStream_t) -> cudaError_t;
    pub fn cudaEventQuery(event: cudaEvent_t) -> cudaError_t;
    pub fn cudaEventSynchronize(event: cudaEvent_t) -> cudaError_t;
    pub fn cudaEventDestroy(event: cudaEvent_t) -> cudaError_t;
    pub fn cudaEventElapsedTime(
        ms: *mut f32,
        start: cudaEvent_t,
        end: cudaEvent_t,
    ) -> cudaError_t;
    pub fn cudaLaunchHostFunc(
        stream: cudaStream_t,
        fn_: cudaHostFn_t,
        userData: *mut ::std::os::raw::c_void,
    ) -> cudaError_t;
    pub fn cudaMalloc(
        devPtr: *mut *mut ::std::os::raw::c_void,
        size: usize,
    ) -> cudaError_t;
    pub fn cudaMallocHost(
        ptr: *mut *mut ::std::os::raw::c_void,
        size: usize,
    ) -> cudaError_t;
    pub fn cudaFree(devPtr: *mut ::std::os::raw::c_void) -> cudaError_t;
    pub fn cudaFreeHost(ptr: *mut ::std::os::raw::c_void) -> cudaError_t;
    pub fn cudaHostAlloc(
        pHost: *mut *mut ::std::os::raw::c_void,
        size: usize,
        flags: ::std::os::raw::c_uint,
    ) -> cudaError_t;
    pub fn cudaHostRegister(
        ptr: *mut ::std::os::raw::c_void,
        size: usize,
        flags: ::std::os::raw::c_uint,
    ) -> cudaError_t;
    pub fn cudaHostUnregister(ptr: *mut ::std::os::raw::c_void) -> cudaError_t;
    pub fn cudaHostGetDevicePointer(
        pDevice: *mut *mut ::std::os::raw::c_void,
        pHost: *mut ::std::os::raw::c_void,
        flags: ::std::os::raw::c_uint,
    ) -> cudaError_t;
    pub fn cudaHostGetFlags(
        pFlags: *mut ::std::os::raw::c_uint,
        pHost: *mut ::std::os::raw::c_void,
    ) -> cudaError_t;
    pub fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> cudaError_t;
    pub fn cudaMemcpy(
        dst: *mut ::std::os::raw::c_void,
        src: *const ::std::os::raw::c_void,
        count: usize,
        kind: cudaMemcpyKind,
    ) -> cudaError_t;
    pub fn cudaMemcpy2D(
        dst: *mut ::std::os::raw::c_void,
        dpitch: usize,
        src: *const ::std::os::raw::c_void,
        spitch: usize,
        width: usize,
        height: usize,
        kind: cudaMemcpyKind,
    ) -> cudaError_t;
    pub fn cudaMemcpyAsync(
        dst: *mut ::std::os::raw::c_void,
        src: *const ::std::os::raw::c_void,
        count: usize,
        kind: cudaMemcpyKind,
        stream: cudaStream_t,
    ) -> cudaError_t;
    pub fn cudaMemcpyPeerAsync(
        dst: *mut ::std::os::raw::c_void,
        dstDevice: ::std::os::raw::c_int,
        src: *const ::std::os::raw::c_void,
        srcDevice: ::std::os::raw::c_int,
        count: usize,
        stream: cudaStream_t,
    ) -> cudaError_t;
    pub fn cudaMemcpy2DAsync(
        dst: *mut ::std::os::raw::c_void,
        dpitch: usize,
        src: *const ::std::os::raw::c_void,
        spitch: usize,
        width: usize,
        height: usize,
        kind: cudaMemcpyKind,
        stream: cudaStream_t,
    ) -> cudaError_t;
    pub fn cudaMemset(
        devPtr: *mut ::std::os::raw::c_void,
        value: ::std::os::raw::c_int,
        count: usize,
    ) -> cudaError_t;
    pub fn cudaMemsetAsync(
        devPtr: *mut ::std::os::raw::c_void,
        value: ::std::os::raw::c_int,
        count: usize,
        stream: cudaStream_t,
    ) -> cudaError_t;
    pub fn cudaMemset2DAsync(
        devPtr: *mut ::std::os::raw::c_void,
        pitch: usize,
        value: ::std::os::raw::c_int,
        width: usize,
        height: usize,
        stream: cudaStream_t,
    ) -> cudaError_t;
    pub fn cudaMallocAsync(
        devPtr: *mut *mut ::std::os::raw::c_void,
        size: usize,
        hStream: cudaStream_t,
    ) -> cudaError_t;
    pub fn cudaFreeAsync(
        devPtr: *mut ::std::os::raw::c_void,
        hStream: cudaStream_t,
    ) -> cudaError_t;
    pub fn cudaMemPoolTrimTo(
        memPool: cudaMemPool_t,
        minBytesToKeep: usize,
    ) -> cudaError_t;
    pub fn cudaMemPoolSetAttribute(
        memPool: cudaMemPool_t,
        attr: cudaMemPoolAttr,
        value: *mut ::std::os::raw::c_void,
    ) -> cudaError_t;
    pub fn cudaMemPoolGetAttribute(
        memPool: cudaMemPool_t,
        attr: cudaMemPoolAttr,
        value: *mut ::std::os::raw::c_void,
    ) -> cudaError_t;
    pub fn cudaMemPoolSetAccess(
        memPool: cudaMemPool_t,
        descList: *const cudaMemAccessDesc,
        count: usize,
    ) -> cudaError_t;
    pub fn cudaMemPoolGetAccess(
        flags: *mut cudaMemAccessFlags,
        memPool: cudaMemPool_t,
        location: *mut cudaMemLocation,
    ) -> cudaError_t;
    pub fn cudaMemPoolCreate(
        memPool: *mut cudaMemPool_t,
        poolProps: *const cudaMemPoolProps,
    ) -> cudaError_t;
    pub fn cudaMemPoolDestroy(memPool: cudaMemPool_t) -> cudaError_t;
    pub fn cudaMallocFromPoolAsync(
        ptr: *mut *mut ::std::os::raw::c_void,
        size: usize,
        memPool: cudaMemPool_t,
        stream: cudaStream_t,
    ) -> cudaError_t;
    pub fn cudaPointerGetAttributes(
        attributes: *mut cudaPointerAttributes,
        ptr: *const ::std::os::raw::c_void,
    ) -> cudaError_t;
    pub fn cudaDeviceCanAccessPeer(
        canAccessPeer: *mut ::std::os::raw::c_int,
        device: ::std::os::raw::c_int,
        peerDevice: ::std::os::raw::c_int,
    ) -> cudaError_t;
    pub fn cudaDeviceEnablePeerAccess(
        peerDevice: ::std::os::raw::c_int,
        flags: ::std::os::raw::c_uint,
    ) -> cudaError_t;
    pub fn cudaDeviceDisablePeerAccess(peerDevice: ::std::os::raw::c_int) -> cudaError_t;
    pub fn cudaDriverGetVersion(
        driverVersion: *mut ::std::os::raw::c_int,
    ) -> cudaError_t;
    pub fn cudaRuntimeGetVersion(
        runtimeVersion: *mut ::std::os::raw::c_int,
    ) -> cudaError_t;
    pub fn cudaGraphInstantiate(
        pGraphExec: *mut cudaGraphExec_t,
        graph: cudaGraph_t,
        flags: ::std::os::raw::c_ulonglong,
    ) -> cudaError_t;
    pub fn cudaGraphLaunch(
        graphExec: cudaGraphExec_t,
        stream: cudaStream_t,
    ) -> cudaError_t;
    pub fn cudaGraphExecDestroy(graphExec: cudaGraphExec_t) -> cudaError_t;
    pub fn cudaGraphDestroy(graph: cudaGraph_t) -> cudaError_t;
    pub fn cudaUserObjectCreate(
        object_out: *mut cudaUserObject_t,
        ptr: *mut ::std::os::raw::c_void,
        destroy: cudaHostFn_t,
        initialRefcount: ::std::os::raw::c_uint,
        flags: ::std::os::raw::c_uint,
    ) -> cudaError_t;
    pub fn cudaUserObjectRelease(
        object: cudaUserObject_t,
        count: ::std::os::raw::c_uint,
    ) -> cudaError_t;
    pub fn cudaGraphRetainUserObject(
        graph: cudaGraph_t,
        object: cudaUserObject_t,
        count: ::std::os::raw::c_uint,
        flags: ::std::os::raw::c_uint,
    ) -> cudaError_t;
    pub fn cudaGetDriverEntryPoint(
        symbol: *const ::std::os::raw::c_char,
        funcPtr: *mut *mut ::std::os::raw::c_void,
        flags: ::std::os::raw::c_ulonglong,
        driverStatus: *mut cudaDriverEntryPointQueryResult,
    ) -> cudaError_t;
    pub fn cudaGetDriverEntryPointByVersion(
        symbol: *const ::std::os::raw::c_char,
        funcPtr: *mut *mut ::std::os::raw::c_void,
        cudaVersion: ::std::os::raw::c_uint,
        flags: ::std::os::raw::c_ulonglong,
        driverStatus: *mut cudaDriverEntryPointQueryResult,
    ) -> cudaError_t;
    #[link_name = "make_cudaPitchedPtr__extern"]
    pub fn make_cudaPitchedPtr(
        d: *mut ::std::os::raw::c_void,
        p: usize,
        xsz: usize,
        ysz: usize,
    ) -> cudaPitchedPtr;
    #[link_name = "make_cudaPos__extern"]
    pub fn make_cudaPos(x: usize, y: usize, z: usize) -> cudaPos;
    #[link_name = "make_cudaExtent__extern"]
    pub fn make_cudaExtent(w: usize, h: usize, d: usize) -> cudaExtent;
}
