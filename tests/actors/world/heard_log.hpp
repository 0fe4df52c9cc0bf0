#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "actors/world/log.hpp"

namespace troupe::actors {

/// A log whose sentences a test reads, one after the other.
class HeardLog {
 public:
  explicit HeardLog(LogLevel level = LogLevel::info) {
    LogOptions options;
    options.levels.set_all(level);
    options.sentences = [this](std::string_view sentence) {
      std::lock_guard lock(mutex_);
      text_ += sentence;
      count_ += 1;
    };
    log_ = Log::open(std::move(options)).value();
  }

  Logger of(Subsystem subsystem) const { return {*log_, subsystem}; }
  std::size_t count() const {
    std::lock_guard lock(mutex_);
    return count_;
  }
  std::string text() const {
    std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;  // guards text_ and count_
  std::string text_;
  std::size_t count_ = 0;
  std::unique_ptr<Log> log_;
};

}  // namespace troupe::actors
