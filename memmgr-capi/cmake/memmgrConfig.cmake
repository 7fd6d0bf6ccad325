# find_package(memmgr) gives memmgr::memmgr (shared) and, where it was installed, memmgr::memmgr_static.
get_filename_component(_memmgr_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET memmgr::memmgr)
  add_library(memmgr::memmgr SHARED IMPORTED)
  set_target_properties(memmgr::memmgr PROPERTIES
    IMPORTED_LOCATION "${_memmgr_prefix}/lib/libmemmgr.so"
    IMPORTED_SONAME "libmemmgr.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_memmgr_prefix}/include")
endif()
if(NOT TARGET memmgr::memmgr_static AND EXISTS "${_memmgr_prefix}/lib/libmemmgr.a")
  add_library(memmgr::memmgr_static STATIC IMPORTED)
  set_target_properties(memmgr::memmgr_static PROPERTIES
    IMPORTED_LOCATION "${_memmgr_prefix}/lib/libmemmgr.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_memmgr_prefix}/include"
    INTERFACE_LINK_LIBRARIES "stdc++;pthread;dl;rt;m")
endif()
unset(_memmgr_prefix)
