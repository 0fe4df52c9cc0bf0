#include "apps/gpt/kernels/blas_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>
#include <type_traits>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

core::Result<BlasLibrary> load_blas_library() {
  std::string name;
  std::string places;
  void* library = nullptr;
  // What is called below is the same in both.
  for (const int version : {CUBLAS_VER_MAJOR, CUBLAS_VER_MAJOR == 13 ? 12 : 13}) {
    name = fmt::format("libcublas.so.{}", version);
    for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/lib/x86_64-linux-gnu/"}) {
      library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library != nullptr) break;
      const char* reason = dlerror();
      places += fmt::format("; {}", reason != nullptr ? reason : "no reason given");
    }
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    return core::fail(
        core::Errc::unavailable,
        "expected cuBLAS ({}), but it cannot be loaded{}; install the CUDA toolkit's libraries, "
        "or name their folder in LD_LIBRARY_PATH",
        name, places);
  }
  std::string missing;
  auto find = [&](auto& function, const char* symbol) {
    void* address = dlsym(library, symbol);
    if (address == nullptr) missing += fmt::format(" {}", symbol);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  BlasLibrary blas;
  find(blas.create, "cublasCreate_v2");
  find(blas.destroy, "cublasDestroy_v2");
  find(blas.set_stream, "cublasSetStream_v2");
  find(blas.set_workspace, "cublasSetWorkspace_v2");
  find(blas.set_math_mode, "cublasSetMathMode");
  find(blas.gemm, "cublasGemmEx");
  if (!missing.empty()) {
    return core::fail(core::Errc::unavailable, "expected functions of cuBLAS in {}, but it lacks{}", name,
                      missing);
  }
  return blas;
}

}  // namespace troupe::apps::gpt
