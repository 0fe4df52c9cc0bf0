#pragma once

#include <string>
#include <string_view>

namespace troupe::core {

/// Tells an attached profiler what the calling thread does: ranges, which nest within a subsystem and a
/// thread. Thread-safe.
class Profiler {
 public:
  virtual ~Profiler() = default;

  /// `subsystem`, for example "conductor" or "collectives", groups ranges in the profiler's view.
  virtual void begin(std::string_view subsystem, const std::string& name) = 0;
  /// Ends the range that this thread most recently began in the subsystem.
  virtual void end(std::string_view subsystem) = 0;
};

/// A range that lasts as long as the scope; does nothing if `profiler` is null. `subsystem` must outlive it.
class ProfiledScope {
 public:
  ProfiledScope(Profiler* profiler, std::string_view subsystem, std::string_view name)
      : profiler_(profiler), subsystem_(subsystem) {
    if (profiler_) profiler_->begin(subsystem_, std::string(name));
  }
  ~ProfiledScope() {
    if (profiler_) profiler_->end(subsystem_);
  }
  ProfiledScope(const ProfiledScope&) = delete;
  ProfiledScope& operator=(const ProfiledScope&) = delete;

 private:
  Profiler* profiler_;
  std::string_view subsystem_;
};

}  // namespace troupe::core
