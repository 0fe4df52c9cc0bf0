#include "apps/troupe/doctor/findings.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>

#include "actors/shell/caf_version.hpp"
#include "actors/world/endpoint.hpp"
#include "actors/world/engine.hpp"
#include "actors/world/environment.hpp"
#include "actors/world/host_identity.hpp"
#include "apps/troupe/host/host_facts.hpp"
#include "core/version.hpp"
#include "gpu/collective/nccl/library.hpp"
#include "gpu/devices.hpp"
#include "posix/host_memory.hpp"

namespace troupe::apps {

using Status = Finding::Status;

const char* name_of(Finding::Status status) noexcept {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::warn:
      return "warn";
    case Status::absent:
      return "absent";
    case Status::broken:
      return "broken";
  }
  return "broken";
}

namespace {

std::string gibibytes(std::uint64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

Finding compiler() {
#ifdef NDEBUG
  const char* mode = "optimised";
#else
  const char* mode = "with assertions";
#endif
#ifdef __clang__
  return {"compiler", Status::ok, fmt::format("clang {}, {}", __clang_version__, mode), ""};
#else
  return {"compiler", Status::ok, fmt::format("GCC {}, {}", __VERSION__, mode), ""};
#endif
}

Finding processor() {
  std::vector<std::string> features;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) features.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) features.emplace_back("fma");
  if (__builtin_cpu_supports("avx512f")) features.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bf16")) features.emplace_back("avx512bf16");
  const std::string value = fmt::format("{} usable cores; {}", usable_cores(), fmt::join(features, " "));
  if (features.empty()) return {"processor", Status::warn, value, "without AVX2 the host kernels are slow"};
  return {"processor", Status::ok, value, ""};
}

Finding kernel() {
  utsname name{};
  ::uname(&name);
  const long pidfd = ::syscall(SYS_pidfd_open, ::getpid(), 0);
  const std::string value = fmt::format("{} {}", name.sysname, name.release);
  if (pidfd < 0)
    return {"kernel", Status::broken, value, "pidfd_open is missing: Linux 5.3 or newer is needed"};
  ::close(static_cast<int>(pidfd));
  return {"kernel", Status::ok, value, ""};
}

Finding memory() {
  const auto facts = posix::memory_facts();
  std::string value =
      fmt::format("{} available of {}", gibibytes(facts.available_bytes), gibibytes(facts.total_bytes));
  if (facts.cgroup_limit_bytes)
    value += fmt::format(", cgroup limit {}", gibibytes(*facts.cgroup_limit_bytes));
  if (facts.available_bytes < (std::uint64_t{1} << 30)) {
    return {"memory", Status::warn, value, "less than 1 GiB is free: use few ranks"};
  }
  return {"memory", Status::ok, value, ""};
}

Finding shared_memory_space() {
  struct statvfs space {};
  if (::statvfs("/dev/shm", &space) != 0 || ::access("/dev/shm", W_OK) != 0) {
    return {"dev_shm", Status::broken, "not writable",
            "mount a tmpfs at /dev/shm (mount -t tmpfs tmpfs /dev/shm)"};
  }
  const std::uint64_t free = std::uint64_t{space.f_bavail} * space.f_frsize;
  const std::string value = gibibytes(free) + " free in /dev/shm";
  if (free < (std::uint64_t{256} << 20)) {
    return {"dev_shm", Status::warn, value,
            "enlarge it (containers: --shm-size), the ranks' staging lives there"};
  }
  return {"dev_shm", Status::ok, value, ""};
}

Finding descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::string value = fmt::format("{} open files", limit.rlim_cur);
  if (limit.rlim_cur < 1024) return {"open_files", Status::warn, value, "raise it: ulimit -n 65536"};
  return {"open_files", Status::ok, value, ""};
}

Finding core_dumps() {
  rlimit limit{};
  ::getrlimit(RLIMIT_CORE, &limit);
  const std::string pattern = posix::first_line("/proc/sys/kernel/core_pattern");
  if (limit.rlim_cur == 0) {
    return {"core_dumps", Status::absent, fmt::format("off (pattern {})", pattern),
            "for a core of a crashed rank: ulimit -c unlimited"};
  }
  return {"core_dumps", Status::ok, fmt::format("pattern {}", pattern), ""};
}

