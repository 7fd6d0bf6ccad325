/* The headers that bindgen reads. `cuda.h` and `cudaTypedefs.h` give the types of the driver's virtual-memory functions,
 * which are reached through cudaGetDriverEntryPoint, never linked. */
#include <cuda_runtime.h>
#include <cuda.h>
#if __has_include(<cudaTypedefs.h>)
#include <cudaTypedefs.h>
#endif
