#pragma once

#include <filesystem>
#include <string>

#include "gpu/collective/group.hpp"

namespace troupe::gpu {

/// Rendezvous of processes that share a directory: one file per key, written under a temporary name and then
/// renamed, so that a reader sees the complete value or none. The caller creates and removes the directory.
class FileRendezvous final : public Rendezvous {
 public:
  explicit FileRendezvous(std::filesystem::path directory) : directory_(std::move(directory)) {}

  core::Result<void> set(const std::string& key, const std::string& value) override;
  core::Result<std::string> get(const std::string& key, std::chrono::nanoseconds deadline) override;

 private:
  std::filesystem::path file_of(const std::string& key) const;

  std::filesystem::path directory_;
};

}  // namespace troupe::gpu