Finding io_uring() {
  // With a null parameter block the call fails in any case; how it fails says whether it is there.
  const long result = ::syscall(SYS_io_uring_setup, 1, nullptr);
  if (result < 0 && (errno == ENOSYS || errno == EPERM)) {
    return {"io_uring", Status::absent, errno == EPERM ? "forbidden here" : "not in this kernel",
            "files are written with threads instead"};
  }
  return {"io_uring", Status::ok, "available", ""};
}

Finding cuda_devices() {
  const auto devices = gpu::list_cuda_devices();
  if (!devices)
    return {"cuda", Status::absent, "in this build, but no GPU can be used", devices.error().message};
  std::vector<std::string> names;
  for (const auto& device : *devices) {
    names.push_back(fmt::format("{}: {}, compute capability {}.{}, {}", device.index, device.name,
                                device.major, device.minor, gibibytes(device.memory_bytes)));
  }
  return {"cuda", Status::ok, fmt::format("in this build; {}", fmt::join(names, "; ")), ""};
}

Finding cuda() {
  if (gpu::is_built_with_cuda()) return cuda_devices();
  const int gpus = actors::visible_gpus(actors::process_variables());
  void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver) ::dlclose(driver);
  if (!driver && gpus == 0) {
    return {"cuda", Status::absent, "not in this build; no GPU and no driver on this machine",
            "training runs on the host device"};
  }
  return {"cuda", Status::warn,
          fmt::format("not in this build; {} GPUs and {} on this machine", gpus,
                      driver ? "a driver" : "no driver library (libcuda.so.1)"),
          "to train on them build with -DTROUPE_CUDA=ON"};
}

Finding nccl() {
  if (!gpu::is_built_with_cuda())
    return {"backend_nccl", Status::absent, "not in this build", "ranks use shared_memory or tcp"};
  const auto library = gpu::open_nccl_library();
  if (!library)
    return {"backend_nccl", Status::absent, "built, but NCCL was not found", library.error().message};
  const auto version = "NCCL " + gpu::nccl_version_text((*library)->capabilities.version);
  const auto& warnings = (*library)->warnings;
  return {"backend_nccl", warnings.empty() ? Status::ok : Status::warn, version,
          fmt::format("{}", fmt::join(warnings, "; "))};
}

Finding blas() {
  void* library = ::dlopen("libopenblas.so.0", RTLD_LAZY | RTLD_LOCAL);
  if (!library)
    return {"openblas", Status::absent, "not found", "the reference trainer needs it: install libopenblas0"};
  using Name = char* (*)();
  const auto core = reinterpret_cast<Name>(::dlsym(library, "openblas_get_corename"));
  const std::string value = core ? fmt::format("kernels for {}", core()) : std::string("kernels unknown");
  ::dlclose(library);
  return {"openblas", Status::ok, value, ""};
}

/// What this process is, if somebody starts it as a rank: `srun troupe doctor` says what each rank would see.
Finding place_in_job() {
  const auto found = actors::detect_environment(actors::process_variables());
  if (!found) return {"rank", Status::broken, "cannot be told", found.error().message};
  const auto& environment = *found;
  const auto host = actors::host_identity().name;
  if (environment.world.value == 1)
    return {"rank", Status::ok, fmt::format("0 of 1 on {}, launcher: {}", host, environment.launcher), ""};
  const actors::Endpoint where{environment.control_host, environment.control_port};
  const auto facts = actors::engine_facts(actors::process_variables());
  const bool knows_hosts = !facts.local_source.empty();
  return {
      "rank", knows_hosts ? Status::ok : Status::warn,
      fmt::format("{} of {}, local rank {} of {} on {}, launcher: {}, start {}, {} at {}",
                  environment.rank.value, environment.world.value, environment.local_rank,
                  environment.local_world, host, environment.launcher, environment.epoch.value,
                  facts.agent_key.empty() ? "rank 0" : "torchrun's store", to_string(where)),
      knows_hosts ? "" : "no variable says which ranks share a host; LOCAL_RANK and LOCAL_WORLD_SIZE would"};
}

}  // namespace

std::vector<Finding> examine() {
  return {{"troupe", Status::ok, core::kVersion, ""},
          place_in_job(),
          compiler(),
          {"caf", Status::ok, actors::caf_version(), ""},
          kernel(),
          processor(),
          memory(),
          shared_memory_space(),
          descriptors(),
          core_dumps(),
          io_uring(),
          blas(),
          cuda(),
          {"backend_simulated", Status::ok, "built", ""},
          {"backend_shared_memory", Status::ok, "built", ""},
          {"backend_tcp", Status::ok, "built", ""},
          nccl()};
}

}  // namespace troupe::apps
